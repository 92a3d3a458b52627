//! The node's state and its transitions: no I/O, no clock, no async. [`crate::node::Node`] holds it behind one lock.
//!
//! ```text
//! template:  (none) --begin_build--> Building --finish_build--> Ready --zygote lost--> Lost
//!                                     |   ^                      |                      |
//!                        build failed |   +------ begin_build ---+----------------------+
//!                                     v
//!                  what it was before: none, Ready (its old zygote), Lost
//!           without a program: Building --finish_build--> Idle, which only a replaced checkpoint can lose
//!           of a checkpoint: Ready --replaced--> Lost; Building of what was replaced meanwhile --finish_build--> Lost
//!
//! sandbox:   claimed --(program started, record written)--> Running --program ended--> Exited
//!               |                                              \---- all gone -------> Lost
//!               |              Running --> Pausing --> Paused --> Running (see `pausing`)
//!               +--> [bare -->] blank in the pool [--> with a parked copy] --> taken for a start
//! ```
//!
//! Every sandbox directory on disk is claimed by an id in here; whatever is not claimed may be swept.

mod ahead;
mod fork_points;
mod pausing;
mod pool;
mod sandboxes;
mod templates;
#[cfg(test)]
mod tests;
mod volumes;
mod zygotes;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
};

use base::id::{Arena, SandboxId, StartId, TemplateName, ZygoteId};
use keeper::protocol::Status;
use model::{BuildTimings, Mount, SandboxState, TemplateFacts};
use process::ZygoteFacts;
use sandbox::ProcessIdentity;
use tokio::sync::oneshot;

use crate::{
    node::{Carriage, CommandStreams},
    records::{self, SandboxRecord, TemplateRecord},
};
pub(crate) use ahead::Sample;
pub(crate) use sandboxes::FORK_LAYER;
pub(crate) use templates::RestoredZygote;
pub(crate) use volumes::Writers;

/// A zygote that is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ZygoteRef {
    /// Its number at the keeper.
    pub(crate) number: ZygoteId,
    /// Where starts leave their arena.
    pub(crate) arena: Arena,
    /// For people.
    pub(crate) facts: TemplateFacts,
    /// For the engine.
    pub(crate) engine: ZygoteFacts,
}

impl ZygoteRef {
    /// As the engine describes it.
    pub(crate) fn new(number: ZygoteId, engine: ZygoteFacts, timings: BuildTimings) -> Self {
        let facts = TemplateFacts {
            zygote_pid: engine.pid,
            threads: engine.threads,
            mappings: engine.mappings,
            descriptors: engine.descriptors,
            memory_bytes: engine.memory_bytes,
            huge_bytes: engine.huge_bytes,
            timings,
        };
        Self { number, arena: engine.arena, facts, engine }
    }
}

/// Where a template is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Building {
        previous: Option<ZygoteRef>,
    },
    Ready(ZygoteRef),
    Lost,
    /// It has no program: a blank sandbox is all that a start needs.
    Idle,
}

#[derive(Debug, Clone)]
struct Template {
    /// Of the last build that succeeded.
    record: Option<TemplateRecord>,
    /// Grows with every use: the pool is for those that are used.
    last_use: u64,
    /// What is being built, for lists, while there is no record.
    building: Option<model::TemplateSpec>,
    phase: Phase,
    /// Whether the checkpoint that its record is of was replaced on this node: sandboxes are started from what it is now.
    is_replaced: bool,
    /// What its checkpoint was replaced by since the present build began.
    overtaken_by: Option<String>,
    learning: ahead::Learning,
}

impl Template {
    fn new(record: Option<TemplateRecord>, last_use: u64, phase: Phase) -> Self {
        let learning = ahead::Learning::default();
        Self { record, last_use, building: None, phase, is_replaced: false, overtaken_by: None, learning }
    }
}

/// A sandbox of the pool.
#[derive(Debug)]
pub(crate) struct Blank {
    /// Its identifier.
    pub(crate) id: SandboxId,
    /// Its pid 1.
    pub(crate) init: ProcessIdentity,
    /// The layers it was made with; none if it is bare.
    pub(crate) layers: Vec<PathBuf>,
    /// The end of its output that its program writes to, made ahead: that takes as long as a tenth of a start.
    pub(crate) output: Arc<OwnedFd>,
    /// What its pid 1 needs to carry the output, if it has not got it yet.
    pub(crate) carriage: Option<Carriage>,
    /// Its record, for the same reason.
    pub(crate) record: Arc<records::Draft>,
    /// The copy that was forked into it ahead.
    pub(crate) parked: Option<Parked>,
}

