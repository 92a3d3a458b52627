//! Loop devices: files as block devices (linux/loop.h).

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

const GET_FREE: u64 = 0x4C82;
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
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
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
        info: Info {
            numbers: [0; 5],
            number: 0,
            encryption: [0; 2],
            flags: AUTOCLEAR | DIRECT_IO,
            names: [0; 160],
            init: [0; 2],
        },
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

/// The device of an image, if there is one.
pub fn find(image: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if Path::new(backing.trim_end_matches('\n')) == image {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// Has a device see that its image has grown.
pub fn grow(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the request has no argument.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), SET_CAPACITY as _) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
