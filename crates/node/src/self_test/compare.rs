//! Which registers are not what they were.

use sys::probe::{self, Registers};

/// Names of the registers whose content in `held` is not the pattern, and what is gone of it.
pub(super) fn lost(kind: Registers, held: &[u8]) -> Vec<String> {
    let pattern = probe::pattern();
    let differs = |at: usize, bytes: usize| held.get(at..at + bytes) != Some(&pattern[at..at + bytes]);
    let (count, bytes) = kind.vectors();
    let name = match kind {
        Registers::Sse => "xmm",
        Registers::Avx => "ymm",
        Registers::Avx512 => "zmm",
    };
    let vectors = (0..count).filter(|n| differs(n * 64, bytes)).map(|n| match differs(n * 64, 16) {
        true => format!("{name}{n}"),
        false => format!("the upper part of {name}{n}"),
    });
    let masks = (0..kind.masks()).filter(|n| differs(probe::MASKS_AT + n * 8, 8)).map(|n| format!("k{n}"));
    vectors.chain(masks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_named() {
        let mut held = probe::pattern().to_vec();
        assert!(lost(Registers::Avx512, &held).is_empty());
        // As after a frame that is restored without its XSAVE part.
        held[3 * 64 + 16..4 * 64].fill(0);
        held[5 * 64] ^= 1;
        held[probe::MASKS_AT + 8] ^= 1;
        assert_eq!(lost(Registers::Avx512, &held), ["the upper part of zmm3", "zmm5", "k1"]);
        assert_eq!(lost(Registers::Sse, &held), ["xmm5"]);
    }

    #[test]
    fn what_is_not_there_is_lost() {
        assert_eq!(lost(Registers::Avx, &[]).len(), 16);
    }
}
