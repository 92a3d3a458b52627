//! A file with a btrfs in it, mounted in the state directory.
//!
//! Its bytes are allocated on the host's filesystem before btrfs has them, step by step: a full host never makes writes of btrfs fail, which would
//! turn it read-only under every sandbox. No sandbox outlives a boot of the host, so the image is made anew in each boot, and its writes need not
//! be ordered (`nobarrier`).
//!
//! ```text
//! file (allocated) --loop device--> btrfs, mounted on the root        note: the boot in which it was made
//!   grows: allocate a step -> the device sees it -> btrfs takes it; cut off in between, the next growth goes on there
//! ```

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
    fs::{
        FallocateFlags, IFlags, Mode, OFlags, StatVfsMountFlags, fallocate, ioctl_getflags, ioctl_setflags, open,
        statvfs,
    },
    mount::{MountFlags, UnmountFlags, mount, unmount as unmount_at},
};

use crate::error::{Context, Error, Result};

/// With less free, nothing new is started.
pub(super) const ROOM_MIN: u64 = 64 << 20;
/// With less free, and no more to be had, what can be had from the store again is given up.
const ROOM_LOW: u64 = 256 << 20;
/// A new image has this part of what is free on the host, within bounds, and grows by as much as soon as half of that is used.
const PART_OF_FREE: u64 = 4;
const STEP_MIN: u64 = 256 << 20;
const STEP_MAX: u64 = 64 << 30;
/// Left free on the host: this part of it, within bounds. Large disks need no more for the node's own files.
const RESERVE_PART: u64 = 20;
const RESERVE_MIN: u64 = 512 << 20;
const RESERVE_MAX: u64 = 4 << 30;
/// Between two commits that are wanted for room.
const RECLAIM_REST: Duration = Duration::from_secs(1);
/// Sizes are multiples of this.
const GRAIN: u64 = 1 << 20;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A sandbox that has used up its limit has room again for what it removes with the next commit, after so many seconds.
const OPTIONS: &str = "nobarrier,nodiscard,commit=5";

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
    counts_bytes: bool,
    /// Whether the log says already that it cannot grow.
    is_told: bool,
    reclaimed: Option<Instant>,
}

impl Place {
    pub(super) fn new(file: PathBuf, root: PathBuf) -> Self {
        Self { file, root }
    }

    fn note(&self) -> PathBuf {
        self.file.with_extension("boot")
    }

    fn is_of_this_boot(&self) -> bool {
        let noted = fs::read(self.note()).ok();
        noted.is_some() && noted == fs::read(BOOT_ID).ok() && self.file.exists()
    }

    /// The directory whose filesystem has the file.
    fn host(&self) -> &Path {
        self.file.parent().unwrap_or(&self.file)
    }

    fn open_root(&self) -> io::Result<std::os::fd::OwnedFd> {
        Ok(open(&self.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Mounts the image that is there: its device.
    fn mount_found(&self) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        // A second device of it would be a second filesystem in the same bytes.
        let (path, device) = match sys::loop_device::find(&file)? {
            Some(found) => found,
            None => sys::loop_device::attach(&file)?,
        };
        self.mount(&path)?;
        Ok(device)
    }

    /// Mounts the device in the place of what is mounted there.
    fn mount(&self, device: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.root)?;
        unmount(&self.root);
        let options = CString::new(OPTIONS).map_err(io::Error::other)?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
        mount(device, &self.root, "btrfs", flags, options.as_c_str())?;
        fs::set_permissions(&self.root, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        room_at(&self.root).map(drop)
    }

    /// Gives the host its room back.
    pub(super) fn remove(&self) {
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
        // Where the host's filesystem copies on write, allocated bytes would be allocated for the first write only. Others have no such flag.
        let _ = ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | IFlags::NOCOW));
        fallocate(&file, FallocateFlags::empty(), 0, bytes).at("make room for", &self.file)?;
        let mut mkfs = Command::new("mkfs.btrfs");
        // Mixed: where file data has its own chunks, it takes all of them, and then not even what was removed leaves room for a name.
        mkfs.args(["--quiet", "--nodiscard", "--mixed", "--metadata", "single", "--data", "single"]).arg(&self.file);
        let made = mkfs.stdin(Stdio::null()).stdout(Stdio::null()).output();
        let made = made.doing("run mkfs.btrfs (package btrfs-progs)")?;
        if !made.status.success() {
            let said = io::Error::other(String::from_utf8_lossy(&made.stderr).trim().to_owned());
            return Err(said).at("make a btrfs in", &self.file);
        }
        let device = self.mount_found().at("mount", &self.root)?;
        fs::copy(BOOT_ID, self.note()).at("write", &self.note())?;
        Ok(device)
    }
}

impl Image {
    /// The image of an earlier node of this boot. Fails if it is there and cannot be used.
    pub(super) fn open(place: Place, bytes_max: Option<u64>) -> Result<Option<Self>> {
        if !place.is_of_this_boot() {
            return Ok(None);
        }
        let device = place.mount_found().at("mount what sandboxes have changed, from", &place.file)?;
        Self::of(place, device, bytes_max).map(Some)
    }

    /// A new image in the place of one that nothing needs.
    pub(super) fn make(place: Place, bytes_max: Option<u64>) -> Result<Self> {
        let bytes = step(&place, bytes_max)?.min(spare(place.host()).at("look at the room in", place.host())?);
        if bytes < STEP_MIN {
            let path = place.host().to_owned();
            return Err(Error::NoRoom { path, free: bytes });
        }
        match place.make(bytes & !(GRAIN - 1)) {
            Ok(device) => Self::of(place, device, bytes_max),
            Err(error) => {
                unmount(&place.root);
                place.remove();
                Err(error)
            }
        }
    }

