//! NUMA nodes: where memory is taken from.
//!
//! Kernel document: `Documentation/admin-guide/mm/numa_memory_policy.rst`.

use std::{fs, io};

/// `MPOL_PREFERRED_MANY` (Linux 5.15).
const PREFERRED_MANY: libc::c_int = 5;

/// One more than the highest number that a node may have: the kernel's largest `MAX_NUMNODES`.
pub const NODES_MAX: u32 = 1024;

const WORD_BITS: u32 = u64::BITS;

/// The nodes that have memory, in order. Empty if the kernel knows of no nodes.
pub fn nodes() -> io::Result<Vec<u32>> {
    match fs::read_to_string("/sys/devices/system/node/has_memory") {
        Ok(text) => parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Reads "0-1,4".
fn parse(text: &str) -> Option<Vec<u32>> {
    let mut nodes = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        nodes.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok().filter(|last| *last < NODES_MAX)?);
    }
    Some(nodes)
}

/// From here on the calling thread, and all that it starts, take new memory from `nodes` as long as these have any, then from others.
/// `InvalidInput` if none of them has memory or a number is not below [`NODES_MAX`]; of several, the kernel ignores those without.
pub fn prefer(nodes: &[u32]) -> io::Result<()> {
    let mut mask = [0u64; (NODES_MAX / WORD_BITS) as usize];
    for node in nodes {
        let word = mask.get_mut((node / WORD_BITS) as usize).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node % WORD_BITS);
    }
    // The kernel takes one bit less than it is told.
    let bits = libc::c_ulong::from(NODES_MAX + 1);
    // SAFETY: the kernel reads `NODES_MAX` bits of `mask`, and changes a property of this thread.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, PREFERRED_MANY, mask.as_ptr(), bits) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_understood() {
        assert_eq!(parse("0\n").unwrap(), [0]);
        assert_eq!(parse("0-2,5,7-8\n").unwrap(), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse("\n").unwrap(), [0u32; 0]);
        assert_eq!(parse("0-x"), None);
        assert_eq!(parse("0-99999999"), None);
    }

    #[test]
    fn a_thread_prefers_what_it_is_told_and_a_node_without_memory_is_refused() {
        let known = nodes().unwrap();
        let told = std::thread::spawn(move || {
            prefer(&known).unwrap();
            let unknown = (0..NODES_MAX).find(|node| !known.contains(node)).unwrap();
            assert_eq!(prefer(&[unknown]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(prefer(&[NODES_MAX]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            fs::read_to_string("/proc/thread-self/numa_maps").unwrap()
        });
        let maps = told.join().unwrap();
        assert!(maps.lines().all(|line| line.contains(" prefer (many):")), "{maps}");
    }
}
