//! Why a hand did not do what was asked.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Why a hand did not do what was asked. The text names no path: the caller knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Problem {
    #[error("it does not exist")]
    NotFound,
    #[error("it exists already")]
    Exists,
    #[error("it exists already and is not a directory")]
    ExistsAsFile,
    #[error("it, or a part of its path, is not a directory")]
    NotDirectory,
    #[error("it is a directory")]
    IsDirectory,
    #[error("it is a pipe, socket or device: only regular files are read and written")]
    NotRegular,
    #[error("permission denied")]
    Denied,
    #[error("its filesystem is read-only")]
    ReadOnly,
    #[error("no space is left on its filesystem")]
    NoSpace,
    #[error("the disk quota is used up")]
    Quota,
    #[error("a path is absolute, without zero bytes, and has at most 4095 bytes; a name has at most 255")]
    BadPath,
    #[error("too many links on the way")]
    Loop,
    #[error("the range begins behind the end: the file has {size} bytes")]
    BadRange { size: u64 },
    #[error("metadata keys have 1 to 246 bytes, keys and values are printable ASCII, and all have at most 4096 bytes")]
    BadMetadata,
    #[error("its filesystem keeps no metadata")]
    NoMetadata,
    #[error("a file of the kernel may have at most {bytes_max} bytes")]
    KernelFileTooLarge { bytes_max: u64 },
    #[error("a list may have at most {entries_max} files: list with a smaller depth")]
    TooManyEntries { entries_max: usize },
    #[error("a list may have at most {bytes_max} bytes of names and metadata: list with a smaller depth")]
    ListTooLong { bytes_max: usize },
    #[error("at most {max} directories can be watched")]
    TooManyWatches { max: usize },
    #[error("it changed in the meantime")]
    Changed,
    #[error("the upload ended before all of it was there")]
    BrokenOff,
    #[error("the archive cannot be copied: {why}")]
    BadArchive { why: String },
    #[error("it took too long")]
    Deadline,
    #[error("it was cancelled")]
    Cancelled,
    #[error("too many requests at once")]
    Busy,
    #[error("a file cannot be joined to itself")]
    SameFile,
    #[error("{}", std::io::Error::from_raw_os_error(*errno))]
    System { errno: i32 },
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::NOTDIR => Self::NotDirectory,
            Errno::ISDIR => Self::IsDirectory,
            Errno::NXIO | Errno::NODEV => Self::NotRegular,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::ROFS => Self::ReadOnly,
            Errno::NOSPC => Self::NoSpace,
            Errno::DQUOT => Self::Quota,
            Errno::NAMETOOLONG => Self::BadPath,
            Errno::LOOP => Self::Loop,
            Errno::OPNOTSUPP => Self::NoMetadata,
            errno => Self::System { errno: errno.raw_os_error() },
        }
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Errno::from_io_error(&error).unwrap_or(Errno::IO).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_keep_their_meaning() {
        assert_eq!(Problem::from(Errno::NOSPC), Problem::NoSpace);
        assert_eq!(Problem::from(std::io::Error::from_raw_os_error(122)), Problem::Quota);
        assert_eq!(Problem::from(Errno::XDEV), Problem::System { errno: 18 });
        assert!(Problem::System { errno: 18 }.to_string().contains("cross-device"));
    }
}
