//! The program that the self-test forks: a static ELF file of two pages that holds known values and shows what is left of them.
//!
//! A file of its own and not this one, because it has to run in a root filesystem without libraries, and hold registers that compilers use.

use std::slice;

core::arch::global_asm!(include_str!("probe.S"));

unsafe extern "C" {
    static pando_probe_start: u8;
    static pando_probe_pattern: u8;
    static pando_probe_end: u8;
}

/// Where the program has the words that it shows.
pub const WORDS: u64 = 0x60_0000;
/// 32 bits: not 0 lets it go.
pub const GO: u64 = WORDS;
/// 32 bits: [`HOLDS`], then [`DONE`].
pub const PROGRESS: u64 = WORDS + 4;
/// It holds the patterns in its registers, or waits to be let go.
pub const HOLDS: u32 = 1;
/// It has stored what its registers held, or has done all that it may.
pub const DONE: u32 = 2;
/// 64 bits: children forked, or pages touched.
pub const COUNT: u64 = WORDS + 8;
/// 64 bits: what `MADV_GUARD_INSTALL` of [`GUARD`] returned.
pub const GUARD_RESULT: u64 = WORDS + 16;
/// What its registers held, in the form of [`pattern`].
pub const HELD: u64 = WORDS + 64;
/// The page that it makes a guard page.
pub const GUARD: u64 = WORDS + 0x1000;

/// The argument of the program that makes a guard page.
pub const GUARDS: &str = "g";
/// The argument of the program that forks as often as it may.
pub const FORKS: &str = "p";
/// The argument of the program that uses memory until it is stopped.
pub const FILLS: &str = "m";

/// Which registers hold patterns. The program's first argument is [`Registers::argument`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// xmm0 to xmm15.
    Sse,
    /// ymm0 to ymm15.
    Avx,
    /// zmm0 to zmm31 and k0 to k7.
    Avx512,
}

impl Registers {
    /// The most that this processor has.
    pub fn here() -> Self {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            Self::Avx512
        } else if is_x86_feature_detected!("avx") {
            Self::Avx
        } else {
            Self::Sse
        }
    }

    /// For the program.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Sse => "x",
            Self::Avx => "y",
            Self::Avx512 => "z",
        }
    }

    /// How many vector registers, and how many bytes each.
    pub fn vectors(self) -> (usize, usize) {
        match self {
            Self::Sse => (16, 16),
            Self::Avx => (16, 32),
            Self::Avx512 => (32, 64),
        }
    }

    /// How many mask registers, of 8 bytes each.
    pub fn masks(self) -> usize {
        match self {
            Self::Sse | Self::Avx => 0,
            Self::Avx512 => 8,
        }
    }
}

/// Bytes of [`pattern`] where mask registers begin; vector register n is at 64 n.
pub const MASKS_AT: usize = 2048;

/// The file.
pub fn program() -> &'static [u8] {
    // SAFETY: the symbols delimit one block of constant bytes in this program's image (probe.S), `end` after `start`.
    unsafe {
        let start = &raw const pando_probe_start;
        slice::from_raw_parts(start, (&raw const pando_probe_end).offset_from_unsigned(start))
    }
}

/// What the registers hold: 64 bytes for each vector register, then 8 for each mask register.
pub fn pattern() -> &'static [u8] {
    // SAFETY: as in `program`; the pattern is the end of that block.
    unsafe {
        let start = &raw const pando_probe_pattern;
        slice::from_raw_parts(start, (&raw const pando_probe_end).offset_from_unsigned(start))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, os::unix::fs::FileExt, os::unix::process::CommandExt, process::Command};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Without a fork in between, each kind of registers that this processor has comes back as it was.
    #[test]
    fn the_program_shows_the_patterns_that_it_holds() {
        let mut file = File::from(memfd_create("probe", MemfdFlags::EXEC).unwrap());
        file.write_all(program()).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&file));
        let most = Registers::here();
        let kinds = [Registers::Sse, Registers::Avx, Registers::Avx512];
        for kind in kinds.into_iter().filter(|kind| kind.vectors() <= most.vectors()) {
            let mut child = Command::new(&path).arg0("probe").arg(kind.argument()).spawn().unwrap();
            let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
            let wait_for = |progress: u32| {
                let mut word = [0; 4];
                while memory.read_exact_at(&mut word, PROGRESS).is_err() || u32::from_le_bytes(word) != progress {
                    std::thread::yield_now();
                }
            };
            wait_for(HOLDS);
            memory.write_all_at(&1u32.to_le_bytes(), GO).unwrap();
            wait_for(DONE);
            let mut held = vec![0; pattern().len()];
            memory.read_exact_at(&mut held, HELD).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            let (count, bytes) = kind.vectors();
            for n in 0..count {
                assert_eq!(held[n * 64..][..bytes], pattern()[n * 64..][..bytes], "{kind:?}: vector register {n}");
            }
            let masks = MASKS_AT..MASKS_AT + kind.masks() * 8;
            assert_eq!(held[masks.clone()], pattern()[masks], "{kind:?}: mask registers");
        }
    }
}
