//! What the node writes down: one framed JSON document per template, sandbox and node, replaced atomically.
//!
//! A sandbox without a record does not exist: what a crash leaves half made is found by [`sandbox::sweep`] because no
//! record claims it. So the record is written last when something is made and removed first when it is removed.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use base::{
    frame,
    id::{Arena, SandboxId, TemplateName},
    limits::RECORD_BYTES_MAX,
};
use checkpoint::nouns;
use model::{BuildTimings, CheckpointVolume, Mount, NetworkPolicy, SandboxState, TemplateSpec};
use sandbox::ProcessIdentity;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::{Context, Error, Result};

/// The kinds of record, as framed.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// Number of the kind in the frame.
    const KIND: u16;
    /// Newest version that this program reads, and the one that it writes.
    const VERSION: u16;
}

/// The node itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    /// Names its control group.
    pub(crate) id: String,
}

/// The id of the node whose state is in `state_dir`; made at its first start.
pub fn node_id(state_dir: &Path) -> Result<String> {
    let path = state_dir.join("node.json");
    if let Some(NodeRecord { id }) = read(&path)? {
        return Ok(id);
    }
    let mut bytes = [0; 6];
    base::id::fill_random(&mut bytes);
    let id = base::id::hex(&bytes);
    write(&path, &NodeRecord { id: id.clone() }, Durability::Machine)?;
    Ok(id)
}

/// A template that was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TemplateRecord {
    /// What it is built from.
    #[serde(with = "nouns::TemplateSpec")]
    pub(crate) spec: TemplateSpec,
    /// When it was first built, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// Layers of its image, topmost first.
    pub(crate) image_layers: Vec<PathBuf>,
    /// File changes of its program until it was ready; the topmost layer of its sandboxes.
    pub(crate) layer: PathBuf,
    /// Of the last build.
    #[serde(with = "nouns::BuildTimings")]
    pub(crate) timings: BuildTimings,
    /// The manifest of the checkpoint that it was restored from, if it was: then its zygote is not built but restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<String>,
    /// It was built here from a recipe, and the checkpoint is what that has come to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_built: bool,
    /// Under which the pager knows the memory of its zygote and sandboxes, if that arrives by fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pages: Option<String>,
    /// Of a checkpoint: of which its sandboxes get forks.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "nouns::checkpoint_volumes")]
    pub(crate) volumes: Vec<CheckpointVolume>,
}

impl TemplateRecord {
    /// Layers of its sandboxes, topmost first.
    pub(crate) fn layers(&self) -> Vec<PathBuf> {
        std::iter::once(&self.layer).chain(&self.image_layers).cloned().collect()
    }
}

/// No process has this pid.
pub(crate) const NOBODY: ProcessIdentity = ProcessIdentity { pid: 0, start_ticks: 0 };

/// A sandbox that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    /// Its identifier.
    pub(crate) id: SandboxId,
    /// The template at the root of it.
    pub(crate) template: TemplateName,
    /// The sandbox it was forked from, if it was.
    pub(crate) parent: Option<SandboxId>,
    /// Its overlay layers, topmost first.
    pub(crate) layers: Vec<PathBuf>,
    /// Under which the pager knows its memory, if that arrives by fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pages: Option<String>,
    /// What it may use.
    #[serde(with = "nouns::Limits")]
    pub(crate) limits: model::Limits,
    /// Its pid 1.
    pub(crate) init: ProcessIdentity,
    /// Its program; [`NOBODY`] if it has none.
    pub(crate) main: ProcessIdentity,
    /// Where the start left its arena in the program's memory: a later fork of it steps over that.
    pub(crate) arena: Option<Arena>,
    /// When it started, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// How long its start took, in microseconds.
    pub(crate) start_us: u64,
    /// Where it is in its life.
    #[serde(with = "nouns::SandboxState")]
    pub(crate) state: SandboxState,
    /// Why its program was stopped, if the pager did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// What it was started from. Nodes of before have written it down of resumed sandboxes only: of others it is then their template's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "nouns::optional_spec")]
    pub(crate) spec: Option<TemplateSpec>,
    /// When it was paused, in milliseconds since 1970, if that is so or under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paused_ms: Option<u64>,
    /// The store may have a head of it, of the pause of that moment, that says that this node has it in hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<u64>,
    /// What is mounted in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "nouns::mounts")]
    pub(crate) volumes: Vec<Mount>,
    /// The room that a control plane had reserved for it when it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reservation: Option<String>,
    /// What it has changed, if it is paused, or being paused, and this node keeps a snapshot of that: the layer above the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<PathBuf>,
    /// What it may reach.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default", with = "nouns::NetworkPolicy")]
    pub(crate) network: NetworkPolicy,
    /// The forks by which it descends from others, the last one first; of a sandbox that came from another node those since then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) fork_points: Vec<ForkPoint>,
}

