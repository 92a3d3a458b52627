//! Looking into other processes: memory, page maps, shared files, futex lists.

use std::{
    cmp::Ordering,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};

/// Where a robust futex list begins, and the bytes the kernel was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RobustList {
    /// Address of the `struct robust_list_head`; 0: none.
    pub head: u64,
    /// Its size in bytes.
    pub len: u64,
}

/// The robust futex list of a thread (needs ptrace access to it).
pub fn robust_list(tid: i32) -> io::Result<RobustList> {
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: both pointers are valid places for one word each.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(RobustList { head, len }) }
}

/// Whether process `pid` leads its session.
pub fn leads_session(pid: i32) -> io::Result<bool> {
    // SAFETY: takes an integer and touches no memory.
    leads(pid, unsafe { libc::getsid(pid) })
}

/// Whether process `pid` leads its process group.
pub fn leads_process_group(pid: i32) -> io::Result<bool> {
    // SAFETY: takes an integer and touches no memory.
    leads(pid, unsafe { libc::getpgid(pid) })
}

/// By libc: a leader outside of this pid namespace (`docker exec`, `unshare --pid`) is called 0, which rustix takes for impossible.
fn leads(pid: i32, leader: i32) -> io::Result<bool> {
    if leader == -1 { Err(io::Error::last_os_error()) } else { Ok(pid == leader) }
}

/// How the open files of two descriptors are ordered, each given by its process and its number: equal if they are one, else by an order that
/// means nothing but is the same in every call (kcmp(2)), so that many can be sorted.
pub fn open_file_order(a: (i32, i32), b: (i32, i32)) -> io::Result<Ordering> {
    const KCMP_FILE: i32 = 0;
    // SAFETY: kcmp(KCMP_FILE) takes five integers.
    order(unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, a.1, b.1) })
}

/// What kcmp(2) answers.
fn order(answer: i64) -> io::Result<Ordering> {
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::Error::other("kcmp gives no order")),
    }
}

/// What threads of one process share unless they were made otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Shared {
    /// The address space.
    Memory = 1,
    /// The table of descriptors.
    Descriptors = 2,
    /// Root, working directory and umask.
    Directories = 3,
}

/// Whether two threads have one and the same.
pub fn threads_share(a: i32, b: i32, what: Shared) -> io::Result<bool> {
    // SAFETY: kcmp(KCMP_FILES or KCMP_FS) takes five integers.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a, b, what as i32, 0, 0) };
    if order == -1 { Err(io::Error::last_os_error()) } else { Ok(order == 0) }
}

/// A registration in an epoll set of a process: one number may be registered more than once, when it named other files before.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// A descriptor of the set.
    pub epoll_fd: i32,
    /// The number that is registered.
    pub target_fd: i32,
    /// How many registrations of this number come before it in the kernel's list.
    pub before: u32,
}

/// How the open file of descriptor `fd` of process `pid` and that of a registration are ordered, as [`open_file_order`] does; `NotFound` if
/// there is no such registration.
pub fn registered_file_order(pid: i32, fd: i32, registration: Registration) -> io::Result<Ordering> {
    const KCMP_EPOLL_TFD: i32 = 7;
    // struct kcmp_epoll_slot
    let slot = [registration.epoll_fd as u32, registration.target_fd as u32, registration.before];
    // SAFETY: for KCMP_EPOLL_TFD the last argument points to a `struct kcmp_epoll_slot`, three words that live until the call returns.
    order(unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_EPOLL_TFD, fd, slot.as_ptr()) })
}

/// A process's descriptor `fd`, duplicated into this process.
pub fn take_descriptor(process: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_getfd takes three integers; the result is a new descriptor that nothing else owns.
    unsafe {
        let got = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        if got == -1 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(got as i32)) }
    }
}

/// An address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct PagemapScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const _: () = assert!(size_of::<PagemapScan>() == 0x60);
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// Since kernel 6.15; such pages also count as swapped.
const PAGE_IS_GUARD: u64 = 1 << 8;

/// Makes pages that fault when they are touched, without a mapping of their own (madvise(2), since kernel 6.13).
pub const MADV_GUARD_INSTALL: i32 = 102;
/// Makes them empty pages again.
pub const MADV_GUARD_REMOVE: i32 = 103;

