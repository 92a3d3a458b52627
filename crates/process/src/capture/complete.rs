//! Reading what the still shows as well as the source did. The source runs again by then, unless it is to stand still.

use procfs::{Fields, IdMaps, MapLine, Stat};
use sys::{
    ptrace::SignalInfo,
    remote::{self, Range},
};

use super::{
    CaptureSpec,
    inject::Answers,
    pause::{Gathered, Memory, NewStill},
    refuse,
};
use crate::{
    error::{Context, Error},
    image::{
        Added, ClockOffsets, Credentials, ExtendedRegisters, Layout, Member, MemoryFiles, Privileges,
        ProcessAttributes, ProgramImage, ProtectionKeys, Thread, WallTimer, WallTimers, xstate::Format,
    },
    observe::{blame::blame_error, checks, mappings, objects::Objects, rights},
    refusal::Refusal,
    stop::still::{self, Still},
};

/// The facts about a process that were read before it went on.
pub(super) struct Known {
    pub(super) pid: i32,
    pub(super) threads: Vec<Thread>,
    pub(super) pending: Vec<SignalInfo>,
    pub(super) answers: Answers,
    pub(super) gathered: Gathered,
    pub(super) memory: Memory,
    /// POSIX timers that wait for a time of day.
    pub(super) posix: Vec<WallTimer>,
}

/// What completes the images, beside the stills.
pub(super) struct Rest {
    pub(super) known: Vec<Known>,
    pub(super) objects: Objects,
    /// What the clocks showed at the end of the pause.
    pub(super) clocks: ClockOffsets,
}

/// Of each process: itself, its still, and what of the still's memory is to be taken over.
type Completed = (Vec<Member>, Vec<Still>, Vec<Vec<Range>>);

/// Completes all processes but for what is read of all together.
pub(super) fn complete_all(
    rest: Rest,
    stills: Vec<NewStill>,
    arenas: Vec<Range>,
    spec: &CaptureSpec,
) -> Result<Completed, Error> {
    let (mut members, mut done, mut taken_over) = Completed::default();
    let Rest { known, objects, clocks } = rest;
    for ((known, still), arena) in known.into_iter().zip(stills).zip(arenas) {
        let (pid, kin) = (known.pid, known.gathered.kin.clone());
        let completed = still.ask(arena).and_then(|(still, asked)| {
            let (image, own) = complete(&still, asked, arena, spec, known, &objects, clocks)?;
            Ok((still, Member { image, kin }, own))
        });
        let blamed = |error| if pid == spec.pid { error } else { blame_error(pid, error) };
        let (still, member, own) = completed.map_err(blamed)?;
        members.push(member);
        done.push(still);
        taken_over.push(own);
    }
    Ok((members, done, taken_over))
}

/// The image of one process but for what is read of all together, and what of the still's memory is to be taken over. `arena` is ours, and so is
/// what an earlier start left. `clocks` are what the clocks showed at the end of the pause.
fn complete(
    still: &Still,
    asked: still::StillAnswers,
    arena: Range,
    spec: &CaptureSpec,
    known: Known,
    objects: &Objects,
    clocks: ClockOffsets,
) -> Result<(ProgramImage, Vec<Range>), Error> {
    let pid = still.pid();
    let Known { pid: _, threads, pending, answers, gathered, memory, posix } = known;
    let Memory { lines, locked, dont_fork, .. } = memory;
    let mut ours = vec![arena];
    ours.extend(spec.earlier_arena.map(mappings::of_arena));
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    let mut refusals = checks::nature(pid, &status)?;
    let shown = mappings_as_in_pause(pid, &lines, &dont_fork, &ours, &mut refusals)?;
    let elsewhere = [&*spec.mount_points, &*spec.without_zygotes()].concat();
    let classified = mappings::classify(pid, &shown, &objects.found, &elsewhere)?;
    refusals.extend(classified.refusals);
    let privileges = rights::privileges(&status)?;
    refusals.extend(threads.iter().find_map(|thread| secure_bits(thread, &privileges)));
    refuse(refusals)?;
    let extended = extended_registers(answers.permitted, pid)?;
    let image = ProgramImage {
        threads,
        mappings: classified.mappings,
        dont_fork,
        objects: Vec::new(),
        layout: layout(pid, asked.brk, gathered.places.exe)?,
        dumpable: asked.dumpable,
        no_huge_pages: asked.no_huge_pages,
        personality: asked.personality,
        membarrier: asked.membarrier,
        actions: asked.actions,
        files: Vec::new(),
        pipes: Vec::new(),
        pairs: Vec::new(),
        connections: Vec::new(),
        locks: Vec::new(),
        added: Added::default(),
        interval_timers: answers.interval_timers,
        posix_timers: answers.posix_timers,
        pending,
        cwd: gathered.places.cwd,
        attributes: ProcessAttributes { locked, ..attributes(pid, answers.attributes)? },
        umask: status.number("Umask", 8)? as u32,
        limits: procfs::limits(pid)?,
        credentials: credentials(pid, &status)?,
        privileges,
        clocks,
        guards: classified.guards,
        wall_timers: WallTimers { descriptors: Vec::new(), posix },
        own_affinity: remote::affinity(0).of("read affinity", pid)?,
        session_leader: gathered.session_leader,
        process_group_leader: gathered.process_group_leader,
        job: None,
        terminal: gathered.terminal,
        own_terminals: Vec::new(),
        system_v: Vec::new(),
        vdso: classified.vdso,
        memory_files: MemoryFiles::new(),
        keys: if extended.format.has_keys() {
            ProtectionKeys::new(&asked.free_keys, &shown)
        } else {
            ProtectionKeys::default()
        },
        extended,
        arguments: Vec::new(),
    };
    Ok((image, classified.taken_over))
}

