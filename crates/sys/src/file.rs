//! What rustix does not have of files.

use std::{
    collections::HashSet,
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd},
    path::Path,
};

/// Bytes that the filesystem of a path has left for users other than root (statvfs(3)).
pub fn room_at(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Writes all dirty pages of a file to its filesystem and waits until that has them, which need not be durably (sync_file_range(2)).
pub fn write_back(file: impl AsFd) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: an open descriptor while it is borrowed, and numbers; 0 bytes are all that there are.
    let result = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, how) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Who hears of what happens at an open file (`F_SETOWN_EX`), and by which signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalOwner {
    /// `F_OWNER_TID` 0, `F_OWNER_PID` 1, `F_OWNER_PGRP` 2.
    pub kind: i32,
    /// A thread, process or process group as the caller numbers them; 0: nobody.
    pub id: i32,
    /// `F_SETSIG`; 0: the usual one.
    pub signal: i32,
}

/// The owner of an open file, which is not one of `O_PATH`.
pub fn signal_owner(file: impl AsFd) -> io::Result<SignalOwner> {
    const F_GETSIG: i32 = 11;
    const F_GETOWN_EX: i32 = 16;
    let fd = file.as_fd().as_raw_fd();
    // struct f_owner_ex
    let mut owner = [0i32; 2];
    // SAFETY: F_GETOWN_EX writes a `struct f_owner_ex`, two words, at its argument; F_GETSIG has none.
    let (known, signal) = unsafe { (libc::fcntl(fd, F_GETOWN_EX, owner.as_mut_ptr()), libc::fcntl(fd, F_GETSIG)) };
    if known == -1 || signal == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(SignalOwner { kind: owner[0], id: owner[1], signal })
}

/// Which file `path` below `directory` is, by the handle that tells it from all others of its filesystem, as the kernel shows it of watches
/// (`f_handle` in `/proc/PID/fdinfo`; name_to_handle_at(2), `AT_HANDLE_FID`, Linux 6.5). Follows no link; an empty path is the directory itself.
pub fn handle(directory: impl AsFd, path: &CStr) -> io::Result<Vec<u8>> {
    const AT_HANDLE_FID: i32 = 0x200;
    const HANDLE_BYTES_MAX: usize = 128;
    // struct file_handle: length, type, bytes
    let mut handle = [0u32; 2 + HANDLE_BYTES_MAX / 4];
    handle[0] = HANDLE_BYTES_MAX as u32;
    let mut mount = 0i32;
    let flags = AT_HANDLE_FID | libc::AT_EMPTY_PATH;
    let (directory, path) = (directory.as_fd().as_raw_fd(), path.as_ptr());
    // SAFETY: a descriptor and a text that live until the call returns, a `struct file_handle` with room for the bytes it says, and a word.
    let result = unsafe {
        libc::syscall(libc::SYS_name_to_handle_at, directory, path, handle.as_mut_ptr(), &raw mut mount, flags)
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    let bytes = handle[2..].iter().flat_map(|word| word.to_ne_bytes());
    Ok(bytes.take(handle[0] as usize).collect())
}

/// What `PROCMAP_QUERY` reads and writes (Linux 6.11, linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct MappingQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    found_flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<MappingQuery>() == 104);

/// The devices of the files of which the process of an open `/proc/PID/maps` has shared mappings: some microseconds for the many that have none,
/// where reading what they have mapped takes ten times as long. `ESRCH` if it has no memory; `ENOTTY` before Linux 6.11.
pub fn devices_mapped_shared(maps: impl AsFd) -> io::Result<HashSet<u64>> {
    const SHARED: u64 = 8;
    const COVERING_OR_NEXT: u64 = 16;
    const OF_A_FILE: u64 = 32;
    // _IOWR('f', 17, struct procmap_query)
    const PROCMAP_QUERY: libc::Ioctl =
        (3 << 30) | ((size_of::<MappingQuery>() as libc::Ioctl) << 16) | (0x66 << 8) | 17;
    let mut devices = HashSet::new();
    let mut address = 0;
    loop {
        let mut query = MappingQuery {
            size: size_of::<MappingQuery>() as u64,
            flags: SHARED | COVERING_OR_NEXT | OF_A_FILE,
            address,
            ..MappingQuery::default()
        };
        // SAFETY: the kernel reads and writes as many bytes as the query says that it has, and lives until the call returns; it names no buffers.
        if unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), PROCMAP_QUERY, &raw mut query) } == -1 {
            return match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENOENT) => Ok(devices),
                error => Err(error),
            };
        }
        let [major, minor] = query.device;
        devices.insert(rustix::fs::makedev(major, minor));
        address = query.end;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn the_devices_of_shared_mappings_are_found() {
        let found = |maps: &str| devices_mapped_shared(File::open(maps).unwrap());
        let _shared = crate::share::Region::new(1).unwrap();
        let listed = fs::read_to_string("/proc/self/maps").unwrap();
        let listed = listed.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (major, minor) = fields[3].split_once(':')?;
            let number = |text| u32::from_str_radix(text, 16).unwrap();
            (fields[1].ends_with('s') && fields[4] != "0").then(|| rustix::fs::makedev(number(major), number(minor)))
        });
        assert_eq!(found("/proc/self/maps").unwrap(), listed.collect());

        // Of another locale the C library maps a cache, shared.
        let mut child = std::process::Command::new("sleep").arg("10").env("LC_ALL", "C").spawn().unwrap();
        let of_child = format!("/proc/{}/maps", child.id());
        // The kernel lets us go on a moment before the child has the memory of its new program (exec_mmap in fs/exec.c).
        let command = format!("/proc/{}/cmdline", child.id());
        while !fs::read(&command).unwrap().starts_with(b"sleep") {
            std::thread::yield_now();
        }
        assert!(found(&of_child).unwrap().is_empty());
        let maps = File::open(of_child).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(devices_mapped_shared(maps).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
