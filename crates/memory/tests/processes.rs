//! Images of real processes, judged by `/proc/PID/mem`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use memory::{
    Dump, Error, Options, PAGE_BYTES, ProcessPages,
    codec::Packing,
    scan::{Piece, Scan},
};
use rustix::process::{Pid, Signal, kill_process};
use support::{Chunks, Pages, reader, restore};
use sys::remote::Range;

/// The program of the tests; killed when dropped, with its twin.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    twin: Option<i32>,
}

impl Program {
    fn start() -> (Self, HashMap<String, Range>) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/program.py");
        let piped = Stdio::piped;
        let mut child = Command::new("/usr/bin/python3").arg(script).stdin(piped()).stdout(piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, output, twin: None };
        let mut areas = HashMap::new();
        loop {
            let (name, start, length) = program.line();
            if name == "ready" {
                return (program, areas);
            }
            areas.insert(name, Range { start, end: start + length });
        }
    }

    fn line(&mut self) -> (String, u64, u64) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap().to_owned();
        (word(), word().parse().unwrap(), word().parse().unwrap())
    }

    /// Has it fork a twin that stops, and then change memory.
    fn fork(&mut self) -> i32 {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let twin = self.line().1 as i32;
        self.twin = Some(twin);
        wait_stopped(twin);
        twin
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        wait_stopped(self.pid());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(twin) = self.twin.and_then(Pid::from_raw) {
            let _ = kill_process(twin, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_stopped(pid: i32) {
    let stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
    while !stopped() {
        thread::sleep(Duration::from_millis(2));
    }
}

/// The private mappings of a process.
fn ranges(pid: i32) -> Vec<Range> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let number = |hex: &str| u64::from_str_radix(hex, 16).unwrap();
    let private = maps.lines().filter(|line| !line.contains("[v") && line.split(' ').nth(1).unwrap().ends_with('p'));
    let range = |line: &str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        Range { start: number(start), end: number(end) }
    };
    private.map(range).collect()
}

fn dump(pid: i32, scan: impl Iterator<Item = Result<Piece, Error>> + Send, chunks: &mut Chunks) -> Dump {
    let options = Options { packing: Packing::SMALL, threads: 2 };
    memory::dump(&ProcessPages::open(pid).unwrap(), scan, chunks, options, &memory::Known::default()).unwrap()
}

fn memory_of(pid: i32, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut bytes, page * PAGE_BYTES as u64).unwrap();
    bytes
}

/// Every page of the image is the process's, and what the image has not of `area` is zero there.
fn assert_is_memory(pid: i32, image: &Pages, areas: &[Range]) {
    for (page, bytes) in image {
        assert!(memory_of(pid, *page) == *bytes, "page {page:#x}");
    }
    for area in areas {
        for page in (area.start..area.end).step_by(PAGE_BYTES).map(|address| address / PAGE_BYTES as u64) {
            assert!(image.contains_key(&page) || memory_of(pid, page) == [0; PAGE_BYTES], "page {page:#x}");
        }
    }
}

fn pages_in(image: &Pages, area: Range) -> usize {
    image.range(area.start / PAGE_BYTES as u64..area.end / PAGE_BYTES as u64).count()
}

#[test]
fn a_process_is_in_its_image_whole_even_what_it_may_not_read() {
    let (program, areas) = Program::start();
    program.stop();
    let pid = program.pid();
    let mut chunks = Chunks::default();
    let dumped = dump(pid, Scan::new(pid, ranges(pid)).unwrap(), &mut chunks);
    let image = restore(&reader(&[&dumped.root], &chunks).unwrap(), 2).unwrap();
    assert_is_memory(pid, &image, &[areas["mixed"], areas["hidden"], areas["barred"]]);
    let counts = ["mixed", "hidden", "barred", "sparse"].map(|name| pages_in(&image, areas[name]));
    assert_eq!(counts, [512, 64, 300, (1usize << 20).div_ceil(4099)]);
    assert!(dumped.totals.zero_pages >= 128 && dumped.totals.duplicate_pages >= 127, "{:?}", dumped.totals);
}

#[test]
fn a_delta_has_only_what_was_written_since() {
    let (mut program, areas) = Program::start();
    let twin = program.fork();
    program.stop();
    let pid = program.pid();
    let mut chunks = Chunks::default();
    let base = dump(twin, Scan::new(twin, ranges(twin)).unwrap(), &mut chunks);
    let delta = dump(pid, Scan::against(pid, twin, ranges(pid)).unwrap(), &mut chunks);
    let image = restore(&reader(&[&delta.root, &base.root], &chunks).unwrap(), 2).unwrap();
    assert_is_memory(pid, &image, &[areas["mixed"], areas["hidden"], areas["barred"]]);
    assert_eq!(pages_in(&image, areas["mixed"]), 512 - 20);
    let sparse = areas["sparse"].start / PAGE_BYTES as u64;
    assert!(image[&(sparse + 5)].starts_with(b"new"));
    if rustix::process::geteuid().is_root() {
        let changed = delta.totals.data_pages + delta.totals.duplicate_pages + delta.totals.zero_pages;
        assert!(delta.totals.parent_pages > 5 * changed && changed >= 65, "{:?}", delta.totals);
    }
}

#[test]
fn a_process_that_is_gone_is_an_error() {
    let (program, _) = Program::start();
    program.stop();
    let pid = program.pid();
    let (pages, scan) = (ProcessPages::open(pid).unwrap(), Scan::new(pid, ranges(pid)).unwrap());
    drop(program);
    let options = Options { packing: Packing::FAST, threads: 1 };
    let result = memory::dump(&pages, scan, &mut Chunks::default(), options, &memory::Known::default());
    assert!(matches!(result, Err(Error::Process { .. })), "{result:?}");
}
