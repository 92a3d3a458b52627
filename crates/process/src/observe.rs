//! Reading a program from outside: what it has, and what of that cannot be forked. Nothing here changes the program or runs in it.
//!
//! | what                   | modules                                                                          |
//! |------------------------|----------------------------------------------------------------------------------|
//! | the program as a whole | [`kin`]: its processes; [`checks`]; [`others`]: other processes of its sandbox; [`blame`]: which one is meant |
//! | memory                 | [`sort`]: what one mapping is; [`mappings`]; [`objects`]: shared memory; [`memory_files`] |
//! | descriptors            | [`descriptors`], which asks [`listed`], [`ends`], [`registered`] (epoll), [`owners`], [`watches`] (inotify) and [`sockets`]; [`wall`]: timers |
//! | files by path          | [`root`]: opening; [`access`]: may the program open it again; [`gone`]: deleted names; [`links`]: other names; [`search`]: paths of inodes |

pub(crate) mod access;
pub(crate) mod anonymous;
pub(crate) mod blame;
pub(crate) mod checks;
pub(crate) mod descriptors;
mod ends;
pub(crate) mod files;
mod gone;
pub(crate) mod kin;
pub(crate) mod links;
mod listed;
pub(crate) mod mappings;
pub(crate) mod memory_files;
pub(crate) mod objects;
pub(crate) mod others;
mod owners;
mod registered;
pub(crate) mod rights;
pub(crate) mod root;
mod search;
mod sockets;
pub(crate) mod sort;
pub(crate) mod system_v;
pub(crate) mod terminal;
pub(crate) mod terminals;
pub(crate) mod wall;
pub(crate) mod watches;