    fn of(place: Place, device: File, bytes_max: Option<u64>) -> Result<Self> {
        let root = place.open_root().at("open", &place.root)?;
        // No harm where it does so already.
        let counted = sys::btrfs::count_bytes(&root);
        if let Err(error) = &counted {
            tracing::warn!(%error, "what a sandbox writes to its root is not limited (Linux 6.7)");
        }
        let (step, bytes_max) = (step(&place, bytes_max)?, bytes_max.unwrap_or(u64::MAX));
        let counts_bytes = counted.is_ok();
        Ok(Self { place, device, step, bytes_max, counts_bytes, is_told: false, reclaimed: None })
    }

    /// Whether it counts what is written to each subvolume, for limits.
    pub(super) fn counts_bytes(&self) -> bool {
        self.counts_bytes
    }

    /// Gives the host its room back.
    pub(super) fn remove(&self) {
        self.place.remove();
    }

    /// Takes a step more of the host, if less than half of one is free. Tells whether there is enough, perhaps after a commit.
    pub(super) fn grow(&mut self) -> bool {
        let grown = self.try_grow();
        if let Err(error) = &grown
            && !self.is_told
        {
            tracing::warn!(%error, path = %self.place.file.display(), "there is no more room for what sandboxes change");
        }
        self.is_told = grown.is_err();
        let low = ROOM_LOW.min(self.bytes_max / 8).max(ROOM_MIN);
        let has_enough = |image: &Self| room_at(&image.place.root).is_ok_and(|free| free >= low);
        has_enough(self) || {
            self.reclaim();
            has_enough(self)
        }
    }

    /// Has the filesystem give back what was removed, which it does with its next commit. Not more than once in a while.
    fn reclaim(&mut self) {
        if self.reclaimed.is_some_and(|then| then.elapsed() < RECLAIM_REST) {
            return;
        }
        if let Err(error) = self.place.open_root().and_then(|root| Ok(rustix::fs::syncfs(root)?)) {
            tracing::warn!(%error, path = %self.place.root.display(), "it may have more room than it says");
        }
        self.reclaimed = Some(Instant::now());
    }

    fn try_grow(&mut self) -> io::Result<()> {
        if room_at(&self.place.root)? >= self.step / 2 {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&self.place.file)?;
        let bytes = file.metadata()?.len();
        if self.take(bytes)? {
            return Ok(());
        }
        let wanted = bytes.saturating_add(self.step.min(spare(self.place.host())?)).min(self.bytes_max) & !(GRAIN - 1);
        if wanted <= bytes {
            let host = self.place.host().display();
            return Err(io::Error::other(format!("it has {} MiB, and there is no more in {host} for it", bytes >> 20)));
        }
        if let Err(error) = fallocate(&file, FallocateFlags::empty(), bytes, wanted - bytes) {
            file.set_len(bytes)?;
            return Err(error.into());
        }
        self.take(wanted)?;
        tracing::info!(path = %self.place.file.display(), mib = wanted >> 20, "more room for what sandboxes change");
        Ok(())
    }

    /// Has device and filesystem take all `bytes` of the file. Tells whether they had less.
    fn take(&self, bytes: u64) -> io::Result<bool> {
        let device = sys::loop_device::bytes(&self.device)?;
        if device < bytes {
            sys::loop_device::grow(&self.device)?;
        }
        let filesystem = statvfs(&self.place.root)?;
        let is_smaller = filesystem.f_blocks * filesystem.f_frsize + GRAIN <= bytes;
        if is_smaller {
            sys::btrfs::grow(self.place.open_root()?)?;
        }
        Ok(is_smaller)
    }
}

fn step(place: &Place, bytes_max: Option<u64>) -> Result<u64> {
    let room = sys::file::room_at(place.host()).at("look at the room in", place.host())?;
    let step = (room / PART_OF_FREE).clamp(STEP_MIN, STEP_MAX);
    Ok(bytes_max.map_or(step, |most| step.min(most / 4).max(most.min(STEP_MIN))))
}

/// What the filesystem of `host` can give.
fn spare(host: &Path) -> io::Result<u64> {
    let found = statvfs(host)?;
    let reserve = (found.f_blocks * found.f_frsize / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX);
    Ok((found.f_bavail * found.f_frsize).saturating_sub(reserve))
}

/// Bytes that can still be written to the btrfs mounted there. Fails if it has turned itself read-only.
pub(super) fn room_at(root: &Path) -> io::Result<u64> {
    let found = statvfs(root)?;
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(io::ErrorKind::ReadOnlyFilesystem.into());
    }
    Ok((found.f_bavail * found.f_frsize).saturating_sub(promised(root)?))
}

/// Bytes of writes that statfs(2) does not count yet, gigabytes at times: those that have no place on the device, and those that have one which the
/// next commit makes known.
fn promised(root: &Path) -> io::Result<u64> {
    let id = base::id::hex(&sys::btrfs::id(open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?);
    let [a, b, c, d, e] = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
    let directory = format!("/sys/fs/btrfs/{a}-{b}-{c}-{d}-{e}/allocation/mixed");
    let bytes = |name| match fs::read_to_string(format!("{directory}/{name}")) {
        Ok(text) => text.trim().parse::<u64>().map_err(io::Error::other),
        // Where there is no /sys, room is made a little later.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    Ok(bytes("bytes_may_use")?.saturating_add(bytes("bytes_reserved")?))
}

/// Takes all that is mounted there out of the tree. It ends with its last user.
pub(super) fn unmount(root: &Path) {
    loop {
        match unmount_at(root, UnmountFlags::DETACH) {
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return,
            Err(error) => return tracing::warn!(%error, path = %root.display(), "it stays mounted"),
        }
    }
}
