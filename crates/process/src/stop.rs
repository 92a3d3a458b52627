//! Stopping a program and forking it, by ptrace.
//!
//! - [`stopped`] seizes every thread, runs scripts in them and gives them back as they were; [`seize`] stops one thread.
//! - [`still`] is the fork that stays when the program goes on: memory is read from it.
//! - [`threads`] reads what each stopped thread has.
//! - [`aside`] leaves the stopped program a CPU to work on.

pub(crate) mod aside;
mod seize;
pub(crate) mod still;
pub(crate) mod stopped;
pub(crate) mod threads;
