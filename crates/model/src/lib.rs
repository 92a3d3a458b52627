//! The nouns of Pando, apart from wire and disk.
//!
//! The node works with these types. What travels (`pando-api`) and what is written (records of the node, manifests of checkpoints) has types
//! of its own, which convert from and to these. A change of a noun therefore changes neither a protocol nor a format by accident.

mod checkpoint;
mod command;
mod difference;
mod failure;
mod image;
mod mount;
mod network;
mod node;
mod recipe;
mod sandbox;
mod store;
mod template;
mod volume;

pub use checkpoint::{
    Checkpoint, CheckpointOptions, CheckpointProgress, CheckpointStage, CheckpointVolume, Keep, KeptState,
    MemoryProgress,
};
pub use command::{Command, CommandEnd, CommandEvent, CommandSignal, EndReason, Selector};
pub use difference::{Differences, FileAspect, FileChange, FileDifference, Merge, MergeConflict};
pub use failure::{Failure, FailureKind};
pub use image::{KeptImage, PullProgress, is_image_name, is_image_reference};
pub use mount::{Mount, MountPoints};
pub use network::{Addresses, Destination, Domain, DomainName, Header, HeaderRule, Hidden, NetworkPolicy};
pub use node::{NodeInfo, PoolInfo};
pub use recipe::{Action, BuildLevel, BuildLine, Origin, Recipe, Step};
pub use sandbox::{
    CommandSpec, ExitStatus, ForkSpec, Forks, Interpreter, MachineIds, MemoryUse, PauseReport, PausedSandbox,
    ProcessInfo, Relative, ResumeOptions, RunSpec, Sandbox, SandboxDetail, SandboxState, SandboxUse, Started,
    TIMED_OUT, Takeover, TerminalSize,
};
pub use store::{
    CheckpointVerification, Damage, GcOptions, GcReport, KeyRotation, PeerStats, StoreDamage, StoreReads,
    StoreRequests, StoreStats, StoreVerification, Tally,
};
pub use template::{
    BuildProgress, BuildStage, BuildTimings, Image, Limits, Ready, Template, TemplateFacts, TemplateSpec, TemplateState,
};
pub use volume::{VolumeDurability, VolumeSpec};
