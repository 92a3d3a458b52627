//! Capture: stop the source, take a still of it, read what the still does not show, let it go on.

mod inject;

use std::{
    fs::File,
    time::{Duration, Instant},
};

use inject::{Answers, Injection};
use serde::{Deserialize, Serialize};
use sys::{
    deadman::Deadman,
    remote::{self, Range},
};

use crate::{
    checks, descriptors,
    error::{Context, Error},
    image::{Credentials, Image, Layout, Stream, StreamFile},
    mappings,
    objects::Objects,
    procfs::{self, Fields, MapLine, Stat},
    refusal::Refusal,
    still::Still,
    stopped::Stopped,
    threads,
};

/// A source may be stopped for this long; files that are copied meanwhile count. Whoever captures ends by SIGALRM beyond it.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What to capture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// The program's process id, as the caller sees it.
    pub pid: i32,
    /// The files that are the sandbox's standard streams.
    pub streams: Vec<(StreamFile, Stream)>,
    /// Where an earlier start left its arena (begin and end), which is not part of the program.
    pub earlier_arena: Option<(u64, u64)>,
}

/// An error of what the caller does while the source is stopped.
pub type PauseError = Box<dyn std::error::Error + Send + Sync>;

/// A captured program.
#[derive(Debug)]
pub struct Capture {
    pub(crate) image: Image,
    pub(crate) still: Still,
    /// How long the source was stopped.
    pub pause: Duration,
}

/// Why process `pid` could not be forked; empty if it could. Changes nothing and stops nothing, so that a running program may have changed
/// by the time the answer is read.
pub fn examine(pid: i32) -> Result<Vec<Refusal>, Error> {
    let mut refusals = checks::process(pid)?;
    let lines = procfs::mappings(pid, "smaps")?;
    let mut objects = Objects::default();
    objects.add_mapped(pid, &lines)?;
    refusals.extend(descriptors::read(pid, &standard_streams(pid), &mut objects)?.refusals);
    refusals.extend(mappings::classify(pid, &lines, &objects.found, &[])?.refusals);
    Ok(refusals)
}

/// Descriptors 0 to 2 as what they are in a sandbox: its streams, made outside its root filesystem.
fn standard_streams(pid: i32) -> Vec<(StreamFile, Stream)> {
    use std::os::unix::fs::MetadataExt;
    let file = |fd: i32| std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok();
    let streams = [Stream::Stdin, Stream::Stdout, Stream::Stderr];
    let known = |(fd, stream)| file(fd).map(|file| (StreamFile { dev: file.dev(), ino: file.ino() }, stream));
    (0..).zip(streams).filter_map(known).collect()
}

/// Captures a program. `during_pause` runs while it is stopped: what it does (copying files) belongs to the same instant.
///
/// The source is unchanged afterwards, also after an error. [`Error::Refused`] has every reason found.
pub fn capture(spec: &CaptureSpec, during_pause: &mut dyn FnMut() -> Result<(), PauseError>) -> Result<Capture, Error> {
    let pid = spec.pid;
    refuse(checks::process(pid)?)?;
    // Reading `smaps` walks the whole address space, so it happens before the stop; `maps`, which is quick, shows later if it is still true.
    let before = procfs::mappings(pid, "smaps")?;
    // A hostile program can keep a thread of its own from ever coming back: then this process ends, and with it all it holds.
    let deadman = Deadman::arm(PAUSE_MAX);
    let (mut stopped, began) = seize(spec)?;
    let lines = procfs::mappings(pid, "maps")?;
    let flagged = if same_places(&before, &lines) { before } else { procfs::mappings(pid, "smaps")? };
    // Between the first check and the stop it may have forked.
    refuse(
        checks::process(pid)?
            .into_iter()
            .filter(|refusal| !matches!(refusal, Refusal::Traced { .. } | Refusal::Stopped))
            .collect(),
    )?;
    let dont_fork: Vec<Range> = flagged.iter().filter(|line| line.flags.dont_fork).map(|line| line.range).collect();
    let mut injection = Injection::enter(&mut stopped, &flagged, &dont_fork)?;
    let taken = injection.take(pid, &dont_fork);
    let mut refusals = Vec::new();
    let gathered = taken.and_then(|(still, reported)| {
        let gathered = gather(spec, injection.stopped, &lines, reported, &mut refusals)?;
        Ok((still, gathered))
    });
    let arena = injection.arena;
    let left = injection.leave();
    let (still, mut gathered) = gathered?;
    left?;
    refuse(refusals)?;
    during_pause().map_err(Error::DuringPause)?;
    drop(stopped);
    let pause = began.elapsed();
    drop(deadman);
    complete(spec, &mut gathered, &still, arena, dont_fork)?;
    Ok(Capture { image: gathered.image, still, pause })
}

