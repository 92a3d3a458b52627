//! Runs cases one after the other in one thread: the engine forks, and a process that forks must be single-threaded, so the usual
//! test runner with its threads cannot be used.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use anyhow::{Result, bail};

/// A named case.
pub struct Case {
    name: String,
    body: Box<dyn Fn() -> Result<()>>,
}

impl Case {
    /// A case.
    pub fn new(name: impl Into<String>, body: impl Fn() -> Result<()> + 'static) -> Self {
        Self { name: name.into(), body: Box::new(body) }
    }
}

/// Runs the cases whose names contain the first command-line argument (all without one), each under a guard against leaks. Ends the
/// process: 0 if all passed.
pub fn run(cases: &[Case]) -> ! {
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let (mut passed, mut failures) = (0, Vec::new());
    for case in cases.iter().filter(|case| case.name.contains(&wanted)) {
        let began = Instant::now();
        let before = Traces::now();
        let result = catch_unwind(AssertUnwindSafe(&case.body)).unwrap_or_else(|_| Err(anyhow::anyhow!("panicked")));
        let result = result.and_then(|()| before.check());
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                passed += 1;
                println!("{} ... ok ({seconds:.1} s)", case.name);
            }
            Err(error) => {
                let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
                let line =
                    format!("{} ... FAILED ({seconds:.1} s)\n    {}", case.name, chain.join("\n    caused by: "));
                println!("{line}");
                failures.push(line);
            }
        }
    }
    // Once more at the end: a log that was cut keeps its last lines.
    println!("\n{passed} passed, {} failed", failures.len());
    failures.iter().for_each(|line| println!("{line}"));
    std::process::exit(i32::from(!failures.is_empty() || passed == 0));
}

/// What a case could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    processes: BTreeSet<String>,
    mounts: usize,
    descriptors: usize,
    cgroups: BTreeSet<String>,
}

impl Traces {
    fn now() -> Self {
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_or(0, |text| text.lines().count());
        Self { processes: processes(), mounts, descriptors: count("/proc/self/fd"), cgroups: cgroups() }
    }

    /// Nothing more than before, allowing for processes that are just being reaped by others.
    fn check(&self) -> Result<()> {
        let mut now = Self::now();
        for _ in 0..200 {
            reap();
            now = Self::now();
            if now.processes.is_subset(&self.processes)
                && now.cgroups.is_subset(&self.cgroups)
                && now.mounts <= self.mounts
                && now.descriptors <= self.descriptors
            {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let left =
            |now: &BTreeSet<String>, before: &BTreeSet<String>| now.difference(before).cloned().collect::<Vec<_>>();
        bail!(
            "left behind: processes {:?}, cgroups {:?}, mounts {} (before {}), descriptors {} (before {})",
            left(&now.processes, &self.processes),
            left(&now.cgroups, &self.cgroups),
            now.mounts,
            self.mounts,
            now.descriptors,
            self.descriptors
        )
    }
}

/// Reaps every child that has ended.
pub fn reap() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Processes below this one, zombies too, as `pid name`.
fn processes() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut parents = vec![std::process::id().to_string()];
    while let Some(parent) = parents.pop() {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        for child in children.split_ascii_whitespace() {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            found.insert(format!("{child} {}", name.trim_end()));
            parents.push(child.to_owned());
        }
    }
    found
}

/// Groups with our name in them, in every hierarchy.
fn cgroups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(&format!("pando-test{}", std::process::id())) {
                    found.insert(entry.path().display().to_string());
                }
                folders.push(entry.path());
            }
        }
    }
    found
}
