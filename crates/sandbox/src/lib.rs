//! Isolated sandboxes: namespaces, a root filesystem of overlay layers, a cgroup, a pid 1, and programs in them.
//!
//! Driven by the keeper, which is single-threaded: [`Sandbox::create`] and [`Sandbox::spawn`] fork without exec.
//! This crate knows no HTTP and nothing of forking programs: it makes the place and hands out what a start needs.
//!
//! What it promises:
//! - a failure at any step of a creation leaves no process, mount, cgroup, descriptor or file;
//! - no mount is visible outside the sandbox, so that nothing is mounted once its processes are gone;
//! - every process of a sandbox is in one cgroup v2 group named by its id, so that [`sweep`] finds every leftover;
//! - every sandbox has a user namespace with ids that no other sandbox of the host has;
//! - a program has a seccomp filter from its first instruction, no capability unless it is root in the sandbox, and never one outside.
//!
//! ```text
//! Cgroups (detected once) --+
//! Spec -> Sandbox::create --+-> group, pid 1 -> Bare -> overlay (detached) -> Sandbox -> spawn / freeze / destroy; dial from anywhere
//! ```

mod archive;
mod attributes;
mod capabilities;
mod cgroup;
mod changes;
mod compare;
mod deadline;
mod dial;
mod entry;
mod error;
mod hand;
mod ids;
mod init;
mod launcher;
mod machine;
mod merge;
mod mirror;
mod mount_point;
mod namespaces;
mod processors;
mod program;
mod report;
mod rootfs;
mod sandbox;
mod seccomp;
mod spec;
mod sweep;
mod view;

pub use archive::{ArchiveTotals, pack_layer, unpack_layer};
pub use cgroup::{
    CgroupSummary, Cgroups, ControllerHome, MemoryGroup, MemoryShare, MemoryUse, Service, Usage, UsageGroup,
};
pub use changes::{Capture, UPPER, copy_still};
pub use compare::{Aspect, Change, Difference, Files, differences};
pub use dial::{dial, in_network};
pub use error::Error;
pub use init::Output;
pub use machine::Machine;
pub use merge::{Conflict, Merge, Step, merge};
pub use mount_point::Hides;
pub use procfs::ProcessIdentity;
pub use program::monotonic_ns;
pub use rootfs::{
    GivenFile, LAYERS_MAX, detached_rootfs, is_given_layer, prepare_base_layer, prepare_given_layer, prepare_host_mask,
    read_of_image, takes_detached_layers,
};
pub use sandbox::{Bare, Sandbox};
pub use seccomp::seccomp_program;
pub use spec::{Command, Limits, PROGRAM_ID, SHARED_MEMORY, Spec, User, Users};
pub use sweep::{remove_directory, remove_files, remove_remains, sweep};
pub use view::show_memory;
