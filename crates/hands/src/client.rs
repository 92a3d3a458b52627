//! The node's side of a hand: requests with deadlines, transfers, watches.
//!
//! One task per hand reads answers and hands them out. When the socket ends, every waiting request fails at once with
//! [`Error::Interrupted`]. A dropped request, transfer or watch is cancelled in the hand.
//!
//! The hand ends when [`Hand`] is dropped. Calls hold a reference, so it outlives them.

mod calls;
mod error;
mod line;
mod reader;
mod watch;
mod writer;

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use base::budget::Budget;
use base::limits::{HAND_LISTS_MAX, HAND_PIPE_BYTES, HAND_REQUESTS_MAX, HAND_TRANSFERS_MAX, HAND_WATCHES_MAX};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tokio::sync::{RwLock, Semaphore, watch as signal};

use crate::protocol::{Account, Copying, Entry, FromHand, Metadata, RawPath, Request};
use calls::{Call, Kept};
use line::Line;

pub use error::Error;
pub use reader::Reader;
pub use watch::{Watch, WatchOptions};
pub use writer::Writer;

/// What the functions of this module return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How long a request about one file may take. A sandbox's disk in trouble takes seconds.
const SHORT: Duration = Duration::from_secs(30);

/// How long a request about many files may take: removing or joining millions of blocks.
const LONG: Duration = Duration::from_secs(600);

/// Who uses a hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    /// Requests, transfers and watches.
    all: usize,
    /// Of these, the ones that change files.
    changes: usize,
    since: Instant,
}

/// One running hand.
#[derive(Debug)]
pub struct Hand {
    line: Arc<Line>,
    requests: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    usage: signal::Sender<Use>,
    lists: Arc<Semaphore>,
    shares: Shares,
}

/// What all hands of a sandbox share.
#[derive(Debug, Clone)]
pub struct Shares {
    /// What changes of files pass. Who has it for writing holds them: those under way are done, and none begins. An
    /// upload changes nothing before it is finished.
    pub gate: Arc<RwLock<()>>,
    /// For events that wait for clients.
    pub events: Arc<Budget>,
}

