//! What clients send to the guardian, for the fuzz targets in `fuzz/`. A failed assertion is a finding.

use crate::{limits::PAGES_MAX, message::Request, pages::Layout};

/// A message, and the ranges that come beside one.
pub fn client(bytes: &[u8]) {
    drop(serde_json::from_slice::<Request>(bytes));
    let Some(layout) = Layout::decode(bytes).filter(|layout| layout.pages() <= PAGES_MAX) else { return };
    for (range, first) in layout.ranges() {
        assert_eq!(layout.address(*first), range.start);
        assert_eq!(layout.numbers(range).first().map(|(start, _)| *start), Some(range.start));
    }
}
