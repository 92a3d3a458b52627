//! Builds a zygote: a child of this process gives up its address space for the program's, or an older zygote is forked and brought up to
//! date.

use std::{
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use procfs::{Fields, MapLine};
use sys::{
    ptrace::{self, Stop},
    remote::{PAGE, Range},
    seqpacket, stub,
};

use super::{
    CommandFacts, TerminalFacts, Zygote, ZygoteFacts,
    delta::{self, Base},
    faults,
    inherited::inherit,
    memory::{self, Origin, Rest},
    names, receive,
};
use crate::{
    capture::{Capture, inject},
    error::{Context, Error},
    image::{Command, Member, OwnTerminal, ProgramImage, Tree, places},
    script::{Arena, Arg, Check, Script},
    start::{self, ASIDE_BYTES, CopyMemory, HALF_BYTES, ROOM_BYTES, kind},
};

/// What a zygote is built with.
#[derive(Debug)]
pub struct BuildSpec<'a> {
    /// A root filesystem with the same files as the source's.
    pub rootfs: BorrowedFd<'a>,
    /// The seccomp filter of copies, one classic BPF instruction a word.
    pub seccomp: &'a [u64],
    /// Join well-used memory into huge pages: a fork copies one entry for 2 MiB instead of 512.
    pub huge_pages: bool,
    /// The zygote that the program was itself started from, or an ancestor of it: memory that is still the same is shared
    /// with it instead of copied. One that does not fit is ignored.
    pub base: Option<&'a Zygote>,
    /// NUMA nodes that the zygote's memory is taken from as long as they have any; none: wherever it is built. This becomes the policy of the
    /// calling thread, too. The memory that copies take for themselves is not concerned.
    pub memory_nodes: &'a [u32],
}

/// What a zygote is restored with.
#[derive(Debug)]
pub struct RestoreSpec<'a> {
    /// A root filesystem with the same files as the source's.
    pub rootfs: BorrowedFd<'a>,
    /// The seccomp filter of copies, one classic BPF instruction a word.
    pub seccomp: &'a [u64],
    /// The pages that the checkpoint has beside the state, in order: begin and end of each run.
    pub pages: &'a [(u64, u64)],
    /// As in [`BuildSpec`]; for pages that arrive by fault, the policy of the process that fills them counts.
    pub memory_nodes: &'a [u32],
}

/// A restored zygote.
#[derive(Debug)]
pub struct Restored {
    /// Copies can be forked from it at once.
    pub zygote: Zygote,
    /// The userfaultfd of its address space, none if nothing arrives by fault. Pages that are not served in time make every toucher
    /// wait; if it is closed they read as zeros.
    pub faults: Option<OwnedFd>,
}

/// Where an arena's room is if that is free: far from where kernels and runtimes place things.
const ROOM_FIRST: u64 = 0x3f00_0000_0000;
/// What lies behind an arena in its half: the page that the processes of a copy share, and where the vDSO is moved through.
const ARENA_BYTES_MAX: u64 = HALF_BYTES - ASIDE_BYTES - PAGE;

/// Builds a zygote of a captured program. It becomes a child of the nearest subreaper (the keeper).
pub fn build(capture: &Capture, spec: &BuildSpec<'_>) -> Result<Zygote, Error> {
    prefer(spec.memory_nodes)?;
    // Behind the back of a source that goes on: a private mapping shows what is written to its file since, or does not.
    for (still, ranges) in capture.stills.iter().zip(&capture.taken_over) {
        ranges.iter().try_for_each(|range| still.take_over(*range))?;
    }
    if let Some(older) = spec.base {
        let base::id::Arena { start, end } = older.facts.arena;
        let other = start::other_half(start);
        let other = Range { start: other, end: other + HALF_BYTES };
        if let Some(base) = Base::of(older.facts.pid, Range { start, end }, other, &capture.tree)? {
            match branch(capture, spec, older, &base) {
                Ok(zygote) => return Ok(zygote),
                // It died meanwhile, or has something that cannot be undone (sealed memory); the still has everything.
                Err(error) => tracing::debug!(%error, "a zygote is built from nothing instead of from an older one"),
            }
        }
    }
    let plan = Plan {
        tree: &capture.tree,
        origin: Origin::stills(&capture.stills)?,
        rootfs: spec.rootfs,
        seccomp: spec.seccomp,
        huge_pages: spec.huge_pages,
        memory_nodes: spec.memory_nodes,
    };
    let (zygote, _) = from_nothing(&plan, &mut |at, bytes| capture.read_parked(at, bytes))?;
    Ok(zygote)
}

