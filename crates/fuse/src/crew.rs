//! The threads that answer for one superblock: few, and twice as many whenever all of them are busy at once.
//!
//! A thread that waits for the store or the disk is taken, so a superblock wants many. But each has the pages of its buffer ([`crate::warm_up`]), a
//! megabyte and some; most superblocks of a node with many sandboxes are hardly used.
//!
//! ```text
//!   begin: FEW threads ── all are at work ──► one more session on the same device, with as many ── all are at work ──► ...
//! ```

use std::{
    io,
    ops::Deref,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        raw::c_int,
    },
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fuser::{BackgroundSession, Config, Notifier, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use volume::Engine;

use crate::{
    adapter::{Adapter, Shared},
    error::{Doing, FuseError},
    handshake::{self, Beginning, Notification},
    session::Options,
    warm_up::WarmUp,
};

/// Threads that a superblock begins with: a program that waits for each answer needs one, and the kernel reads ahead for it.
const FEW: usize = 2;

/// How long after a failure nobody is hired.
const REST: Duration = Duration::from_secs(1);

/// From reading a request to beginning it takes a thread microseconds.
const READ_REST: Duration = Duration::from_millis(100);

/// What the kernel repeats is at the head of its queue: by then it was read, unless all threads wait for something.
const REPEATS_MAX: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    device: OwnedFd,
    options: Options,
    /// Whether the kernel can be told to forget all names at once.
    has_epochs: OnceLock<bool>,
    /// Threads that are at work.
    busy: AtomicUsize,
    /// Threads that there are, or will be in a moment.
    hired: AtomicUsize,
    sessions: Mutex<Vec<BackgroundSession>>,
    hiring: Mutex<Vec<JoinHandle<()>>>,
    began: Instant,
    /// Since when it is known that all of what the kernel repeated was read.
    repeats_read: OnceLock<Instant>,
}

impl Crew {
    /// The first threads. With these the conversation with the kernel begins, or goes on.
    pub(crate) fn begin(
        shared: Arc<Shared>,
        device: OwnedFd,
        options: Options,
        beginning: Beginning,
    ) -> Result<(Arc<Self>, Notifier), FuseError> {
        let threads = options.threads.clamp(1, FEW);
        let has_epochs = OnceLock::new();
        let (busy, hired) = (AtomicUsize::new(0), AtomicUsize::new(threads));
        let (sessions, hiring) = (Mutex::default(), Mutex::default());
        let (began, repeats_read) = (Instant::now(), OnceLock::new());
        let crew =
            Arc::new(Self { shared, device, options, has_epochs, busy, hired, sessions, hiring, began, repeats_read });
        // By now the kernel has the answer to its INIT, and no thread reads the device.
        let begin = || {
            crew.has_epochs.get_or_init(|| options.epochs && handshake::has_epochs(&crew.device));
            match beginning {
                // What this process has read must not be repeated.
                Beginning::Running => handshake::notify(&crew.device, Notification::Resend),
                Beginning::New => Ok(()),
            }
        };
        let notifier = crew.hire(threads, beginning, begin).doing("begin to read requests")?;
        Ok((crew, notifier))
    }

    /// For what is no work yet.
    pub(crate) fn engine(&self) -> &Engine {
        self.shared.engine()
    }

    pub(crate) fn device(&self) -> &OwnedFd {
        &self.device
    }

    pub(crate) fn has_epochs(&self) -> bool {
        self.has_epochs.get().copied().unwrap_or(false)
    }

    /// Whether all that the kernel repeated in the beginning was begun to be answered, as far as this can be told: to be asked now and then.
    pub(crate) fn have_repeats_begun(&self) -> bool {
        match self.repeats_read.get() {
            Some(since) => since.elapsed() >= READ_REST,
            None => {
                if self.is_idle() {
                    self.repeats_read.get_or_init(Instant::now);
                }
                self.began.elapsed() >= REPEATS_MAX
            }
        }
    }

    /// Whether the kernel has no request that nobody has read. A superblock that has ended has none.
    fn is_idle(&self) -> bool {
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        let polled = poll(&mut device, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && !device[0].revents().contains(PollFlags::IN)
    }

    /// Has `threads` more threads read the device.
    fn hire(
        self: &Arc<Self>,
        threads: usize,
        beginning: Beginning,
        first: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Notifier> {
        let warm_up = Arc::new(WarmUp::default());
        let adapter = Adapter::new(Arc::clone(self), warm_up.clone(), self.options);
        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(threads);
        let (session, socket) = handshake::session(adapter, config, self.device.as_fd(), beginning)?;
        let (notifier, place): (_, c_int) = (session.notifier(), session.as_fd().as_raw_fd());
        let session = session.spawn()?;
        let warm = warm_up.run(socket, threads, || {
            first()?;
            sys::mount::put_in_place(&self.device, place)
        });
        match warm {
            Ok(()) => {
                lock(&self.sessions).push(session);
                Ok(notifier)
            }
            Err(error) => {
                // Its socket is closed by now, which ends its threads; how does not matter.
                let _ = session.join();
                Err(error)
            }
        }
    }

    /// What a thread answers from; it is at work until this is dropped.
    pub(crate) fn work(self: &Arc<Self>) -> Working<'_> {
        let (busy, hired) = (self.busy.fetch_add(1, Ordering::Relaxed) + 1, self.hired.load(Ordering::Relaxed));
        if busy == hired && hired < self.options.threads {
            self.hire_more(hired);
        }
        Working(self)
    }

    #[cold]
    fn hire_more(self: &Arc<Self>, hired: usize) {
        let wanted = (2 * hired).min(self.options.threads);
        if self.hired.compare_exchange(hired, wanted, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let crew = Arc::clone(self);
        // Who asks waits for its answer, not for this.
        let hire = move || {
            if let Err(error) = crew.hire(wanted - hired, Beginning::Running, || Ok(())) {
                tracing::warn!(%error, "a volume has to do with few threads for now");
                thread::sleep(REST);
                crew.hired.store(hired, Ordering::Relaxed);
            }
        };
        match thread::Builder::new().name("fuse-hiring".to_owned()).spawn(hire) {
            Ok(hiring) => lock(&self.hiring).push(hiring),
            Err(error) => {
                tracing::warn!(%error, "a volume has to do with few threads for now");
                self.hired.store(hired, Ordering::Relaxed);
            }
        }
    }

    /// Waits until all threads have ended, as they do when the superblock has. Fails if one did not end so, but only then.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut ended = Ok(());
        loop {
            let session = lock(&self.sessions).pop();
            let Some(session) = session else { return ended };
            ended = ended.and(session.join());
            // Those that were about to begin end at once.
            let hiring = std::mem::take(&mut *lock(&self.hiring));
            for thread in hiring {
                ended = ended.and(thread.join().map_err(|_| io::Error::other("a thread panicked")));
            }
        }
    }
}

/// A thread at work.
pub(crate) struct Working<'a>(&'a Crew);

impl Deref for Working<'_> {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0.shared
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
