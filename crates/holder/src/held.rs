//! One command: its descriptors, its record, and the tasks that carry its output into the record.
//!
//! ```text
//! stdout, stderr or terminal ── pump (one per output) ──> ring ──> readers (one per client)
//!                                 waits while the fastest reader has not read what it would overwrite
//! pidfd ── the end ──> status ──> output that is left ──> record is complete ──> readers hear of the end
//! ```

mod end;
mod input;
pub(crate) mod reader;

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::io::Errno;
use tokio::{
    io::unix::AsyncFd,
    sync::{Mutex as AsyncMutex, Notify},
    task::AbortHandle,
};

use crate::{
    error::{Error, Refusal},
    limits::{PIPE_CHUNK_BYTES, TERMINAL_CHUNK_BYTES},
    message::{Link, Telling, watched},
    record::{Entry, Meta, OUTPUTS_MAX, Record, Status},
};

/// Positions of a reader, one per output.
pub(crate) type Positions = [u64; OUTPUTS_MAX];

/// The descriptors of a command, as they came.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) meta: Meta,
    pub(crate) record: OwnedFd,
    /// Standard output and error, or the terminal.
    pub(crate) outputs: Vec<OwnedFd>,
    /// None: it takes no input, or its input is the terminal.
    pub(crate) input: Option<OwnedFd>,
}

impl Streams {
    /// Of the files of a request: record, outputs, and input if there is one. Fails if they do not go with the record.
    pub(crate) fn of(files: Vec<OwnedFd>) -> Result<Self, Error> {
        let wrong = || Error::Refused { refusal: Refusal::Invalid, message: "the number of files is wrong".into() };
        let mut files = files.into_iter();
        let record = files.next().ok_or_else(wrong)?;
        let meta = Entry::read(&record).map_err(Error::system("read the record of a command"))?.meta;
        let count = if meta.terminal { 1 } else { OUTPUTS_MAX };
        let outputs: Vec<OwnedFd> = files.by_ref().take(count).collect();
        let input = files.next();
        if outputs.len() != count || files.next().is_some() || (input.is_some() && (meta.terminal || !meta.stdin)) {
            return Err(wrong());
        }
        Ok(Self { meta, record, outputs, input })
    }
}

/// A command that is held.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) meta: Meta,
    pub(crate) record: Record,
    pidfd: AsyncFd<OwnedFd>,
    outputs: Vec<Output>,
    /// The write end of standard input; none: there is none, or it was closed.
    input: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    /// Held while input is written: inputs of several clients do not mix.
    writing: AsyncMutex<()>,
    readers: Mutex<Readers>,
    /// What the keeper says of the end.
    reported: Mutex<Option<Status>>,
    /// Output has come, an output has closed, or the command has ended.
    news: Notify,
    /// A reader has read, come or left.
    room: Notify,
    pumps: Mutex<Vec<AbortHandle>>,
    /// It goes on elsewhere: readers are not told how this process ends.
    moved: AtomicBool,
}

#[derive(Debug)]
struct Output {
    source: AsyncFd<OwnedFd>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Readers {
    next: u64,
    positions: HashMap<u64, Positions>,
}

impl Held {
    /// Begins to carry output. Needs a runtime.
    pub(crate) fn begin(streams: Streams, pidfd: OwnedFd) -> io::Result<Arc<Self>> {
        let output = |source| Ok(Output { source: watched(source)?, closed: false.into() });
        let held = Arc::new(Self {
            record: Record::open(streams.record)?,
            pidfd: watched(pidfd)?,
            outputs: streams.outputs.into_iter().map(output).collect::<io::Result<_>>()?,
            input: Mutex::new(streams.input.map(watched).transpose()?.map(Arc::new)),
            writing: AsyncMutex::default(),
            meta: streams.meta,
            readers: Mutex::default(),
            reported: Mutex::default(),
            news: Notify::new(),
            room: Notify::new(),
            pumps: Mutex::default(),
            moved: AtomicBool::default(),
        });
        if held.record.outputs() != held.outputs.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(held)
    }

    /// Starts the pumps.
    pub(crate) fn pump(self: &Arc<Self>) {
        let mut pumps = lock(&self.pumps);
        for number in 0..self.outputs.len() {
            let held = Arc::clone(self);
            let pump = async move {
                held.pump_output(number).await;
                held.outputs[number].closed.store(true, Ordering::Release);
                held.news.notify_waiters();
            };
            pumps.push(tokio::spawn(pump).abort_handle());
        }
    }

    /// It is not needed any more. Readers get the output that is kept, and the status if it has ended.
    pub(crate) fn forget(&self) {
        lock(&self.pumps).drain(..).for_each(|pump| pump.abort());
        self.outputs.iter().for_each(|output| output.closed.store(true, Ordering::Release));
        self.moved.store(!end::is_readable(self.pidfd.get_ref()), Ordering::Release);
        self.news.notify_waiters();
    }

    /// Its descriptors, for the spare: record, pidfd, outputs, and input if it is open.
    pub(crate) async fn tell_to(&self, spare: &Link) -> io::Result<()> {
        let input = lock(&self.input).clone();
        let fixed = [self.record.file(), self.pidfd.get_ref().as_fd()];
        let outputs = self.outputs.iter().map(|output| output.source.get_ref().as_fd());
        let input = input.iter().map(|fd| fd.get_ref().as_fd());
        let files: Vec<_> = fixed.into_iter().chain(outputs).chain(input).collect();
        spare.send(&Telling::Held, &[], &files).await
    }

    fn chunk(&self) -> u64 {
        if self.meta.terminal { TERMINAL_CHUNK_BYTES } else { PIPE_CHUNK_BYTES }
    }

    /// Carries one output until nothing has its other end any more.
    async fn pump_output(&self, number: usize) {
        let source = &self.outputs[number].source;
        loop {
            self.wait_for_room(number).await;
            let Ok(mut ready) = source.readable().await else { return };
            // A reader may have come meanwhile, and the oldest bytes are its.
            let Some(span) = self.room(number) else { continue };
            let read = ready.try_io(|fd| {
                rustix::io::retry_on_intr(|| {
                    let read = self.record.read_from(number, fd.as_fd(), span);
                    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
                })
                .map_err(io::Error::from)
            });
            match read {
                // Another process has read the pipe empty, or there was no more.
                Err(_would_block) => {}
                // A terminal answers EIO when the last program has closed it.
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(_)) => self.news.notify_waiters(),
            }
            // One command that writes without end must not keep the others waiting.
            tokio::task::yield_now().await;
        }
    }

    async fn wait_for_room(&self, number: usize) {
        loop {
            let changed = self.room.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.room(number).is_some() {
                return;
            }
            changed.await;
        }
    }

    fn room(&self, number: usize) -> Option<crate::ring::Span> {
        // After the end nothing waits: what a process left behind writes may push out what readers have not read.
        let fastest = match self.record.end() {
            Some(_) => None,
            None => lock(&self.readers).positions.values().map(|positions| positions[number]).max(),
        };
        self.record.room(number, fastest, self.chunk())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics in the middle of a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
