//! What rustix does not have of files.

use std::{
    collections::HashSet,
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

        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let of_child = format!("/proc/{}/maps", child.id());
        assert!(found(&of_child).unwrap().is_empty());
        let maps = File::open(of_child).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(devices_mapped_shared(maps).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
