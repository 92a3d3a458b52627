//! Opening regular files, and nothing else.

use std::{fs::File, path::Path};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fstat, fstatfs, stat},
    io::Errno,
};

use crate::protocol::Problem;

/// A pipe without a writer, a terminal or a device must neither hold this thread nor become this process's terminal.
pub(super) const NEVER_WAIT: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Filesystems whose files have a content that the kernel makes when it is read. Their sizes mean nothing.
///
/// Magic numbers of linux/magic.h: proc, sysfs, debugfs, tracefs, securityfs, configfs, cgroup, cgroup2, bpf, efivarfs.
const OF_THE_KERNEL: [u32; 10] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0xde5e_81e4,
];

/// A regular file that is open.
#[derive(Debug)]
pub(super) struct Regular {
    pub(super) file: File,
    pub(super) stat: Stat,
}

/// Opens a regular file for reading.
pub(super) fn regular(path: &Path) -> Result<Regular, Problem> {
    match rustix::fs::open(path, OFlags::RDONLY | NEVER_WAIT, Mode::empty()) {
        Ok(file) => checked(file.into()),
        // A socket cannot be opened at all, and a device may be switched off.
        Err(errno) => Err(refusal(path, errno)),
    }
}

/// Fails unless the open file is a regular one.
pub(super) fn checked(file: File) -> Result<Regular, Problem> {
    let stat = fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Regular { file, stat }),
        FileType::Directory => Err(Problem::IsDirectory),
        _ => Err(Problem::NotRegular),
    }
}

/// Why a file cannot be opened: its type says more than the error.
pub(super) fn refusal(path: &Path, errno: Errno) -> Problem {
    match stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::RegularFile) | Err(_) => errno.into(),
        Ok(FileType::Directory) => Problem::IsDirectory,
        Ok(_) => Problem::NotRegular,
    }
}

impl Regular {
    /// Whether only reading tells how long it is.
    pub(super) fn is_of_the_kernel(&self) -> Result<bool, Problem> {
        // The type of a filesystem is a signed word on some architectures.
        let kind = fstatfs(&self.file)?.f_type as u32;
        Ok(OF_THE_KERNEL.contains(&kind))
    }
}
