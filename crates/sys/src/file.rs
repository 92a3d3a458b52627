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