impl Capture {
    /// What the zygote has at this address, read from the still of the process that it is of.
    fn read_parked(&self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut parked = self.tree.parked();
        let (whose, _) =
            parked.find(|(_, range)| range.start <= at && at < range.end).ok_or(Error::MissingPage { address: at })?;
        self.stills[whose].read(self.tree.members[whose].kin.origin(at), bytes)
    }
}

/// Gives the bytes at an address of the program.
pub(crate) type ReadPages<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), Error>;

/// Restores a zygote of a checkpoint. `read` gives the changed pages of files, which are at `of_files`.
pub(crate) fn restore(
    tree: &Tree,
    spec: &RestoreSpec<'_>,
    of_files: &[Range],
    read: ReadPages<'_>,
) -> Result<Restored, Error> {
    prefer(spec.memory_nodes)?;
    let pages: Vec<Range> = spec.pages.iter().map(|&(start, end)| Range { start, end }).collect();
    let origin = Origin::Checkpoint { pages: &pages, of_files };
    let RestoreSpec { rootfs, seccomp, memory_nodes, .. } = *spec;
    let plan = Plan { tree, origin, rootfs, seccomp, huge_pages: false, memory_nodes };
    let (zygote, faults) = from_nothing(&plan, read)?;
    Ok(Restored { zygote, faults })
}

/// For this thread, and so for the zygote that it starts and for what it writes into it.
fn prefer(nodes: &[u32]) -> Result<(), Error> {
    if nodes.is_empty() { Ok(()) } else { sys::numa::prefer(nodes).on("take memory from nodes", format!("{nodes:?}")) }
}

/// A zygote that is made from nothing.
struct Plan<'a> {
    tree: &'a Tree,
    origin: Origin<'a>,
    rootfs: BorrowedFd<'a>,
    seccomp: &'a [u64],
    huge_pages: bool,
    memory_nodes: &'a [u32],
}

/// An arena with everything a copy needs, to which the steps of the building are added.
struct Draft {
    arena: Arena,
    script: Script,
    entries: start::Entries,
    transit: start::Transit,
}

impl Draft {
    fn new(tree: &Tree, seccomp: &[u64], at: u64, memory_nodes: &[u32]) -> Self {
        let transit = start::Transit::above(tree);
        let mut arena = Arena::new(at);
        let memory = if memory_nodes.is_empty() { CopyMemory::Inherited } else { CopyMemory::Local };
        let entries = start::place(&mut arena, tree, seccomp, transit, memory);
        arena.on_fail(entries.handler);
        Self { arena, script: Script::default(), entries, transit }
    }

    /// The number of the root filesystem's descriptor while building.
    fn root(&self) -> i32 {
        self.transit.control + 1
    }

    /// Adds the end of the building: only the control socket stays open, and the zygote's loop begins. Gives the script's
    /// place.
    fn complete(&mut self) -> u64 {
        let root = self.root();
        let script = &mut self.script;
        let below = self.transit.control - 1;
        script.call(libc::SYS_close_range, [0u64.into(), below.into(), 0u64.into()], Check::Success);
        script.call(libc::SYS_close_range, [root.into(), u64::from(u32::MAX).into(), 0u64.into()], Check::Success);
        script.go(self.entries.zygote);
        self.arena.place(&self.script)
    }
}

