//! Stops single threads.

use std::time::{Duration, Instant};

use procfs::{Fields, Stat};
use sys::ptrace::{self, Stop};

use crate::{
    error::{Context, Error},
    refusal::Refusal,
};

/// A thread that has not stopped by then may be in a wait that nothing interrupts.
const STOP_MAX: Duration = Duration::from_secs(1);
/// It is if it is found in one so many times in a row, each [`LATE_LOOK`] after the other.
const DEAF_LOOKS: u32 = 10;
const LATE_LOOK: Duration = Duration::from_millis(10);
/// One that only waits for a processor or a disk, on a busy machine, has this long.
const LATE_MAX: Duration = Duration::from_secs(10);
/// How long a thread that executes a program cannot be attached to.
const EXEC_MAX: Duration = Duration::from_millis(200);
/// Most threads stop within this time: they are asked again and again.
const SPIN_MAX: Duration = Duration::from_micros(200);
/// Then a part of the time that was waited passes from one question to the next, within these bounds.
const PART: u32 = 16;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

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

/// The tracer of a thread; 0: it has none. None if the thread is gone.
fn tracer(tid: i32) -> Result<Option<i32>, Error> {
    match Fields::read(format!("/proc/{tid}/status")) {
        Err(error) if error.is_gone() => Ok(None),
        status => Ok(Some(status?.number("TracerPid", 10)? as i32)),
    }
}

/// Attaches to a thread and tells it to stop, if it is still there.
pub(crate) fn tell_to_stop(tid: i32) -> Result<bool, Error> {
    let began = Instant::now();
    let told = |told: std::io::Result<()>| match told {
        Err(error) if is_gone(&error) => Ok(false),
        told => told.of("attach to thread", tid).map(|()| true),
    };
    loop {
        match ptrace::seize(tid, 0).and_then(|()| ptrace::interrupt(tid)) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => match tracer(tid)? {
                None => return Ok(false),
                // Listed for an instant more.
                Some(_) if has_ended(tid)? => return Ok(false),
                // Another thread that was attached to before has executed a program, and this number since.
                Some(own) if own == rustix::thread::gettid().as_raw_nonzero().get() => {
                    return told(ptrace::interrupt(tid));
                }
                Some(0) if began.elapsed() < EXEC_MAX => std::thread::sleep(LONGEST),
                Some(0) => return Err(error).of("attach to thread", tid),
                Some(tracer) => return Err(Error::Refused(vec![Refusal::Traced { tracer }])),
            },
            result => return told(result),
        }
    }
}

/// What a thread comes to next. Nothing if nothing has come within `most`.
///
/// The end of a main thread is told when all other threads of its process have been waited for. Here it counts before that.
fn next_stop(tid: i32, most: Duration) -> std::io::Result<Option<Stop>> {
    let began = Instant::now();
    loop {
        if let Some(stop) = ptrace::try_wait(tid)? {
            return Ok(Some(stop));
        }
        let waited = began.elapsed();
        if waited > most {
            return Ok(None);
        }
        if waited < SPIN_MAX {
            std::thread::yield_now();
        } else if has_ended(tid).unwrap_or(true) {
            return Ok(Some(Stop::Ended(0)));
        } else {
            std::thread::sleep((waited / PART).clamp(SHORTEST, LONGEST));
        }
    }
}

/// Waits for a thread's next stop or end, of a process that has others: see [`next_stop`].
pub(crate) fn wait_among_others(tid: i32) -> std::io::Result<Stop> {
    Ok(next_stop(tid, Duration::MAX)?.unwrap_or(Stop::Ended(0)))
}

/// Whether the thread is in a wait that signals do not end, at this moment: for a child that it has begun. Waits for a disk
/// end.
fn is_deaf(tid: i32) -> bool {
    let clones = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3].map(|number| number.to_string());
    let call = procfs::text(&format!("/proc/{tid}/syscall"));
    let clones = call.is_ok_and(|call| clones.iter().any(|number| call.split(' ').next() == Some(number)));
    clones && Stat::read(&tid.to_string()).is_ok_and(|stat| stat.state() == b'D')
}

/// Waits until a thread that was told to has stopped, if it does not end before.
pub(crate) fn wait_for_stop(tid: i32) -> Result<bool, Error> {
    let (began, mut deaf_looks) = (Instant::now(), 0);
    loop {
        match next_stop(tid, STOP_MAX.saturating_sub(began.elapsed()).max(LATE_LOOK)) {
            Err(error) if is_gone(&error) => return Ok(false),
            stop => match stop.of("wait for thread", tid)? {
                None => {
                    deaf_looks = if is_deaf(tid) { deaf_looks + 1 } else { 0 };
                    if deaf_looks == DEAF_LOOKS || began.elapsed() > LATE_MAX {
                        return Err(Error::Refused(vec![Refusal::NotStopping { tid }]));
                    }
                }
                Some(Stop::Interrupted | Stop::Event(_) | Stop::Cloned) => return Ok(true),
                Some(Stop::Signal(signal)) => deliver(tid, signal)?,
                Some(Stop::Ended(_)) => return Ok(false),
            },
        }
    }
}

/// Delivers a signal here, with all that belongs to it: the thread stops again before its handler's first instruction. It is told again: under a storm
/// of signals what it was told first was lost now and then, and it went from signal to signal for ever.
fn deliver(tid: i32, signal: i32) -> Result<(), Error> {
    ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, signal)).of("deliver a signal", tid)
}

/// Takes note of the end of a thread, if all other threads of its process have been waited for by now. True if it has stopped instead: another thread
/// has executed a program, and has this number.
pub(crate) fn is_there_after_all(tid: i32) -> Result<bool, Error> {
    match ptrace::try_wait(tid) {
        Ok(Some(Stop::Signal(signal))) => deliver(tid, signal).and_then(|()| wait_for_stop(tid)),
        Ok(Some(Stop::Interrupted | Stop::Event(_) | Stop::Cloned)) => Ok(true),
        Ok(Some(Stop::Ended(_)) | None) | Err(_) => Ok(false),
    }
}