/// The runs of pages in `within` that belong to the process alone (anonymous, in memory or swap, not the shared zero page, no guard), in
/// order. `pagemap` is `/proc/PID/pagemap`; needs kernel 6.7.
pub fn private_pages(pagemap: &File, within: Range) -> io::Result<Vec<Range>> {
    // Wanted: not file, not the zero page; and present or swapped.
    let but = |excluded: u64| Wanted { all: 0, none: excluded, any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED };
    match scan_pages(pagemap, within, but(PAGE_IS_FILE | PAGE_IS_PFNZERO | PAGE_IS_GUARD)) {
        // A kernel that cannot tell guard pages from swapped ones.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let pages = scan_pages(pagemap, within, but(PAGE_IS_FILE | PAGE_IS_PFNZERO))?;
            Ok(subtract(&pages, &guard_pages_by_entry(pagemap, within)?))
        }
        result => result,
    }
}

/// The pages of files in `within` that are mapped, none of them written to.
pub fn file_pages(pagemap: &File, within: Range) -> io::Result<Vec<Range>> {
    scan_pages(pagemap, within, Wanted { all: PAGE_IS_FILE | PAGE_IS_PRESENT, none: 0, any: 0 })
}

/// The runs of guard pages in `within` ([`MADV_GUARD_INSTALL`]), in order.
pub fn guard_pages(pagemap: &File, within: Range) -> io::Result<Vec<Range>> {
    match scan_pages(pagemap, within, Wanted { all: PAGE_IS_GUARD, none: 0, any: 0 }) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => guard_pages_by_entry(pagemap, within),
        result => result,
    }
}

/// How guard pages are told from others here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guards {
    /// This kernel makes none (before 6.13).
    None,
    /// The page map has a name for them (6.15).
    Named,
    /// By their entries in the page map.
    ByEntry,
}

/// How guard pages are told from others here. Fails if this kernel makes them and this process cannot tell.
pub fn guards_here() -> io::Result<Guards> {
    let pagemap = File::open("/proc/self/pagemap")?;
    match scan_pages(&pagemap, Range { start: 0, end: PAGE }, Wanted { all: PAGE_IS_GUARD, none: 0, any: 0 }) {
        Ok(_) => Ok(Guards::Named),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(if guard_entry()?.is_some() { Guards::ByEntry } else { Guards::None })
        }
        Err(error) => Err(error),
    }
}

/// Whether pages of a process can be looked for (`PAGEMAP_SCAN`, Linux 6.7).
pub fn try_scan() -> io::Result<()> {
    let pagemap = File::open("/proc/self/pagemap")?;
    scan_pages(&pagemap, Range { start: 0, end: PAGE }, Wanted { all: PAGE_IS_PRESENT, none: 0, any: 0 }).map(drop)
}

/// The same on kernels that make guard pages and do not name them (6.13 and 6.14): there each has the entry in the page map that a guard page of our
/// own has. The caller must be one who sees whole entries (`CAP_SYS_ADMIN`).
fn guard_pages_by_entry(pagemap: &File, within: Range) -> io::Result<Vec<Range>> {
    let Some(guard) = guard_entry()? else { return Ok(Vec::new()) };
    let swapped = Wanted { all: PAGE_IS_SWAPPED, none: PAGE_IS_PRESENT, any: 0 };
    let mut guards: Vec<Range> = Vec::new();
    for run in scan_pages(pagemap, within, swapped)? {
        for (n, entry) in raw_entries(pagemap, run)?.iter().enumerate() {
            let start = run.start + n as u64 * PAGE;
            match guards.last_mut() {
                _ if entry & SWAP_ENTRY != guard => {}
                Some(last) if last.end == start => last.end += PAGE,
                _ => guards.push(Range { start, end: start + PAGE }),
            }
        }
    }
    Ok(guards)
}

/// Of an entry of the page map: that the page is not in memory, and what stands in its place.
const SWAP_ENTRY: u64 = ((1 << 55) - 1) | 1 << 62;

/// What stands in the place of a guard page; none on a kernel that makes none.
fn guard_entry() -> io::Result<Option<u64>> {
    static ENTRY: OnceLock<Option<u64>> = OnceLock::new();
    match ENTRY.get() {
        Some(entry) => Ok(*entry),
        None => {
            let entry = own_guard_entry()?;
            Ok(*ENTRY.get_or_init(|| entry))
        }
    }
}

