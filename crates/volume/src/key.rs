//! Where things are in a volume's tree. All that belongs to one inode lies together, so one scan opens a small file or directory.
//!
//! ```text
//!   inode (8 bytes, big-endian) | part (1 byte) | number (8 bytes, big-endian)
//!     part 0  the inode                       number 0
//!     part 1  its extended attributes         number 0
//!     part 2  a window of a file's data       number of the window
//!     part 3  an entry of a directory         its cookie
//!   inode 0, part 4: an inode without a name  that inode
//! ```

use crate::inode::Ino;

/// Bytes of an encoded key.
pub(crate) const BYTES: usize = 17;

/// What of an inode a key stands for. The order is that of the encoded keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Part {
    Inode,
    Xattrs,
    Window(u64),
    Entry(u64),
    Orphan(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) ino: Ino,
    pub(crate) part: Part,
}

impl Key {
    pub(crate) fn inode(ino: Ino) -> Self {
        Self { ino, part: Part::Inode }
    }

    pub(crate) fn xattrs(ino: Ino) -> Self {
        Self { ino, part: Part::Xattrs }
    }

    pub(crate) fn window(ino: Ino, index: u64) -> Self {
        Self { ino, part: Part::Window(index) }
    }

    pub(crate) fn entry(directory: Ino, cookie: u64) -> Self {
        Self { ino: directory, part: Part::Entry(cookie) }
    }

    pub(crate) fn orphan(ino: Ino) -> Self {
        Self { ino: Ino(0), part: Part::Orphan(ino.0) }
    }

    pub(crate) fn encode(self) -> [u8; BYTES] {
        let (part, number) = match self.part {
            Part::Inode => (0, 0),
            Part::Xattrs => (1, 0),
            Part::Window(index) => (2, index),
            Part::Entry(cookie) => (3, cookie),
            Part::Orphan(ino) => (4, ino),
        };
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.ino.0.to_be_bytes());
        bytes[8] = part;
        bytes[9..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// `None` if no volume writes such a key.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (ino, rest) = bytes.split_first_chunk::<8>()?;
        let (&part, number) = rest.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let part = match (part, number) {
            (0, 0) => Part::Inode,
            (1, 0) => Part::Xattrs,
            (2, index) => Part::Window(index),
            (3, cookie) => Part::Entry(cookie),
            (4, ino) => Part::Orphan(ino),
            _ => return None,
        };
        Some(Self { ino: Ino(u64::from_be_bytes(*ino)), part })
    }

    /// The first encoded key behind all of this key's inode.
    pub(crate) fn end(self) -> [u8; 8] {
        self.ino.0.saturating_add(1).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_sort_as_their_bytes() {
        let mut keys = vec![Key::orphan(Ino(7))];
        for ino in [1, 255, 256, u64::MAX - 1] {
            let ino = Ino(ino);
            keys.extend([Key::inode(ino), Key::xattrs(ino), Key::window(ino, 0), Key::window(ino, 256)]);
            keys.extend([Key::entry(ino, 3), Key::entry(ino, u64::MAX)]);
        }
        assert!(keys.is_sorted() && keys.iter().map(|key| key.encode()).is_sorted());
        assert!(keys.iter().all(|key| Key::decode(&key.encode()) == Some(*key) && key.encode()[..] < key.end()[..]));
        assert_eq!(Key::decode(&[0; 16]), None);
        assert_eq!(Key::decode(&[9; 17]), None);
    }
}
