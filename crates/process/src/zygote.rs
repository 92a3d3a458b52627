//! The zygote: a parked process with the program's memory, from which copies are forked.
//!
//! It waits in the blob for messages on its control socket and forks a copy for each. When the socket's other end is closed (the keeper
//! died) it exits. It runs none of the program's code, so it may be privileged; copies drop the privileges before they touch anything that
//! the program chose.
//!
//! - `build` makes a zygote from nothing: from a still ([`memory`]), or from a checkpoint whose pages arrive by fault ([`faults`]).
//! - [`delta`] makes one as a fork of an older zygote, with what differs.
//! - [`inherited`] sets what copies inherit with the memory: signal actions, limits, identity.
//! - `learn` finds what parked copies can touch ahead.
//! - [`stepper`] runs a start without the blob, as a check on it.

mod build;
mod delta;
mod faults;
mod inherited;
mod learn;
mod memory;
mod names;
mod stepper;
mod system_v;

use std::{
    cell::RefCell,
    collections::HashSet,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use base::id::{Arena, StartId};
use serde::{Deserialize, Serialize};
use sys::{
    blob,
    namespace::{ClockOffsets, machine_clocks},
    seqpacket,
};

pub(crate) use build::restore;
pub use build::{BuildSpec, RestoreSpec, Restored, build};
pub use learn::learn;
pub use system_v::SystemVFacts;

use crate::{
    error::{Context, Error},
    start::{self, kind},
};

/// What is known of a zygote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteFacts {
    /// Its process id on the host.
    pub pid: i32,
    /// Process id of every copy inside its sandbox.
    pub main_tid: i32,
    /// Processes of a copy.
    pub processes: usize,
    /// Processes of a copy that are commands: those of [`crate::CaptureSpec::commands`] that ran.
    pub commands: Vec<CommandFacts>,
    /// The first process of a copy is not its sandbox's program: it has none.
    pub without_program: bool,
    /// Streams that a copy is given.
    pub streams: usize,
    /// Terminals among them that processes of the program have made.
    pub terminals: Vec<TerminalFacts>,
    /// System V objects of a copy's sandbox.
    pub system_v: Vec<SystemVFacts>,
    /// Threads of a copy.
    pub threads: usize,
    /// Mappings of a copy.
    pub mappings: usize,
    /// Descriptors of a copy.
    pub descriptors: usize,
    /// Memory of its own, shared with copies until they write, in bytes.
    pub memory_bytes: u64,
    /// Of that, in huge pages.
    pub huge_bytes: u64,
    /// Content of shared memory and of files in memory, in bytes: each copy writes its own.
    pub copied_bytes: u64,
    /// Begin and end of the mapping that copies keep for the way back into the program; not part of the program.
    pub arena: Arena,
    /// Address of the operations of one start.
    entry: u64,
    /// Address of the table of what parked copies touch ahead.
    working_set: u64,
    /// What the program's clocks showed when it was captured: those of every copy go on from there.
    clocks: ClockOffsets,
}

/// A command that copies of a zygote have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandFacts {
    /// Its place among [`crate::CaptureSpec::commands`]: its streams are those from `3 * (place + 1)` on.
    pub place: u32,
    /// Its process id inside the sandbox of every copy.
    pub inside: i32,
    /// What its caller knew of it.
    pub label: String,
}

/// A terminal that a process of the program has made. The sandbox of a copy must have one of this number, and it is given both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalFacts {
    /// Among the streams: the side that programs run on. The master's is the next one.
    pub stream: u32,
    /// The N of `/dev/pts/N`.
    pub number: u32,
    /// Whose it is, as the sandbox numbers users.
    pub owner: u32,
    /// Bits of access.
    pub mode: u32,
}

impl ZygoteFacts {
    /// The offsets of a time namespace, in the kernel's form, in which the program's clocks go on now from where they were.
    fn clock_text(&self) -> Result<String, Error> {
        let now = machine_clocks().of("read the clocks for zygote", self.pid)?;
        Ok(self.clocks.minus(now).to_text())
    }
}

/// A zygote and its control socket.
#[derive(Debug)]
pub struct Zygote {
    /// What is known of it.
    pub facts: ZygoteFacts,
    /// Readable when a report waits.
    pub control: OwnedFd,
    order: RefCell<Order>,
}

