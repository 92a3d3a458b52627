//! Bounds of what is unpacked.

/// Most entries of an archive: each is a file of the host's.
pub const ENTRIES_MAX: u64 = 2_000_000;
/// Most bytes that an archive may write, holes not counted.
pub const ARCHIVE_BYTES_MAX: u64 = 128 << 30;
/// Longest file, with its holes.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 40;
/// Below that nothing is a bomb.
pub(crate) const RATIO_BYTES_MIN: u64 = 1 << 30;
/// How many times its size an archive may unfold to. Zeros reach about 1,000 with gzip.
pub(crate) const RATIO_MAX: u64 = 1_200;
/// Longest document of an image: manifests and configurations.
pub const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Most layers of an image: the kernel stacks 500 at most.
pub(crate) const LAYERS_MAX: usize = 400;
