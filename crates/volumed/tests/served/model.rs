//! Operations at random, through a mount and by HTTP, on a volume and in a directory of this machine: both have the same outcomes and show the
//! same, whatever is killed, remounted, taken over by another node, forked or restored meanwhile.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use api::volume::{Restored, Snapshot, Volume};
use fastrand::Rng;
use hyper::Method;
use rustix::{
    fs::{FallocateFlags, Mode, XattrFlags, fallocate, lgetxattr, lremovexattr, lsetxattr},
    process::{Pid, umask},
};
use serde_json::json;

use crate::place::{FAST, Mounted, Node, kill, wait_until};

/// Steps of a node until another one takes the volume over.
const STEPS: u64 = 150;
const ATTRIBUTE: &str = "user.pando";

/// What is written; only its length is shown.
struct Data(Vec<u8>);

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// By a program.
#[derive(Debug)]
enum Local {
    MakeDirectory,
    Write { at: u64, bytes: Data },
    Append(Data),
    Truncate(u64),
    Punch { at: u64, bytes: u64 },
    Unlink,
    RemoveDirectory,
    Rename(String),
    Link(String),
    Symlink(String),
    Chmod(u32),
    SetAttribute(Data),
    RemoveAttribute,
}

/// By a client, of whom the outcome is only whether it is one.
#[derive(Debug)]
enum Remote {
    Put { mode: u32, bytes: Data },
    Mkdir,
    Remove { recursive: bool },
    Rename(String),
    Symlink(String),
    Chmod(u32),
}

pub(crate) fn a_mount_and_a_client_do_what_a_local_directory_does() -> Result<()> {
    let rounds = std::env::var("PANDO_ROUNDS").map_or(Ok(4), |text| text.parse::<u64>())?;
    let seed = std::env::var("PANDO_SEED").map_or(Ok(fastrand::u64(..)), |text| text.parse())?;
    let random = &mut Rng::with_seed(seed);
    umask(Mode::from_bits_truncate(0o022));
    let local = tempfile::tempdir()?;
    let (reference, kept) = (local.path().join("now"), local.path().join("then"));
    fs::create_dir(&reference)?;
    let first = Node::new(FAST)?;
    first.create("ws")?;
    first.post::<Snapshot>("/volumes/ws/snapshots", &json!({ "snapshot": "then" }))?;
    copy(&reference, &kept)?;
    let mut node = first;
    for round in 0..rounds {
        one_life(&node, random, (&reference, &kept)).with_context(|| format!("seed {seed}, round {round}"))?;
        node.finish()?;
        node = node.neighbour(&format!("node{round}"))?;
    }
    let verified = node.send(Method::POST, "/volumes/ws/verify", "")?;
    let verified = String::from_utf8_lossy(&verified.body).into_owned();
    ensure!(verified.contains("\"damage\":[],\"unreachable\":[]"), "{verified}");
    node.finish()
}

fn one_life(node: &Node, random: &mut Rng, (reference, kept): (&Path, &Path)) -> Result<()> {
    let mut mount = node.mount("ws")?;
    for step in 0..STEPS {
        let path = path(random);
        let did = match random.u8(..4) {
            0 => by_http(node, random, &path, reference),
            _ => locally(random, &path, &mount.path, reference),
        };
        did.with_context(|| format!("step {step}"))?;
        match random.u8(..100) {
            0 => kill_one(node, &mount.path, node.worker())?,
            1 => kill_one(node, &mount.path, node.guardian())?,
            2 => {
                mount.leave()?;
                mount = node.mount("ws")?;
            }
            3 => compare_fork(node, reference)?,
            4 => {
                node.send(Method::DELETE, "/volumes/ws/snapshots/then", "")?.parsed::<()>()?;
                node.post::<Snapshot>("/volumes/ws/snapshots", &json!({ "snapshot": "then" }))?;
                copy(reference, kept)?;
            }
            5 => {
                let Restored { before } = node.post("/volumes/ws/restore", &json!({ "snapshot": "then" }))?;
                node.send(Method::DELETE, &format!("/volumes/ws/snapshots/{before}"), "")?.parsed::<()>()?;
                copy(kept, reference)?;
            }
            6..20 => compare(&mount.path, reference).with_context(|| format!("step {step}"))?,
            _ => {}
        }
    }
    compare(&mount.path, reference)?;
    mount.leave()
}

/// If both die at once the mounts end: the next one is killed when this one's place is taken.
fn kill_one(node: &Node, mount: &Path, victim: Option<Pid>) -> Result<()> {
    let victim = victim.context("it is not there")?;
    kill(victim)?;
    wait_until("both are there", || {
        Ok([node.worker(), node.guardian()].iter().all(|pid| pid.is_some_and(|pid| pid != victim)))
    })?;
    fs::metadata(mount)?;
    node.get::<Volume>("/volumes/ws").map(drop)
}