/// A copy that waits to be let go.
#[derive(Debug)]
pub(crate) struct Parked {
    /// The zygote it was forked from.
    pub(crate) zygote: ZygoteId,
    /// The number of its start.
    pub(crate) start: StartId,
    /// Its first process.
    pub(crate) first: ProcessIdentity,
    /// Resolves when that ends.
    pub(crate) ended: oneshot::Receiver<Status>,
    /// Whether that is the sandbox's program, and not one of its commands.
    pub(crate) is_program: bool,
    /// The node's ends of the streams of its commands.
    pub(crate) streams: CommandStreams,
}

/// What a start needs to know of its template.
#[derive(Debug, Clone)]
pub(crate) struct Startable {
    /// Of the template.
    pub(crate) record: TemplateRecord,
    /// Its zygote; none if it has no program.
    pub(crate) zygote: Option<ZygoteRef>,
}

/// Whether a template can be started from right now.
#[derive(Debug, Clone)]
pub(crate) enum Readiness {
    /// It can.
    Ready(Box<Startable>),
    /// Someone builds it: ask again when the state has changed.
    Building,
    /// Its zygote is gone, or of a checkpoint that was `replaced`: it has to be built again from this record.
    Lost { record: Box<TemplateRecord>, replaced: bool },
}

/// All of it.
#[derive(Debug)]
pub(crate) struct State {
    templates: BTreeMap<TemplateName, Template>,
    sandboxes: BTreeMap<SandboxId, SandboxRecord>,
    pool: BTreeMap<TemplateName, Vec<Blank>>,
    /// Sandboxes without a root filesystem, for whatever comes.
    bare: Vec<Blank>,
    /// Of the blanks of all templates, and once more of bare sandboxes.
    pool_limit: usize,
    parked_limit: usize,
    /// Sandboxes from which is still to be learned.
    samples: BTreeMap<SandboxId, Sample>,
    claimed: HashSet<SandboxId>,
    /// Sandboxes that are being resumed.
    resuming: BTreeSet<SandboxId>,
    /// What became of programs while their sandboxes were being paused.
    ended: BTreeMap<SandboxId, SandboxState>,
    /// Sandboxes that may have volumes mounted.
    holding: BTreeMap<SandboxId, Vec<Mount>>,
    /// What is mounted on directories of the host, by their paths.
    host_mounts: BTreeMap<String, volumes::HostMount>,
    starts_in_flight: usize,
    /// Layers of sandboxes that are being made; one entry for each use.
    pinned: Vec<PathBuf>,
    /// Something in them began to run whose limits are not bound yet.
    unbound: BTreeSet<SandboxId>,
    next_number: u64,
    /// Checkpoints that were replaced on this node.
    replacements: u64,
    /// How often each zygote of a template is in use.
    zygotes_in_use: BTreeMap<ZygoteId, usize>,
    /// Zygotes that are dropped when nothing uses them any more.
    retired: BTreeSet<ZygoteId>,
}

impl State {
    /// The state as found on disk: no zygote survives its node.
    pub(crate) fn new(
        templates: Vec<TemplateRecord>,
        sandboxes: Vec<SandboxRecord>,
        pool_limit: usize,
        parked_limit: usize,
    ) -> Self {
        let template = |record: TemplateRecord| {
            let name = record.spec.name.clone();
            // A checkpoint is restored anew: it may have been replaced meanwhile.
            let is_idle = record.spec.command.is_empty() && record.checkpoint.is_none();
            let phase = if is_idle { Phase::Idle } else { Phase::Lost };
            (name, Template::new(Some(record), 0, phase))
        };
        let mut state = Self {
            templates: templates.into_iter().map(template).collect(),
            claimed: sandboxes
                .iter()
                .filter(|record| pausing::is_here(record))
                .map(|record| record.id.clone())
                .collect(),
            resuming: BTreeSet::new(),
            ended: BTreeMap::new(),
            holding: sandboxes
                .iter()
                .filter(|record| !record.volumes.is_empty())
                .map(|record| (record.id.clone(), record.volumes.clone()))
                .collect(),
            host_mounts: BTreeMap::new(),
            // The node before may have ended in between.
            unbound: sandboxes.iter().map(|record| record.id.clone()).collect(),
            sandboxes: sandboxes.into_iter().map(|record| (record.id.clone(), record)).collect(),
            pool: BTreeMap::new(),
            bare: Vec::new(),
            pool_limit,
            parked_limit,
            samples: BTreeMap::new(),
            starts_in_flight: 0,
            pinned: Vec::new(),
            next_number: 1,
            replacements: 0,
            zygotes_in_use: BTreeMap::new(),
            retired: BTreeSet::new(),
        };
        // The sweep finds what nothing uses.
        drop(state.drop_useless_fork_points());
        state
    }

    /// The number of a new zygote.
    pub(crate) fn new_zygote(&mut self) -> ZygoteId {
        ZygoteId(self.number())
    }

    /// The number of a new start.
    pub(crate) fn new_start(&mut self) -> StartId {
        StartId(self.number())
    }

    /// A number that was not given out before.
    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