fn own_guard_entry() -> io::Result<Option<u64>> {
    let (flags, bytes) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, PAGE as usize);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is this function's own, and nothing looks into it.
    let installed = unsafe { libc::madvise(page, bytes, MADV_GUARD_INSTALL) } == 0;
    let start = page.addr() as u64;
    let read = File::open("/proc/self/pagemap").and_then(|file| raw_entries(&file, Range { start, end: start + PAGE }));
    // SAFETY: unmaps what was mapped above.
    unsafe { libc::munmap(page, bytes) };
    let entry = read?[0] & SWAP_ENTRY;
    match installed {
        false => Ok(None),
        // A type of entry of its own, which nobody sees who may not see frames.
        true if entry & !(1 << 62) == 0 => Err(io::ErrorKind::PermissionDenied.into()),
        true => Ok(Some(entry)),
    }
}

/// The parts of `a` that are not in `b`; both in order.
pub fn subtract(a: &[Range], b: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    for range in a {
        let mut at = range.start;
        let from = b.partition_point(|other| other.end <= at);
        for other in b[from..].iter().take_while(|other| other.start < range.end) {
            if at < other.start {
                left.push(Range { start: at, end: other.start });
            }
            at = other.end;
        }
        if at < range.end {
            left.push(Range { start: at, end: range.end });
        }
    }
    left
}

/// Categories that a page must have all of, none of and (unless 0) one of.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    all: u64,
    none: u64,
    any: u64,
}

fn scan_pages(pagemap: &File, within: Range, wanted: Wanted) -> io::Result<Vec<Range>> {
    let mut runs: Vec<Range> = Vec::new();
    let mut regions = vec![PageRegion::default(); 4096];
    let mut at = within.start;
    while at < within.end {
        let mut scan = PagemapScan {
            size: size_of::<PagemapScan>() as u64,
            flags: 0,
            start: at,
            end: within.end,
            walk_end: 0,
            vec: regions.as_mut_ptr().addr() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: wanted.none,
            category_mask: wanted.all | wanted.none,
            category_anyof_mask: wanted.any,
            return_mask: PAGE_IS_PRESENT,
        };
        // SAFETY: `scan` is a `struct pm_scan_arg` whose vector is `regions`, both alive during the call.
        let found = unsafe { libc::ioctl(pagemap.as_fd().as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        if found == -1 {
            return Err(io::Error::last_os_error());
        }
        for region in &regions[..found as usize] {
            match runs.last_mut() {
                Some(last) if last.end == region.start => last.end = region.end,
                _ => runs.push(Range { start: region.start, end: region.end }),
            }
        }
        if (found as usize) < regions.len() {
            // The range was walked to its end. `walk_end` does not say so: it is where the kernel's own buffer of 512 regions was full last
            // (do_pagemap_scan in fs/proc/task_mmu.c), and what comes after that would be found twice.
            break;
        }
        let reached = scan.walk_end.max(regions.last().map_or(at, |region| region.end));
        if reached <= at {
            break;
        }
        at = reached;
    }
    Ok(runs)
}

/// What the page map says of each page in `within`: equal entries of two processes are one page of memory. An entry without its frame
/// (the caller may not see it) is 0 and equals nothing.
pub fn page_entries(pagemap: &File, within: Range) -> io::Result<Vec<u64>> {
    const FRAME_AND_PRESENT: u64 = ((1 << 55) - 1) | 1 << 63;
    const PRESENT: u64 = 1 << 63;
    let entries = raw_entries(pagemap, within)?;
    let entries = entries.into_iter().map(|entry| entry & FRAME_AND_PRESENT);
    Ok(entries.map(|entry| if entry & !PRESENT == 0 { 0 } else { entry }).collect())
}

fn raw_entries(pagemap: &File, within: Range) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; ((within.end - within.start) / PAGE * 8) as usize];
    pagemap.read_exact_at(&mut bytes, within.start / PAGE * 8)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The processors that a thread may use: bit n = processor n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity(pub [u64; AFFINITY_WORDS]);

/// Enough for 1,024 processors.
const AFFINITY_WORDS: usize = 16;

/// The processors a thread may run on.
pub fn affinity(tid: i32) -> io::Result<Affinity> {
    let mut mask = [0u64; AFFINITY_WORDS];
    // SAFETY: `mask` has as many bytes as the call is told.
    let result = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&mask), &raw mut mask) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(Affinity(mask)) }
}

/// How a thread is scheduled, as in `struct sched_attr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduled {
    /// `SCHED_OTHER`, ...
    pub policy: u32,
    /// `SCHED_FLAG_RESET_ON_FORK`.
    pub flags: u64,
    /// -20 to 19.
    pub nice: i32,
    /// How long it may run at a time; 0 if the kernel does not say.
    pub slice_ns: u64,
    /// Least and most utilisation that it asks for; 0 and 0 if the kernel knows none.
    pub utilization: (u32, u32),
}

