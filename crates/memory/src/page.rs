//! Pages and runs of pages.

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Consecutive pages, by number (address / 4096).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// Number of the first page.
    pub first: u64,
    /// Pages.
    pub count: u64,
}

impl PageRun {
    /// Every page there can be.
    pub const ALL: Self = Self { first: 0, count: crate::limits::PAGE_NUMBER_END };

    /// The pages from `first` up to, not including, `end`; none if that is backwards.
    pub fn between(first: u64, end: u64) -> Self {
        Self { first, count: end.saturating_sub(first) }
    }

    /// Number of the first page after the run.
    pub fn end(self) -> u64 {
        self.first + self.count
    }

    /// Bytes of the pages.
    pub fn bytes(self) -> u64 {
        self.count * PAGE_BYTES as u64
    }

    /// Address of the first page.
    pub fn address(self) -> u64 {
        self.first * PAGE_BYTES as u64
    }

    /// The pages in both.
    pub fn overlap(self, other: Self) -> Self {
        Self::between(self.first.max(other.first), self.end().min(other.end()))
    }
}
