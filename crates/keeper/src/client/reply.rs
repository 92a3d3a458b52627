//! Replies, as they become what callers get.

use std::{collections::HashMap, os::fd::OwnedFd};

use process::ZygoteFacts;
use sandbox::ProcessIdentity;
use tokio::sync::oneshot;

use crate::protocol::{Adopted, Built, BuiltOrRefused, Created, Forked, ForkedCommand, Refusal, Released, Status};

/// Resolves when a process ends; fails if the keeper dies first.
pub type Ended = oneshot::Receiver<Status>;

/// A process that runs, or a parked copy.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub process: ProcessIdentity,
    /// Its pid inside of the sandbox, of a program that was spawned.
    pub inside: i32,
    /// Its pidfd, of a program that was spawned. Opened before the process could be reaped.
    pub pidfd: Option<OwnedFd>,
    /// Resolves at its end.
    pub ended: Ended,
    /// The commands of a copy that was not parked.
    pub commands: Vec<SpawnedCommand>,
}

/// A command that a copy has beside its program.
#[derive(Debug)]
pub struct SpawnedCommand {
    /// Its place among those of its zygote.
    pub place: u32,
    /// Its pid inside of the sandbox.
    pub inside: i32,
    /// The process.
    pub process: ProcessIdentity,
    /// Its pidfd, opened before the process could be reaped.
    pub pidfd: OwnedFd,
    /// Resolves at its end.
    pub ended: Ended,
}

/// A zygote that waits for starts.
#[derive(Debug)]
pub struct NewZygote {
    /// What is known of it.
    pub facts: ZygoteFacts,
    /// How long the program stood still, in microseconds.
    pub pause_us: u64,
    /// How long the capture took, in microseconds.
    pub capture_us: u64,
    /// How long building the zygote took, in microseconds.
    pub build_us: u64,
    /// The description of the program, or the userfaultfd of a restored zygote; see [`Built`].
    pub file: Option<OwnedFd>,
}

/// A reply, as it becomes what the caller gets.
pub trait Reply {
    /// What the caller gets.
    type Output: Send + 'static;
    /// Joins the reply with its files and with the ends of its processes.
    fn join(self, files: Vec<OwnedFd>, ends: &mut Ends) -> Self::Output;
}

macro_rules! as_it_is {
    ($($reply:ty)*) => {
        $(impl Reply for $reply {
            type Output = Self;
            fn join(self, _files: Vec<OwnedFd>, _ends: &mut Ends) -> Self {
                self
            }
        })*
    };
}
as_it_is!(() Created Adopted);

impl Reply for Forked {
    type Output = Spawned;
    fn join(self, files: Vec<OwnedFd>, ends: &mut Ends) -> Spawned {
        let Self { process, inside, commands } = self;
        let ended = ends.expect(process.pid);
        if inside != 0 {
            return Spawned { process, inside, pidfd: files.into_iter().next(), ended, commands: Vec::new() };
        }
        Spawned { process, inside, pidfd: None, ended, commands: join_commands(commands, files, ends) }
    }
}

impl Reply for Released {
    type Output = Continued;
    fn join(self, mut files: Vec<OwnedFd>, ends: &mut Ends) -> Continued {
        let held = (files.len() > self.commands.len()).then(|| files.pop()).flatten();
        Continued { commands: join_commands(self.commands, files, ends), held }
    }
}

/// A parked copy that was let go.
#[derive(Debug)]
pub struct Continued {
    /// Its commands.
    pub commands: Vec<SpawnedCommand>,
    /// If it is held: it goes on when this is closed.
    pub held: Option<OwnedFd>,
}

fn join_commands(commands: Vec<ForkedCommand>, pidfds: Vec<OwnedFd>, ends: &mut Ends) -> Vec<SpawnedCommand> {
    let join = |(command, pidfd): (ForkedCommand, OwnedFd)| {
        let ForkedCommand { place, inside, process } = command;
        SpawnedCommand { place, inside, process, pidfd, ended: ends.expect(process.pid) }
    };
    commands.into_iter().zip(pidfds).map(join).collect()
}

impl Reply for BuiltOrRefused {
    type Output = Result<NewZygote, Vec<Refusal>>;
    fn join(self, files: Vec<OwnedFd>, _ends: &mut Ends) -> Self::Output {
        self.map(|Built { facts, pause_us, capture_us, build_us }| NewZygote {
            facts,
            pause_us,
            capture_us,
            build_us,
            file: files.into_iter().next(),
        })
    }
}

/// The processes whose end is waited for, by pid.
#[derive(Debug, Default)]
pub struct Ends {
    pub(super) by_pid: HashMap<i32, oneshot::Sender<Status>>,
}

impl Ends {
    pub(super) fn expect(&mut self, pid: i32) -> Ended {
        let (sender, receiver) = oneshot::channel();
        self.by_pid.insert(pid, sender);
        receiver
    }
}
