//! What rustix does not have of files.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// Writes all dirty pages of a file to its filesystem and waits until that has them, which need not be durably (sync_file_range(2)).
pub fn write_back(file: impl AsFd) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: an open descriptor while it is borrowed, and numbers; 0 bytes are all that there are.
    let result = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, how) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

/// Whether the process of an open `/proc/PID/maps` has a shared mapping of a file: some microseconds, where reading them all takes ten times as
/// long. `ESRCH` if it has no memory.
pub fn maps_shared_file(maps: impl AsFd) -> io::Result<bool> {
    const SHARED: u64 = 8;
    const COVERING_OR_NEXT: u64 = 16;
    const OF_A_FILE: u64 = 32;
    // _IOWR('f', 17, struct procmap_query)
    const PROCMAP_QUERY: libc::Ioctl =
        (3 << 30) | ((size_of::<MappingQuery>() as libc::Ioctl) << 16) | (0x66 << 8) | 17;
    let mut query = MappingQuery {
        size: size_of::<MappingQuery>() as u64,
        flags: SHARED | COVERING_OR_NEXT | OF_A_FILE,
        ..MappingQuery::default()
    };
    // SAFETY: the kernel reads and writes as many bytes as the query says that it has, and lives until the call returns; it names no buffers.
    if unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != -1 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_shared_mapping_of_a_file_is_found() {
        let maps = File::open("/proc/self/maps").unwrap();
        // Other tests of this process may have some.
        let before = maps_shared_file(&maps).unwrap();
        let region = crate::share::Region::new(1).unwrap();
        assert!(maps_shared_file(&maps).unwrap(), "{before}, {region:?}");
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let of_child = format!("/proc/{}/maps", child.id());
        assert!(!maps_shared_file(File::open(&of_child).unwrap()).unwrap());
        let maps = File::open(of_child).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(maps_shared_file(maps).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
