//! What a fork is before it is opened: a second name of its parent's manifest, and a note of its own in the row of the heads.
//!
//! The manifest still says that it is the parent's, and names the parent's log. So the first opening takes no log for the fork's own, whatever lies
//! on the node, and writes a manifest that is the fork's.

use crate::{inode::Time, state::Superblock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Birth {
    /// Of the fork.
    pub(super) incarnation: [u8; 16],
    pub(super) created: Time,
}

impl Birth {
    /// As the note of a head: the incarnation in hexadecimal digits, seconds, nanoseconds.
    pub(super) fn encode(self) -> String {
        format!("{} {} {}", base::id::hex(&self.incarnation), self.created.seconds, self.created.nanos)
    }

    /// `None` for a volume that is no fork.
    pub(super) fn decode(note: &str) -> Option<Self> {
        let (incarnation, time) = note.split_once(' ')?;
        let (seconds, nanos) = time.split_once(' ')?;
        let incarnation = u128::from_str_radix(incarnation, 16).ok()?.to_be_bytes();
        Some(Self { incarnation, created: Time { seconds: seconds.parse().ok()?, nanos: nanos.parse().ok()? } })
    }

    /// What a fork's manifest shall say, if this one is still its parent's.
    pub(super) fn of(note: &str, superblock: &Superblock) -> Option<Self> {
        Self::decode(note).filter(|birth| birth.incarnation != superblock.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_and_other_notes_are_none() {
        for incarnation in [[0; 16], [255; 16], *b"sixteen bytes it"] {
            let birth = Birth { incarnation, created: Time { seconds: 1_700_000_000, nanos: 5 } };
            assert_eq!(Birth::decode(&birth.encode()), Some(birth));
        }
        assert!(["", "a note", "1234", "zz 1 2", "12 x 2"].iter().all(|note| Birth::decode(note).is_none()));
    }
}
