//! The fork engine: source -> still -> zygote -> copies.
//!
//! - [`capture()`] stops a program, takes a still of it and reads what a fork does not carry (threads, descriptors, timers).
//! - [`build`] makes a zygote of that: a parked process with the same memory, which never runs the program's code.
//! - [`Zygote::request_start`] forks it into a sandbox: there the copy rebuilds descriptors and threads and goes on.
//!
//! These functions act for the calling thread. Call them in a single-threaded process: ptrace belongs to threads, and building forks. The
//! keeper calls [`build`] in a child of its own.
//!
//! ```text
//!   source ──stop──► still ──memory──► zygote ──clone──► helper ──setns, clone3──► copy
//!     │ goes on        │ dies             │ parked          │ exits                 │ drops privileges, rebuilds, goes on
//! ```
//!
//! A module takes names only from modules to its left:
//!
//! ```text
//! refusal, error | image | script, options | stop, start | observe | capture | zygote | checkpoint
//! ```
//!
//! | module       | what it owns                                                                             |
//! |--------------|------------------------------------------------------------------------------------------|
//! | `refusal`    | why a program cannot be forked, or a checkpoint not be restored here                     |
//! | `image`      | the description of a program as data, and its file form ([`ProgramState`])               |
//! | `script`     | system calls that another process makes, as data                                         |
//! | `options`    | the list of socket options                                                               |
//! | `stop`       | stopping threads, running scripts in them, the still                                     |
//! | `start`      | the scripts of one start: what a copy does to become the program                         |
//! | `observe`    | reading a program from outside                                                           |
//! | `capture`    | the order of all that: from a running program to an image and a still                    |
//! | `zygote`     | from an image to a zygote, and its protocol                                              |
//! | `checkpoint` | from a capture to a state that another node restores                                     |

mod capture;
mod checkpoint;
mod error;
mod image;
mod observe;
mod options;
mod refusal;
mod script;
mod start;
mod stop;
mod zygote;

pub use capture::{
    Afterwards, Capture, CaptureSpec, Command, Examined, Others, PauseError, capture, capture_and_hold, capture_beside,
    examine, family, time_forks,
};
pub use error::Error;
pub use image::{ProgramState, StateError, Stream, StreamFile};
pub use refusal::{Refusal, Unfit};
pub use zygote::{
    BuildSpec, CommandFacts, Gate, Report, RestoreSpec, Restored, SystemVFacts, Target, TerminalFacts, Zygote,
    ZygoteFacts, build, learn,
};