/// Helper and copy report side by side: a copy may be ready before the helper has said that it exists. Readers see them in order.
#[derive(Debug, Default)]
struct Order {
    forked: HashSet<StartId>,
    ready: HashSet<StartId>,
}

/// Where a copy is to run.
#[derive(Debug)]
pub struct Target<'a> {
    /// pidfd of the sandbox's pid 1, whose namespaces the copy enters.
    pub init: BorrowedFd<'a>,
    /// The sandbox's cgroup v2 directory.
    pub cgroup: BorrowedFd<'a>,
    /// Standard input, output and error of the sandbox, then those of its commands: [`ZygoteFacts::streams`].
    pub streams: Vec<BorrowedFd<'a>>,
}

impl<'a> Target<'a> {
    fn descriptors(&self) -> Vec<BorrowedFd<'a>> {
        [self.init, self.cgroup].into_iter().chain(self.streams.iter().copied()).collect()
    }
}

/// The gate at which a parked copy waits: the writing end of a pipe whose other end only the copy has. The offsets of the copy's clocks open
/// it, because only then is it known how long the copy has waited. If it is dropped before, the copy ends.
#[derive(Debug)]
pub struct Gate(OwnedFd);

impl From<Gate> for OwnedFd {
    fn from(gate: Gate) -> Self {
        gate.0
    }
}

/// What a zygote or a copy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The copy exists, not yet ready; its process id on the host.
    Forked {
        /// Which start.
        start: StartId,
        /// The copy.
        pid: i32,
    },
    /// The copy is complete, has dropped its privileges and goes on in the program.
    Ready {
        /// Which start.
        start: StartId,
    },
    /// A step failed; the copy, if there was one, has ended.
    Failed {
        /// Which start.
        start: StartId,
        /// The system call, and where it was made.
        step: String,
        /// Its error.
        errno: i32,
    },
    /// The zygote and all copies that were not ready are gone.
    Gone,
}

/// The message that asks for a start.
fn message(start: StartId, parks: u64, clocks: &str) -> Vec<u8> {
    [&start.0.to_le_bytes(), &parks.to_le_bytes(), clocks.as_bytes()].concat()
}

/// A report as sent: start, kind and two words.
type Words = [u64; 4];

