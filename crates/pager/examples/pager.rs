//! Measures the pager: a demand fault whose page is local, and filling in the background, each against what the kernel needs for it.
//!
//!     cargo run --release -p pando-pager --example pager
//!
//! This program is also the guardian, and the process that is served (both are executed anew, without threads).

use std::{
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use pager::{Client, Cluster, OpenSource, Options, PageSource, Serve, SourceError, guardian, limits::NEIGHBOUR_PAGES};
use sys::uffd::{Event, MESSAGE_WORDS, Outcome, Uffd};

const PAGE: u64 = 4096;
const CLUSTER: u64 = 64 * PAGE;
/// Pages faulted on.
const FAULTS: u64 = 20_000;
/// Microseconds between faults.
const PAUSES: [(&str, u64); 2] = [("one after the other", 0), ("with 100 us between them", 100)];
/// Bytes filled in the background.
const FILLED: u64 = 1 << 30;

/// Every cluster is the same bytes, and there already.
struct Same {
    ranges: Vec<Range<u64>>,
    bytes: Arc<Vec<u8>>,
}

impl PageSource for Same {
    fn extent(&self, address: u64) -> Range<u64> {
        let start = address - address % CLUSTER;
        start..start + CLUSTER
    }

    fn cluster(&self, address: u64) -> Result<Cluster, SourceError> {
        Ok(Cluster { start: self.extent(address).start, bytes: Arc::clone(&self.bytes) })
    }

    fn is_local(&self, _address: u64) -> bool {
        true
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.clone()
    }

    fn is_recorded(&self) -> bool {
        true
    }
}

struct Opener;

impl OpenSource for Opener {
    fn open(&self, image: &[u8]) -> Result<Arc<dyn PageSource>, SourceError> {
        let (words, _) = image.as_chunks::<8>();
        let range = u64::from_le_bytes(words[0])..u64::from_le_bytes(words[1]);
        Ok(Arc::new(Same { ranges: vec![range], bytes: Arc::new(vec![7; CLUSTER as usize]) }))
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("guardian") => {
            let pager = Options { fill_bytes_per_second: arguments[2].parse()?, ..Options::default() };
            let socket = PathBuf::from(&arguments[1]);
            guardian::run(guardian::Config { socket, idle_exit: Duration::from_secs(60), pager }, Arc::new(Opener))?;
        }
        Some("served") => be_served(&arguments[1], arguments[2].parse()?)?,
        Some(other) => bail!("{other} is not known"),
        None => {
            for (name, pause) in PAUSES {
                raw_fault(name, pause)?;
            }
            faults()?;
            let raw = raw_fill()?;
            fill(raw)?;
        }
    }
    Ok(())
}

/// Zeroed memory that nobody has touched, so that none of its pages exists; registered but for its ends.
struct Absent {
    memory: Vec<u8>,
    range: Range<u64>,
}

impl Absent {
    fn new(bytes: u64) -> Self {
        let memory = vec![0; (bytes + 2 * CLUSTER) as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(CLUSTER);
        Self { memory, range: start..start + bytes }
    }

    /// Reads a byte of the page at `address`: how long it took.
    fn touch(&self, address: u64) -> Duration {
        let place = (address - self.memory.as_ptr() as u64) as usize;
        let start = Instant::now();
        assert_eq!(std::hint::black_box(self.memory[place]), 7);
        start.elapsed()
    }
}

impl Absent {
    fn touch_after(&self, pause_us: u64, address: u64) -> Duration {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(pause_us) {
            std::hint::spin_loop();
        }
        self.touch(address)
    }
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0;
    println!("{what:<58} p50 {:6.1} us   p99 {:6.1} us", at(50), at(99));
}

/// A thread of the same process that copies one page per fault: the least that a fault can take.
fn raw_fault(name: &str, pause: u64) -> Result<()> {
    let absent = Absent::new(FAULTS * PAGE);
    let uffd = Arc::new(Uffd::new()?);
    uffd.register(absent.range.clone())?;
    let answering = Arc::clone(&uffd);
    let answers = std::thread::spawn(move || -> Result<()> {
        let log: Vec<AtomicU64> = (0..MESSAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let page = vec![7; PAGE as usize];
        let mut left = FAULTS;
        while left > 0 {
            let mut polled = [rustix::event::PollFd::new(&*answering, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut polled, None)?;
            if let Ok(1) = answering.read(&log) {
                let Some(Event::Fault(address)) = Event::decode(&log) else { bail!("no fault") };
                answering.copy(address - address % PAGE, &page)?;
                left -= 1;
            }
        }
        Ok(())
    });
    let pages = absent.range.clone().step_by(PAGE as usize);
    let times = pages.map(|address| absent.touch_after(pause, address)).collect();
    answers.join().ok().context("the thread panicked")??;
    show(&format!("raw: poll, read, copy, in a thread; {name}"), times);
    Ok(())
}

fn raw_fill() -> Result<f64> {
    let absent = Absent::new(FILLED);
    let uffd = Uffd::new()?;
    uffd.register(absent.range.clone())?;
    let bytes = vec![7; CLUSTER as usize];
    let start = Instant::now();
    for address in absent.range.clone().step_by(CLUSTER as usize) {
        anyhow::ensure!(uffd.copy(address, &bytes)? == Outcome::Done(CLUSTER));
    }
    Ok(rate("raw: UFFDIO_COPY of 64 pages, one thread", start.elapsed()))
}

fn rate(what: &str, time: Duration) -> f64 {
    let rate = FILLED as f64 / time.as_secs_f64() / f64::from(1 << 20);
    println!("{what:<58} {rate:7.0} MiB/s");
    rate
}

/// The process that is served: sends its userfaultfd, is told to go, touches, and says how long it took.
fn be_served(what: &str, bytes: u64) -> Result<()> {
    let socket = std::io::stdin();
    let absent = Absent::new(bytes);
    let uffd = Uffd::new()?;
    uffd.register(absent.range.clone())?;
    let words = [absent.range.start, absent.range.end].map(u64::to_le_bytes).concat();
    sys::seqpacket::send(&socket, &words, &[uffd.as_fd()])?;
    drop(uffd);
    let mut go = [0; 8];
    sys::seqpacket::recv(&socket, &mut go)?;
    if what == "filled" {
        absent.range.clone().step_by(PAGE as usize).for_each(|address| _ = absent.touch(address));
        return Ok(());
    }
    for (what, pause) in PAUSES {
        let half = FAULTS / 2 * 16 * PAGE;
        let start = absent.range.start + if pause == 0 { 0 } else { half };
        let pages = (start..start + half).step_by(16 * PAGE as usize);
        let times = pages.map(|address| absent.touch_after(pause, address));
        show(&format!("pager: faults {what}, {NEIGHBOUR_PAGES} pages each"), times.collect());
    }
    Ok(())
}

struct Served {
    child: Child,
    socket: OwnedFd,
    uffd: OwnedFd,
    image: Vec<u8>,
}

fn start_served(what: &str, bytes: u64) -> Result<Served> {
    let (ours, theirs) = sys::seqpacket::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    let child = command.args(["served", what, &bytes.to_string()]).stdin(Stdio::from(theirs)).spawn()?;
    let mut image = vec![0; 64];
    let (length, mut descriptors) = sys::seqpacket::recv(&ours, &mut image)?;
    image.truncate(length);
    Ok(Served { child, socket: ours, uffd: descriptors.pop().context("no descriptor came")?, image })
}

impl Served {
    fn hand_over(&self, socket: &Path) -> Result<Client> {
        let mut client = loop {
            match Client::connect(socket) {
                Ok(client) => break client,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let pid = self.child.id() as i32;
        let raw = rustix::process::Pid::from_raw(pid).context("a pid")?;
        let pidfd = rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty())?;
        let (words, _) = self.image.as_chunks::<8>();
        let range = u64::from_le_bytes(words[0])..u64::from_le_bytes(words[1]);
        let (uffd, pidfd, image) = (self.uffd.as_fd(), pidfd.as_fd(), &self.image[..]);
        client.serve(&Serve {
            name: "bench",
            uffd,
            pid,
            pidfd,
            ranges: std::slice::from_ref(&range),
            image,
            parked: false,
        })?;
        Ok(client)
    }

    fn go(mut self) -> Result<()> {
        sys::seqpacket::send(&self.socket, b"go", &[])?;
        anyhow::ensure!(self.child.wait()?.success());
        Ok(())
    }
}

fn start_guardian(socket: &Path, rate: u64) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.arg("guardian").arg(socket).arg(rate.to_string()).spawn()?)
}

fn end_guardian(mut guardian: Child, mut client: Client) -> Result<()> {
    while client.shutdown().is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    guardian.wait()?;
    Ok(())
}

fn faults() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("pager.sock");
    let guardian = start_guardian(&socket, 1)?;
    let served = start_served("touched", FAULTS * 16 * PAGE)?;
    let mut client = served.hand_over(&socket)?;
    served.go()?;
    let latency = client.status()?.latency;
    let total: u64 = latency.iter().sum();
    let mut seen = 0;
    let bucket = latency.iter().position(|count| {
        seen += count;
        seen * 2 >= total
    });
    println!(
        "   of that in the pager, from reading the fault on: half in less than {} ns",
        1u64 << bucket.unwrap_or(0)
    );
    end_guardian(guardian, client)
}

fn fill(raw: f64) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("pager.sock");
    let guardian = start_guardian(&socket, u64::MAX)?;
    let served = start_served("filled", FILLED)?;
    let start = Instant::now();
    let mut client = served.hand_over(&socket)?;
    while client.status()?.counters.finished == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let filled = rate("pager: background fill, no rate set", start.elapsed());
    println!("   raw / pager: {:.2}", raw / filled);
    served.go()?;
    end_guardian(guardian, client)
}
