//! The hand itself: takes requests from its socket until the socket ends.
//!
//! ```text
//! main thread: socket -> table of jobs -> one thread for each job -> answers on the socket
//!                 \--Commit, Cancel--> the job's inbox
//! ```
//!
//! The main thread only reads the socket, so that it sees its end whatever the jobs do. When it returns, the process ends with all threads.
//! Every bound is in [`base::limits`].

pub(crate) mod accounts;
mod behind;
mod change;
mod compose;
mod entry;
mod list;
mod metadata;
mod names;
mod open;
mod read;
mod relocate;
mod remove;
mod unpack;
mod watch;
mod write;

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use base::limits::{HAND_REQUESTS_MAX, HAND_TRANSFERS_MAX, HAND_WATCHES_MAX};

use crate::protocol::{BUFFER_BYTES, FromHand, Letter, Problem, RawPath, Received, Request, ToHand, receive};
use names::Names;
use watch::Watcher;

/// Stack of a job's thread, in bytes. No job recurses.
const STACK_BYTES: usize = 256 << 10;

/// How long jobs have to clean up after the end of the socket.
const CLEAN_UP_MAX: Duration = Duration::from_millis(500);

/// Serves requests until the socket ends. Returns the exit status for the process, which must then end.
pub fn run(socket: OwnedFd) -> i32 {
    let shared = Arc::new(Shared {
        socket,
        jobs: Mutex::default(),
        names: Mutex::new(Names::of_this_root()),
        watcher: Mutex::new(None),
    });
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(Some(received)) = receive(&shared.socket, &mut buffer) {
        shared.take(received);
    }
    shared.clean_up();
    0
}

/// What a job hears while it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control {
    Commit { bytes: u64 },
    Cancel,
}

/// Jobs of one class share a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Short,
    Transfer,
    Watch,
}

impl Class {
    fn of(request: &Request) -> Self {
        match request {
            Request::Read { .. } | Request::Write { .. } | Request::Unpack { .. } => Self::Transfer,
            Request::Watch { .. } => Self::Watch,
            Request::Stat { .. }
            | Request::Account { .. }
            | Request::List { .. }
            | Request::MakeDir { .. }
            | Request::Rename { .. }
            | Request::Remove { .. }
            | Request::Compose { .. }
            | Request::SetMetadata { .. } => Self::Short,
        }
    }

    /// Twice what the node asks for: jobs that the node has forgotten may be about to end.
    fn max(self) -> usize {
        2 * match self {
            Self::Short => HAND_REQUESTS_MAX,
            Self::Transfer => HAND_TRANSFERS_MAX,
            Self::Watch => HAND_WATCHES_MAX,
        }
    }
}

/// What the main thread knows of a job.
struct Running {
    class: Class,
    inbox: Sender<Control>,
    cancelled: Arc<AtomicBool>,
}

/// What all threads share.
struct Shared {
    socket: OwnedFd,
    jobs: Mutex<HashMap<u64, Running>>,
    names: Mutex<Names>,
    /// Made with the first watch.
    watcher: Mutex<Option<Arc<Watcher>>>,
}

impl Shared {
    fn take(self: &Arc<Self>, received: Received<ToHand>) {
        let Received { seq, body, descriptors } = received;
        match body {
            Ok(ToHand::Do { deadline_ms, request }) => self.begin(seq, deadline_ms, request, descriptors),
            Ok(ToHand::Commit { bytes }) => self.tell(seq, Control::Commit { bytes }),
            Ok(ToHand::Cancel) => self.tell(seq, Control::Cancel),
            Err(_) => self.answer(seq, &FromHand::Failed(Problem::System { errno: EINVAL })),
        }
    }

    fn tell(&self, seq: u64, control: Control) {
        if let Some(job) = self.jobs().get(&seq) {
            if control == Control::Cancel {
                job.cancelled.store(true, Ordering::Release);
            }
            // Its thread may be about to end.
            let _ = job.inbox.send(control);
        }
    }

    fn begin(self: &Arc<Self>, seq: u64, deadline_ms: u64, request: Request, descriptors: Vec<OwnedFd>) {
        let class = Class::of(&request);
        let (inbox, controls) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        {
            let mut jobs = self.jobs();
            let same = jobs.values().filter(|job| job.class == class).count();
            if same >= class.max() || jobs.contains_key(&seq) {
                drop(jobs);
                return self.answer(seq, &FromHand::Failed(Problem::Busy));
            }
            jobs.insert(seq, Running { class, inbox, cancelled: Arc::clone(&cancelled) });
        }
        let deadline = Instant::now() + Duration::from_millis(deadline_ms);
        let job = Job { seq, shared: Arc::clone(self), deadline, cancelled, controls, answered: false };
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        // If no thread can be made, the job is dropped with the closure, and answers that it failed.
        let _ = thread.spawn(move || job.run(request, descriptors));
    }

