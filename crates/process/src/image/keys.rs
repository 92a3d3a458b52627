//! Memory protection keys (pkeys(7)).

use procfs::MapLine;
use serde::{Deserialize, Serialize};
use sys::remote::Range;

/// Keys that there are, the usual one included, which nothing asks for.
const KEYS: u32 = 16;

/// What a process has of keys. The rights that a thread has with them are among its extended registers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProtectionKeys {
    /// Those that it has allocated, one bit each.
    pub(crate) allocated: u16,
    /// Mappings with another key than the usual one.
    pub(crate) mappings: Vec<WithKey>,
}

/// A mapping with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WithKey {
    pub(crate) range: Range,
    /// `PROT_*`
    pub(crate) protection: u64,
    pub(crate) key: u32,
}

impl ProtectionKeys {
    /// `free` are those that it could allocate, on a processor that has keys.
    pub(crate) fn new(free: &[u64], lines: &[MapLine]) -> Self {
        let is_free = |key: u32| free.contains(&u64::from(key));
        let allocated = (1..KEYS).filter(|key| !is_free(*key)).fold(0, |bits, key| bits | 1 << key);
        let with_key = lines.iter().filter(|line| line.protection_key != 0);
        let mapping =
            |line: &MapLine| WithKey { range: line.range, protection: line.protection, key: line.protection_key };
        Self { allocated, mappings: with_key.map(mapping).collect() }
    }

    pub(crate) fn has(&self, key: u32) -> bool {
        key > 0 && key < KEYS && self.allocated >> key & 1 == 1
    }

    /// All keys that it has allocated, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        (1..KEYS).filter(|key| self.has(*key))
    }

    /// Whether the kernel can take it.
    pub(crate) fn is_sound(&self) -> bool {
        self.allocated & 1 == 0 && self.mappings.iter().all(|mapping| self.has(mapping.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_allocated_is() {
        let free: Vec<u64> = (1..16).filter(|key| ![3, 7].contains(key)).chain([0, 0]).collect();
        let keys = ProtectionKeys::new(&free, &[]);
        assert_eq!(keys.all().collect::<Vec<_>>(), [3, 7]);
        assert!(keys.is_sound() && !keys.has(0) && !keys.has(1) && keys.has(7) && !keys.has(16));
        let mapping = WithKey { range: Range { start: 0, end: 4096 }, protection: 1, key: 4 };
        assert!(!ProtectionKeys { mappings: vec![mapping], ..keys }.is_sound());
    }
}
