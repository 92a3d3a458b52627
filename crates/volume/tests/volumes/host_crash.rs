//! A machine that stops: of the log, the disk has what was synced and any part of the rest. Files are made one after the other; the first
//! ones up to some number must be there afterwards, and among them all that was promised.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use volume::{ROOT, Volume};

use crate::place::{Place, few_cases, file};

#[derive(Debug, Clone)]
enum Step {
    Make,
    /// The process could die: the kernel has what was done.
    Write,
    Sync,
    Commit,
    /// The object store is away: the log goes on in another file.
    FailedCommit,
    /// The process dies, and another one goes on from what the kernel has.
    Die,
}

/// What the disk has of a file that nobody synced: nothing, or bytes up to some part of it, and then this.
#[derive(Debug, Clone)]
struct Loss {
    gone: bool,
    part: f64,
    rest: Rest,
}

#[derive(Debug, Clone, Copy)]
enum Rest {
    Nothing,
    Zeros,
    /// Zeros, and then what was written.
    Hole,
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

struct Machine {
    place: Place,
    volume: Option<Volume>,
    made: u64,
    promised: u64,
    /// How much of each file of the log is on disk.
    synced: BTreeMap<PathBuf, usize>,
    /// Files that were there before the last commit, and that the disk may still have.
    before: Files,
}

fn read_log(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

impl Machine {
    fn new() -> Self {
        let place = Place::new();
        let volume = Some(place.volume("ws"));
        Self { place, volume, made: 0, promised: 0, synced: BTreeMap::new(), before: Files::new() }
    }

    fn log(&self) -> PathBuf {
        self.place.log("one", "ws")
    }

    fn step(&mut self, step: &Step) {
        let log = self.log();
        let volume = self.volume.as_ref().unwrap();
        match step {
            Step::Make => {
                volume.engine().make(ROOT, format!("{:04}", self.made).as_bytes(), file()).unwrap();
                self.made += 1;
            }
            Step::Write => volume.engine().write_log().unwrap(),
            Step::Sync => {
                volume.sync().unwrap();
                self.promised = self.made;
                // The first sync of a file syncs which files there are. One that was synced whole by then may have gone after that.
                self.before.retain(|path, bytes| self.synced.get(path) == Some(&bytes.len()));
                self.synced.extend(read_log(&log).into_iter().map(|(path, bytes)| (path, bytes.len())));
            }
            Step::Commit => {
                volume.engine().write_log().unwrap();
                self.before = read_log(&log);
                volume.commit().unwrap();
                self.promised = self.made;
            }
            Step::FailedCommit => {
                self.place.set_outage(true);
                // Where nothing is new there is nothing to fail.
                let _ = volume.commit();
                self.place.set_outage(false);
            }
            Step::Die => {
                volume.engine().write_log().unwrap();
                self.volume = None;
                let there = read_log(&log);
                self.volume = Some(self.place.node("one").open("ws").unwrap());
                // Who discards files syncs the folder: what went before is gone for good.
                if there.keys().any(|path| !path.exists()) {
                    self.before.clear();
                }
            }
        }
    }

    /// `back`: files that were removed are there again.
    fn stop(&mut self, losses: &[Loss], back: bool) {
        self.volume = None;
        let log = self.log();
        let mut files = read_log(&log);
        if back {
            let gone = self.before.iter().filter(|(path, _)| !path.exists());
            files.extend(gone.map(|(path, bytes)| (path.clone(), bytes.clone())));
        }
        for ((path, bytes), loss) in files.iter().zip(losses.iter().cycle()) {
            let synced = self.synced.get(path).copied();
            if synced.is_none() && loss.gone {
                let _ = fs::remove_file(path);
                continue;
            }
            let kept = synced.unwrap_or(0);
            let length = kept + ((bytes.len() - kept) as f64 * loss.part) as usize;
            let lost = bytes.len() - length;
            let (zeros, behind) = match loss.rest {
                Rest::Nothing => (0, 0),
                Rest::Zeros => (lost, 0),
                Rest::Hole => (lost.div_ceil(2), lost / 2),
            };
            let left = [&bytes[..length], &vec![0; zeros], &bytes[bytes.len() - behind..]].concat();
            fs::write(path, left).unwrap();
        }
        let volume = self.place.node("one").open("ws").unwrap();
        let names = volume.engine().list(ROOT, 2, 10_000).unwrap();
        let mut names: Vec<_> = names.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect();
        names.sort();
        assert!(names.iter().enumerate().all(|(number, name)| *name == format!("{number:04}")), "{names:?}");
        let found = names.len() as u64;
        assert!((self.promised..=self.made).contains(&found), "{found} of {}", self.promised);
        // And it goes on from there.
        (self.volume, self.made, self.before) = (Some(volume), found, Files::new());
        self.step(&Step::Make);
        self.step(&Step::Sync);
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Make),
        3 => Just(Step::Write),
        1 => Just(Step::Sync),
        2 => Just(Step::Commit),
        2 => Just(Step::FailedCommit),
        1 => Just(Step::Die),
    ];
    proptest::collection::vec(step, 1..40)
}

fn losses() -> impl Strategy<Value = Vec<Loss>> {
    let part = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    let rest = prop_oneof![Just(Rest::Nothing), Just(Rest::Zeros), Just(Rest::Hole)];
    let loss = (proptest::bool::weighted(0.2), part, rest);
    let loss = loss.prop_map(|(gone, part, rest)| Loss { gone, part, rest });
    proptest::collection::vec(loss, 1..4)
}

proptest! {
    #![proptest_config(few_cases())]
    #[test]
    fn what_was_promised_is_there_and_nothing_without_what_came_before(
        lives in proptest::collection::vec((steps(), losses(), any::<bool>()), 1..5),
    ) {
        let mut machine = Machine::new();
        for (steps, losses, back) in lives {
            steps.iter().for_each(|step| machine.step(step));
            machine.stop(&losses, back);
        }
    }
}