fn compare_fork(node: &Node, reference: &Path) -> Result<()> {
    node.post::<Volume>("/volumes/ws/fork", &json!({ "name": "fork" }))?;
    let fork: Mounted<'_> = node.mount("fork")?;
    compare(&fork.path, reference).context("the fork")?;
    fork.leave()?;
    node.send(Method::DELETE, "/volumes/fork", "")?.parsed()
}

/// Up to three of four names.
fn path(random: &mut Rng) -> String {
    let names: Vec<&str> = (0..random.usize(1..4)).map(|_| ["a", "b", "c", "d"][random.usize(..4)]).collect();
    names.join("/")
}

fn bytes(random: &mut Rng) -> Data {
    let most = [1, 100, 5000, 300_000][random.usize(..4)];
    let bytes = random.usize(..most);
    Data(std::iter::repeat_with(|| random.u8(..)).take(bytes).collect())
}

fn locally(random: &mut Rng, below: &str, mount: &Path, reference: &Path) -> Result<()> {
    let operation = match random.u8(..16) {
        0..3 => Local::MakeDirectory,
        3..6 => Local::Write { at: [0, 0, 4000, 200_000][random.usize(..4)], bytes: bytes(random) },
        6 => Local::Append(bytes(random)),
        7 => Local::Truncate(random.u64(..10_000)),
        8 => Local::Punch { at: random.u64(..5000), bytes: random.u64(1..9000) },
        9 => Local::Unlink,
        10 => Local::RemoveDirectory,
        11 => Local::Rename(path(random)),
        12 => Local::Link(path(random)),
        13 => Local::Symlink(path(random)),
        14 => Local::Chmod([0o600, 0o644, 0o755][random.usize(..3)]),
        _ if random.bool() => Local::SetAttribute(Data(bytes(random).0.into_iter().take(200).collect())),
        _ => Local::RemoveAttribute,
    };
    let outcomes = [mount, reference].map(|root| {
        let done = operation.apply(root, below);
        done.map_err(|error| error.raw_os_error())
    });
    ensure!(outcomes[0] == outcomes[1], "{below}: {operation:?}: {outcomes:?}");
    Ok(())
}

impl Local {
    fn apply(&self, root: &Path, below: &str) -> std::io::Result<()> {
        let path = &root.join(below);
        let to = |to: &str| root.join(to);
        match self {
            Self::MakeDirectory => fs::create_dir(path),
            Self::Write { at, bytes } => {
                let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o644).open(path)?;
                file.write_all_at(&bytes.0, *at)
            }
            Self::Append(bytes) => OpenOptions::new().append(true).open(path)?.write_all(&bytes.0),
            Self::Truncate(bytes) => OpenOptions::new().write(true).open(path)?.set_len(*bytes),
            Self::Punch { at, bytes } => {
                let file = OpenOptions::new().write(true).open(path)?;
                Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, *at, *bytes)?)
            }
            Self::Unlink => fs::remove_file(path),
            Self::RemoveDirectory => fs::remove_dir(path),
            Self::Rename(new) => fs::rename(path, to(new)),
            Self::Link(new) => fs::hard_link(path, to(new)),
            Self::Symlink(target) => symlink(target, path),
            Self::Chmod(mode) => fs::set_permissions(path, fs::Permissions::from_mode(*mode)),
            Self::SetAttribute(value) => Ok(lsetxattr(path, ATTRIBUTE, &value.0, XattrFlags::empty())?),
            Self::RemoveAttribute => Ok(lremovexattr(path, ATTRIBUTE)?),
        }
    }
}

fn by_http(node: &Node, random: &mut Rng, below: &str, reference: &Path) -> Result<()> {
    let operation = match random.u8(..8) {
        0..3 => Remote::Put { mode: [0o600, 0o640][random.usize(..2)], bytes: bytes(random) },
        3 => Remote::Mkdir,
        4 => Remote::Remove { recursive: random.u8(..3) == 0 },
        5 => Remote::Rename(path(random)),
        6 => Remote::Symlink(path(random)),
        _ => Remote::Chmod([0o600, 0o644, 0o755][random.usize(..3)]),
    };
    // Directories that are missing are made where a link leads, too, which no one call of the kernel does.
    let to = if let Remote::Rename(to) = &operation { to } else { below };
    if [below, to].iter().any(|path| leads_nowhere(reference, path)) {
        return Ok(());
    }
    let (method, query, body) = match &operation {
        Remote::Put { mode, bytes } => (Method::PUT, format!("mode={mode:o}"), bytes.0.clone()),
        Remote::Mkdir => (Method::POST, "op=mkdir".to_owned(), Vec::new()),
        Remote::Remove { recursive } => (Method::DELETE, format!("recursive={recursive}"), Vec::new()),
        Remote::Rename(to) => (Method::POST, format!("op=rename&to={to}"), Vec::new()),
        Remote::Symlink(target) => (Method::POST, format!("op=symlink&target={target}"), Vec::new()),
        Remote::Chmod(mode) => (Method::POST, format!("op=chmod&mode={mode:o}"), Vec::new()),
    };
    let answer = node.send(method, &format!("/volumes/ws/files/{below}?{query}"), body)?;
    let expected = operation.apply(reference, below);
    let said = String::from_utf8_lossy(&answer.body);
    ensure!(answer.status.is_success() == expected.is_ok(), "{below}: {operation:?}: {said}, and {expected:?}");
    if let Ok(content) = fs::read(reference.join(below)) {
        let answer = node.send(Method::GET, &format!("/volumes/ws/files/{below}"), "")?;
        ensure!(answer.body == content, "{below}: {operation:?}: read by HTTP: {}", answer.status);
    }
    Ok(())
}

