//! The fork engine: source -> still -> zygote -> copies.
//!
//! - [`capture`] stops a program, takes a still of it and reads what a fork does not carry (threads, descriptors, timers).
//! - [`build`] makes a zygote of that: a parked process with the same memory, which never runs the program's code.
//! - [`Zygote::request_start`] forks it into a sandbox: there the copy rebuilds descriptors and threads and goes on.
//!
//! All of these act for the calling thread and must be called by a single-threaded process: ptrace belongs to threads, and
//! building forks. The keeper calls [`build`] in a child of its own. [`write_back`], for files that programs have mapped, may be called by anybody.
//!
//! ```text
//!   source ──stop──► still ──memory──► zygote ──clone──► helper ──setns, clone3──► copy
//!     │ goes on        │ dies             │ parked          │ exits                 │ drops privileges, rebuilds, goes on
//! ```

mod access;
mod aside;
mod capture;
mod checkpoint;
mod checks;
mod covered;
mod descriptors;
mod error;
mod files;
mod floor;
mod gone;
mod image;
mod listed;
mod mappings;
mod memory_files;
mod objects;
mod options;
mod others;
mod owners;
mod procfs;
mod refusal;
mod registered;
mod root;
mod script;
mod search;
mod seize;
mod sigframe;
mod sockets;
mod sort;
mod still;
mod stopped;
mod threads;
mod wall;
mod watches;
mod write_back;
mod zygote;

pub use capture::{
    Afterwards, Capture, CaptureSpec, Others, PauseError, capture, capture_and_hold, capture_beside, examine,
};
pub use checkpoint::{ProgramState, StateError};
pub use error::Error;
pub use floor::time_forks;
pub use image::{Stream, StreamFile};
pub use refusal::{Refusal, Unfit};
pub use write_back::{Filesystem, Idle, Whose, write_back};
pub use zygote::{BuildSpec, Gate, Report, RestoreSpec, Restored, Target, Zygote, ZygoteFacts, build, learn};
