//! Commands of copies: they have gone on with the copy's first process. Each gets streams, a record at the holder and a group of its own.

use std::{
    collections::HashSet,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use base::id::SandboxId;
use holder::{Meta, Process};
use keeper::SpawnedCommand;
use process::{CommandFacts, ZygoteFacts};
use rustix::io::Errno;
use sandbox::ProcessIdentity;

use super::{
    along::{Label, in_copy},
    start::{file_of, pipe},
    terminal,
};
use crate::{
    error::{Context, Result},
    node::{Node, holder_link::failed, images::random_suffix},
};

/// Streams per process.
const STREAMS: usize = 3;
/// Passes over the processes of a command until all are in its group.
const PASSES_MAX: usize = 20;

/// The node's ends of the streams of a copy's commands.
#[derive(Debug, Default)]
pub(crate) struct CommandStreams(Vec<Made>);

/// Of one command.
#[derive(Debug)]
struct Made {
    place: u32,
    /// As it will be held, but for its sandbox, key and time.
    meta: Meta,
    /// The end of each of its outputs.
    before: Vec<Vec<u8>>,
    input: Option<OwnedFd>,
    outputs: Vec<OwnedFd>,
}

impl Node {
    /// Makes the streams of a copy's commands, whose sandbox has pid 1 `init`. Also: the ends that the copy gets, behind `program`'s, in the order
    /// of their numbers.
    pub(in crate::node) fn make_streams(
        &self,
        zygote: &ZygoteFacts,
        init: i32,
        program: [&OwnedFd; STREAMS],
    ) -> Result<(Vec<OwnedFd>, CommandStreams)> {
        let mut theirs: Vec<Option<OwnedFd>> = (0..zygote.streams).map(|_| None).collect();
        let mut ours = CommandStreams::default();
        give(&mut theirs, 0, program.into_iter().map(share).collect::<Result<_>>()?);
        for command in &zygote.commands {
            let (streams, made) = make_of(command, init)?;
            give(&mut theirs, STREAMS * (command.place as usize + 1), streams.into());
            ours.0.push(made);
        }
        for own in &zygote.terminals {
            let terminal::Opened { master, slave, .. } = terminal::open_as(init, own.number)?;
            terminal::hand_over(&slave, init, own)?;
            give(&mut theirs, own.stream as usize, vec![slave, master]);
        }
        // The others are of commands that have ended. What one has left behind can write to its streams, and nothing reads that.
        let theirs = theirs.into_iter().map(|stream| stream.map_or_else(|| share(&self.host.null), Ok));
        Ok((theirs.collect::<Result<_>>()?, ours))
    }

    /// From here on the commands of a copy are like those that were started in it.
    pub(in crate::node) async fn hold_forked(
        self: &Arc<Self>,
        id: &SandboxId,
        CommandStreams(streams): CommandStreams,
        mut spawned: Vec<SpawnedCommand>,
    ) -> Result<()> {
        for made in streams {
            let at = spawned.iter().position(|command| command.place == made.place);
            let at = at.ok_or(io::ErrorKind::NotFound).doing("find a command of the copy")?;
            self.hold_one(id, made, spawned.swap_remove(at)).await?;
        }
        Ok(())
    }

    async fn hold_one(
        self: &Arc<Self>,
        id: &SandboxId,
        Made { meta, before, input, outputs, .. }: Made,
        spawned: SpawnedCommand,
    ) -> Result<()> {
        let meta = in_copy(meta, id, format!("exec-{}", random_suffix()));
        let SpawnedCommand { inside, process, pidfd, ended, .. } = spawned;
        let guard = self.holder.begin_start(&meta.key);
        let lent: Vec<_> = outputs.iter().map(AsFd::as_fd).collect();
        let starting = self.hold(&meta, &before, &lent, input.as_ref().map(AsFd::as_fd)).await?;
        let group = self.group(id).join(&meta.key);
        let gather = move || gather(&group, process);
        tokio::task::spawn_blocking(gather).await.doing("gather the processes of a command").flatten()?;
        let held = Process { inside, outside: process.pid, start_ticks: process.start_ticks };
        // No client reads along from its first byte on.
        drop(starting.begin(held, &pidfd).await.map_err(failed("hand over the command"))?);
        drop(guard);
        self.report_end(&meta.key, ended);
        if let Some(deadline_ns) = meta.deadline_ns {
            self.end_at(id, &meta.key, deadline_ns);
        }
        Ok(())
    }
}

/// The streams of one command, and the node's ends of them.
fn make_of(CommandFacts { place, label, .. }: &CommandFacts, init: i32) -> Result<([OwnedFd; STREAMS], Made)> {
    let (place, Label { mut meta, before }) = (*place, Label::read(label)?);
    if let Some(number) = meta.terminal_number {
        let terminal::Opened { master, slave, .. } = terminal::open_as(init, number)?;
        meta.streams = vec![file_of(&slave)?];
        let streams = [share(&slave)?, share(&slave)?, slave];
        return Ok((streams, Made { place, meta, before, input: None, outputs: vec![master] }));
    }
    let [(stdin, input), (output, stdout), (errors, stderr)] = [pipe()?, pipe()?, pipe()?];
    meta.streams = [&stdin, &stdout, &stderr].map(file_of).into_iter().collect::<Result<_>>()?;
    // Without input, the other end closes here: the command reads end of file, as it would have before.
    let input = meta.stdin.then_some(input);
    Ok(([stdin, stdout, stderr], Made { place, meta, before, input, outputs: vec![output, errors] }))
}

/// Puts streams where their numbers are.
fn give(theirs: &mut [Option<OwnedFd>], first: usize, streams: Vec<OwnedFd>) {
    for (place, stream) in theirs.iter_mut().skip(first).zip(streams) {
        *place = Some(stream);
    }
}

fn share(file: &OwnedFd) -> Result<OwnedFd> {
    file.try_clone().doing("share a stream")
}

/// Makes the group of a command and moves its processes there. One that is begun meanwhile by a process that is not there yet is found by another
/// pass.
fn gather(group: &Path, command: ProcessIdentity) -> Result<()> {
    fs::create_dir(group).at("create", group)?;
    let path: PathBuf = group.join("cgroup.procs");
    let mut moved = HashSet::new();
    for _ in 0..PASSES_MAX {
        let all = process::family(command.pid, None, &[]).map_err(io::Error::other);
        let all = all.doing("find the processes of a command")?;
        // Its number may be another one's when it has ended.
        if !command.is_alive() {
            break;
        }
        let new: Vec<i32> = all.into_iter().filter(|pid| moved.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            match fs::write(&path, pid.to_string()) {
                // It has ended in the meantime.
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
                written => written.at("write", &path)?,
            }
        }
    }
    Ok(())
}