/// Stops the source, since when is given, where every thread is in the program: right after its own start some may still be on their way into it.
fn seize(spec: &CaptureSpec) -> Result<(Stopped, Instant), Error> {
    const TRIES: u32 = 200;
    let (start, end) = spec.earlier_arena.unwrap_or((0, 0));
    let mut refused = Vec::new();
    for _ in 0..TRIES {
        let began = Instant::now();
        match Stopped::seize(spec.pid) {
            Ok(stopped) => {
                if stopped.tasks().iter().all(|task| !(start..end).contains(&task.registers.rip)) {
                    return Ok((stopped, began));
                }
            }
            Err(Error::Refused(refusals)) if refusals.iter().all(Refusal::may_pass) => refused = refusals,
            Err(error) => return Err(error),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    refuse(refused)?;
    Err(Error::Unexpected { pid: spec.pid, what: "does not complete its start".into() })
}

fn refuse(refusals: Vec<Refusal>) -> Result<(), Error> {
    if refusals.is_empty() { Ok(()) } else { Err(Error::Refused(refusals)) }
}

fn same_places(a: &[MapLine], b: &[MapLine]) -> bool {
    let place = |line: &MapLine| (line.range.start, line.range.end, line.protection, line.inode);
    a.len() == b.len() && a.iter().map(place).eq(b.iter().map(place))
}

/// What is read in the pause, and what [`complete`] still needs.
struct Gathered {
    image: Image,
    objects: Objects,
}

fn gather(
    spec: &CaptureSpec,
    stopped: &Stopped,
    lines: &[MapLine],
    answers: Answers,
    refusals: &mut Vec<Refusal>,
) -> Result<Gathered, Error> {
    let pid = spec.pid;
    let threads = threads::gather(pid, stopped, &answers.threads, refusals)?;
    let pending = threads::pending(pid, true, refusals)?;
    let mut objects = Objects::default();
    objects.add_mapped(pid, lines)?;
    let files = descriptors::read(pid, &spec.streams, &mut objects)?;
    refusals.extend(files.refusals);
    let contents = objects.read(refusals)?;
    let stat = Stat::read(&pid.to_string())?;
    let image = Image {
        threads,
        mappings: Vec::new(),
        dont_fork: Vec::new(),
        objects: contents,
        layout: Layout::default(),
        dumpable: 0,
        no_huge_pages: 0,
        personality: 0,
        membarrier: 0,
        actions: Vec::new(),
        files: files.files,
        pipes: files.pipes,
        pairs: files.pairs,
        interval_timers: answers.interval_timers,
        posix_timers: answers.posix_timers,
        pending,
        cwd: Vec::new(),
        umask: 0,
        limits: Vec::new(),
        credentials: Credentials { uids: [0; 3], gids: [0; 3], groups: Vec::new() },
        own_affinity: remote::affinity(0).of("read affinity", pid)?,
        session_leader: stat.field(6) == i64::from(pid),
        process_group_leader: stat.field(5) == i64::from(pid),
        vdso: Vec::new(),
    };
    Ok(Gathered { image, objects })
}

/// Reads from the still what it shows as well as the source did; the source runs again.
fn complete(
    spec: &CaptureSpec,
    gathered: &mut Gathered,
    still: &Still,
    arena: Range,
    dont_fork: Vec<Range>,
) -> Result<(), Error> {
    let pid = still.pid();
    let image = &mut gathered.image;
    let answers = still.ask(arena.start, arena.end - arena.start)?;
    let lines = procfs::mappings(pid, "smaps")?;
    let mut skip = vec![arena];
    skip.extend(spec.earlier_arena.map(|(start, end)| Range { start, end }));
    let classified = mappings::classify(pid, &lines, &gathered.objects.found, &skip)?;
    refuse(classified.refusals)?;
    image.mappings = classified.mappings;
    image.vdso = classified.vdso;
    image.dont_fork = dont_fork;
    image.actions = answers.actions;
    image.membarrier = answers.membarrier;
    (image.dumpable, image.no_huge_pages) = (answers.dumpable, answers.no_huge_pages);
    image.personality = answers.personality;
    image.layout = layout(pid, answers.brk)?;
    image.cwd = procfs::link(&format!("/proc/{pid}/cwd"))?;
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    image.umask = status.number("Umask", 8)? as u32;
    image.limits = procfs::limits(pid)?;
    image.credentials = credentials(pid, &status)?;
    Ok(())
}

fn credentials(pid: i32, status: &Fields) -> Result<Credentials, Error> {
    let three = |name: &str| -> Result<[u32; 3], Error> {
        let ids = status.numbers(name, 10)?;
        match ids[..] {
            [real, effective, saved, ..] => Ok([real as u32, effective as u32, saved as u32]),
            _ => Err(Error::Unexpected { pid, what: format!("has an unreadable {name}") }),
        }
    };
    let groups = status.numbers("Groups", 10)?.into_iter().map(|group| group as u32).collect();
    Ok(Credentials { uids: three("Uid")?, gids: three("Gid")?, groups })
}

fn layout(pid: i32, brk: u64) -> Result<Layout, Error> {
    let stat = Stat::read(&pid.to_string())?;
    // The order of `struct prctl_mm_map`, as field numbers of proc(5); 0 stands for brk, which only the program itself can ask.
    let fields = [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51].map(|n| if n == 0 { brk } else { stat.field(n) as u64 });
    let auxv = procfs::read(&format!("/proc/{pid}/auxv"))?;
    let exe = procfs::link(&format!("/proc/{pid}/exe"))?;
    Ok(Layout { fields, auxv, exe })
}

impl Capture {
    /// The runs of private pages of the still in `range`.
    pub(crate) fn private_pages(&self, pagemap: &File, range: Range) -> Result<Vec<Range>, Error> {
        remote::private_pages(pagemap, range).of("scan the page map", self.still.pid())
    }
}
