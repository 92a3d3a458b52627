//! One superblock that is served.

use std::{
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::Arc,
    time::Duration,
};

use fuser::{INodeNo, Notifier};
use volume::{Ino, Volume};

use crate::{
    adapter::Shared,
    convert::NAMES_VALID,
    crew::Crew,
    error::{Doing, FuseError},
    handshake::{self, Beginning, Notification},
};

/// How long an answer may be under way to the kernel, from when it was true.
const ON_THE_WAY: Duration = Duration::from_millis(100);

/// How a superblock is served.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most threads that answer requests.
    pub threads: usize,
    /// The kernel gathers small writes before it sends them: less durable, and faster for programs that write a few bytes at a time.
    /// Decided when the superblock is made, and kept over an adoption.
    pub writeback: bool,
    /// What is served changes without the kernel: of a file whose size or time of modification is another it drops the data, which is stale for an
    /// instant otherwise. Decided as `writeback` is.
    pub changes_by_itself: bool,
    /// Names are forgotten all at once where the kernel can (Linux 6.16). Without, as on older kernels, it believes each for a second only.
    pub epochs: bool,
}

impl Default for Options {
    fn default() -> Self {
        // One that waits for the store or the disk holds its thread.
        Self { threads: 16, writeback: false, changes_by_itself: false, epochs: true }
    }
}

/// A superblock that is being served. Dropping this ends nothing: the threads work until the superblock ends.
pub struct Served {
    shared: Arc<Shared>,
    notifier: Notifier,
    crew: Arc<Crew>,
}

impl Served {
    /// Serves a superblock that [`crate::mount()`] has made.
    pub fn start(volume: Arc<Volume>, device: OwnedFd, options: Options) -> Result<Self, FuseError> {
        volume.engine().mounted().doing("begin to serve")?;
        Self::serve(volume, device, options, Beginning::New)
    }

    /// Goes on with a superblock whose process has died, and that had the volume open: what was asked and not answered is asked again.
    ///
    /// That process must have got as far as [`Served::start`] returning: a superblock whose conversation had not begun is of no use. The
    /// volume must be open by [`volume::Volumes::adopt`], or `adopt_to_follow`, or be a snapshot; nobody should commit it before this returns,
    /// because a commit ends what its log knows of requests that were done and not answered. For some seconds after it commits leave that.
    pub fn adopt(volume: Arc<Volume>, device: OwnedFd, options: Options) -> Result<Self, FuseError> {
        let served = Self::serve(volume, device, options, Beginning::Running)?;
        // The crew has the volume.
        let crew = Arc::downgrade(&served.crew);
        served.shared.volume().keep_requests_until(move || crew.upgrade().is_none_or(|crew| crew.have_repeats_begun()));
        Ok(served)
    }

    fn serve(volume: Arc<Volume>, device: OwnedFd, options: Options, beginning: Beginning) -> Result<Self, FuseError> {
        let shared = Arc::new(Shared::new(volume));
        let (crew, notifier) = Crew::begin(shared.clone(), device, options, beginning)?;
        Ok(Self { shared, notifier, crew })
    }

    /// The kernel forgets a name, after somebody else than the kernel has changed it. Not for threads that answer the kernel.
    pub fn forget_entry(&self, directory: Ino, name: &[u8]) {
        tell(self.notifier.inval_entry(INodeNo(directory.0), OsStr::from_bytes(name)));
    }

    /// The kernel forgets attributes and data. Not for threads that answer the kernel.
    pub fn forget_inode(&self, ino: Ino) {
        tell(self.notifier.inval_inode(INodeNo(ino.0), 0, 0));
    }

    /// The kernel asks again for each name that it knows, at no cost here. Not for threads that answer the kernel. On a kernel without epochs this
    /// waits until none that it knows is believed any more: somewhat more than a second.
    pub fn forget_names(&self) {
        if self.crew.has_epochs() {
            tell(handshake::notify(self.crew.device(), Notification::ForgetNames));
        } else {
            std::thread::sleep(NAMES_VALID + ON_THE_WAY);
        }
    }

    /// The kernel forgets all. Takes about a microsecond for each inode that it may know. Not for threads that answer the kernel.
    pub fn forget_all(&self) {
        // First: who looks one up from here on gets what is true now.
        self.forget_names();
        match self.shared.engine().known() {
            Ok(known) => known.into_iter().for_each(|ino| self.forget_inode(ino)),
            Err(errno) => tracing::error!(%errno, "what the kernel knows of a volume is not known"),
        }
    }

    /// Waits until the superblock has ended: until the last clone of its mount, and its tree, are gone.
    pub fn wait(self) -> Result<(), FuseError> {
        self.crew.wait().doing("serve a superblock to its end")
    }
}

/// The superblock may be gone or going: then there is nothing to forget.
fn tell(told: io::Result<()>) {
    match told {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!(%error, "the kernel did not take a notification"),
    }
}
