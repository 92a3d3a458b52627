//! A file with a btrfs in it, mounted in the state directory.
//!
//! Its bytes are allocated on the host's filesystem before btrfs has them, step by step: a full host never makes writes of btrfs fail, which would
//! turn it read-only under every sandbox. No sandbox outlives a boot of the host, so the image is made anew in each boot, and its writes need not
//! be ordered (`nobarrier`).

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, open, openat, statvfs},
    mount::{MountFlags, UnmountFlags, mount, unmount as unmount_at},
};

use crate::error::{Context, Error, Result};

/// With less free, nothing new is started.
pub(super) const ROOM_MIN: u64 = 64 << 20;
/// A new image has this part of what is free on the host, within bounds, and grows by as much.
const PART_OF_FREE: u64 = 8;
const STEP_MIN: u64 = 256 << 20;
const STEP_MAX: u64 = 4 << 30;
/// Left free on the host, at least: so much of it, or so many bytes.
const RESERVE_PART: u64 = 20;
const RESERVE_MIN: u64 = 512 << 20;

/// Between two commits that are wanted for room.
const RECLAIM_REST: Duration = Duration::from_secs(1);

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const OPTIONS: &str = "nobarrier,nodiscard";

/// The file, and where it is mounted.
pub(super) struct Place {
    file: PathBuf,
    root: PathBuf,
}

/// A mounted image.
pub(super) struct Image {
    place: Place,
    device: File,
    step: u64,
    bytes_max: u64,
    /// Whether the log says already that it cannot grow.
    is_told: bool,
    reclaimed: Option<Instant>,
}

impl Place {
    pub(super) fn new(file: PathBuf, root: PathBuf) -> Self {
        Self { file, root }
    }

    /// Mounts the image of an earlier node of this boot, if there is one.
    pub(super) fn mount_again(&self) {
        if self.is_of_this_boot()
            && let Err(error) = self.mount_found()
        {
            tracing::warn!(%error, path = %self.root.display(), "what earlier sandboxes have changed is not there");
        }
    }

    fn note(&self) -> PathBuf {
        self.file.with_extension("boot")
    }

    fn is_of_this_boot(&self) -> bool {
        let noted = fs::read(self.note()).ok();
        noted.is_some() && noted == fs::read(BOOT_ID).ok() && self.file.exists()
    }

    fn is_mounted(&self) -> bool {
        open(&self.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .is_ok_and(|root| sys::btrfs::is_subvolume(&root).unwrap_or(false))
    }

    /// Of the image that is there, mounted: its device.
    fn mount_found(&self) -> io::Result<File> {
        let device = match sys::loop_device::find(&self.file)? {
            Some(path) => Device { file: OpenOptions::new().read(true).write(true).open(&path)?, path },
            None => self.attach()?,
        };
        if !self.is_mounted() {
            self.mount(&device.path)?;
        }
        Ok(device.file)
    }

    fn attach(&self) -> io::Result<Device> {
        // Where the filesystem below takes none, it goes through the page cache.
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        let (path, file) = sys::loop_device::attach(&file)?;
        Ok(Device { path, file })
    }

    fn mount(&self, device: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.root)?;
        let options = CString::new(OPTIONS).map_err(io::Error::other)?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
        mount(device, &self.root, "btrfs", flags, options.as_c_str())?;
        fs::set_permissions(&self.root, std::os::unix::fs::PermissionsExt::from_mode(0o700))
    }

    fn remove(&self) {
        for path in [self.note(), self.file.clone()] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, path = %path.display(), "a leftover could not be removed");
            }
        }
    }

    fn make(&self, bytes: u64) -> Result<File> {
        self.remove();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.file);
        let file = file.at("create", &self.file)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).at("make room for", &self.file)?;
        let mut mkfs = Command::new("mkfs.btrfs");
        // Mixed: where file data has its own chunks, it takes all of them, and then not even what was removed leaves room for a name.
        mkfs.args(["--quiet", "--nodiscard", "--mixed"])
            .args(["--metadata", "single", "--data", "single"])
            .arg(&self.file);
        let made =
            mkfs.stdin(Stdio::null()).stdout(Stdio::null()).output().doing("run mkfs.btrfs (package btrfs-progs)")?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            return Err(Error::File {
                action: "make a btrfs in",
                path: self.file.clone(),
                source: io::Error::other(said),
            });
        }
        let device = self.attach().at("make a loop device of", &self.file)?;
        self.mount(&device.path).at("mount", &self.root)?;
        fs::copy(BOOT_ID, self.note()).at("write", &self.note())?;
        let root =
            openat(CWD, &self.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).at("open", &self.root)?;
        if let Err(error) = sys::btrfs::count_bytes(&root) {
            tracing::warn!(%error, "what a sandbox writes to its root is not limited (Linux 6.7)");
        }
        Ok(device.file)
    }
}

