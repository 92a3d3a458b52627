//! Loop devices: files as block devices (linux/loop.h).

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

const GET_FREE: u64 = 0x4C82;
/// Of block devices (`BLKGETSIZE64`).
const GET_SIZE: u64 = 0x8008_1272;
const GET_STATUS: u64 = 0x4C05;
const CONFIGURE: u64 = 0x4C0A;
const SET_CAPACITY: u64 = 0x4C07;

/// The device goes with its last user.
const AUTOCLEAR: u32 = 4;
/// Past the page cache: what is in the device's has no second copy in the file's.
const DIRECT_IO: u32 = 16;

const BLOCK_BYTES: u32 = 4096;

/// How often another process may be faster to take a free device.
const RACES_MAX: usize = 64;

/// `loop_info64`.
#[repr(C)]
struct Info {
    /// The image's filesystem and inode; three others.
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

impl Default for Info {
    fn default() -> Self {
        Self { numbers: [0; 5], number: 0, encryption: [0; 2], flags: 0, names: [0; 160], init: [0; 2] }
    }
}

/// `loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// Makes a device of `image`. It is there as long as it is open or mounted.
pub fn attach(image: impl AsFd) -> io::Result<(PathBuf, File)> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let image = image.as_fd();
    let mut config = Config {
        fd: image.as_raw_fd() as u32,
        block_size: BLOCK_BYTES,
        info: Info { flags: AUTOCLEAR | DIRECT_IO, ..Info::default() },
        reserved: [0; 8],
    };
    for _ in 0..RACES_MAX {
        // SAFETY: the request has no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE as _) };
        if number == -1 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        // SAFETY: the request's argument is a `loop_config`; `image` is open while it is borrowed.
        if unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE as _, &raw mut config) } != -1 {
            return Ok((path, device));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// The device whose image is this very file, whatever its path, if there is one.
pub fn find(image: impl AsFd) -> io::Result<Option<(PathBuf, File)>> {
    let image = rustix::fs::fstat(image)?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        if !entry.path().join("loop").is_dir() {
            continue;
        }
        let path = Path::new("/dev").join(entry.file_name());
        // Not every device of the machine has to be here.
        let device = match File::open(&path) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => continue,
            device => device?,
        };
        let mut info = Info::default();
        // SAFETY: the request's argument is a `loop_info64`.
        if unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS as _, &raw mut info) } == -1 {
            match io::Error::last_os_error() {
                // It has lost its image since it was listed.
                error if error.raw_os_error() == Some(libc::ENXIO) => continue,
                error => return Err(error),
            }
        }
        let [of_device, inode, ..] = info.numbers;
        if (of_device, inode) == (image.st_dev, image.st_ino) {
            return Ok(Some((path, device)));
        }
    }
    Ok(None)
}

/// How many bytes a device has.
pub fn bytes(device: impl AsFd) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // SAFETY: the request's argument is a `u64`.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), GET_SIZE as _, &raw mut bytes) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}

/// Has a device see that its image has grown.
pub fn grow(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the request has no argument.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), SET_CAPACITY as _) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
