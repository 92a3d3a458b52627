//! A source made of a formula, guardians, and victims.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{
    collections::HashMap,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pager::{Client, Cluster, OpenSource, Options, PageSource, Serve, SourceError, guardian};
use serde::{Deserialize, Serialize};

pub const PAGE: u64 = 4096;
pub const BASE: u64 = 0x2_0000_0000;

/// What a victim does (`victim.c` has more of it).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Steps at random.
    #[default]
    Steps,
    /// Stands still.
    Parked,
    /// Forks while its threads touch pages.
    Forks,
}

/// What a victim's memory is, and what the source does wrong.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Picture {
    pub seed: u64,
    pub pages: u64,
    pub cluster_pages: u64,
    /// A cluster is local once it was fetched.
    pub keeps: bool,
    pub wait_us: u64,
    /// Of 100 fetches, these fail.
    pub failing: u64,
    /// This page is lost.
    pub lost: Option<u64>,
    /// Opening waits so long.
    pub open_ms: u64,
    /// It is not known which pages are touched first.
    pub unrecorded: bool,
    /// What the victim does, instead of so many steps.
    pub mode: Mode,
    /// As long as this file is there, everything is lost.
    pub away: Option<PathBuf>,
}

struct Formula {
    picture: Picture,
    kept: Mutex<HashMap<u64, Arc<Vec<u8>>>>,
    fetches: AtomicU64,
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Formula {
    fn kept(&self) -> MutexGuard<'_, HashMap<u64, Arc<Vec<u8>>>> {
        self.kept.lock().expect("no test panics with it")
    }

    fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let word = |at: u64| {
            let number = (at - BASE) / PAGE;
            if number / 8 % 5 == 4 { 0 } else { mix(at ^ self.picture.seed) }
        };
        range.step_by(8).flat_map(|at| word(at).to_le_bytes()).collect()
    }
}

impl PageSource for Formula {
    fn extent(&self, address: u64) -> Range<u64> {
        let number = (address - BASE) / PAGE;
        let first = number - number % self.picture.cluster_pages;
        let end = (first + self.picture.cluster_pages).min(self.picture.pages);
        BASE + first * PAGE..BASE + end * PAGE
    }

    fn cluster(&self, address: u64) -> Result<Cluster, SourceError> {
        let extent = self.extent(address);
        if let Some(bytes) = self.kept().get(&extent.start) {
            return Ok(Cluster { start: extent.start, bytes: Arc::clone(bytes) });
        }
        let count = self.fetches.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(self.picture.wait_us));
        if self.picture.away.as_ref().is_some_and(|away| away.exists()) {
            return Err(SourceError::Permanent("the store is gone".into()));
        }
        if self.picture.lost.is_some_and(|lost| extent.contains(&(BASE + lost * PAGE))) {
            return Err(SourceError::Permanent("the segment is missing".into()));
        }
        if mix(count ^ self.picture.seed) % 100 < self.picture.failing {
            return Err(SourceError::Transient("slow down".into()));
        }
        let bytes = Arc::new(self.bytes(extent.clone()));
        if self.picture.keeps {
            self.kept().insert(extent.start, Arc::clone(&bytes));
        }
        Ok(Cluster { start: extent.start, bytes })
    }

    fn is_local(&self, address: u64) -> bool {
        self.kept().contains_key(&self.extent(address).start)
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        let blocks = 0..self.picture.pages.div_ceil(8);
        let full = blocks.filter(|block| block % 5 != 4);
        full.map(|block| BASE + block * 8 * PAGE..BASE + (block * 8 + 8).min(self.picture.pages) * PAGE).collect()
    }

    fn is_recorded(&self) -> bool {
        !self.picture.unrecorded
    }
}

/// Opens sources from pictures in JSON.
pub struct Opener;

impl OpenSource for Opener {
    fn open(&self, image: &[u8]) -> Result<Arc<dyn PageSource>, SourceError> {
        let picture: Picture = serde_json::from_slice(image).map_err(|error| SourceError::Permanent(error.into()))?;
        std::thread::sleep(Duration::from_millis(picture.open_ms));
        Ok(Arc::new(Formula { picture, kept: Mutex::default(), fetches: AtomicU64::new(0) }))
    }
}

/// The body of a guardian process: `PROGRAM guardian SOCKET FILL_BYTES_PER_SECOND GIVE_UP_MS IDLE_MS`.
pub fn be_guardian(arguments: &[String]) -> Result<()> {
    let number = |index: usize| -> Result<u64> { Ok(arguments.get(index).context("too few")?.parse()?) };
    let pager = Options { fill_bytes_per_second: number(1)?, give_up: Duration::from_millis(number(2)?) };
    let idle_exit = Duration::from_millis(number(3)?);
    guardian::run(guardian::Config { socket: PathBuf::from(&arguments[0]), idle_exit, pager }, Arc::new(Opener))?;
    Ok(())
}