/// A loop device, which stays as long as it is open or mounted.
struct Device {
    path: PathBuf,
    file: File,
}

impl Image {
    /// The image of an earlier node of this boot, or a new one.
    pub(super) fn open(place: Place, bytes_max: Option<u64>) -> Result<Self> {
        let below = place.file.parent().unwrap_or(&place.file);
        let step =
            (room_at(below).at("look at the room in", below)? / PART_OF_FREE).clamp(STEP_MIN, STEP_MAX) & !0xFFFFF;
        let bytes_max = bytes_max.unwrap_or(u64::MAX);
        let found = if place.is_of_this_boot() { place.mount_found() } else { Err(io::ErrorKind::NotFound.into()) };
        let device = match found {
            Ok(device) => device,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, path = %place.file.display(), "it cannot be used and is made anew");
                }
                let made = place.make(step.min(bytes_max));
                if made.is_err() {
                    unmount(&place.root);
                    place.remove();
                }
                made?
            }
        };
        Ok(Self { place, device, step, bytes_max, is_told: false, reclaimed: None })
    }

    /// Takes a step more of the host, if less than half of one is free. Tells whether that much is free now.
    pub(super) fn grow(&mut self) -> bool {
        let grown = self.try_grow().or_else(|_| {
            self.reclaim();
            self.try_grow()
        });
        if let Err(error) = &grown
            && !self.is_told
        {
            tracing::warn!(%error, path = %self.place.file.display(), "there is no more room for what sandboxes change");
        }
        self.is_told = grown.is_err();
        grown.is_ok()
    }

    /// Gives the host its room back.
    pub(super) fn remove(&self) {
        self.place.remove();
    }

    /// Has the filesystem give back what was removed, which it does with its next commit. Not more than once in a while.
    fn reclaim(&mut self) {
        if self.reclaimed.is_some_and(|then| then.elapsed() < RECLAIM_REST) {
            return;
        }
        let root = open(&self.place.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        if let Err(error) = root.and_then(rustix::fs::syncfs) {
            tracing::warn!(%error, path = %self.place.root.display(), "it may have more room than it says");
        }
        self.reclaimed = Some(Instant::now());
    }

    fn try_grow(&mut self) -> io::Result<()> {
        if room_at(&self.place.root)? >= self.step / 2 {
            return Ok(());
        }
        let bytes = fs::metadata(&self.place.file)?.len();
        let wanted = bytes.saturating_add(self.step).min(self.bytes_max);
        if wanted <= bytes {
            return Err(io::Error::other(format!("it has the {} MiB that it may have", bytes >> 20)));
        }
        let below = self.place.file.parent().unwrap_or(&self.place.file);
        let host = statvfs(below)?;
        let reserve = (host.f_blocks * host.f_frsize / RESERVE_PART).max(RESERVE_MIN);
        if host.f_bavail * host.f_frsize < wanted - bytes + reserve {
            return Err(io::Error::other(format!("of {}, {} MiB are kept free", below.display(), reserve >> 20)));
        }
        let file = OpenOptions::new().write(true).open(&self.place.file)?;
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), bytes, wanted - bytes) {
            file.set_len(bytes)?;
            return Err(error.into());
        }
        sys::loop_device::grow(&self.device)?;
        sys::btrfs::grow(&open(&self.place.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
        tracing::info!(path = %self.place.file.display(), mib = wanted >> 20, "more room for what sandboxes change");
        Ok(())
    }
}

/// Bytes that can still be written there.
pub(super) fn room_at(directory: &Path) -> io::Result<u64> {
    let found = statvfs(directory)?;
    Ok(found.f_bavail * found.f_frsize)
}

/// Takes it out of the tree. It ends with its last user.
pub(super) fn unmount(root: &Path) {
    if let Err(error) = unmount_at(root, UnmountFlags::DETACH)
        && error != rustix::io::Errno::INVAL
        && error != rustix::io::Errno::NOENT
    {
        tracing::warn!(%error, path = %root.display(), "it stays mounted");
    }
}
