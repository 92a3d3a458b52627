//! An ordered map of which parts are in memory: directories and files of any size are opened as far as they are used.

use std::collections::BTreeMap;

/// The first number of which nothing is known: it must be read before the question can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap(pub(crate) u64);

/// Values by number, and where no other values exist.
#[derive(Debug)]
pub(crate) struct Paged<V> {
    values: BTreeMap<u64, V>,
    known: Known,
}

/// Of which numbers it is known whether there is a value.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    /// What was made here is known so: most files, for which a map would be another allocation.
    All,
    /// First number of a known range to its last. Ranges neither overlap nor touch.
    Ranges(BTreeMap<u64, u64>),
}

impl Known {
    /// The last number of the known range that `number` is in.
    fn through(&self, number: u64) -> Result<u64, Gap> {
        match self {
            Self::All => Ok(u64::MAX),
            Self::Ranges(ranges) => {
                let range = ranges.range(..=number).next_back();
                range.map(|(_, last)| *last).filter(|last| *last >= number).ok_or(Gap(number))
            }
        }
    }

    fn add(&mut self, first: u64, last: u64) {
        let Self::Ranges(ranges) = self else { return };
        let (mut low, mut high) = (first, last);
        while let Some((&start, &end)) = ranges.range(..=high.saturating_add(1)).next_back() {
            if end.saturating_add(1) < low {
                break;
            }
            (low, high) = (low.min(start), high.max(end));
            ranges.remove(&start);
        }
        match (low, high) {
            (0, u64::MAX) => *self = Self::All,
            _ => drop(ranges.insert(low, high)),
        }
    }
}

impl<V> Paged<V> {
    /// Nothing is known.
    pub(crate) fn unread() -> Self {
        Self { values: BTreeMap::new(), known: Known::Ranges(BTreeMap::new()) }
    }

    /// It is known to be empty.
    pub(crate) fn empty() -> Self {
        Self { values: BTreeMap::new(), known: Known::All }
    }

    pub(crate) fn get(&self, number: u64) -> Result<Option<&V>, Gap> {
        self.known.through(number)?;
        Ok(self.values.get(&number))
    }

    /// All with `first` <= number <= `last`, if they are known.
    pub(crate) fn range(&self, first: u64, last: u64) -> Result<impl Iterator<Item = (u64, &V)>, Gap> {
        match self.known.through(first)? {
            known if known < last => Err(Gap(known + 1)),
            _ => Ok(self.values.range(first..=last).map(|(number, value)| (*number, value))),
        }
    }

    /// The first at `number` or behind it.
    pub(crate) fn next(&self, number: u64) -> Result<Option<(u64, &V)>, Gap> {
        let last = self.known.through(number)?;
        match self.values.range(number..=last).next() {
            Some((number, value)) => Ok(Some((*number, value))),
            None if last == u64::MAX => Ok(None),
            None => Err(Gap(last + 1)),
        }
    }

    /// For writers, which have looked at `number` before: it is known.
    pub(crate) fn put(&mut self, number: u64, value: V) {
        debug_assert!(self.known.through(number).is_ok());
        self.values.insert(number, value);
    }

    /// As `put`.
    pub(crate) fn take(&mut self, number: u64) -> Option<V> {
        debug_assert!(self.known.through(number).is_ok());
        self.values.remove(&number)
    }

    /// The value in memory, if it is there.
    pub(crate) fn loaded(&self, number: u64) -> Option<&V> {
        self.values.get(&number)
    }

    /// Takes in what was read: all that exists from `first` to `last`. What was known before is newer and stays.
    pub(crate) fn admit(&mut self, first: u64, last: u64, read: impl Iterator<Item = (u64, V)>) {
        for (number, value) in read {
            if self.known.through(number).is_err() {
                self.values.insert(number, value);
            }
        }
        self.known.add(first, last);
    }

    /// All values in memory.
    pub(crate) fn into_values(self) -> impl Iterator<Item = V> {
        self.values.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_read_is_known_and_what_was_written_stays() {
        let mut paged = Paged::unread();
        assert_eq!(paged.get(5), Err(Gap(5)));
        paged.admit(3, 10, [(4, 'a'), (10, 'b')].into_iter());
        assert_eq!((paged.get(4), paged.get(5)), (Ok(Some(&'a')), Ok(None)));
        assert_eq!((paged.next(5), paged.next(11)), (Ok(Some((10, &'b'))), Err(Gap(11))));
        assert_eq!(paged.range(4, 11).err(), Some(Gap(11)));
        paged.put(4, 'c');
        paged.take(10);
        paged.admit(0, 20, [(0, 'z'), (4, 'a'), (10, 'b'), (20, 'y')].into_iter());
        let all: Vec<_> = paged.range(0, 20).unwrap().map(|(number, value)| (number, *value)).collect();
        assert_eq!(all, [(0, 'z'), (4, 'c'), (20, 'y')]);
        assert_eq!(paged.known, Known::Ranges(BTreeMap::from([(0, 20)])));
        paged.admit(30, u64::MAX, std::iter::empty());
        assert_eq!((paged.next(21), paged.next(30)), (Err(Gap(21)), Ok(None)));
        paged.admit(21, 29, std::iter::empty());
        assert_eq!(paged.known, Known::All);
    }
}