/// A guardian of its own.
pub struct Guardian {
    pub child: Child,
    pub socket: PathBuf,
    options: [String; 3],
    _dir: tempfile::TempDir,
}

fn spawn_guardian(socket: &Path, options: &[String]) -> Result<Child> {
    let child = Command::new(std::env::current_exe()?).arg("guardian").arg(socket).args(options).spawn()?;
    wait_until("the guardian listens", || Ok(Client::connect(socket).is_ok()))?;
    Ok(child)
}

impl Guardian {
    pub fn start(fill_bytes_per_second: u64, give_up_ms: u64, idle_ms: u64) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("pager.sock");
        let options = [fill_bytes_per_second, give_up_ms, idle_ms].map(|number| number.to_string());
        let child = spawn_guardian(&socket, &options)?;
        Ok(Self { child, socket, options, _dir: dir })
    }

    /// Another one at the same place, where nobody listens any more.
    pub fn start_another(&mut self) -> Result<()> {
        self.child.wait()?;
        self.child = spawn_guardian(&self.socket, &self.options)?;
        Ok(())
    }

    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.socket)?)
    }

    /// Ends it as it should be ended.
    pub fn finish(mut self) -> Result<()> {
        wait_until("it may end", || Ok(self.client()?.shutdown().is_ok()))?;
        self.child.wait()?;
        Ok(())
    }
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done().unwrap_or(false) {
        ensure!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Compiles the victim once.
pub fn victim_program(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("victim");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victim.c");
    let status = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).status()?;
    ensure!(status.success(), "the victim does not compile");
    Ok(program)
}

/// A victim that waits to be served.
pub struct Victim {
    pub child: Child,
    socket: OwnedFd,
    uffd: OwnedFd,
}

impl Victim {
    pub fn start(program: &Path, picture: &Picture, ops: u64) -> Result<Self> {
        let (ours, theirs) = sys::seqpacket::pair()?;
        let mut command = Command::new("sh");
        // The socket becomes its standard input first, for lack of another way without unsafe code; then descriptor 3.
        command.args(["-c", "exec 3<&0 </dev/null; exec \"$@\"", "sh"]).arg(program).stdin(Stdio::from(theirs));
        command.args([picture.seed, picture.pages].map(|number| number.to_string()));
        let mode = match picture.mode {
            Mode::Steps => ops.to_string(),
            Mode::Parked => "parked".into(),
            Mode::Forks => "forks".into(),
        };
        command.arg(mode).process_group(0);
        let child = command.spawn()?;
        let mut buffer = [0; 64];
        let (_, mut descriptors) = sys::seqpacket::recv(&ours, &mut buffer)?;
        let uffd = descriptors.pop().context("the victim sent no descriptor")?;
        Ok(Self { child, socket: ours, uffd })
    }

    /// Hands it over to a guardian; tries again when that dies in between.
    pub fn serve(&self, guardian: &Guardian, name: &str, picture: &Picture) -> Result<()> {
        self.serve_bytes(guardian, name, picture, &serde_json::to_vec(picture)?)
    }

    /// The same, with any bytes for an image.
    pub fn serve_bytes(&self, guardian: &Guardian, name: &str, picture: &Picture, image: &[u8]) -> Result<()> {
        let pid = self.child.id() as i32;
        let raw = rustix::process::Pid::from_raw(pid).context("a pid")?;
        let pidfd = rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty())?;
        let range = BASE..BASE + picture.pages * PAGE;
        let serve = Serve {
            name,
            uffd: self.uffd.as_fd(),
            pid,
            pidfd: pidfd.as_fd(),
            ranges: std::slice::from_ref(&range),
            image,
            parked: picture.mode == Mode::Parked,
        };
        let mut last = None;
        wait_until("it is served", || {
            last = guardian.client().and_then(|mut client| Ok(client.serve(&serve)?)).err();
            Ok(last.is_none())
        })
        .with_context(|| format!("{last:?}"))
    }

    /// Lets it go; drops our descriptors.
    pub fn go(self) -> Result<Child> {
        self.tell()?;
        Ok(self.child)
    }

    /// Lets it go on.
    pub fn tell(&self) -> Result<()> {
        Ok(sys::seqpacket::send(&self.socket, b"go", &[])?)
    }
}
