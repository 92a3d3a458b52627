//! What a sandbox sees of the machine's size: its limits, in the places where programs look for memory and processors.
//!
//! Files of its own take the places of the kernel's. They lie beside its identity ([`crate::machine`]) in its upper directory, so that a mount shows
//! no path of the host. The node writes the memory that is free anew, about once a second: what is in use shows a little late.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};

use crate::{
    attributes::open_dir,
    cgroup::MemoryShare,
    changes::UPPER,
    error::{Context, Error},
    processors::Processors,
    spec::Limits,
};

/// The files of a sandbox, and what they take the place of.
pub(crate) const FILES: [(&str, &str); 3] = [
    ("run/pando/meminfo", "/proc/meminfo"),
    ("run/pando/cpuinfo", "/proc/cpuinfo"),
    ("run/pando/cpus", "/sys/devices/system/cpu/online"),
];

/// Their contents at first, in that order; none: the kernel's own is right.
pub(crate) fn contents(limits: &Limits) -> [Option<String>; 3] {
    let memory = MemoryShare { limit_bytes: limits.memory_bytes, ..MemoryShare::default() };
    let count = Processors::count_of(limits);
    let of_processors = || count.and_then(|count| Some(cpuinfo(&fs::read_to_string("/proc/cpuinfo").ok()?, count)));
    [Some(meminfo(&memory, host_bytes())), of_processors(), count.map(online)]
}

/// Has the sandbox with these changes see what it uses of its memory now. Root of the sandbox may have made anything of the file: another than a plain
/// one is left alone.
pub fn show_memory(changes: &Path, memory: &MemoryShare) -> Result<(), Error> {
    let upper = changes.join(UPPER);
    let [(file, _), ..] = FILES;
    let show = || -> std::io::Result<()> {
        let root = open_dir(rustix::fs::CWD, &upper)?;
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let file = match openat2(root, file, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO) => return Ok(()),
            file => File::from(file?),
        };
        let (text, found) = (meminfo(memory, host_bytes()), file.metadata()?);
        // All have the same length, so that no reader ever sees a part.
        if found.is_file() && found.nlink() == 1 && found.len() == text.len() as u64 {
            file.write_all_at(text.as_bytes(), 0)?;
        }
        Ok(())
    };
    show().at("write", &upper.join(file))
}

fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// As the kernel writes it: of the lines that programs read, those that a sandbox has. There is no swap in a sandbox.
fn meminfo(&MemoryShare { limit_bytes, used_bytes, cache_bytes }: &MemoryShare, host_bytes: u64) -> String {
    let total = limit_bytes.min(host_bytes);
    let used = used_bytes.min(total);
    let (cache, free) = (cache_bytes.min(used), total - used);
    let lines = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free + cache),
        ("Buffers", 0),
        ("Cached", cache),
        ("SwapCached", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
    ];
    let line = |(name, bytes): (&str, u64)| format!("{:<16}{:>12} kB\n", format!("{name}:"), bytes >> 10);
    lines.into_iter().map(line).collect()
}

/// The first `count` processors of the host's.
fn cpuinfo(host: &str, count: usize) -> String {
    host.split_inclusive("\n\n").take(count).collect()
}

fn online(count: usize) -> String {
    if count == 1 { "0\n".to_owned() } else { format!("0-{}\n", count - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_limit_and_what_is_left_of_it() {
        let share = |used_bytes, cache_bytes| MemoryShare { limit_bytes: 512 << 20, used_bytes, cache_bytes };
        let text = meminfo(&share(100 << 20, 30 << 20), 4 << 30);
        let expected =
            "MemTotal:             524288 kB\nMemFree:              421888 kB\nMemAvailable:         452608 kB\n";
        assert!(text.starts_with(expected), "{text}");
        // More than the limit is counted for a moment, or the host has less.
        let full = meminfo(&share(600 << 20, 0), 4 << 30);
        assert!(full.contains("MemFree:                   0 kB\n"), "{full}");
        assert!(meminfo(&share(0, 0), 256 << 20).starts_with("MemTotal:             262144 kB\n"));
        assert_eq!(full.len(), text.len());
    }

    #[test]
    fn processors_are_the_first_ones() {
        let host = "processor\t: 0\nflags\t: a\n\nprocessor\t: 1\nflags\t: a\n\n";
        assert_eq!(cpuinfo(host, 1), "processor\t: 0\nflags\t: a\n\n");
        assert_eq!((online(1), online(3)), ("0\n".to_owned(), "0-2\n".to_owned()));
    }

    #[test]
    fn what_root_of_a_sandbox_puts_there_is_left_alone() {
        let changes = tempfile::tempdir().unwrap();
        let run = changes.path().join(UPPER).join("run/pando");
        fs::create_dir_all(&run).unwrap();
        let (file, outside) = (run.join("meminfo"), changes.path().join("outside"));
        let share = MemoryShare { limit_bytes: 512 << 20, used_bytes: 1 << 20, cache_bytes: 0 };
        let text = meminfo(&share, host_bytes());
        let before = "x".repeat(text.len());
        show_memory(changes.path(), &share).unwrap();
        fs::write(&outside, &before).unwrap();
        std::os::unix::fs::symlink(&outside, &file).unwrap();
        show_memory(changes.path(), &share).unwrap();
        fs::remove_file(&file).unwrap();
        fs::hard_link(&outside, &file).unwrap();
        show_memory(changes.path(), &share).unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), before);
        fs::remove_file(&outside).unwrap();
        show_memory(changes.path(), &share).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}
