//! The system calls Pando needs, behind safe functions. The only crate with `unsafe` code.
#![allow(unsafe_code)]

pub mod blob;
pub mod btrfs;
pub mod child;
pub mod clone;
pub mod deadman;
pub mod diag;
pub mod file;
pub mod heap;
pub mod ids;
pub mod kernel;
pub mod loop_device;
pub mod mapping;
pub mod mount;
pub mod namespace;
pub mod numa;
pub mod oom;
pub mod pidfd;
pub mod probe;
pub mod ptrace;
pub mod remote;
pub mod rest;
pub mod sched;
pub mod seccomp;
pub mod seqpacket;
pub mod share;
pub mod sockets;
pub mod stub;
pub mod system_v;
pub mod tcp;
pub mod terminal;
pub mod tree;
pub mod uffd;
pub mod xstate;
