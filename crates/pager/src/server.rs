//! The pager: reads what the kernel reports of the processes it serves, and fills their pages.
//!
//! ```text
//!  events   threads on one epoll; each takes one process at a time, reads its events into the board, applies them, and answers
//!           faults whose pages are local at once
//!  fetch    threads that wait for the store: faults whose pages are not local; one process after the other, one fetch per cluster
//!  fill     threads that bring the rest: hot pages first, then all; held to a byte rate
//!  watch    the first thread: looks for processes that are gone, and for a guardian that is
//! ```
//!
//! **One lock per process** is held while its events are read and applied, and while pages are copied into it. So a page that a process gave up
//! is never filled again with what it had before: the kernel lets the process go on only after its event was read; before that, it refuses the
//! copy (`Outcome::Again`); after that, the bits say no. Nothing that waits for the store happens under that lock, and a thread that is
//! held up in the kernel under it holds up that process only.

mod demand;
mod doom;
mod events;
mod fetch;
mod fill;
mod image;
mod process;
mod still;
mod watch;

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::event::epoll;

pub use fill::RECORDING;

use crate::{
    board::{
        Board, Word,
        process::{ProcessRecord, State},
    },
    error::Error,
    limits::{EVENT_THREADS, FETCH_THREADS, FILL_THREADS},
    pages::OpenSource,
    server::{
        demand::Demand,
        image::PageImage,
        process::{Claims, Process},
    },
};

/// What may be chosen about the pager.
#[derive(Debug, Clone)]
pub struct Options {
    /// Most bytes that are filled in the background in a second.
    pub fill_bytes_per_second: u64,
    /// How long a page is asked for again before the process that needs it is killed.
    pub give_up: Duration,
}

impl Default for Options {
    /// 512 MiB/s, half of what one core copies, and a minute.
    fn default() -> Self {
        Self { fill_bytes_per_second: 512 << 20, give_up: Duration::from_secs(60) }
    }
}

/// The token of the bell among those of processes.
const BELL: u64 = u64::MAX;

pub(crate) struct Server {
    board: Board,
    opener: Arc<dyn OpenSource>,
    options: Options,
    epoll: OwnedFd,
    bell: OwnedFd,
    images: Mutex<HashMap<usize, Arc<PageImage>>>,
    /// Images that a thread opens at this moment.
    opening: Mutex<HashSet<usize>>,
    claims: Claims,
    processes: RwLock<HashMap<usize, Arc<Process>>>,
    demand: Demand,
    /// Held while the pid of a process is found by its memory.
    finding: Mutex<()>,
    budget: fill::Budget,
    /// Event threads that wait, and that exist.
    idle: AtomicUsize,
    threads: AtomicUsize,
}

/// Locks what no thread leaves half done: a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of the pager. Returns when the guardian wants it to end, or when nothing is left to do and nobody to do it for.
pub(crate) fn run(board: Board, opener: Arc<dyn OpenSource>, options: Options) -> Result<(), Error> {
    // A thread that is lost would leave processes waiting; a new pager does not.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("make an epoll"))?;
    // Shared with the guardian; never closed, because the threads never let go of the server.
    let bell = board.descriptor(Word::Bell).ok_or(Error::NoAnswer)?;
    let bell = sys::share::adopt(bell).map_err(Error::system("use the bell"))?;
    let server = Arc::new(Server {
        board,
        opener,
        budget: fill::Budget::new(options.fill_bytes_per_second),
        options,
        epoll,
        bell,
        images: Mutex::default(),
        opening: Mutex::default(),
        claims: Claims::default(),
        processes: RwLock::default(),
        demand: Demand::default(),
        finding: Mutex::default(),
        idle: AtomicUsize::new(0),
        threads: AtomicUsize::new(0),
    });
    server.board.tidy();
    let wanted = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&server.epoll, &server.bell, epoll::EventData::new_u64(BELL), wanted)
        .map_err(Error::system("watch the bell"))?;
    server.spawn("prepare", |server| server.opener.prepare());
    for _ in 0..EVENT_THREADS {
        server.add_event_thread();
    }
    for _ in 0..FETCH_THREADS {
        server.spawn("fetch", |server| server.fetch_loop());
    }
    for number in 0..FILL_THREADS {
        server.spawn("fill", move |server| server.fill_loop(number));
    }
    server.look_for_images();
    server.watch_loop();
    Ok(())
}

impl Server {
    fn spawn(self: &Arc<Self>, name: &str, body: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let server = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("pager {name}")).spawn(move || body(&server));
        // Out of threads or memory. The others go on; at the start there is nobody to go on, and the guardian tries again.
        if let Err(error) = thread {
            tracing::error!(%error, name, "cannot start a thread");
            assert!(self.threads.load(Ordering::Relaxed) >= EVENT_THREADS, "a pager without threads is of no use");
        }
    }

    /// Has the fetch threads open what processes wait for.
    fn look_for_images(&self) {
        self.waiting().for_each(|record| self.demand.open(record.image()));
    }

    /// Processes that are not served yet.
    fn waiting(&self) -> impl Iterator<Item = ProcessRecord> {
        let waits = |record: &ProcessRecord| {
            matches!(record.state(), State::Active | State::Doomed) && !lock(&self.claims).contains(&record.index)
        };
        self.board.processes().filter(waits)
    }

    fn process(&self, index: usize) -> Option<Arc<Process>> {
        self.processes.read().unwrap_or_else(PoisonError::into_inner).get(&index).cloned()
    }

    /// All processes, of one image or of all.
    fn processes(&self, image: Option<usize>) -> Vec<Arc<Process>> {
        let all = self.processes.read().unwrap_or_else(PoisonError::into_inner);
        all.values().filter(|process| image.is_none_or(|image| process.image.record.index == image)).cloned().collect()
    }

    /// From here on the process's events are read.
    fn enlist(&self, process: &Arc<Process>) {
        let index = process.record.index;
        self.processes.write().unwrap_or_else(PoisonError::into_inner).insert(index, Arc::clone(process));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        if let Err(error) =
            epoll::add(&self.epoll, process.uffd().as_fd(), epoll::EventData::new_u64(index as u64), flags)
        {
            tracing::error!(%error, "cannot watch a userfaultfd");
            std::process::abort();
        }
    }

    /// Nothing is left to do for the process: it has all its pages, or is gone.
    fn retire(&self, process: &Arc<Process>) {
        if !process.end() {
            return;
        }
        self.processes.write().unwrap_or_else(PoisonError::into_inner).remove(&process.record.index);
        // By hand: somebody else may hold a duplicate, and then closing does not end the watch.
        let _ = epoll::delete(&self.epoll, process.uffd().as_fd());
        self.board.add(Word::Finished, 1);
    }
}
