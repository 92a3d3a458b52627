//! Servers that are killed, and others that go on where they were.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::fuse::{place::Place, storm::digest};

/// Nobody serves while programs ask.
pub(super) fn waits() {
    let mut place = Place::new();
    let path = place.path();
    fs::write(path.join("file"), "before").unwrap();
    fs::write(path.join("other"), "x").unwrap();
    let open = File::options().read(true).write(true).create_new(true).open(path.join("nameless")).unwrap();
    open.write_all_at(b"nameless", 0).unwrap();
    fs::remove_file(path.join("nameless")).unwrap();
    place.kill();
    let at = |name: &str| path.join(name);
    thread::scope(|scope| {
        scope.spawn(|| fs::write(at("new"), "new").unwrap());
        scope.spawn(|| fs::create_dir(at("directory")).unwrap());
        scope.spawn(|| fs::rename(at("other"), at("moved")).unwrap());
        scope.spawn(|| fs::read_dir(&path).unwrap().for_each(|entry| drop(entry.unwrap())));
        scope.spawn(|| fs::symlink_metadata(at("absent")).unwrap_err());
        thread::sleep(Duration::from_millis(200));
        place.serve("adopt");
    });
    assert_eq!(fs::read(path.join("new")).unwrap(), b"new");
    assert_eq!(fs::read(path.join("file")).unwrap(), b"before");
    assert!(path.join("directory").is_dir() && path.join("moved").exists() && !path.join("other").exists());
    let mut found = [0; 8];
    open.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"nameless");
    drop(open);
    // Commits leave what the log says of requests as long as they may be asked for again, and no longer.
    let until = Instant::now() + Duration::from_secs(20);
    while place.log_files() > 1 {
        assert!(Instant::now() < until, "{} files of the log are left", place.log_files());
        fs::write(path.join("file"), "after").unwrap();
        thread::sleep(Duration::from_millis(20));
    }
}

/// Programs that believe nothing run while server after server is killed; then a fresh mount has what each of them says.
pub(super) fn storms() {
    let rounds: u32 = std::env::var("PANDO_ADOPTION_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap());
    let mut place = Place::new();
    let mut storms: Vec<Child> = (0..6).map(|seed| storm(&place, seed)).collect();
    let mut random = fastrand::Rng::new();
    for _ in 0..rounds {
        thread::sleep(Duration::from_millis(random.u64(20..200)));
        place.kill();
        if random.bool() {
            thread::sleep(Duration::from_millis(random.u64(0..50)));
        }
        place.serve("adopt");
        for storm in &mut storms {
            assert_eq!(storm.try_wait().unwrap(), None, "a program has seen an error");
        }
    }
    let reports: Vec<String> = storms.into_iter().map(end).collect();
    place.remount();
    for (seed, report) in reports.iter().enumerate() {
        let directory = place.path().join(format!("storm-{seed}"));
        let mut lines = report.lines();
        let steps: u64 = lines.next().unwrap().parse().unwrap();
        assert!(steps > 0);
        for line in lines {
            let (name, expected) = line.split_once(' ').unwrap();
            assert_eq!(digest(&fs::read(directory.join(name)).unwrap()).to_string(), expected, "{name}");
        }
    }
}

fn storm(place: &Place, seed: u64) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.arg(crate::fuse::STORM).arg(place.path().join(format!("storm-{seed}"))).arg(seed.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn end(mut storm: Child) -> String {
    drop(storm.stdin.take());
    let mut report = String::new();
    storm.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(storm.wait().unwrap().success(), "a program has seen an error");
    report
}
