//! Commands in captures: those that run in a sandbox are captured with its program, or in its place if it has none.
//!
//! The engine carries what a copy has to know of a command as a label: the head of its record.

use base::{id::SandboxId, limits::FORKED_COMMANDS_MAX};
use holder::{Entry, Meta};
use process::{Command, Stream, StreamFile};
use procfs::Fields;
use sandbox::{ProcessIdentity, monotonic_ns};

use crate::{
    error::{Context, Error, Forked, Result},
    node::{Node, inspect::pids},
    records::SandboxRecord,
};

/// What of a sandbox is captured beside its files.
#[derive(Debug, Clone)]
pub(in crate::node) struct Along {
    /// Its program; one of the other processes if it has none.
    pub(in crate::node) main: ProcessIdentity,
    pub(in crate::node) without_program: bool,
    pub(in crate::node) commands: Vec<Command>,
    /// Which files are the standard streams of the program and of the commands.
    pub(in crate::node) streams: Vec<(StreamFile, Stream)>,
}

impl Along {
    /// The commands' processes.
    pub(in crate::node) fn pids(&self) -> Vec<i32> {
        self.commands.iter().map(|command| command.pid).collect()
    }
}

impl Node {
    /// Nothing for a sandbox in which nothing runs that can be captured.
    pub(in crate::node) async fn along(&self, record: &SandboxRecord) -> Result<Option<Along>> {
        let entries = self.entries(&record.id).await?;
        let runs = |entry: &&Entry| entry.end.is_none() && identity(entry).is_alive();
        let (running, ended): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(runs);
        if running.len() > FORKED_COMMANDS_MAX {
            let refusal = format!("{} commands run in it, and {FORKED_COMMANDS_MAX} can go along", running.len());
            return Err(Error::CannotFork { what: Forked::Sandbox(record.id.clone()), refusals: vec![refusal] });
        }
        let first = running.first().map(|entry| identity(entry));
        let main = record.program().or(first).or_else(|| self.left_behind(record));
        let Some(main) = main else { return Ok(None) };
        let mut streams = self.streams(&record.id, record.init)?;
        // What ended commands have left behind may still write to their streams.
        for (place, entry) in running.iter().chain(&ended).take(FORKED_COMMANDS_MAX).enumerate() {
            for (descriptor, (dev, ino)) in (0..).zip(entry.meta.streams.iter().copied()) {
                streams.push((StreamFile { dev, ino }, Stream::of_command(place, descriptor)));
            }
        }
        let commands =
            running.iter().map(|entry| Ok(Command { pid: entry.process.outside, label: label(&entry.meta)? }));
        let without_program = record.program().is_none();
        Ok(Some(Along { main, without_program, commands: commands.collect::<Result<_>>()?, streams }))
    }

    /// A process that has lost its parent, one that leads its session if there is one.
    fn left_behind(&self, record: &SandboxRecord) -> Option<ProcessIdentity> {
        let mut orphans: Vec<i32> = pids(&self.group(&record.id))
            .ok()?
            .into_iter()
            .filter(|pid| parent(*pid) == Some(record.init.pid))
            .collect();
        orphans.sort_by_key(|pid| !sys::remote::leads_session(*pid).unwrap_or(false));
        orphans.iter().find_map(|pid| ProcessIdentity::of(*pid))
    }
}

fn parent(pid: i32) -> Option<i32> {
    let status = Fields::read(format!("/proc/{pid}/status")).ok()?;
    let ended = status.get("State").is_some_and(|state| state.starts_with(['Z', 'X']));
    status.number("PPid", 10).ok().filter(|_| !ended).map(|pid| pid as i32)
}

fn identity(entry: &Entry) -> ProcessIdentity {
    ProcessIdentity { pid: entry.process.outside, start_ticks: entry.process.start_ticks }
}

/// As it is in a copy: what is left of its time counts from there, and no client waits for it.
fn label(meta: &Meta) -> Result<String> {
    let left_ms = meta.deadline_ns.map(|deadline| deadline.saturating_sub(monotonic_ns()) / 1_000_000);
    let copy = Meta { deadline_ns: None, timeout_ms: left_ms.or(meta.timeout_ms), foreground: false, ..meta.clone() };
    serde_json::to_string(&copy).doing("describe a command")
}

/// What a label says.
pub(super) fn of_label(label: &str) -> Result<Meta> {
    serde_json::from_str(label).doing("read the description of a command")
}

/// The command in a copy that goes on now, under a key of its own.
pub(super) fn in_copy(meta: Meta, id: &SandboxId, key: String) -> Meta {
    let deadline_ns = meta.timeout_ms.map(|ms| monotonic_ns().saturating_add(ms.saturating_mul(1_000_000)));
    Meta { key, sandbox: id.to_string(), deadline_ns, ..meta }
}