/// Whether a directory of the path is a link to nothing.
fn leads_nowhere(root: &Path, path: &str) -> bool {
    Path::new(path).ancestors().skip(1).any(|above| root.join(above).is_symlink() && !root.join(above).exists())
}

impl Remote {
    fn apply(&self, root: &Path, below: &str) -> std::io::Result<()> {
        let path = &root.join(below);
        let make_parents = |path: &Path| match path.parent() {
            Some(parent) => fs::DirBuilder::new().recursive(true).mode(0o755).create(parent),
            None => Ok(()),
        };
        match self {
            Self::Put { mode, bytes } => {
                make_parents(path)?;
                let new = root.with_extension("new");
                fs::write(&new, &bytes.0)?;
                fs::set_permissions(&new, fs::Permissions::from_mode(*mode))?;
                fs::rename(&new, path)
            }
            Self::Mkdir => make_parents(path).and_then(|()| fs::create_dir(path)),
            Self::Symlink(target) => make_parents(path).and_then(|()| symlink(target, path)),
            Self::Remove { recursive } => match fs::symlink_metadata(path)?.is_dir() {
                true if *recursive => fs::remove_dir_all(path),
                true => fs::remove_dir(path),
                false => fs::remove_file(path),
            },
            Self::Rename(to) => {
                let to = root.join(to);
                fs::symlink_metadata(path)?;
                make_parents(&to)?;
                fs::rename(path, to)
            }
            Self::Chmod(mode) => fs::set_permissions(path, fs::Permissions::from_mode(*mode)),
        }
    }
}

/// Type and mode, names, size, extended attribute, and what is in it or where it leads.
type Seen = (u32, u64, u64, Option<Vec<u8>>, Vec<u8>);

fn compare(volume: &Path, reference: &Path) -> Result<()> {
    let [mut one, mut other] = [BTreeMap::new(), BTreeMap::new()];
    look(volume, "", &mut one)?;
    look(reference, "", &mut other)?;
    let shown = |seen: Option<&Seen>| {
        seen.map(|(mode, links, size, attribute, _)| {
            format!("{mode:o} {links} {size} {:?}", attribute.as_ref().map(Vec::len))
        })
    };
    for path in one.keys().chain(other.keys()) {
        let (here, there) = (one.get(path), other.get(path));
        ensure!(here == there, "{path}: {:?}, and not {:?}", shown(here), shown(there));
    }
    Ok(())
}

fn look(root: &Path, below: &str, found: &mut BTreeMap<String, Seen>) -> Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let name = entry?.file_name().into_string().expect("all names are text");
        let below = format!("{below}{name}");
        let path = root.join(&below);
        let about = fs::symlink_metadata(&path).with_context(|| below.clone())?;
        let mut value = vec![0; 256];
        let attribute = lgetxattr(&path, ATTRIBUTE, &mut value).ok().map(|length| value[..length].to_vec());
        let kind = about.file_type();
        let content = match () {
            () if kind.is_symlink() => fs::read_link(&path)?.into_os_string().into_encoded_bytes(),
            () if kind.is_file() => read(&path)?,
            () => Vec::new(),
        };
        let (links, size) = if kind.is_dir() { (0, 0) } else { (about.nlink(), about.len()) };
        found.insert(below.clone(), (about.mode(), links, size, attribute, content));
        if kind.is_dir() {
            look(root, &format!("{below}/"), found)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut content = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut content, 0).with_context(|| path.display().to_string())?;
    Ok(content)
}

/// All of a directory takes the place of what another one has.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let copied = Command::new("cp").arg("--archive").args([from, to]).status()?;
    ensure!(copied.success(), "cp: {copied}");
    Ok(())
}
