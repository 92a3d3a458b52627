//! Where pages come from, and the registered pages of an image, counted through.

use std::{ops::Range, sync::Arc};

use crate::{
    error::SourceError,
    limits::{CLUSTER_PAGES_MAX, PAGE_BYTES},
};

/// Neighbouring pages that come together.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Address of the first one in the image.
    pub start: u64,
    /// 1 to 64 whole pages. Shared, so that a source need not copy what it keeps.
    pub bytes: Arc<Vec<u8>>,
}

impl Cluster {
    /// The addresses it has.
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }

    /// Whether it is what was asked for: whole pages, not too many, `address` among them.
    pub(crate) fn is_sound(&self, address: u64) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES);
        let len = self.bytes.len() as u64;
        whole(self.start) && whole(len) && len <= CLUSTER_PAGES_MAX * PAGE_BYTES && self.range().contains(&address)
    }
}

/// The pages of one image, by address in the image. Used by many threads at once.
pub trait PageSource: Send + Sync {
    /// The addresses of the cluster that holds the page at `address`: what one fetch brings. Known without waiting.
    fn extent(&self, address: u64) -> Range<u64>;

    /// That cluster. May wait for the store.
    fn cluster(&self, address: u64) -> Result<Cluster, SourceError>;

    /// Whether [`PageSource::cluster`] would answer without waiting for a disk or a network.
    fn is_local(&self, address: u64) -> bool;

    /// The addresses that have content, sorted. All other registered pages are zeros.
    fn ranges(&self) -> Vec<Range<u64>>;

    /// Whether it is known which pages are touched first. If not, nothing is filled unasked for [`RECORDING`](crate::RECORDING).
    fn is_recorded(&self) -> bool;
}

/// Makes sources of what clients hand over.
pub trait OpenSource: Send + Sync {
    /// Called once at a pager's start, on a thread of its own: whatever every image will need can be made ready.
    fn prepare(&self) {}

    /// The source of the image that `image` describes. May wait for the store.
    fn open(&self, image: &[u8]) -> Result<Arc<dyn PageSource>, SourceError>;
}

/// The registered pages of an image, numbered from 0 on in the order of their addresses. A process may move a page; its number stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Addresses, and the number of the first page.
    ranges: Vec<(Range<u64>, u64)>,
    pages: u64,
}

impl Layout {
    /// `None` unless the ranges are sorted, apart, not empty and made of whole pages.
    pub(crate) fn new(ranges: &[Range<u64>]) -> Option<Self> {
        let mut layout = Self::default();
        let mut end = 0;
        for range in ranges {
            let whole = range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES);
            if !whole || range.start < end || range.is_empty() {
                return None;
            }
            end = range.end;
            layout.ranges.push((range.clone(), layout.pages));
            layout.pages += (range.end - range.start) / PAGE_BYTES;
        }
        Some(layout)
    }

    /// From pairs of addresses, little-endian.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let ranges: Vec<Range<u64>> = bytes.chunks_exact(16).map(|pair| word(&pair[..8])..word(&pair[8..])).collect();
        Self::new(&ranges)
    }

    /// How many pages there are.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The ranges, each with the number of its first page.
    pub(crate) fn ranges(&self) -> &[(Range<u64>, u64)] {
        &self.ranges
    }

    /// The address in the image of page `number`, which is less than [`Layout::pages`].
    pub(crate) fn address(&self, number: u64) -> u64 {
        let index = self.ranges.partition_point(|(_, first)| *first <= number) - 1;
        let (range, first) = &self.ranges[index];
        range.start + (number - first) * PAGE_BYTES
    }

    /// The numbers of the registered pages within `addresses` of the image, as ranges, each with the address it begins at.
    pub(crate) fn numbers(&self, addresses: &Range<u64>) -> Vec<(u64, Range<u64>)> {
        let from = self.ranges.partition_point(|(range, _)| range.end <= addresses.start);
        let reached = self.ranges[from..].iter().take_while(|(range, _)| range.start < addresses.end);
        reached
            .map(|(range, first)| {
                let start = range.start.max(addresses.start);
                let end = range.end.min(addresses.end);
                let number = first + (start - range.start) / PAGE_BYTES;
                (start, number..number + (end - start) / PAGE_BYTES)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PAGE_BYTES;

    #[test]
    fn pages_are_numbered_across_gaps() {
        let layout = Layout::new(&[4 * P..6 * P, 10 * P..13 * P]).unwrap();
        assert_eq!(layout.pages(), 5);
        let addresses: Vec<u64> = (0..5).map(|number| layout.address(number) / P).collect();
        assert_eq!(addresses, [4, 5, 10, 11, 12]);
        assert_eq!(layout.numbers(&(5 * P..12 * P)), [(5 * P, 1..2), (10 * P, 2..4)]);
        assert_eq!(layout.numbers(&(6 * P..10 * P)), []);
    }

    #[test]
    fn what_is_not_sorted_or_whole_is_refused() {
        assert_eq!(Layout::new(&[4 * P..6 * P, 5 * P..7 * P]), None);
        assert_eq!(Layout::new(&[4 * P..4 * P, 6 * P..7 * P]), None);
        assert_eq!(Layout::new(&[1..P, 6 * P..7 * P]), None);
    }
}
