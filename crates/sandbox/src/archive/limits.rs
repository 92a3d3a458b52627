//! Every bound of layer archives, each with its reason.

/// Most entries of one archive: as many inodes as ext4 makes on 256 GiB, some 700 MB of the smallest records.
pub(super) const ENTRIES_MAX: u64 = 1 << 24;

/// Most bytes that names may take while packing, those of open directories and of files with names still to come.
pub(super) const HELD_BYTES_MAX: usize = 256 << 20;

/// What holding a name costs beside its own bytes: allocation, string or map entry.
pub(super) const HELD_OVERHEAD_BYTES: usize = 64;

/// Largest file: ext4's limit with 4 KiB blocks. Holes cost an archive nothing, so only this bounds what one claims.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 40;

/// Bytes of a file that are read at a time and the most in one record: large enough that frames cost nothing.
pub(super) const WINDOW_BYTES: usize = 128 << 10;

/// Zeros of a whole block (from a multiple of this; the last of a file may be shorter) are a hole. The block of most filesystems.
pub(super) const BLOCK_BYTES: usize = 4 << 10;

/// Largest record: a window of data, or a link with the longest path (256 levels of 255 bytes), or an extended
/// attribute (64 KiB), and what is around it.
pub(super) const RECORD_BYTES_MAX: usize = WINDOW_BYTES + (1 << 10);

/// The kernel's NAME_MAX, for extended attributes too (XATTR_NAME_MAX).
pub(super) const NAME_BYTES_MAX: usize = 255;

/// The kernel's PATH_MAX, with the zero at the end: the longest target of a symbolic link.
pub(super) const TARGET_BYTES_MAX: usize = 4095;
