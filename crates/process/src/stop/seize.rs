//! Stops single threads.

use procfs::{Fields, Stat};
use sys::ptrace::{self, Stop};

use crate::{
    error::{Context, Error},
    refusal::Refusal,
};

/// A thread may end at any moment until it has stopped: it is then no thread of the program any more.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ECHILD))
}

fn has_ended(tid: i32) -> Result<bool, Error> {
    match Stat::read(&tid.to_string()) {
        Err(error) if error.is_gone() => Ok(true),
        stat => Ok(stat?.is_ending()),
    }
}

/// The tracer of a thread; 0: it has none.
fn tracer(tid: i32) -> Result<i32, Error> {
    Ok(Fields::read(format!("/proc/{tid}/status"))?.number("TracerPid", 10)? as i32)
}

/// Attaches to a thread and tells it to stop, if it is still there.
pub(crate) fn tell_to_stop(tid: i32) -> Result<bool, Error> {
    match ptrace::seize(tid, 0).and_then(|()| ptrace::interrupt(tid)) {
        Err(error) if is_gone(&error) => Ok(false),
        // The answer for a thread that another process traces, and for one that has ended but is listed for an instant more.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && has_ended(tid)? => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => match tracer(tid)? {
            0 => Err(error).of("attach to thread", tid),
            tracer => Err(Error::Refused(vec![Refusal::Traced { tracer }])),
        },
        told => told.of("attach to thread", tid).map(|()| true),
    }
}

/// Waits until a thread that was told to has stopped, if it does not end before.
pub(crate) fn wait_for_stop(tid: i32) -> Result<bool, Error> {
    loop {
        match ptrace::wait(tid) {
            Err(error) if is_gone(&error) => return Ok(false),
            stop => match stop.of("wait for thread", tid)? {
                Stop::Interrupted | Stop::Event(_) | Stop::Cloned => return Ok(true),
                // Delivered here, with all that belongs to it: the thread stops again before its handler's first instruction. It is told again: under
                // a storm of signals what it was told first was lost now and then, and it went from signal to signal for ever.
                Stop::Signal(signal) => {
                    ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, signal)).of("deliver a signal", tid)?;
                }
                Stop::Ended(_) => return Ok(false),
            },
        }
    }
}
