//! The arithmetic of a ring of output: which bytes are kept, which may be overwritten, and what a reader has missed.
//!
//! A position counts every byte since the command's start. The byte at position `p` is at `p % capacity` of the ring.
//! Kept are the last `capacity` bytes: positions `total - capacity` to `total`.

/// A contiguous part of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where in the ring it begins.
    pub(crate) offset: u64,
    /// Bytes. Never 0.
    pub(crate) length: u64,
}

/// What a reader gets next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    /// Bytes that were overwritten before the reader came to them.
    pub(crate) missed: u64,
    /// Kept bytes. None: the reader has all.
    pub(crate) span: Option<Span>,
}

/// Position of the oldest byte that is kept.
pub(crate) fn oldest(total: u64, capacity: u64) -> u64 {
    total.saturating_sub(capacity)
}

/// Where the next bytes go, at most `most` of them. None if the fastest reader, which is at `fastest`, has not read
/// what they would overwrite. Without a reader (`fastest` is none) the oldest bytes go.
pub(crate) fn room(total: u64, capacity: u64, fastest: Option<u64>, most: u64) -> Option<Span> {
    let unread = fastest.map_or(0, |fastest| total.saturating_sub(fastest).min(capacity));
    let offset = total % capacity;
    let length = most.min(capacity - unread).min(capacity - offset);
    (length > 0).then_some(Span { offset, length })
}

/// What a reader at `position` gets next, at most `most` bytes.
pub(crate) fn next(total: u64, capacity: u64, position: u64, most: u64) -> Next {
    let begin = position.max(oldest(total, capacity)).min(total);
    let offset = begin % capacity;
    let length = most.min(total - begin).min(capacity - offset);
    let span = (length > 0).then_some(Span { offset, length });
    Next { missed: begin.saturating_sub(position), span }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a program and its readers do.
    #[derive(Debug, Clone)]
    enum Step {
        Write(u64),
        Read { reader: usize, most: u64 },
        Come(usize),
        Leave(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..40u64).prop_map(Step::Write),
            4 => (0..3usize, 1..20u64).prop_map(|(reader, most)| Step::Read { reader, most }),
            1 => (0..3usize).prop_map(Step::Come),
            1 => (0..3usize).prop_map(Step::Leave),
        ];
        proptest::collection::vec(step, 1..200)
    }

    /// The ring under test, with all that was ever written beside it.
    struct Model {
        ring: Vec<u8>,
        all: Vec<u8>,
        readers: [Option<u64>; 3],
    }

    impl Model {
        fn total(&self) -> u64 {
            self.all.len() as u64
        }

        fn write(&mut self, most: u64) {
            let capacity = self.ring.len() as u64;
            let fastest = self.readers.iter().flatten().max().copied();
            let Some(span) = room(self.total(), capacity, fastest, most) else {
                // The program waits only if the fastest reader would lose something.
                assert!(fastest.is_some_and(|fastest| fastest <= oldest(self.total(), capacity)));
                return;
            };
            for k in 0..span.length {
                let byte = (self.total() % 251) as u8;
                self.ring[(span.offset + k) as usize] = byte;
                self.all.push(byte);
            }
            if let Some(fastest) = fastest {
                assert!(fastest >= oldest(self.total(), capacity), "the fastest reader lost bytes");
            }
        }

        fn read(&mut self, reader: usize, most: u64) {
            let Some(position) = self.readers[reader] else { return };
            let next = next(self.total(), self.ring.len() as u64, position, most);
            let begin = position + next.missed;
            let length = next.span.map_or(0, |span| span.length);
            if let Some(Span { offset, length }) = next.span {
                let seen = &self.ring[offset as usize..(offset + length) as usize];
                assert_eq!(seen, &self.all[begin as usize..(begin + length) as usize]);
            } else {
                assert_eq!(begin, self.total());
            }
            self.readers[reader] = Some(begin + length);
        }
    }

    proptest! {
        #[test]
        fn readers_get_every_byte_or_know_how_many_they_missed(capacity in 1..64usize, steps in steps()) {
            let mut model = Model { ring: vec![0; capacity], all: Vec::new(), readers: [None; 3] };
            for step in steps {
                match step {
                    Step::Write(most) => model.write(most),
                    Step::Read { reader, most } => model.read(reader, most),
                    Step::Come(reader) => model.readers[reader] = Some(oldest(model.total(), capacity as u64)),
                    Step::Leave(reader) => model.readers[reader] = None,
                }
            }
        }

        #[test]
        fn no_position_leads_out_of_the_ring(total: u64, position: u64, most: u64, capacity in 1..u64::MAX) {
            let fits = |span: Span| span.offset.checked_add(span.length).is_some_and(|end| end <= capacity);
            prop_assert!(next(total, capacity, position, most).span.is_none_or(fits));
            prop_assert!(room(total, capacity, Some(position), most).is_none_or(fits));
        }
    }
}
