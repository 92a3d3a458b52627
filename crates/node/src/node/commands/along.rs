//! Commands in captures: those that run in a sandbox are captured with its program, or in its place if it has none.
//!
//! The engine carries what a copy has to know of a command as a label: the head of its record.

use base::{
    id::SandboxId,
    limits::{FORKED_COMMANDS_BYTES_MAX, FORKED_COMMANDS_MAX},
};
use holder::{Entry, Meta};
use keeper::protocol::Source;
use process::{Command, Stream, StreamFile};
use procfs::Fields;
use sandbox::{ProcessIdentity, monotonic_ns};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Context, Error, Forked, Result},
    node::{Node, inspect::pids},
    records::SandboxRecord,
};

/// Bytes of each output of a command that copies come with.
const KEPT_BYTES: u64 = 64 << 10;

/// A command, and the end of each of its outputs.
type WithOutput = (Entry, Vec<Vec<u8>>);

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
    pub(in crate::node) fn processes(&self) -> Vec<ProcessIdentity> {
        self.commands.iter().map(|command| command.process).collect()
    }
}

impl Node {
    /// Nothing for a sandbox in which nothing runs that can be captured. Copies come with the last `kept` bytes of each output.
    pub(in crate::node) async fn along(&self, record: &SandboxRecord, kept: u64) -> Result<Option<Along>> {
        let entries = self.entries_with(&record.id, kept).await?;
        let runs = |(entry, _): &&WithOutput| entry.end.is_none() && identity(entry).is_alive();
        let (running, ended): (Vec<&WithOutput>, Vec<&WithOutput>) = entries.iter().partition(runs);
        if running.len() > FORKED_COMMANDS_MAX {
            let refusal = format!("{} commands run in it, and {FORKED_COMMANDS_MAX} can go along", running.len());
            return Err(Error::CannotFork { what: Forked::Sandbox(record.id.clone()), refusals: vec![refusal] });
        }
        let first = running.first().map(|(entry, _)| identity(entry));
        let main = record.program().or(first).or_else(|| self.left_behind(record));
        let Some(main) = main else { return Ok(None) };
        let mut streams = self.streams(&record.id, record.init)?;
        // What ended commands have left behind may still write to their streams.
        for (place, (entry, _)) in running.iter().chain(&ended).take(FORKED_COMMANDS_MAX).enumerate() {
            for (descriptor, (dev, ino)) in (0..).zip(entry.meta.streams.iter().copied()) {
                streams.push((StreamFile { dev, ino }, Stream::of_command(place, descriptor)));
            }
        }
        let commands = running
            .iter()
            .map(|(entry, output)| Ok(Command { process: identity(entry), label: Label::of(entry, output).write()? }));
        let without_program = record.program().is_none();
        Ok(Some(Along { main, without_program, commands: commands.collect::<Result<_>>()?, streams }))
    }

    /// The same to be captured, with the end of each output.
    pub(in crate::node) async fn along_with_output(&self, record: &SandboxRecord) -> Result<Along> {
        let refuse =
            |refusal: String| Error::CannotFork { what: Forked::Sandbox(record.id.clone()), refusals: vec![refusal] };
        let along = self.along(record, KEPT_BYTES).await?;
        let along = along.ok_or_else(|| refuse("the last command in it has just ended: try again".to_owned()))?;
        // As it is in the message: text in text.
        let encoded = |command: &Command| serde_json::to_string(&command.label).map_or(0, |text| text.len());
        let bytes: usize = along.commands.iter().map(encoded).sum();
        if bytes > FORKED_COMMANDS_BYTES_MAX {
            let of = "arguments, environments and kept outputs of its commands";
            return Err(refuse(format!("{of} are {bytes} bytes, and {FORKED_COMMANDS_BYTES_MAX} can go along")));
        }
        Ok(along)
    }

    /// Puts what runs in a sandbox into what is to be captured. Nothing may be begun in it from now on.
    pub(in crate::node) async fn take_along(&self, source: &mut Source, record: &SandboxRecord) -> Result<()> {
        let Along { main, without_program, commands, streams } = self.along_with_output(record).await?;
        *source = Source { main, without_program, commands, streams, ..source.clone() };
        Ok(())
    }

    /// A process that has lost its parent, one that leads its session if there is one. What an earlier capture took for the
    /// first process has its parent outside, and comes before all.
    fn left_behind(&self, record: &SandboxRecord) -> Option<ProcessIdentity> {
        let (init, inside) = (record.init.pid, pids(&self.group(&record.id)).ok()?);
        let mut orphans: Vec<(bool, bool, i32)> = Vec::new();
        for pid in inside.iter().copied().filter(|pid| *pid != init) {
            let parent = parent(pid);
            let is_outside = parent.is_some_and(|parent| inside.binary_search(&parent).is_err());
            if is_outside || parent == Some(init) {
                orphans.push((!is_outside, !sys::remote::leads_session(pid).unwrap_or(false), pid));
            }
        }
        orphans.sort_unstable();
        orphans.iter().find_map(|(.., pid)| ProcessIdentity::of(*pid))
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

/// What a copy has to know of a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Label {
    /// As it will be held: no client waits for it, and its time limit is what was left.
    pub(super) meta: Meta,
    /// The end of each of its outputs.
    #[serde(with = "text")]
    pub(super) before: Vec<Vec<u8>>,
}

impl Label {
    fn of(Entry { meta, input_closed, .. }: &Entry, before: &[Vec<u8>]) -> Self {
        let left_ms = meta.deadline_ns.map(|deadline| deadline.saturating_sub(monotonic_ns()) / 1_000_000);
        let meta = Meta { deadline_ns: None, timeout_ms: left_ms, foreground: false, ..meta.clone() };
        let meta = Meta { stdin: meta.stdin && !input_closed, ..meta };
        Self { meta, before: before.to_vec() }
    }

    fn write(&self) -> Result<String> {
        serde_json::to_string(self).doing("describe a command")
    }

    pub(super) fn read(label: &str) -> Result<Self> {
        serde_json::from_str(label).doing("read the description of a command")
    }
}

/// Bytes in JSON.
mod text {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        bytes.iter().map(|bytes| BASE64_STANDARD.encode(bytes)).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| BASE64_STANDARD.decode(text).map_err(Error::custom)).collect()
    }
}

/// The command in a copy that goes on now, under a key of its own.
pub(super) fn in_copy(meta: Meta, id: &SandboxId, key: String) -> Meta {
    let deadline_ns = meta.timeout_ms.map(|ms| monotonic_ns().saturating_add(ms.saturating_mul(1_000_000)));
    Meta { key, sandbox: id.to_string(), deadline_ns, ..meta }
}
