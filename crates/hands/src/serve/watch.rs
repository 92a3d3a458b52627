//! Watching directories: one inotify instance for all watches of the hand.
//!
//! ```text
//! kernel --> inotify --> one thread --> Watches::on (pure but for adding watches) --> Events, to each request
//! ```
//!
//! Events are those of Go's fsnotify, by which E2B's daemon watches: one for each event of the kernel, a move is `RENAME` of the old name
//! and `CREATE` of the new one, and what is found in a directory that appears is reported as `CREATE`.

mod tree;

use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    event::PollFlags,
    fs::{
        FileType,
        inotify::{CreateFlags, Reader, init},
        stat,
    },
    io::Errno,
};

use super::{Control, Job, STACK_BYTES, Shared, entry, poll};
use crate::protocol::{FromHand, Problem, WatchEvent};
use tree::{Happened, Watches};

/// Bytes of events that are read at once.
const BUFFER_BYTES: usize = 32 << 10;

/// Events in one message. With entries, one message has less.
const PART_EVENTS: usize = 128;
const PART_ENTRIES: usize = 8;

/// How long the other half of a move may take.
const MOVE_MAX: Duration = Duration::from_millis(50);

/// A wait without end, as far as a hand is concerned.
const LONG: Duration = Duration::from_secs(3_600);

/// What a client wants to hear of.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) root: PathBuf,
    pub(super) recursive: bool,
    pub(super) entries: bool,
}

/// All watches of the hand.
pub(super) struct Watcher {
    inotify: OwnedFd,
    watches: Mutex<Watches>,
}

impl Watcher {
    /// Makes the instance and its thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Arc<Self>, Problem> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let watcher = Arc::new(Self { inotify, watches: Mutex::default() });
        let (own, shared) = (Arc::clone(&watcher), Arc::clone(shared));
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || own.run(&shared))?;
        Ok(watcher)
    }

    fn run(&self, shared: &Shared) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        loop {
            let patience = if self.watches().awaits_move() { MOVE_MAX } else { LONG };
            match poll(&self.inotify, PollFlags::IN, patience) {
                Ok(true) => {}
                Ok(false) => {
                    self.watches().end_moves(&self.inotify);
                    continue;
                }
                Err(_) => return,
            }
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            let mut happened = Happened::default();
            {
                let mut watches = self.watches();
                loop {
                    match reader.next() {
                        Ok(event) => watches.on(&self.inotify, &event, &mut happened),
                        Err(Errno::AGAIN) => break,
                        Err(Errno::INTR) => continue,
                        Err(_) => return,
                    }
                    if reader.is_buffer_empty() {
                        break;
                    }
                }
            }
            self.report(shared, happened);
        }
    }

    fn report(&self, shared: &Shared, happened: Happened) {
        let mut by_watch: BTreeMap<u64, Vec<WatchEvent>> = BTreeMap::new();
        for (seq, event) in happened.events {
            by_watch.entry(seq).or_default().push(event);
        }
        for (seq, mut events) in by_watch {
            let root = self.watches().wants_entries(seq);
            if let Some(root) = &root {
                describe(shared, root, &mut events);
            }
            for part in events.chunks(if root.is_some() { PART_ENTRIES } else { PART_EVENTS }) {
                shared.answer(seq, &FromHand::Events(part.to_vec()));
            }
        }
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the files that are there.
fn describe(shared: &Shared, root: &std::path::Path, events: &mut [WatchEvent]) {
    for event in events {
        if let WatchEvent::Change { name, entry, .. } = event {
            let path = if name.as_path().as_os_str() == "." { root.to_owned() } else { root.join(name) };
            *entry = entry::describe(&path, &shared.names).ok().map(Box::new);
        }
    }
}

/// Watches until the request is cancelled.
pub(super) fn watch(job: &Job, options: Options) -> Result<FromHand, Problem> {
    if FileType::from_raw_mode(stat(&options.root)?.st_mode) != FileType::Directory {
        return Err(Problem::NotDirectory);
    }
    let watcher = job.shared.watcher()?;
    let begun = watcher.watches().begin(&watcher.inotify, job.seq, options);
    if begun.is_ok() {
        job.say(&FromHand::Done);
        while !matches!(job.controls.recv(), Ok(Control::Cancel) | Err(_)) {}
    }
    watcher.watches().end(&watcher.inotify, job.seq);
    begun.and(Err(Problem::Cancelled))
}