/// A zygote made from nothing, and the descriptor of its faults if pages arrive by them. `read` gives the pages that are written from outside.
fn from_nothing(plan: &Plan<'_>, read: ReadPages<'_>) -> Result<(Zygote, Option<OwnedFd>), Error> {
    let (tree, image) = (plan.tree, plan.tree.first());
    tree.images().try_for_each(start::timers::check)?;
    let own = procfs::maps(std::process::id() as i32)?;
    let room = free_room(tree, &own)?;
    let mut draft = Draft::new(tree, plan.seccomp, room.start, plan.memory_nodes);
    let root = draft.root();
    let stub_lives = draft.arena.words(&[1]);
    draft.script.wait_zero(stub_lives);
    clear_address_space(&mut draft.script, room, &own, image);
    let rest = memory::plan(&mut draft.arena, &mut draft.script, tree, &plan.origin, root, plan.huge_pages)?;
    let exe = memory::open_in_root(&mut draft.arena, &mut draft.script, root, &image.layout.exe, libc::O_CLOEXEC);
    // A number that nothing has, for the kernel to be told of it.
    let program_file = memory::still_memory(root, tree.members.len());
    let args = [Arg::Result(exe), program_file.into(), libc::O_CLOEXEC.into()];
    draft.script.call(libc::SYS_dup3, args, Check::Success);
    inherit(&mut draft.arena, &mut draft.script, tree, Some(program_file));
    faults::register(&mut draft.arena, &mut draft.script, draft.transit.control, &rest.by_fault);
    let construct = draft.complete();
    // The stub's own child shares its memory, which is all that is kept: a clone with CLONE_VM begins without the C
    // library's rseq registration, whose memory is about to go. The stub still has it, so its child waits until the kernel
    // has cleared the word that it clears at a thread's end.
    let mut first = Script::default();
    first.call(libc::SYS_set_tid_address, [stub_lives.into()], Check::Ignore);
    first.spawn(libc::SYS_clone, start::vm_child(), construct);
    first.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
    let first = draft.arena.place(&first);
    draft.arena.set_entry(first);
    let bytes = arena_bytes(draft.arena, tree)?;
    let (control, theirs) = seqpacket::pair().of("make a socket for", 0)?;
    let mut descriptors = vec![(theirs.as_fd(), draft.transit.control), (plan.rootfs, root)];
    if let Origin::Stills(stills) = &plan.origin {
        for (at, (still, _)) in stills.iter().enumerate() {
            descriptors.push((still.memory(), memory::still_memory(root, at)));
        }
    }
    let entry = Arena::entry_of(room.start);
    let stub = stub::spawn(&stub::Plan { base: room.start, bytes: &bytes, entry, descriptors: &descriptors });
    let stub = stub.of("fork the stub of", 0)?;
    drop(theirs);
    reap(stub.pid)?;
    finish(tree, control, &bytes, room.start, &draft.entries, &rest, read)
}

/// A zygote that is a fork of an older one, with the differences read from the still.
fn branch(capture: &Capture, spec: &BuildSpec<'_>, older: &Zygote, base: &Base) -> Result<Zygote, Error> {
    let at = start::other_half(older.facts.arena.start);
    let mut draft = Draft::new(&capture.tree, spec.seccomp, at, spec.memory_nodes);
    let (root, control_number) = (draft.root(), draft.transit.control);
    let script = &mut draft.script;
    // As the branch script of the older zygote leaves them: new control socket, arena file, root filesystem, the still's memory. The
    // inherited control socket may have any number above these.
    script.call(libc::SYS_dup3, [0u64.into(), control_number.into(), libc::O_CLOEXEC.into()], Check::Success);
    script.call(libc::SYS_dup3, [2u64.into(), root.into(), libc::O_CLOEXEC.into()], Check::Success);
    let memory = memory::still_memory(root, 0);
    script.call(libc::SYS_dup3, [3u64.into(), memory.into(), libc::O_CLOEXEC.into()], Check::Success);
    let above = memory + 1;
    script.call(libc::SYS_close_range, [above.into(), u64::from(u32::MAX).into(), 0u64.into()], Check::Success);
    let base::id::Arena { start, end } = older.facts.arena;
    script.call(libc::SYS_munmap, [start.into(), (end - start).into()], Check::Success);
    let tail = script.call(libc::SYS_munmap, [0u64.into(), 0u64.into()], Check::Success);
    let rest = delta::plan(&mut draft.arena, &mut draft.script, capture, base, root)?;
    inherit(&mut draft.arena, &mut draft.script, &capture.tree, None);
    let construct = draft.complete();
    draft.arena.set_entry(construct);
    let used = room(&draft.arena, &capture.tree);
    draft.arena.set_args(construct, tail, &[at + used, HALF_BYTES - used]);
    let bytes = arena_bytes(draft.arena, &capture.tree)?;
    let file = arena_file(&bytes)?;
    let (control, theirs) = seqpacket::pair().of("make a socket for", older.facts.pid)?;
    older.request_branch([theirs.as_fd(), file.as_fd(), spec.rootfs, capture.stills[0].memory()])?;
    drop(theirs);
    let read: ReadPages<'_> = &mut |at, bytes| capture.read_parked(at, bytes);
    let (zygote, _) = finish(&capture.tree, control, &bytes, at, &draft.entries, &rest, read)?;
    Ok(zygote)
}

/// Bytes of the whole arena. Copies keep it, and a capture of one of them uses it again: so it has room for that.
fn room(arena: &Arena, tree: &Tree) -> u64 {
    let capture = |image: &ProgramImage| {
        let xsave_bytes = image.threads.iter().map(|thread| thread.xsave.len()).max().unwrap_or(0);
        inject::room(image.threads.len(), xsave_bytes, image.dont_fork.len(), image.posix_timers.len())
    };
    tree.images().map(capture).fold(arena.len().next_multiple_of(PAGE), u64::max)
}

