//! Which sort of mapping a line of the kernel's list shows.

use procfs::MapLine;

use crate::refusal::Refusal;

/// What a line maps, apart from the details of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Vdso,
    Anonymous,
    PrivateFile,
    SharedFile,
    /// Shared memory that no path names (any more).
    Object,
    /// System V shared memory: the inode is its number.
    Segment,
}

/// The sort of a mapping, or why it cannot be forked.
pub(crate) fn sort(line: &MapLine) -> Result<Sort, Refusal> {
    let address = line.range.start;
    let path = || String::from_utf8_lossy(&line.path).into_owned();
    // The kernel has given it that key by itself, and would do so in a zygote.
    if line.protection_key != 0 && line.protection == libc::PROT_EXEC as u64 {
        return Err(Refusal::ProtectionKey { address, key: line.protection_key });
    }
    if line.shadow_stack {
        return Err(Refusal::ShadowStack { address });
    }
    if line.huge_tlb {
        return Err(Refusal::HugeTlb { address });
    }
    if line.path.starts_with(b"[v") {
        return Ok(Sort::Vdso);
    }
    if line.path.starts_with(b"anon_inode:[io_uring]") {
        return Err(Refusal::IoUringMapping { address });
    }
    if line.path.starts_with(b"/[aio]") {
        return Err(Refusal::AsyncIo { address });
    }
    if line.path.starts_with(b"/SYSV") {
        return Ok(Sort::Segment);
    }
    // Shared anonymous memory is a file without a path, and may have a name: `[anon_shmem:...]`.
    let deleted = line.path.ends_with(b" (deleted)");
    let named = line.path.starts_with(b"[");
    if line.shared && (deleted || named || line.path.starts_with(b"/memfd:")) {
        return Ok(Sort::Object);
    }
    if line.inode == 0 || line.path.is_empty() || named {
        return Ok(Sort::Anonymous);
    }
    if line.io
        || line.path.starts_with(b"anon_inode:")
        || (line.path.starts_with(b"/dev/") && !line.path.starts_with(b"/dev/shm/"))
    {
        return Err(Refusal::MappedDevice { address, path: path() });
    }
    match line.path.starts_with(b"/") {
        true if line.shared => Ok(Sort::SharedFile),
        true => Ok(Sort::PrivateFile),
        false => Err(Refusal::MappedFile { address, path: path() }),
    }
}

/// What anonymous memory is called, `NAME` of `[anon:NAME]`; nothing if it has no name.
pub(crate) fn name_of(line: &MapLine) -> &[u8] {
    line.path.strip_prefix(b"[anon:").and_then(|name| name.strip_suffix(b"]")).unwrap_or(b"")
}

#[cfg(test)]
mod tests {
    use sys::remote::Range;

    use super::*;

    fn line(start: u64, end: u64, path: &[u8]) -> MapLine {
        MapLine { protection: 3, path: path.to_vec(), ..MapLine::of(Range { start, end }) }
    }

    #[test]
    fn memory_has_the_name_that_its_program_gave_it() {
        assert_eq!(name_of(&line(0, 1, b"[anon:a [b] c]")), b"a [b] c");
        for none in [&b""[..], b"[heap]", b"[stack]", b"/anon:x", b"[anon_shmem:x]"] {
            assert_eq!(name_of(&line(0, 1, none)), b"");
        }
        assert_eq!(sort(&line(0, 1, b"[anon:x]")), Ok(Sort::Anonymous));
    }

    #[test]
    fn a_shadow_stack_is_refused() {
        let line = MapLine { shadow_stack: true, ..line(0x1000, 0x2000, b"") };
        assert_eq!(sort(&line), Err(Refusal::ShadowStack { address: 0x1000 }));
    }
}
