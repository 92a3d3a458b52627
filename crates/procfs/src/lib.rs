//! What Linux tells of processes in `/proc`. Sources: Documentation/filesystems/proc.rst, proc(5) and the pages that it names.
//!
//! - [`maps()`], [`smaps`]: the mappings of a process, one [`MapLine`] each.
//! - [`Stat`]: `/proc/PID/stat`. [`Fields`]: the `Name: value` lines of `status`, `fdinfo`, `smaps_rollup` and the like.
//! - [`Mounts`]: `mountinfo`. [`CgroupPaths`]: `cgroup`. [`limits`]: resource limits.
//! - [`IdMaps`]: `uid_map` and `gid_map`.
//! - [`children`], [`numbers`]: lists of processes, threads and descriptors.
//! - [`port_holder`]: which process listens on a TCP port.
//! - [`write_back()`] is the one function that does more than read: what programs have written through mappings goes to the files' filesystem.
//!
//! Every function names a process by its id in the pid namespace whose `/proc` the caller sees.
//!
//! # Errors
//!
//! All functions fail with [`Error::File`] if the kernel does not give a file, and with [`Error::Format`] if its text has a form that is not
//! known here. A process may end at any moment: [`Error::is_gone`] tells that error from all others.

mod cgroups;
mod error;
mod fields;
mod identity;
mod ids;
mod listeners;
mod maps;
mod mounts;
mod read;
mod stat;
mod write_back;

pub use cgroups::{CgroupPath, CgroupPaths};
pub use error::Error;
pub use fields::Fields;
pub use identity::ProcessIdentity;
pub use ids::IdMaps;
pub use listeners::{Holder, port_holder};
pub use maps::{MapLine, MappingFlags, maps, smaps};
pub use mounts::{Mount, Mounts};
pub use read::{autogroup_nice, children, limits, link, numbers, read, text};
pub use stat::Stat;
pub use write_back::{Filesystem, Idle, Whose, write_back};