impl Hand {
    /// Takes the node's end of the socket. Needs a tokio runtime.
    pub fn start(socket: OwnedFd, shares: Shares) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            line: Line::start(socket)?,
            requests: Arc::new(Semaphore::new(HAND_REQUESTS_MAX)),
            transfers: Arc::new(Semaphore::new(HAND_TRANSFERS_MAX)),
            watches: Arc::new(Semaphore::new(HAND_WATCHES_MAX)),
            usage: signal::Sender::new(Use { all: 0, changes: 0, since: Instant::now() }),
            lists: Arc::new(Semaphore::new(HAND_LISTS_MAX)),
            shares,
        }))
    }

    /// Whether requests can be made of it: it lives, answers in time, and was not told to stop.
    pub fn is_usable(&self) -> bool {
        self.line.is_open()
    }

    /// It is about to be asked for something: it is not idle.
    pub fn touch(&self) {
        self.usage.send_modify(|usage| usage.since = Instant::now());
    }

    /// How long nothing was asked of it. None if something is being done or watched.
    pub fn idle_for(&self) -> Option<Duration> {
        let usage = *self.usage.borrow();
        (usage.all == 0).then(|| usage.since.elapsed())
    }

    /// Takes no more requests, and waits until those that change files are done. False if some are not within `patience`.
    pub async fn settle(&self, patience: Duration) -> bool {
        self.line.refuse();
        let mut usage = self.usage.subscribe();
        let settled = usage.wait_for(|usage| usage.changes == 0);
        tokio::time::timeout(patience, settled).await.is_ok()
    }

    /// Ends it: all requests fail with [`Error::Interrupted`]. Uploads that are under way remove what they made.
    pub fn close(&self) {
        self.line.close();
    }

    /// Describes a file. A link is described itself, with the type and mode of what it leads to.
    pub async fn stat(self: &Arc<Self>, path: &Path) -> Result<Entry> {
        let request = Request::Stat { path: checked("stat", path)? };
        self.entry("stat", path, request, SHORT, Kept::Reads).await
    }

    /// Says who a user of the sandbox is. [`Problem::NotFound`](crate::Problem) if `/etc/passwd` has no such name.
    pub async fn account(self: &Arc<Self>, name: &str) -> Result<Account> {
        let (action, path) = ("look up a user in", Path::new("/etc/passwd"));
        let mut call = self.call(action, path, Request::Account { name: name.to_owned() }, SHORT, Kept::Reads).await?;
        match call.answer().await? {
            FromHand::Account(account) => Ok(*account),
            other => Err(call.unexpected(&other)),
        }
    }

    /// Lists a directory, `depth` levels deep (1: only what is in it), each directory before what is in it.
    pub async fn list(self: &Arc<Self>, path: &Path, depth: u32) -> Result<Vec<Entry>> {
        let request = Request::List { path: checked("list", path)?, depth };
        // Each is put together in the node.
        let turn = tokio::time::timeout(SHORT, self.lists.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(Error::Refused { action: "list", path: path.to_owned(), problem: crate::Problem::Busy });
        };
        let mut call = self.call("list", path, request, SHORT, Kept::Reads).await?;
        let mut all = Vec::new();
        loop {
            let answer = call.answer().await?;
            match answer {
                FromHand::Entries(part) => all.extend(part),
                FromHand::Done => return Ok(all),
                other => return Err(call.unexpected(&other)),
            }
        }
    }

    /// Makes a directory (0755), with those above it that are missing. [`crate::Problem::Exists`] if it is there.
    pub async fn make_directory(self: &Arc<Self>, path: &Path) -> Result<Entry> {
        let request = Request::MakeDir { path: checked("make the directory", path)? };
        self.entry("make the directory", path, request, SHORT, Kept::Changes).await
    }

    /// Renames a file or directory. Makes the directories above the new name. What the kernel does not rename is moved file by file.
    pub async fn rename(self: &Arc<Self>, from: &Path, to: &Path) -> Result<Entry> {
        let request = Request::Rename { from: checked("rename", from)?, to: checked("rename to", to)? };
        self.entry("rename", from, request, LONG, Kept::Changes).await
    }

    /// Removes a file, a link, or a directory with all that is below it. [`crate::Problem::NotFound`] if it is not there.
    pub async fn remove(self: &Arc<Self>, path: &Path) -> Result<()> {
        let request = Request::Remove { path: checked("remove", path)? };
        let mut call = self.call("remove", path, request, LONG, Kept::Changes).await?;
        let answer = call.answer().await?;
        match answer {
            FromHand::Done => Ok(()),
            other => Err(call.unexpected(&other)),
        }
    }

    /// Joins files to `target`, then removes them. All of the paths together may have about 100 KiB.
    pub async fn compose(self: &Arc<Self>, sources: &[PathBuf], target: &Path) -> Result<Entry> {
        let sources = sources.iter().map(|source| checked("join", source)).collect::<Result<_>>()?;
        let request = Request::Compose { sources, target: checked("join files to", target)? };
        self.entry("join files to", target, request, LONG, Kept::Changes).await
    }

    /// Replaces all metadata of a file or directory. [`Hand::stat`] gives it.
    pub async fn set_metadata(self: &Arc<Self>, path: &Path, metadata: Metadata) -> Result<Entry> {
        let request = Request::SetMetadata { path: checked("set the metadata of", path)?, metadata };
        self.entry("set the metadata of", path, request, SHORT, Kept::Changes).await
    }

    /// Reads a regular file from byte `offset` on, at most `length` bytes. What it gives knows the size before the first byte.
    pub async fn read(self: &Arc<Self>, path: &Path, offset: u64, length: Option<u64>) -> Result<Reader> {
        let request = Request::Read { path: checked("read", path)?, offset, length };
        let (ours, theirs) = pipe("read", path)?;
        let call = self.transfer("read", path, request, theirs, Kept::Reads).await?;
        Reader::begin(call, ours).await
    }

    /// Replaces the content of a regular file (0644 if it is new). A path that cannot be written to is refused at once.
    ///
    /// Nothing is reported as done before [`Writer::finish`] returns. Dropping the writer breaks the upload off: what was there stays, and
    /// what was not there is not.
    pub async fn write(self: &Arc<Self>, path: &Path, metadata: Option<Metadata>) -> Result<Writer> {
        let request = Request::Write { path: checked("write", path)?, metadata };
        let (theirs, ours) = pipe("write", path)?;
        let call = self.transfer("write", path, request, theirs, Kept::Changes).await?;
        Writer::begin(call, ours).await
    }

    /// Begins to copy what is in a tar archive, which is then written. As of [`Self::write`], but for what a failure leaves: a part may be there.
    pub async fn unpack(self: &Arc<Self>, path: &Path, copying: Copying) -> Result<Writer> {
        let request = Request::Unpack { path: checked("copy to", path)?, copying };
        let (theirs, ours) = pipe("copy to", path)?;
        let call = self.transfer("copy to", path, request, theirs, Kept::Changes).await?;
        Writer::begin(call, ours).await
    }

    /// Watches a directory. Events count from the moment in which this returns. [`crate::Problem::TooManyWatches`] if the hand has too many.
    pub async fn watch(self: &Arc<Self>, path: &Path, options: WatchOptions) -> Result<Watch> {
        let WatchOptions { recursive, entries } = options;
        let request = Request::Watch { path: checked("watch", path)?, recursive, entries };
        Watch::begin(self.watching(path, request)?).await
    }

    async fn entry(
        self: &Arc<Self>,
        action: &'static str,
        path: &Path,
        request: Request,
        deadline: Duration,
        kept: Kept,
    ) -> Result<Entry> {
        let mut call = self.call(action, path, request, deadline, kept).await?;
        let answer = call.answer().await?;
        match answer {
            FromHand::Entry(entry) => Ok(*entry),
            other => Err(call.unexpected(&other)),
        }
    }

    async fn call(
        self: &Arc<Self>,
        action: &'static str,
        path: &Path,
        request: Request,
        deadline: Duration,
        kept: Kept,
    ) -> Result<Call> {
        Call::begin(self, action, path, request, deadline, kept).await
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.line.close();
    }
}

fn checked(action: &'static str, path: &Path) -> Result<RawPath> {
    let problem = crate::Problem::BadPath;
    RawPath::absolute(path).ok_or_else(|| Error::Refused { action, path: path.to_owned(), problem })
}

/// A pipe for a transfer: its reading end, its writing end.
fn pipe(action: &'static str, path: &Path) -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Error::System {
        action,
        path: path.to_owned(),
        source: errno.into(),
    })?;
    // A smaller pipe is slower, nothing else.
    let _ = fcntl_setpipe_size(&write, HAND_PIPE_BYTES);
    Ok((read, write))
}