fn arena_bytes(arena: Arena, tree: &Tree) -> Result<Vec<u8>, Error> {
    let room = room(&arena, tree) as usize;
    let mut bytes = arena.into_bytes();
    bytes.resize(room, 0);
    if bytes.len() as u64 > ARENA_BYTES_MAX {
        return Err(Error::NoRoom { bytes: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// The arena as a file that another process reads from its beginning.
fn arena_file(bytes: &[u8]) -> Result<File, Error> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let file = File::from(memfd_create("pando-arena", MemfdFlags::CLOEXEC).on("make", "arena file")?);
    file.write_all_at(bytes, 0).on("write", "arena file")?;
    Ok(file)
}

/// Waits for the new zygote and completes what it could not do itself.
fn finish(
    tree: &Tree,
    control: OwnedFd,
    arena: &[u8],
    at: u64,
    entries: &start::Entries,
    rest: &Rest,
    read: ReadPages<'_>,
) -> Result<(Zygote, Option<OwnedFd>), Error> {
    let (pid, faults) = built(control.as_fd(), arena, at)?;
    fill_outside(pid, &rest.outside, read)?;
    set_coredump_filter(pid, tree.first().attributes.coredump_filter)?;
    let facts = ZygoteFacts {
        pid,
        main_tid: tree.first().threads[0].tid,
        processes: tree.members.len(),
        commands: tree.commands().map(|(command, inside)| facts_of(command, inside)).collect(),
        without_program: tree.without_program,
        streams: tree.streams(),
        terminals: tree.first().own_terminals.iter().map(|own| facts_of_terminal(tree, own)).collect(),
        system_v: tree.first().system_v.iter().map(Into::into).collect(),
        threads: tree.images().map(|image| image.threads.len()).sum(),
        mappings: tree.images().map(|image| image.mappings.len()).sum(),
        descriptors: tree.images().flat_map(|image| &image.files).map(|file| file.numbers.len()).sum(),
        memory_bytes: rest.memory_bytes,
        huge_bytes: huge_bytes(pid)?,
        copied_bytes: tree.copied_bytes(),
        arena: base::id::Arena { start: at, end: at + arena.len() as u64 },
        entry: entries.receive,
        working_set: entries.working_set,
        clocks: tree.first().clocks,
    };
    Ok((Zygote::from_parts(facts, control), faults))
}

fn facts_of(Command { place, label }: &Command, inside: i32) -> CommandFacts {
    CommandFacts { place: *place, inside, label: label.clone() }
}

fn facts_of_terminal(tree: &Tree, own: &OwnTerminal) -> TerminalFacts {
    // Who has the master has made it, as far as is known.
    let maker = tree.holder_of(own.stream.next()).unwrap_or(tree.first());
    let owner = maker.credentials.uids[1];
    TerminalFacts { stream: own.stream.number(), number: own.number, owner, mode: own.mode }
}

/// Copies inherit it with the memory that it is about. A branch has that of the older zygote: without one the program has this process's.
fn set_coredump_filter(pid: i32, filter: Option<u32>) -> Result<(), Error> {
    let text = match filter {
        Some(filter) => format!("{filter:#x}"),
        None => format!("0x{}", procfs::text("/proc/self/coredump_filter")?.trim()),
    };
    let path = format!("/proc/{pid}/coredump_filter");
    std::fs::write(&path, text).on("write", path)
}

/// A range that is free in all processes of the program, and in this one.
fn free_room(tree: &Tree, own: &[MapLine]) -> Result<Range, Error> {
    let mapped = tree.members.iter().flat_map(Member::mapped).chain(tree.parked().map(|(_, range)| range));
    let taken = places::joined(mapped.chain(own.iter().map(|line| line.range)));
    places::find_free(&taken, ROOM_FIRST, ROOM_BYTES).ok_or(Error::NoRoom { bytes: ROOM_BYTES })
}

/// Adds the unmapping of everything but the arena, with the vDSO moved to where the program has it.
///
/// The vDSO and its data pages keep their distance from each other: its code finds the data relative to itself.
fn clear_address_space(script: &mut Script, room: Range, own: &[MapLine], image: &ProgramImage) {
    let aside = room.end - ASIDE_BYTES;
    let ours: Vec<&MapLine> = own.iter().filter(|line| line.path.starts_with(b"[v")).collect();
    let our_base = ours.first().map_or(0, |line| line.range.start);
    let image_base = image.vdso.first().map_or(0, |(_, range)| range.start);
    for line in &ours {
        let Range { start, end } = line.range;
        remap(script, start, aside + (start - our_base), end - start);
    }
    script.call(libc::SYS_munmap, [0u64.into(), room.start.into()], Check::Success);
    script.call(libc::SYS_munmap, [room.end.into(), (places::USER_END - room.end).into()], Check::Success);
    for line in &ours {
        let Range { start, end } = line.range;
        remap(script, aside + (start - our_base), image_base + (start - our_base), end - start);
    }
}

fn remap(script: &mut Script, from: u64, to: u64, length: u64) {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let args = [from.into(), length.into(), length.into(), flags.into(), to.into()];
    script.call(libc::SYS_mremap, args, Check::Equal(to as i64));
}

/// Waits for the stub, whose child goes on.
fn reap(pid: i32) -> Result<(), Error> {
    use rustix::process::{Pid, WaitOptions, waitpid};
    let status = rustix::io::retry_on_intr(|| waitpid(Pid::from_raw(pid), WaitOptions::empty())).of("wait for", pid)?;
    let status = status.and_then(|(_, status)| status.exit_status());
    match status {
        Some(0) => Ok(()),
        Some(errno) => Err(std::io::Error::from_raw_os_error(errno)).of("map the arena of stub", pid),
        None => Err(Error::Unexpected { pid, what: "(the stub) was killed".into() }),
    }
}

/// Waits until the zygote is built; gives its process id, and the descriptor of its faults if it has sent one.
fn built(control: BorrowedFd<'_>, arena: &[u8], base: u64) -> Result<(i32, Option<OwnedFd>), Error> {
    let mut faults = None;
    loop {
        let (words, descriptor) = receive(control).of("receive from zygote", 0)?;
        match words {
            Some([_, kind::BUILT, pid, _]) => return Ok((pid as i32, faults)),
            Some([_, kind::FAULTS, ..]) => faults = descriptor,
            Some([_, _, op, result]) => {
                let at = op.wrapping_sub(base) as usize;
                let step = format!("while building the zygote: {}", names::describe(arena.get(at..).unwrap_or(&[])));
                return Err(Error::Step { step, source: std::io::Error::from_raw_os_error(-(result as i64) as i32) });
            }
            None => return Err(Error::ZygoteGone),
        }
    }
}

/// A process that stands still and is traced. It goes on when this is dropped.
struct Traced(i32);

impl Traced {
    fn new(pid: i32) -> Result<Self, Error> {
        ptrace::seize(pid, 0).of("trace zygote", pid)?;
        let traced = Self(pid);
        ptrace::interrupt(pid).of("stop zygote", pid)?;
        match ptrace::wait(pid).of("wait for zygote", pid)? {
            Stop::Ended(_) => Err(Error::ZygoteGone),
            Stop::Interrupted | Stop::Signal(_) | Stop::Cloned | Stop::Event(_) => Ok(traced),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // It fails only if the process has ended.
        let _ = ptrace::detach(self.0, 0);
    }
}

/// Writes the pages that the zygote could not fill itself.
///
/// New kernels (7.2) let only a tracer write where the process itself cannot (CONFIG_PROC_MEM_FORCE_PTRACE).
fn fill_outside(pid: i32, runs: &[Range], read: ReadPages<'_>) -> Result<(), Error> {
    if runs.is_empty() {
        return Ok(());
    }
    let path = format!("/proc/{pid}/mem");
    let memory = File::options().write(true).open(&path).on("open", path)?;
    let mut traced = if sys::kernel::is_old() { Some(Traced::new(pid)?) } else { None };
    let mut buffer = vec![0; 64 * PAGE as usize];
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let length = (run.end - at).min(buffer.len() as u64) as usize;
            read(at, &mut buffer[..length])?;
            let write = || memory.write_all_at(&buffer[..length], at);
            match write() {
                Err(error) if error.raw_os_error() == Some(libc::EIO) && traced.is_none() => {
                    traced = Some(Traced::new(pid)?);
                    write()
                }
                written => written,
            }
            .of("write memory of zygote", pid)?;
            at += length as u64;
        }
    }
    Ok(())
}

fn huge_bytes(pid: i32) -> Result<u64, Error> {
    Ok(Fields::read(format!("/proc/{pid}/smaps_rollup"))?.bytes("AnonHugePages")?)
}
