//! What a program takes for granted of its host: the processor's instructions, the kernel and its vDSO.

use std::{collections::BTreeSet, fs::File, os::unix::fs::FileExt};

use crate::{
    error::{Context, Error},
    image::{Host, ProgramImage},
    observe::sort::{Sort, sort},
    refusal::Unfit,
};

/// Instruction sets that programs look for and then use (flags of /proc/cpuinfo). Other flags are of the kernel's business or the host's.
const FEATURES: &[&str] = &[
    "abm",
    "adx",
    "aes",
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vp2intersect",
    "avx512_vpopcntdq",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512f",
    "avx512ifma",
    "avx512vbmi",
    "avx512vl",
    "avx_vnni",
    "bmi1",
    "bmi2",
    "clflushopt",
    "clwb",
    "cx16",
    "erms",
    "f16c",
    "fma",
    "fma4",
    "fsgsbase",
    "fsrm",
    "gfni",
    "lahf_lm",
    "movbe",
    "movdir64b",
    "movdiri",
    "ospke",
    "pclmulqdq",
    "pni",
    "popcnt",
    "rdpid",
    "rdrand",
    "rdseed",
    "rdtscp",
    "rtm",
    "serialize",
    "sha_ni",
    "sse4_1",
    "sse4_2",
    "sse4a",
    "ssse3",
    "vaes",
    "vpclmulqdq",
    "waitpkg",
    "xgetbv1",
    "xop",
    "xsave",
    "xsavec",
    "xsaveopt",
];

impl Host {
    /// This host. The vDSO is looked at in this process: it is the same in all.
    pub(super) fn of(image: &ProgramImage) -> Result<Self, Error> {
        Ok(Self { kernel: kernel()?, vdso: vdso(image)?, features: features()? })
    }

    /// What this host lacks.
    pub(super) fn unfit(&self, image: &ProgramImage) -> Result<Vec<Unfit>, Error> {
        Ok(self.lacking(Self::of(image)?))
    }

    fn lacking(&self, here: Self) -> Vec<Unfit> {
        let mut unfit = Vec::new();
        let missing: Vec<String> = self.features.difference(&here.features).cloned().collect();
        if !missing.is_empty() {
            unfit.push(Unfit::ProcessorFeatures { missing });
        }
        let (kernel, running) = (self.kernel.clone(), here.kernel);
        if version(&running) < version(&kernel) {
            unfit.push(Unfit::OlderKernel { kernel, here: running });
        } else if here.vdso != self.vdso {
            unfit.push(Unfit::Vdso { kernel, here: running });
        }
        unfit
    }
}

fn kernel() -> Result<String, Error> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(std::fs::read_to_string(path).on("read", path)?.trim().to_owned())
}

/// The two leading numbers of a release: within one of them the kernel keeps what programs see.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-', '+']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn features() -> Result<BTreeSet<String>, Error> {
    let path = "/proc/cpuinfo";
    let text = std::fs::read_to_string(path).on("read", path)?;
    let flags =
        text.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':')).map_or("", |(_, flags)| flags);
    let known = |flag: &&str| FEATURES.contains(flag);
    Ok(flags.split_ascii_whitespace().filter(known).map(str::to_owned).collect())
}

/// Names, sizes and code of the vDSO and its data pages. The data itself changes with time.
fn vdso(image: &ProgramImage) -> Result<[u8; 32], Error> {
    let own = std::process::id() as i32;
    let path = "/proc/self/mem";
    let memory = File::open(path).on("open", path)?;
    let mut hash = blake3::Hasher::new();
    // Also where the program has the parts, relative to each other: its code finds the data so.
    let base = image.vdso.first().map_or(0, |(_, range)| range.start);
    for (name, range) in &image.vdso {
        hash.update(name).update(&(range.start - base).to_le_bytes()).update(&(range.end - range.start).to_le_bytes());
    }
    let mut lines = procfs::maps(own)?;
    lines.retain(|line| sort(line) == Ok(Sort::Vdso));
    let base = lines.first().map_or(0, |line| line.range.start);
    for line in lines {
        let length = line.range.end - line.range.start;
        hash.update(&line.path).update(&(line.range.start - base).to_le_bytes()).update(&length.to_le_bytes());
        if line.path == b"[vdso]" {
            let mut code = vec![0; length as usize];
            memory.read_exact_at(&mut code, line.range.start).of("read the vDSO", own)?;
            hash.update(&code);
        }
    }
    Ok(*hash.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(kernel: &str, vdso: u8, features: &[&str]) -> Host {
        let features = features.iter().map(|feature| (*feature).to_owned()).collect();
        Host { kernel: kernel.to_owned(), vdso: [vdso; 32], features }
    }

    #[test]
    fn what_a_host_lacks_is_named_and_what_it_has_more_is_not() {
        let there = host("6.8.0-9", 1, &["avx2", "avx512f"]);
        let lacking = |here| there.lacking(here).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(lacking(host("6.8.7", 1, &["avx2", "avx512f", "sse4_2"])).is_empty());
        let less = lacking(host("6.8.0-9", 1, &["avx2"]));
        assert!(less.len() == 1 && less[0].contains("avx512f") && !less[0].contains("avx2,"), "{less:?}");
        let older = lacking(host("5.15.3", 2, &["avx2", "avx512f"]));
        assert!(older.len() == 1 && older[0].contains("(5.15.3) is older than 6.8.0-9"), "{older:?}");
        let other = lacking(host("6.9.1", 2, &["avx2", "avx512f"]));
        assert!(other.len() == 1 && other[0].contains("vDSO"), "{other:?}");
        assert_eq!(lacking(host("5.15.3", 2, &[])).len(), 2);
    }

    #[test]
    fn kernels_are_compared_by_their_leading_numbers() {
        assert_eq!(version("6.18.44-fc-v657"), (6, 18));
        assert!(version("6.9.1") < version("6.18.0") && version("6.18.1") == version("6.18.9-x"));
    }
}