/// How a thread is scheduled.
pub fn scheduled(tid: i32) -> io::Result<Scheduled> {
    // struct sched_attr, second version: size, policy; flags; nice, priority; three times; least and most utilisation.
    let mut attributes = [0u64; 7];
    // SAFETY: `attributes` has as many bytes as the call is told.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, size_of_val(&attributes), 0) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(Scheduled {
        policy: (attributes[0] >> 32) as u32,
        flags: attributes[1],
        nice: attributes[2] as u32 as i32,
        slice_ns: attributes[3],
        utilization: (attributes[6] as u32, (attributes[6] >> 32) as u32),
    })
}

/// The I/O priority of a thread (`ioprio_get`); 0: none set.
pub fn io_priority(tid: i32) -> io::Result<u32> {
    const IOPRIO_WHO_PROCESS: i32 = 1;
    // SAFETY: ioprio_get takes two integers.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) };
    if priority == -1 { Err(io::Error::last_os_error()) } else { Ok(priority as u32) }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    /// Every second page of a mapping is written, so that each is a region of its own: fewer than the kernel's buffer has (512), as many, one
    /// more, more than one buffer, as many as our vector has (4,096), and more than that.
    #[test]
    fn scattered_pages_are_found_once_and_in_order() {
        for count in [1, 511, 512, 513, 1_000, 4_095, 4_096, 4_097, 9_000] {
            let bytes = (count * 2 * PAGE) as usize;
            // SAFETY: a fresh mapping of no file, which nothing else knows; it is written within its bounds and unmapped below.
            let (start, found) = unsafe {
                let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
                let base = mmap_anonymous(ptr::null_mut(), bytes, protection, flags).unwrap();
                libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE);
                (0..count).for_each(|n| base.cast::<u8>().add((n * 2 * PAGE) as usize).write(1));
                let start = base.addr() as u64;
                let pagemap = File::open("/proc/self/pagemap").unwrap();
                let found = private_pages(&pagemap, Range { start, end: start + bytes as u64 }).unwrap();
                munmap(base, bytes).unwrap();
                (start, found)
            };
            let page = |n: u64| Range { start: start + n * 2 * PAGE, end: start + n * 2 * PAGE + PAGE };
            assert!(found.into_iter().eq((0..count).map(page)), "{count} pages");
        }
    }

    /// Also by the way that is for kernels which do not name guard pages. It needs root, as whole entries do.
    #[test]
    fn guard_pages_are_told_from_all_others() {
        const PAGES: u64 = 64;
        let bytes = (PAGES * PAGE) as usize;
        let is_guard = |n: u64| n % 9 < 2;
        // SAFETY: as above.
        let (start, [named, by_entry, private]) = unsafe {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let base = mmap_anonymous(ptr::null_mut(), bytes, protection, flags).unwrap();
            libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE);
            (0..PAGES / 2).for_each(|n| base.cast::<u8>().add((n * PAGE) as usize).write(1));
            for n in (0..PAGES).filter(|n| is_guard(*n)) {
                assert_eq!(libc::madvise(base.byte_add((n * PAGE) as usize), PAGE as usize, MADV_GUARD_INSTALL), 0);
            }
            let start = base.addr() as u64;
            let (pagemap, all) =
                (File::open("/proc/self/pagemap").unwrap(), Range { start, end: start + bytes as u64 });
            let found = [guard_pages(&pagemap, all), guard_pages_by_entry(&pagemap, all), private_pages(&pagemap, all)];
            munmap(base, bytes).unwrap();
            (start, found.map(Result::unwrap))
        };
        let pages = |runs: &[Range]| -> Vec<u64> {
            runs.iter().flat_map(|run| (run.start - start) / PAGE..(run.end - start) / PAGE).collect()
        };
        let guards: Vec<u64> = (0..PAGES).filter(|n| is_guard(*n)).collect();
        assert_eq!((pages(&named), pages(&by_entry)), (guards.clone(), guards));
        assert_eq!(pages(&private), (0..PAGES / 2).filter(|n| !is_guard(*n)).collect::<Vec<_>>());
    }

    #[test]
    fn a_subtraction_leaves_what_only_the_first_has() {
        let range = |start, end| Range { start, end };
        assert_eq!(
            subtract(&[range(0, 10), range(20, 30)], &[range(2, 4), range(8, 22)]),
            [range(0, 2), range(4, 8), range(22, 30)]
        );
    }
}
