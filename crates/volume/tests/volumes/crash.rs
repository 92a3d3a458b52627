//! Processes that die: at each step of everything that must not be torn, and at any moment. The test runs itself as the process that dies,
//! which tells what it was promised; whatever is left must be the state after all that was promised, or after one step more.
//!
//! `PANDO_ROUNDS` says how many are killed at any moment (1,000 as a soak: `PANDO_ROUNDS=1000 cargo test -p pando-volume --test volumes crash`).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use volume::{CRASH_POINTS, Effort, Engine, Origin, ROOT, Volume, VolumeError, Volumes};

use crate::place::{file, volumes_at};

const CHILD: &str = "PANDO_CRASH_CHILD";
const FIRST: &str = "PANDO_CRASH_FIRST";
/// Steps that a process is given if it does not die: enough for each kind of them to come up.
const STEPS: u64 = 150;

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Debug)]
enum Step {
    Put(String, Vec<u8>),
    Remove(String),
    Commit,
    Compact,
    Snapshot(String),
    Restore { before: String },
    Fork(String),
}

/// What there is, and what it was at each snapshot.
#[derive(Clone, Default)]
struct Model {
    files: Files,
    snapshots: Vec<(String, Files)>,
    forks: Vec<(String, Files)>,
}

/// Step `number` is always the same.
fn step(number: u64) -> Step {
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    random ^= random >> 29;
    random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    random ^= random >> 32;
    let name = format!("f{}", random >> 8 & 7);
    match random % 17 {
        0..=8 => Step::Put(name, vec![number as u8; (random >> 16) as usize % 40_000]),
        9 | 10 => Step::Remove(name),
        11 | 12 => Step::Commit,
        13 => Step::Compact,
        14 => Step::Snapshot(format!("s{number}")),
        15 => Step::Fork(format!("k{number}")),
        _ => Step::Restore { before: format!("b{number}") },
    }
}

impl Model {
    fn step(&mut self, number: u64) {
        match step(number) {
            Step::Put(name, data) => drop(self.files.insert(name, data)),
            Step::Remove(name) => drop(self.files.remove(&name)),
            Step::Commit | Step::Compact => {}
            Step::Snapshot(name) => self.snapshots.push((name, self.files.clone())),
            Step::Restore { before } => {
                let Some((_, files)) = self.snapshots.last().cloned() else { return };
                self.snapshots.push((before, std::mem::replace(&mut self.files, files)));
            }
            Step::Fork(name) => self.forks.push((name, with_own(&self.files))),
        }
    }
}

/// What a fork has besides what it begins with.
const OWN: &str = "own";

fn with_own(files: &Files) -> Files {
    let mut files = files.clone();
    files.insert(OWN.to_owned(), OWN.into());
    files
}

fn put(volume: &Volume, name: &str, data: &[u8]) {
    let engine = volume.engine();
    let made = engine.make_unnamed(ROOT, file()).unwrap();
    engine.write(made.ino(), 0, data, false).unwrap();
    engine.place(made.ino(), ROOT, name.as_bytes()).unwrap();
    volume.sync().unwrap();
}

