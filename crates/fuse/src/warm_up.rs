//! Threads whose buffers are in memory before they read the device.
//!
//! When a process is killed while the kernel copies a request into a page of it that is not there yet, the copy fails, and the program that asked
//! gets `EIO`, not the next server (`fuse_dev_do_read` in fs/fuse/dev.c). A new thread's buffer has no pages at all. So each thread is sent a
//! request of our own first, by the socket on which its session begins; it makes its buffer's pages, and waits until all have. Then
//! the device is put in the socket's place.

use std::{
    io,
    os::fd::AsFd,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use fuser::Request;

use crate::adapter::REQUEST_BYTES_MAX;

const FUSE_FORGET: u32 = 2;

/// No inode has it; the kernel asks nothing about it.
pub(crate) const NODE: u64 = 0;

/// For all threads to begin.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Header of a request, and of a write what stands before its data.
const HEADERS_BYTES: usize = 4096;

#[derive(Debug, Default)]
struct State {
    arrived: usize,
    open: bool,
}

/// Where threads wait for each other.
#[derive(Debug, Default)]
pub(crate) struct WarmUp {
    state: Mutex<State>,
    changed: Condvar,
}

impl WarmUp {
    /// Has `threads` threads, which read the other end of `socket`, make their buffers' pages, and performs `then` while all of them wait.
    pub(crate) fn run(
        &self,
        socket: impl AsFd,
        threads: usize,
        then: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let result = self.gather(socket, threads).and_then(|()| then());
        // After a failure, too: they find the socket closed then, and end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        self.changed.notify_all();
        result
    }

    fn gather(&self, socket: impl AsFd, threads: usize) -> io::Result<()> {
        for _ in 0..threads {
            rustix::io::write(&socket, &forget_nothing())?;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, WAIT_MAX, |state| state.arrived < threads);
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// What a thread does that has read [`NODE`]'s request. The request lies at the beginning of its buffer.
    pub(crate) fn attend(&self, request: &Request) {
        let buffer = std::ptr::from_ref(request).addr();
        if let Err(error) = sys::heap::populate(buffer, REQUEST_BYTES_MAX as usize + HEADERS_BYTES) {
            tracing::warn!(%error, "a killed server of volumes may cost a program an error");
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.arrived += 1;
        self.changed.notify_all();
        while !state.open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A request without an answer: fuse_in_header and fuse_forget_in, both of zeros but for length and kind.
fn forget_nothing() -> [u8; 48] {
    let mut request = [0; 48];
    request[0..4].copy_from_slice(&48u32.to_ne_bytes());
    request[4..8].copy_from_slice(&FUSE_FORGET.to_ne_bytes());
    request[16..24].copy_from_slice(&NODE.to_ne_bytes());
    request
}