impl SandboxRecord {
    /// All layers that it needs.
    pub(crate) fn needs(&self) -> impl Iterator<Item = &PathBuf> {
        let of_forks = self.fork_points.iter().flat_map(|point| &point.layers);
        self.kept.iter().chain(&self.layers).chain(of_forks)
    }
}

/// How the files of a sandbox were when another one was forked from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForkPoint {
    /// The sandbox.
    pub(crate) of: SandboxId,
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The layers that show them, topmost first.
    pub(crate) layers: Vec<PathBuf>,
}

/// A volume that is mounted on a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostMountRecord {
    #[serde(with = "nouns::Mount")]
    pub(crate) mount: Mount,
}

/// A sandbox that is gone and has descendants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GoneRecord {
    pub(crate) id: SandboxId,
    /// The sandbox it was forked from, if it was.
    pub(crate) parent: Option<SandboxId>,
    /// The template at the root of it.
    pub(crate) template: TemplateName,
    /// When it started, and when it was removed, in milliseconds since 1970.
    pub(crate) created_ms: u64,
    pub(crate) gone_ms: u64,
}

impl SandboxRecord {
    /// Its program, unless it is paused or has only what commands start.
    pub(crate) fn program(&self) -> Option<ProcessIdentity> {
        (self.main != NOBODY).then_some(self.main)
    }

    /// As clients see it.
    pub(crate) fn to_model(&self) -> model::Sandbox {
        model::Sandbox {
            id: self.id.clone(),
            template: self.template.clone(),
            parent: self.parent.clone(),
            state: self.state,
            reason: self.reason.clone(),
            created_ms: self.created_ms,
            start_us: self.start_us,
            main_pid: self.main.pid,
            volumes: self.volumes.clone(),
        }
    }
}

impl Record for NodeRecord {
    const KIND: u16 = 1;
    const VERSION: u16 = 1;
}

impl Record for TemplateRecord {
    const KIND: u16 = 2;
    const VERSION: u16 = 1;
}

impl Record for SandboxRecord {
    const KIND: u16 = 3;
    const VERSION: u16 = 1;
}

impl Record for HostMountRecord {
    const KIND: u16 = 4;
    const VERSION: u16 = 1;
}

impl Record for GoneRecord {
    const KIND: u16 = 5;
    const VERSION: u16 = 1;
}

/// How much a record must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A crash of the node. What it describes does not survive more either.
    Process,
    /// A crash of the machine.
    Machine,
}

/// A record whose file is open but does not count yet: making files is the slow part of writing one.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    new: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// Of the record at `path`, of which there is none yet.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let new = path.with_extension("new");
        let file = File::create(&new).at("create", &new)?;
        Ok(Self { file, new, path: path.to_owned() })
    }

    /// Writes it down; from here on it counts. Survives a crash of the node ([`Durability::Process`]).
    pub(crate) fn finish<R: Record>(&self, record: &R) -> Result<()> {
        (&self.file).write_all(&encode(&self.path, record)?).at("write", &self.new)?;
        fs::rename(&self.new, &self.path).at("replace", &self.path)
    }
}

fn encode<R: Record>(path: &Path, record: &R) -> Result<Vec<u8>> {
    let payload = serde_json::to_vec(record).map_err(|error| unusable(path, error))?;
    if payload.len() > RECORD_BYTES_MAX {
        // It could not be read again.
        return Err(unusable(
            path,
            io::Error::other(format!("it has {} bytes, more than {RECORD_BYTES_MAX}", payload.len())),
        ));
    }
    frame::encode(R::KIND, R::VERSION, &payload).map_err(|error| unusable(path, error))
}

/// Replaces the record at `path`.
pub(crate) fn write<R: Record>(path: &Path, record: &R, durability: Durability) -> Result<()> {
    let framed = encode(path, record)?;
    let new = path.with_extension("new");
    let mut file = File::create(&new).at("create", &new)?;
    file.write_all(&framed).at("write", &new)?;
    if durability == Durability::Machine {
        file.sync_all().at("flush", &new)?;
    }
    fs::rename(&new, path).at("replace", path)?;
    match (durability, path.parent()) {
        // The rename itself is in the directory.
        (Durability::Machine, Some(parent)) => File::open(parent).and_then(|dir| dir.sync_all()).at("flush", parent),
        (Durability::Machine, None) | (Durability::Process, _) => Ok(()),
    }
}