/// The still's mappings but `ours`, by the names that files had in the pause: the program may rename them since. All of the source's must be
/// among them.
fn mappings_as_in_pause(
    still: i32,
    source: &[MapLine],
    dont_fork: &[Range],
    ours: &[Range],
    refusals: &mut Vec<Refusal>,
) -> Result<Vec<MapLine>, Error> {
    let without_ours = |lines: Vec<MapLine>| -> Vec<MapLine> {
        ours.iter().fold(lines, |lines, hole| lines.into_iter().flat_map(|line| line.without(*hole)).collect())
    };
    let mut lines = without_ours(procfs::smaps(still)?);
    for source in without_ours(source.to_vec()) {
        let address = source.range.start;
        // Adjoining mappings may have become one, when the arena between them went.
        let at = lines.partition_point(|line| line.range.end <= address);
        match lines.get_mut(at).filter(|line| line.range.start <= address) {
            Some(line) if line.inode == source.inode => line.path = source.path,
            _ if dont_fork.iter().any(|range| range.start <= address && address < range.end) => {
                let path = String::from_utf8_lossy(&source.path).into_owned();
                refusals.push(Refusal::MappedDevice { address, path });
            }
            _ => {
                let what = format!("changed its memory at {address:#x} when it was about to be stopped");
                return Err(Error::Unexpected { pid: still, what });
            }
        }
    }
    Ok(lines)
}

fn extended_registers(permitted: u64, pid: i32) -> Result<ExtendedRegisters, Error> {
    let format = Format::here().of("look for extended registers", pid)?.clone();
    // What every program may use need not be asked for.
    let requested = if permitted == 0 { 0 } else { permitted & !format.features() };
    Ok(ExtendedRegisters { format, requested })
}

/// Adds what files of /proc tell.
fn attributes(pid: i32, asked: ProcessAttributes) -> Result<ProcessAttributes, Error> {
    let own = std::process::id() as i32;
    let unlike_own = |name: &str| -> Result<Option<String>, Error> {
        let [theirs, ours] = [pid, own].map(|pid| procfs::text(&format!("/proc/{pid}/{name}")));
        let theirs = theirs?;
        Ok((theirs != ours?).then_some(theirs))
    };
    let oom_score_adj = unlike_own("oom_score_adj")?.and_then(|text| text.parse().ok());
    let coredump_filter = unlike_own("coredump_filter")?.and_then(|text| u32::from_str_radix(&text, 16).ok());
    Ok(ProcessAttributes { oom_score_adj, coredump_filter, autogroup_nice: procfs::autogroup_nice(pid), ..asked })
}

/// Bits that only a capability sets (`PR_SET_SECUREBITS`). All may set the one that keeps capabilities, and those of `execveat` checks.
fn secure_bits(thread: &Thread, privileges: &Privileges) -> Option<Refusal> {
    const OF_ALL: u32 = 1 << 4 | 0xf << 8;
    const CAP_SETPCAP: u64 = 1 << 8;
    let bits = thread.attributes.secure_bits & !OF_ALL;
    (bits != 0 && privileges.effective & CAP_SETPCAP == 0).then_some(Refusal::SecureBits { tid: thread.tid, bits })
}

/// As the program sees them.
fn credentials(pid: i32, status: &Fields) -> Result<Credentials, Error> {
    let ids = IdMaps::of(pid)?;
    let three = |name: &str| -> Result<[u32; 3], Error> {
        let ids = status.numbers(name, 10)?;
        match ids[..] {
            [real, effective, saved, ..] => Ok([real as u32, effective as u32, saved as u32]),
            _ => Err(Error::Unexpected { pid, what: format!("has an unreadable {name}") }),
        }
    };
    let groups = status.numbers("Groups", 10)?.into_iter().map(|group| ids.group_inside(group as u32)).collect();
    Ok(Credentials {
        uids: three("Uid")?.map(|id| ids.user_inside(id)),
        gids: three("Gid")?.map(|id| ids.group_inside(id)),
        groups,
    })
}

fn layout(pid: i32, brk: u64, exe: Vec<u8>) -> Result<Layout, Error> {
    let stat = Stat::read(&pid.to_string())?;
    // The order of `struct prctl_mm_map`, as field numbers of proc(5); 0 stands for brk, which only the program itself can ask.
    let fields = [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51].map(|n| if n == 0 { brk } else { stat.field(n) as u64 });
    let auxv = procfs::read(&format!("/proc/{pid}/auxv"))?;
    Ok(Layout { fields, auxv, exe })
}