    /// Says something of a request. If the node is gone, the main thread sees it.
    fn answer(&self, seq: u64, answer: &FromHand) {
        if let Ok(letter) = Letter::new(seq, answer) {
            let _ = letter.send(&self.socket, &[]);
        }
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, Running>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels all jobs and waits a moment: uploads remove what they have made.
    fn clean_up(&self) {
        let waiting: Vec<u64> = self.jobs().keys().copied().collect();
        waiting.into_iter().for_each(|seq| self.tell(seq, Control::Cancel));
        let until = Instant::now() + CLEAN_UP_MAX;
        while Instant::now() < until && !self.jobs().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn watcher(self: &Arc<Self>) -> Result<Arc<Watcher>, Problem> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        let made = Watcher::start(self)?;
        *watcher = Some(Arc::clone(&made));
        Ok(made)
    }
}

const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// One request at work.
struct Job {
    seq: u64,
    shared: Arc<Shared>,
    deadline: Instant,
    cancelled: Arc<AtomicBool>,
    controls: Receiver<Control>,
    answered: bool,
}

impl Job {
    fn run(mut self, request: Request, descriptors: Vec<OwnedFd>) {
        let done = self.perform(request, descriptors).unwrap_or_else(FromHand::Failed);
        self.answered = true;
        // The number is free before its answer is there: the node may use the place at once.
        self.shared.jobs().remove(&self.seq);
        self.say(&done);
    }

    fn perform(&self, request: Request, descriptors: Vec<OwnedFd>) -> Result<FromHand, Problem> {
        if !paths(&request).into_iter().all(RawPath::is_absolute) {
            return Err(Problem::BadPath);
        }
        match request {
            Request::Stat { path } => self.entry(path.as_path()),
            Request::Account { name } => Ok(FromHand::Account(Box::new(accounts::find(&name)?))),
            Request::List { path, depth } => list::list(self, path.as_path(), depth),
            Request::MakeDir { path } => {
                change::make_directory(path.as_path())?;
                self.entry(path.as_path())
            }
            Request::Rename { from, to } => {
                change::rename(self, from.as_path(), to.as_path())?;
                self.entry(to.as_path())
            }
            Request::Remove { path } => remove::remove(self, path.as_path()),
            Request::Compose { sources, target } => {
                compose::compose(self, &sources, target.as_path())?;
                self.entry(target.as_path())
            }
            Request::SetMetadata { path, metadata } => {
                metadata::replace_at(path.as_path(), &metadata)?;
                self.entry(path.as_path())
            }
            Request::Read { path, offset, length } => {
                read::read(self, path.as_path(), offset, length, pipe(descriptors)?)
            }
            Request::Write { path, metadata, .. } => {
                write::write(self, path.as_path(), metadata.as_ref(), pipe(descriptors)?)
            }
            Request::Unpack { path, copying } => unpack::unpack(self, path.as_path(), &copying, pipe(descriptors)?),
            Request::Watch { path, recursive, entries } => {
                let options = watch::Options { root: path.into_path(), recursive, entries };
                watch::watch(self, options)
            }
        }
    }

    fn entry(&self, path: &std::path::Path) -> Result<FromHand, Problem> {
        Ok(FromHand::Entry(Box::new(entry::describe(path, &self.shared.names)?)))
    }

    fn say(&self, answer: &FromHand) {
        self.shared.answer(self.seq, answer);
    }

    /// Fails if the job should end: nothing waits for it any more, or its time is up.
    fn check(&self) -> Result<(), Problem> {
        self.check_cancelled()?;
        if Instant::now() >= self.deadline { Err(Problem::Deadline) } else { Ok(()) }
    }

    fn check_cancelled(&self) -> Result<(), Problem> {
        if self.cancelled.load(Ordering::Acquire) { Err(Problem::Cancelled) } else { Ok(()) }
    }

    /// Waits until the other side of a pipe has done its part. Fails if it does nothing for too long.
    fn wait_for(&self, pipe: &OwnedFd, ready: rustix::event::PollFlags) -> Result<(), Problem> {
        let until = Instant::now() + Duration::from_secs(base::limits::HAND_PEER_IDLE_S);
        while Instant::now() < until {
            self.check_cancelled()?;
            if poll(pipe, ready, POLL)? {
                return Ok(());
            }
        }
        Err(Problem::Deadline)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.jobs().remove(&self.seq);
            self.say(&FromHand::Failed(Problem::from(rustix::io::Errno::IO)));
        }
    }
}

/// How often a waiting job looks whether it was cancelled.
const POLL: Duration = Duration::from_millis(250);

/// Whether a descriptor is ready, has an error or has lost its other end, within some time.
fn poll(fd: impl AsFd, ready: rustix::event::PollFlags, within: Duration) -> Result<bool, Problem> {
    let timeout = rustix::fs::Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut fds = [rustix::event::PollFd::new(&fd, ready)];
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn paths(request: &Request) -> Vec<&RawPath> {
    match request {
        Request::Stat { path }
        | Request::List { path, .. }
        | Request::MakeDir { path }
        | Request::Remove { path }
        | Request::SetMetadata { path, .. }
        | Request::Read { path, .. }
        | Request::Write { path, .. }
        | Request::Unpack { path, .. }
        | Request::Watch { path, .. } => vec![path],
        Request::Account { .. } => Vec::new(),
        Request::Rename { from, to } => vec![from, to],
        Request::Compose { sources, target } => sources.iter().chain([target]).collect(),
    }
}

fn pipe(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, Problem> {
    descriptors.into_iter().next().ok_or(Problem::System { errno: EINVAL })
}
