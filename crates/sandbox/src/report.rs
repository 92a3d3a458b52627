//! How a new process tells its creator that it is ready, or at which step it failed.
//!
//! One message on a close-on-exec pipe or socket: the errno (four bytes, 0: ready), then the step's name. The end of the stream
//! without a message means that the process was executed (a program) or killed (a pid 1).

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::PollFlags,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{WaitId, WaitIdOptions, waitid},
};

use crate::{
    deadline::Deadline,
    error::{Context, Error},
};

/// A new process is ready within this many milliseconds even on a machine that is starting a thousand others.
pub(crate) const ANSWER_MS_MAX: u64 = 20_000;

/// How often a child is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// An errno, the longest name of a step, and a byte.
const MESSAGE_BYTES: usize = 96;

/// A step of a new process that failed.
pub(crate) struct Failure {
    pub(crate) step: &'static str,
    pub(crate) errno: i32,
}

/// Names the step that an error belongs to.
pub(crate) trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, Failure>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, step: &'static str) -> Result<T, Failure> {
        self.map_err(|errno| Failure { step, errno: errno.raw_os_error() })
    }
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: &'static str) -> Result<T, Failure> {
        self.map_err(|error| Failure { step, errno: error.raw_os_error().unwrap_or(libc::EIO) })
    }
}

/// What the creator got to know.
pub(crate) enum Answer {
    Ready,
    Failed {
        step: String,
        source: io::Error,
    },
    /// The stream ended without a message.
    End,
}

/// The creator's end and the new process's end.
pub(crate) fn channel() -> Result<(OwnedFd, OwnedFd), Error> {
    pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")
}

/// Sends the result; fails if the creator is gone. Allocates nothing.
pub(crate) fn send(channel: BorrowedFd<'_>, result: Result<(), Failure>) -> io::Result<()> {
    let failure = result.err().unwrap_or(Failure { step: "", errno: 0 });
    let mut message = [0; MESSAGE_BYTES];
    // A byte stays free, so that the reader's buffer is never full before the end.
    let length = failure.step.len().min(message.len() - 5);
    message[..4].copy_from_slice(&failure.errno.to_le_bytes());
    message[4..4 + length].copy_from_slice(&failure.step.as_bytes()[..length]);
    rustix::io::write(channel, &message[..4 + length])?;
    Ok(())
}

/// Waits for the message and the end of the stream: a pid 1 that is ready has closed its last descriptor then.
pub(crate) fn receive(channel: OwnedFd) -> Result<Answer, Error> {
    receive_while(channel, || Ok(()))
}

/// As [`receive`], from a child that processes of a sandbox can name. One that they stop is not waited for: the caller serves others, too.
pub(crate) fn receive_from(channel: OwnedFd, child: BorrowedFd<'_>) -> Result<Answer, Error> {
    receive_while(channel, || {
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::PidFd(child), look).is_ok_and(|stopped| stopped.is_some());
        if stopped { Err(Error::Stopped) } else { Ok(()) }
    })
}

fn receive_while(channel: OwnedFd, look: impl Fn() -> Result<(), Error>) -> Result<Answer, Error> {
    let deadline = Deadline::after_ms(ANSWER_MS_MAX);
    let (mut message, mut length) = ([0; MESSAGE_BYTES], 0);
    loop {
        while !deadline.poll_at_most(channel.as_fd(), PollFlags::IN, LOOK).doing("wait for a new process")? {
            look()?;
            if deadline.left().is_zero() {
                return Err(Error::Silent(ANSWER_MS_MAX));
            }
        }
        match read(channel.as_fd(), &deadline, &mut message[length..])? {
            0 => return Ok(parse(&message[..length])),
            more => length += more,
        }
    }
}

/// Waits for the message only, on a channel that keeps messages apart.
pub(crate) fn hear(channel: BorrowedFd<'_>) -> Result<Answer, Error> {
    let mut message = [0; MESSAGE_BYTES];
    let length = read(channel, &Deadline::after_ms(ANSWER_MS_MAX), &mut message)?;
    Ok(parse(&message[..length]))
}

fn read(channel: BorrowedFd<'_>, deadline: &Deadline, message: &mut [u8]) -> Result<usize, Error> {
    if !deadline.poll(channel, PollFlags::IN).doing("wait for a new process")? {
        return Err(Error::Silent(deadline.limit_ms()));
    }
    match rustix::io::read(channel, message) {
        // Of a socket whose other end was killed before it had read everything.
        Err(Errno::CONNRESET) => Ok(0),
        result => result.doing("hear from a new process"),
    }
}

fn parse(message: &[u8]) -> Answer {
    let Some((errno, step)) = message.split_first_chunk() else { return Answer::End };
    match i32::from_le_bytes(*errno) {
        0 => Answer::Ready,
        errno => Answer::Failed {
            step: String::from_utf8_lossy(step).into_owned(),
            source: io::Error::from_raw_os_error(errno),
        },
    }
}
