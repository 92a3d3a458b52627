//! What a fork shares with its origin, and what was made anew.

use api::{Sandbox, SandboxDetail};
use base::text;
use serde::Serialize;

/// How something of a sandbox relates to what it was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Relation {
    /// No other sandbox has it.
    Own,
    /// Both have the same, and neither can change it for the other.
    Shared,
    /// As it was in the origin when that was forked.
    Copied,
    /// The origin's is not here.
    Gone,
}

/// One of these things.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Aspect {
    relation: Relation,
    what: &'static str,
    detail: String,
}

impl Aspect {
    pub(super) fn row(&self) -> [String; 3] {
        let relation = match self.relation {
            Relation::Own => "own",
            Relation::Shared => "shared",
            Relation::Copied => "copied",
            Relation::Gone => "gone",
        };
        [relation.to_owned(), self.what.to_owned(), self.detail.clone()]
    }
}

/// What a sandbox was forked from.
pub(super) fn origin(sandbox: &Sandbox) -> String {
    match &sandbox.parent {
        Some(parent) => format!("sandbox {parent}"),
        None => format!("template {}", sandbox.template),
    }
}

/// All of them.
pub(super) fn of(detail: &SandboxDetail) -> Vec<Aspect> {
    use Relation::{Copied, Gone, Own, Shared};
    let sandbox = &detail.sandbox;
    let mut all = Vec::new();
    let mut add = |relation, what, detail: String| all.push(Aspect { relation, what, detail });
    add(Own, "host name", sandbox.id.to_string());
    if let Some(machine) = &detail.machine {
        add(Own, "machine id", machine.machine_id.clone());
        add(Own, "boot id", machine.boot_id.clone());
        add(Own, "generation", machine.generation.clone());
    }
    add(Own, "network", "addresses, routes and ports".into());
    let shared = detail.rss_bytes.saturating_sub(detail.own_bytes);
    add(Own, "memory", format!("{}: new, or written since", text::bytes(detail.own_bytes)));
    add(Shared, "memory", format!("{}: each page until it is written", text::bytes(shared)));
    add(Own, "files", "what was written since".into());
    add(Shared, "files", format!("{} layers, which nothing writes", detail.layers.len()));
    for mount in &sandbox.volumes {
        let relation = if mount.is_writable() { Own } else { Shared };
        add(relation, "volume", super::super::volume::describe_mount(mount));
    }
    add(Own, "random numbers", "of the kernel: getrandom, /dev/urandom".into());
    match &detail.on_fork[..] {
        [] => add(Copied, "random numbers", "generators of programs, as far as they were seeded".into()),
        command => add(Own, "random numbers", format!("of programs that `{}` tells", command.join(" "))),
    }
    add(Copied, "processes", "their numbers, environments, files, and connections between them".into());
    add(Gone, "connections", "TCP connections to the outside: they are reset".into());
    all
}
