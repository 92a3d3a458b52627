//! What kind of page it is: zero, in an older image, seen before, or new.

use std::{collections::HashMap, mem};

use crate::{
    content::{Hash, Known, KnownPlace, hash_of},
    limits::{RECENT_CHUNKS_MAX, SEEN_PAGES_MAX},
    page::PAGE_BYTES,
};

/// A page of the image being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of the chunk in this dump.
    pub(crate) chunk: u32,
    pub(crate) ordinal: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Zero,
    /// Equal to a page of an older image.
    Known(KnownPlace),
    /// Equal to the page at this place.
    Duplicate(Place),
    /// Remembered at the place it was to have.
    New(Hash),
}

/// Remembers pages in two generations: when the younger is full it becomes the older, which is forgotten. So memory is bounded and what is
/// forgotten was not seen for long.
#[derive(Debug)]
pub(crate) struct Classifier<'a> {
    known: &'a Known,
    young: HashMap<Hash, Place>,
    old: HashMap<Hash, Place>,
}

impl<'a> Classifier<'a> {
    pub(crate) fn new(known: &'a Known) -> Self {
        Self { known, young: HashMap::new(), old: HashMap::new() }
    }

    /// What `page` is; if it is new, it will be at `place`.
    pub(crate) fn classify(&mut self, page: &[u8], place: Place) -> Class {
        if page == [0; PAGE_BYTES] {
            return Class::Zero;
        }
        let hash = hash_of(page);
        if let Some(place) = self.known.find(&hash) {
            return Class::Known(place);
        }
        let recent = |seen: &&Place| ((place.chunk - seen.chunk) as usize) < RECENT_CHUNKS_MAX;
        if let Some(seen) = self.young.get(&hash).or_else(|| self.old.get(&hash)).filter(recent) {
            return Class::Duplicate(*seen);
        }
        if self.young.len() == SEEN_PAGES_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(hash, place);
        Class::New(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_new_or_known() {
        let known = Known::default();
        let mut classifier = Classifier::new(&known);
        let (a, b) = (Place { chunk: 1, ordinal: 7 }, Place { chunk: 2, ordinal: 0 });
        let mut page = [0; PAGE_BYTES];
        assert_eq!(classifier.classify(&page, a), Class::Zero);
        page[4095] = 1;
        assert_eq!(classifier.classify(&page, a), Class::New(hash_of(&page)));
        assert_eq!(classifier.classify(&page, b), Class::Duplicate(a));
    }

    #[test]
    fn chunks_too_far_back_are_not_referred_to() {
        let known = Known::default();
        let mut classifier = Classifier::new(&known);
        let page = [1; PAGE_BYTES];
        let late = Place { chunk: RECENT_CHUNKS_MAX as u32, ordinal: 0 };
        assert_eq!(classifier.classify(&page, Place { chunk: 0, ordinal: 0 }), Class::New(hash_of(&page)));
        assert_eq!(classifier.classify(&page, late), Class::New(hash_of(&page)));
        assert_eq!(classifier.classify(&page, late), Class::Duplicate(late));
    }
}