/// Reads the record at `path`; none if there is none.
pub(crate) fn read<R: Record>(path: &Path) -> Result<Option<R>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("open", path),
    };
    let mut framed = Vec::new();
    file.take((frame::HEADER_BYTES + RECORD_BYTES_MAX + 1) as u64).read_to_end(&mut framed).at("read", path)?;
    let (_, payload) = frame::decode(&framed, R::KIND, R::VERSION).map_err(|error| unusable(path, error))?;
    serde_json::from_slice(payload).map(Some).map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Record { path: path.to_owned(), source: Box::new(source) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sandbox() -> SandboxRecord {
        SandboxRecord {
            id: "s0123456789ab".parse().unwrap(),
            template: "geo".parse().unwrap(),
            parent: None,
            layers: vec!["/a".into(), "/".into()],
            pages: None,
            limits: model::Limits { memory_bytes: 4 << 30, pids: 4096, cpu_millis: None, disk_bytes: None },
            init: ProcessIdentity { pid: 10, start_ticks: 11 },
            main: ProcessIdentity { pid: 12, start_ticks: 13 },
            arena: Some(Arena { start: 4096, end: 8192 }),
            created_ms: 1,
            start_us: 2,
            state: SandboxState::Exited(model::ExitStatus::Code(3)),
            reason: None,
            spec: None,
            paused_ms: None,
            held: None,
            volumes: Vec::new(),
            reservation: None,
            network: NetworkPolicy::default(),
            kept: None,
            fork_points: Vec::new(),
        }
    }

    #[test]
    fn a_record_comes_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        assert!(read::<SandboxRecord>(&path).unwrap().is_none());
        let point = ForkPoint { of: "s0123456789ac".parse().unwrap(), at_ms: 4, layers: vec!["/b".into(), "/".into()] };
        let record = SandboxRecord { fork_points: vec![point], ..sandbox() };
        for durability in [Durability::Process, Durability::Machine] {
            write(&path, &record, durability).unwrap();
            assert_eq!(read::<SandboxRecord>(&path).unwrap().as_ref(), Some(&record));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let with = |bytes: usize| SandboxRecord { reason: Some("x".repeat(bytes)), ..sandbox() };
        let long = with(RECORD_BYTES_MAX - serde_json::to_vec(&with(0)).unwrap().len());
        write(&path, &long, Durability::Process).unwrap();
        assert_eq!(read::<SandboxRecord>(&path).unwrap(), Some(long));
        let longer = with(RECORD_BYTES_MAX);
        assert!(matches!(write(&path, &longer, Durability::Process), Err(Error::Record { .. })));
    }

    #[test]
    fn a_draft_counts_when_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let draft = Draft::create(&path).unwrap();
        assert!(read::<SandboxRecord>(&path).unwrap().is_none());
        draft.finish(&sandbox()).unwrap();
        assert_eq!(read::<SandboxRecord>(&path).unwrap(), Some(sandbox()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_damaged_or_foreign_record_is_named_and_not_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        write(&path, &sandbox(), Durability::Process).unwrap();
        assert!(matches!(read::<NodeRecord>(&path), Err(Error::Record { .. })));
        let bytes = fs::read(&path).unwrap();
        let is_refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            matches!(read::<SandboxRecord>(&path), Err(Error::Record { .. }))
        };
        for length in 0..bytes.len() {
            assert!(is_refused(&bytes[..length]), "cut to {length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Version 0 means what 1 does.
            assert!(is_refused(&flipped) || bit == 48, "bit {bit}");
        }
    }

    #[test]
    fn a_record_carries_what_its_sandbox_was_started_from() {
        let spec = TemplateSpec {
            name: "geo".parse().unwrap(),
            image: model::Image::Host,
            command: vec!["x".into()],
            env: vec![("A".into(), "1".into())],
            cwd: "/work".into(),
            ready: model::Ready::Listening,
            ready_timeout_ms: 1,
            limits: model::Limits::default(),
            mount_points: Vec::new(),
            user: None,
            startup: Vec::new(),
            on_fork: Vec::new(),
        };
        let described = SandboxRecord { spec: Some(spec), ..sandbox() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        write(&path, &described, Durability::Process).unwrap();
        assert_eq!(read::<SandboxRecord>(&path).unwrap(), Some(described));
    }

    #[test]
    fn version_one_of_a_sandbox_record_is_readable_for_ever() {
        let golden = br#"{"id":"s0123456789ab","template":"geo","parent":null,"layers":["/a","/"],"limits":{"memory_bytes":4294967296,"pids":4096,"cpu_millis":null},"init":{"pid":10,"start_ticks":11},"main":{"pid":12,"start_ticks":13},"arena":[4096,8192],"created_ms":1,"start_us":2,"state":{"exited":{"code":3}}}"#;
        assert_eq!(serde_json::from_slice::<SandboxRecord>(golden).unwrap(), sandbox());
        assert_eq!(serde_json::to_vec(&sandbox()).unwrap(), golden);
    }
}