/// One report, if the other end is not gone, with the descriptor that came along.
fn receive(control: BorrowedFd<'_>) -> io::Result<(Option<Words>, Option<OwnedFd>)> {
    let mut bytes = [0; 32];
    let (len, descriptors) = seqpacket::recv(control, &mut bytes)?;
    match len {
        0 => Ok((None, None)),
        32 => {
            let (words, _) = bytes.as_chunks::<8>();
            let words = std::array::from_fn(|n| u64::from_le_bytes(words[n]));
            Ok((Some(words), descriptors.into_iter().next()))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Zygote {
    /// A zygote that another process built: its facts and its control socket.
    pub fn from_parts(facts: ZygoteFacts, control: OwnedFd) -> Self {
        Self { facts, control, order: RefCell::default() }
    }

    /// Asks for a copy; does not wait. Reports with this `start` follow. [`Error::ZygoteGone`] if it has ended.
    pub fn request_start(&self, start: StartId, target: &Target<'_>) -> Result<(), Error> {
        self.send_start(&message(start, start::AT_ONCE, &self.facts.clock_text()?), target, &target.descriptors())
    }

    fn send_start(&self, message: &[u8], target: &Target<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let (given, wanted) = (target.streams.len(), self.facts.streams);
        if given != wanted {
            let what = format!("has copies with {wanted} streams, and {given} were given");
            return Err(Error::Unexpected { pid: self.facts.pid, what });
        }
        system_v::make(target.init, &self.facts.system_v).of("make the System V objects of zygote", self.facts.pid)?;
        self.send(message, descriptors)
    }

    /// Asks for a copy that stops short of the program. It has touched the working set ([`learn()`]), has no effective privilege, and no time
    /// passes for it, until [`Self::open`] is called; it ends if the gate is dropped. `Forked` is reported at once, `Ready` when it has gone on.
    pub fn request_parked(&self, start: StartId, target: &Target<'_>) -> Result<Gate, Error> {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (inner, outer) = rustix::pipe::pipe_with(flags).of("make a gate for a copy of zygote", self.facts.pid)?;
        let mut descriptors = target.descriptors();
        descriptors.push(inner.as_fd());
        let clocks = ClockOffsets::default().to_text();
        self.send_start(&message(start, start::PARKED, &clocks), target, &descriptors)?;
        Ok(Gate(outer))
    }

    /// Lets the parked copy behind `gate` go on, as far as its last step before the program; beyond that when the gate is dropped. `Ready` is
    /// reported at that step: all its processes are there, have no privilege beyond the program's, and signals wait for them.
    pub fn open(&self, gate: &Gate) -> Result<(), Error> {
        let clocks = self.facts.clock_text()?;
        rustix::io::write(&gate.0, clocks.as_bytes()).on("open", "the gate of a parked copy")?;
        Ok(())
    }

    /// Asks for a fork of the zygote that becomes another one: its control socket, its arena, its root filesystem and the memory of the still.
    fn request_branch(&self, descriptors: [BorrowedFd<'_>; 4]) -> Result<(), Error> {
        // No start has this number, should its first steps fail.
        self.send(&[0xff; start::BRANCH_BYTES as usize], &descriptors)
    }

    fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match seqpacket::send(&self.control, message, descriptors) {
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(Error::ZygoteGone)
            }
            sent => sent.of("send to zygote", self.facts.pid),
        }
    }

    /// The next report, if one waits. `Forked` of a start always comes before its `Ready`.
    pub fn next_report(&self) -> Result<Option<Report>, Error> {
        let mut order = self.order.borrow_mut();
        let both = order.forked.iter().find(|start| order.ready.contains(start)).copied();
        if let Some(start) = both {
            order.forked.remove(&start);
            order.ready.remove(&start);
            return Ok(Some(Report::Ready { start }));
        }
        loop {
            match self.receive_report()? {
                Some(Report::Ready { start }) if !order.forked.remove(&start) => order.ready.insert(start),
                Some(Report::Forked { start, pid }) => {
                    order.forked.insert(start);
                    return Ok(Some(Report::Forked { start, pid }));
                }
                Some(Report::Failed { start, step, errno }) => {
                    order.forked.remove(&start);
                    return Ok(Some(Report::Failed { start, step, errno }));
                }
                report => return Ok(report),
            };
        }
    }

    fn receive_report(&self) -> Result<Option<Report>, Error> {
        let mut poll = [rustix::event::PollFd::new(&self.control, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if rustix::io::retry_on_intr(|| rustix::event::poll(&mut poll, Some(&now))).of("poll zygote", self.facts.pid)?
            == 0
        {
            return Ok(None);
        }
        let words = match receive(self.control.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            words => words.of("receive from zygote", self.facts.pid)?.0,
        };
        Ok(Some(match words {
            None => Report::Gone,
            Some([start, kind::FORKED, pid, _]) => Report::Forked { start: StartId(start), pid: pid as i32 },
            Some([start, kind::READY, ..]) => Report::Ready { start: StartId(start) },
            Some([start, _, op, result]) => {
                let step = self.describe(op);
                Report::Failed { start: StartId(start), step, errno: -(result as i64) as i32 }
            }
        }))
    }

    /// Like [`Self::request_start`], but steps every system call from outside, without the blob's interpreter: slower, and the check on
    /// it. The copy goes on when this returns; the reports follow as ever.
    pub fn start_by_stepping(&self, start: StartId, target: &Target<'_>) -> Result<(), Error> {
        stepper::run(self.facts.pid, self.facts.arena, self.facts.entry, &mut || self.request_start(start, target))
    }

    /// The system call that the operation at `op` makes. The zygote has the same operations as its copies.
    fn describe(&self, op: u64) -> String {
        let mut bytes = [0; blob::OP_BYTES];
        let memory = File::open(format!("/proc/{}/mem", self.facts.pid));
        match memory.and_then(|memory| memory.read_exact_at(&mut bytes, op)) {
            Ok(()) => names::describe(&bytes),
            Err(_) => format!("step at {op:#x}"),
        }
    }
}