fn perform(volumes: &Volumes, volume: &Volume, number: u64, last_snapshot: &mut Option<String>) {
    let engine = volume.engine();
    match step(number) {
        Step::Put(name, data) => put(volume, &name, &data),
        Step::Remove(name) => {
            // It need not be there.
            let _ = engine.unlink(ROOT, name.as_bytes());
            volume.sync().unwrap();
        }
        Step::Commit => volume.commit().unwrap(),
        Step::Compact => drop(volume.compact(Effort::All).unwrap()),
        Step::Snapshot(name) => {
            volume.snapshot(&name, "").unwrap();
            *last_snapshot = Some(name);
        }
        Step::Restore { before } => {
            if let Some(snapshot) = last_snapshot.clone() {
                volume.restore(&snapshot, &before).unwrap();
                *last_snapshot = Some(before);
            }
        }
        Step::Fork(name) => {
            volume.commit().unwrap();
            match volumes.fork(&Origin::Volume("ws".to_owned()), &name) {
                // Of who died in this step.
                Ok(()) | Err(VolumeError::Exists { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            // It is not closed: what it has of its own is in its log.
            put(&volumes.open(&name).unwrap(), OWN, OWN.as_bytes());
        }
    }
}

/// Not a test: the process that dies, when another test runs it.
#[test]
fn child() {
    let Some(root) = std::env::var_os(CHILD) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let volumes = volumes_at(Path::new(&root), &runtime);
    let mut snapshots = volumes.log("ws").unwrap().into_iter();
    let mut last_snapshot = snapshots.next().map(|snapshot| snapshot.name);
    let volume = volumes.open("ws").unwrap();
    let mut out = std::io::stdout();
    for number in first..first + STEPS {
        perform(&volumes, &volume, number, &mut last_snapshot);
        writeln!(out, "\nstep {number} {}", log_length(Path::new(&root))).unwrap();
        out.flush().unwrap();
    }
    // As if it were killed.
    std::process::abort();
}

fn log_files(root: &Path) -> Vec<std::path::PathBuf> {
    let folder = root.join("n/test/ws/log");
    let mut files: Vec<_> = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The newest file of the log, and its bytes.
fn log_length(root: &Path) -> String {
    let newest = log_files(root).pop().unwrap();
    format!("{} {}", newest.file_name().unwrap().to_str().unwrap(), fs::metadata(&newest).unwrap().len())
}

struct Ground {
    directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    model: Model,
    next: u64,
}

impl Ground {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        volumes_at(directory.path(), &runtime).create("ws", &volume::Options::default()).unwrap();
        Self { directory, runtime, model: Model::default(), next: 0 }
    }

    /// `again`: files of the log are used again, however small.
    fn start(&self, crash_at: &str, again: bool) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["crash::child", "--exact", "--nocapture"]);
        command.env(CHILD, self.directory.path()).env(FIRST, self.next.to_string()).env("PANDO_CRASH_AT", crash_at);
        if again {
            command.env("PANDO_SPARE_BYTES", "0");
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Reads what the process was promised, and kills it after some time if it has to be.
    fn end(&mut self, mut child: Child, after: Option<Duration>) -> Option<(String, u64)> {
        let (mut last, mut promised) = (None, None);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let killer = after.map(|after| {
            let pid = rustix::process::Pid::from_child(&child);
            std::thread::spawn(move || {
                std::thread::sleep(after);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            })
        });
        for line in lines.map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["step", number, log, bytes] = words[..] {
                promised = Some(number.parse::<u64>().unwrap());
                last = Some((log.to_owned(), bytes.parse().unwrap()));
            }
        }
        killer.into_iter().for_each(|killer| killer.join().unwrap());
        assert!(!child.wait().unwrap().success(), "it dies in the end, whatever happens");
        while promised.is_some_and(|promised| promised >= self.next) {
            self.model.step(self.next);
            self.next += 1;
        }
        last
    }

    /// What is there is what was promised, or one step more.
    fn check(&mut self) {
        let volumes = volumes_at(self.directory.path(), &self.runtime);
        let volume = volumes.open("ws").unwrap();
        let found = files(volume.engine());
        let mut later = self.model.clone();
        later.step(self.next);
        let names = volumes.log("ws").unwrap().len();
        let is = |model: &Model| model.files == found && model.snapshots.len() == names;
        if !is(&self.model) {
            assert!(is(&later), "step {} {:?}", self.next, step(self.next));
            self.model = later;
            self.next += 1;
        }
        for (snapshot, expected) in self.model.snapshots.iter().rev().take(2) {
            let origin = Origin::Snapshot { volume: "ws".to_owned(), snapshot: snapshot.clone() };
            let read = volumes.open_to_read(&origin).unwrap();
            assert!(files(read.engine()) == *expected, "{snapshot}");
            read.close().unwrap();
        }
        for (fork, expected) in self.model.forks.iter().rev().take(2) {
            let fork = volumes.open(fork).unwrap();
            assert!(files(fork.engine()) == *expected, "{}", fork.name());
            fork.close().unwrap();
        }
        if let Step::Fork(begun) = step(self.next)
            && let Ok(fork) = volumes.open(&begun)
        {
            let found = files(fork.engine());
            assert!(found == self.model.files || found == with_own(&self.model.files), "{begun}");
        }
        volume.commit().unwrap();
        let verified = volumes.verify(&Origin::Volume("ws".to_owned())).unwrap();
        assert_eq!(verified.findings, []);
    }
}

fn files(engine: &Engine) -> Files {
    let read = |ino| engine.read(ino, 0, 1 << 20).unwrap();
    let listed = engine.list(ROOT, 2, 1000).unwrap().into_iter();
    listed.map(|entry| (String::from_utf8(entry.name).unwrap(), read(entry.ino))).collect()
}

#[test]
fn whoever_dies_at_any_step_leaves_what_was_promised() {
    let mut ground = Ground::new();
    let ways = [(1, false), (1, true), (5, true), (2, false), (2, true), (5, false)];
    // All of them as a soak.
    let count = if std::env::var_os("PANDO_ROUNDS").is_some() { ways.len() } else { 3 };
    for point in CRASH_POINTS {
        for (pass, again) in ways.into_iter().take(count) {
            if point == "log file taken over" && !again {
                continue;
            }
            let child = ground.start(&format!("{point}:{pass}"), again);
            let before = ground.next;
            ground.end(child, None);
            assert!(pass > 1 || ground.next < before + STEPS, "{point} is never reached");
            ground.check();
        }
    }
}

fn rounds() -> u64 {
    std::env::var("PANDO_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap())
}

#[test]
fn whoever_is_killed_at_any_moment_leaves_what_was_promised() {
    let mut ground = Ground::new();
    for round in 0..rounds() {
        let child = ground.start("", round % 2 == 1);
        ground.end(child, Some(Duration::from_millis(20 + round * 37 % 300)));
        ground.check();
    }
}

/// The disk has what was synced, and nothing else.
#[test]
fn a_crash_of_the_host_leaves_what_was_promised() {
    let mut ground = Ground::new();
    for round in 0..rounds() {
        let child = ground.start("", false);
        let Some((log, bytes)) = ground.end(child, Some(Duration::from_millis(50 + round * 53 % 200))) else {
            continue;
        };
        let of_then = log_files(ground.directory.path()).into_iter().filter(|path| path.ends_with(&log));
        for path in of_then {
            File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
        }
        ground.check();
    }
}
