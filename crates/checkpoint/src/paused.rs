//! What the manifest of a paused sandbox says: a checkpoint of it, who it is, and which node has it in hand.
//!
//! ```text
//! pause                               head: holder = this node     (its processes may still be there)
//! its processes are gone              head: nobody holds it        (any node may take it)
//! resume                              head: holder = that node     (of several that try, one wins: compare-and-swap)
//! it has all its memory               no head
//! ```

use std::time::Duration;

use base::{
    frame,
    id::{SandboxId, SnapshotName, TemplateName, VolumeName},
    limits::RECORD_BYTES_MAX,
};
use model::{NetworkPolicy, TemplateSpec};
use serde::{Deserialize, Serialize};
use store::{
    heads::{Head, HeadName, HeadsError, Lease},
    id::ManifestId,
    manifest::Manifest,
};
use tokio::runtime::Handle;

use super::{
    Checkpoint, Durable, Writing,
    checkpoint::{self, WITH_DISK, WITH_TAIL},
    encoded::{Tail, WithoutMountPoints},
    nouns,
};
use crate::error::{Result, Storing};

/// Of manifests, in the store's numbering of clients.
pub(super) const MANIFEST_KIND: u16 = 2;
/// Of the encoding below. Version 1 has a checkpoint of version 2 and no volumes, version 2 only volumes that are mounted read-only, version 3
/// no references with the names of pieces in them. From version 3 on it is that of the checkpoint in it: 6 has files only, 7 the limit of the
/// disk behind all else, 8 the network policy behind that, and 5 is never written.
const VERSION: u16 = checkpoint::VERSION;
/// The first with a network policy, of networks alone. It is not written any more.
const WITH_NETWORK: u16 = WITH_DISK + 1;
/// The one with a network policy as JSON.
const WITH_DOMAINS: u16 = WITH_NETWORK + 1;
/// Of the frame around it.
const FRAME: u16 = 0x4e02;
const HEADS: &str = "paused/";

/// A sandbox that does not run anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Its program, memory and files. The name in its spec is that of its template.
    pub checkpoint: Checkpoint,
    /// Its identifier.
    pub id: SandboxId,
    /// The sandbox it was forked from, if it was.
    pub parent: Option<SandboxId>,
    /// When it was started first, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it was paused, in milliseconds since 1970: tells one pause of it from another.
    pub paused_ms: u64,
    /// What it keeps beside its id.
    pub machine: sandbox::Machine,
    /// The node that has it in hand: no other one may start it.
    pub holder: Option<String>,
    /// What was mounted in it.
    pub volumes: Vec<Mounted>,
    /// What it may reach.
    #[serde(skip)]
    pub network: NetworkPolicy,
}

/// A volume as it was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// Its name.
    pub volume: VolumeName,
    /// The directory.
    pub path: String,
    /// If it was one.
    pub snapshot: Option<SnapshotName>,
    /// Nothing could be written through the mount.
    pub read_only: bool,
}

/// A policy as it is written.
#[derive(Serialize, Deserialize)]
struct Written(#[serde(with = "nouns::NetworkPolicy")] NetworkPolicy);

/// A policy as it was written first: its fields by their places.
type OfNetworks = (bool, Vec<ipnet::Ipv4Net>, Vec<ipnet::Ipv4Net>, Vec<std::net::IpAddr>);

/// As it was written by version 2: its fields by their places. A volume's were its name, the directory, and the snapshot if it was one.
type Second = (
    Checkpoint,
    SandboxId,
    Option<SandboxId>,
    u64,
    u64,
    sandbox::Machine,
    Option<String>,
    Vec<(VolumeName, String, Option<SnapshotName>)>,
);

/// As it was written by version 1: its fields by their places.
type First = (WithoutMountPoints, SandboxId, Option<SandboxId>, u64, u64, sandbox::Machine, Option<String>);

/// Its head.
fn name_of(id: &SandboxId) -> Result<HeadName> {
    format!("{HEADS}{id}").parse().storing("name a paused sandbox")
}

impl Paused {
    fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(self).storing("encode a paused sandbox")?;
        let policy = || serde_json::to_string(&Written(self.network.clone())).storing("encode a paused sandbox");
        if self.version() >= WITH_TAIL {
            let rest = (Tail::of(&self.checkpoint.spec), policy()?);
            bytes.append(&mut postcard::to_stdvec(&rest).storing("encode a paused sandbox")?);
            bytes.append(&mut self.checkpoint.encoded_on_fork()?);
        } else if self.version() == WITH_DOMAINS {
            let rest = (self.checkpoint.spec.limits.disk_bytes, policy()?);
            bytes.append(&mut postcard::to_stdvec(&rest).storing("encode a paused sandbox")?);
        } else if let Some(disk) = self.checkpoint.spec.limits.disk_bytes {
            bytes.append(&mut postcard::to_stdvec(&disk).storing("encode a paused sandbox")?);
        }
        let framed = frame::encode(FRAME, self.version(), &bytes).storing("encode a paused sandbox")?;
        super::readable(framed).storing("encode a paused sandbox")
    }

    pub(super) fn decode(framed: &[u8]) -> Result<Self> {
        if framed.len() > RECORD_BYTES_MAX {
            return Err(format!("{} bytes are too many", framed.len())).storing("read a paused sandbox");
        }
        let (version, bytes) = frame::decode(framed, FRAME, VERSION).storing("read a paused sandbox")?;
        if version > 2 {
            let (mut paused, rest): (Self, _) = postcard::take_from_bytes(bytes).storing("read a paused sandbox")?;
            paused.checkpoint.check_version(version)?;
            let policy = |text: &str| serde_json::from_str(text).storing("read the policy of a paused sandbox");
            if version >= WITH_TAIL {
                let ((tail, text), rest): ((Tail, &str), _) =
                    postcard::take_from_bytes(rest).storing("read a paused sandbox")?;
                tail.apply(&mut paused.checkpoint.spec);
                paused.checkpoint.decode_on_fork(version, rest)?;
                let Written(network) = policy(text)?;
                paused.network = network;
            } else if version == WITH_DOMAINS {
                let rest: (Option<u64>, &str) = postcard::from_bytes(rest).storing("read a paused sandbox")?;
                paused.checkpoint.spec.limits.disk_bytes = rest.0;
                let Written(network) = policy(rest.1)?;
                paused.network = network;
            } else if version == WITH_NETWORK {
                let rest: (Option<u64>, OfNetworks) = postcard::from_bytes(rest).storing("read a paused sandbox")?;
                let (disk, (closed, allow, deny, dns)) = rest;
                let [allow, deny] = [allow, deny].map(|nets| nets.into_iter().map(Into::into).collect());
                paused.checkpoint.spec.limits.disk_bytes = disk;
                paused.network = NetworkPolicy { closed, allow, deny, dns, ..NetworkPolicy::default() };
            } else if version == WITH_DISK {
                let disk = postcard::from_bytes(rest).storing("read a paused sandbox")?;
                paused.checkpoint.spec.limits.disk_bytes = Some(disk);
            }
            return Ok(paused);
        }
        if version == 2 {
            let second: Second = postcard::from_bytes(bytes).storing("read a paused sandbox")?;
            let (checkpoint, id, parent, created_ms, paused_ms, machine, holder, volumes) = second;
            let mounted = |(volume, path, snapshot)| Mounted { volume, path, snapshot, read_only: true };
            let volumes = volumes.into_iter().map(mounted).collect();
            let network = NetworkPolicy::default();
            return Ok(Self { checkpoint, id, parent, created_ms, paused_ms, machine, holder, volumes, network });
        }
        let first: First = postcard::from_bytes(bytes).storing("read a paused sandbox")?;
        let (checkpoint, id, parent, created_ms, paused_ms, machine, holder) = first;
        let (checkpoint, network) = (checkpoint.into(), NetworkPolicy::default());
        Ok(Self { checkpoint, id, parent, created_ms, paused_ms, machine, holder, volumes: Vec::new(), network })
    }

    /// The first that can be read; since the third it is that of the checkpoint, but with a network policy.
    fn version(&self) -> u16 {
        match self.checkpoint.version() {
            version if self.network.is_default() || version > WITH_DOMAINS => version,
            _ => WITH_DOMAINS,
        }
    }

    /// Commits it; `parent` is what its checkpoint was taken against. Blocks.
    pub fn commit(&self, writing: Writing, parent: Option<ManifestId>) -> Result<ManifestId> {
        let client = self.encode()?.into();
        let manifest = Manifest { kind: MANIFEST_KIND, version: self.version(), parent, client, ..Manifest::default() };
        writing.commit(&name_of(&self.id)?, None, manifest).map(|(manifest, _)| manifest)
    }

    /// Gives it to `holder`, if `head` is still what there is. Blocks.
    pub fn hand_to(&self, holder: Option<String>, head: &Head, durable: &Durable, runtime: &Handle) -> Result<Head> {
        let handed = Self { holder, ..self.clone() };
        let writing = Writing::begin(durable, runtime, &format!("sandbox {}", self.id))?;
        let manifest = writing.amend(handed.version(), handed.encode()?.into(), head)?;
        Ok(Head { manifest, ..head.clone() })
    }

    /// The paused sandbox of this id, if there is one.
    pub async fn find(durable: &Durable, id: &SandboxId) -> Result<Option<(Head, Self)>> {
        let found = Self::find_head(durable, id).await?;
        found.map(|(head, paused)| Ok((head, paused?))).transpose()
    }

    /// The same, for those who want to remove it although it cannot be read.
    pub async fn find_head(durable: &Durable, id: &SandboxId) -> Result<Option<(Head, Result<Self>)>> {
        let head = match durable.heads.get(durable.store.realm(), &name_of(id)?).await {
            Ok(head) => head,
            Err(HeadsError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).storing("look for the paused sandbox"),
        };
        let paused = Self::read(durable, head.manifest).await;
        Ok(Some((head, paused)))
    }

    /// As [`Self::find`], with a lease that keeps all of it for so long, whatever becomes of the head. `holder` is what lists of leases show.
    pub async fn find_leased(
        durable: &Durable,
        id: &SandboxId,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<(Head, Self, Lease)>> {
        let opened = durable.heads.open_leased(durable.store.realm(), &name_of(id)?, holder, lease).await;
        let (head, lease) = match opened {
            Ok(opened) => opened,
            Err(HeadsError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).storing("look for the paused sandbox"),
        };
        match Self::read(durable, head.manifest).await {
            Ok(paused) => Ok(Some((head, paused, lease))),
            Err(error) => {
                // The first error is the one to report. The lease ends by itself.
                let _ = durable.heads.release(lease).await;
                Err(error)
            }
        }
    }

    async fn read(durable: &Durable, id: ManifestId) -> Result<Self> {
        let manifest = Manifest::read(&durable.store, id).await;
        let manifest = manifest.storing("read the manifest of the paused sandbox")?;
        if manifest.kind != MANIFEST_KIND || manifest.version > VERSION {
            let found = (manifest.kind, manifest.version);
            return Err(format!("its manifest has kind and version {found:?}; a newer program may know them"))
                .storing("read a paused sandbox");
        }
        Self::decode(&manifest.client)
    }

    /// As clients see it.
    pub fn to_model(&self) -> model::PausedSandbox {
        model::PausedSandbox {
            id: self.id.clone(),
            template: self.template().clone(),
            parent: self.parent.clone(),
            created_ms: self.created_ms,
            paused_ms: self.paused_ms,
            holder: self.holder.clone(),
        }
    }

    /// Every paused sandbox, by id. One whose manifest cannot be read is an error of its own.
    pub async fn list(durable: &Durable) -> Result<Vec<(Head, Result<Self>)>> {
        durable.read_below(HEADS, |manifest| Self::read(durable, manifest)).await
    }

    /// Its template's name.
    pub fn template(&self) -> &TemplateName {
        &self.spec().name
    }

    /// What it was started from.
    pub fn spec(&self) -> &TemplateSpec {
        &self.checkpoint.spec
    }
}

/// Whether a head was not what the writer had seen: another node was faster.
pub fn lost_race(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let heads = cause.downcast_ref();
        matches!(heads, Some(HeadsError::Moved { .. } | HeadsError::Fenced { .. } | HeadsError::NotFound { .. }))
    })
}

/// As `checkpoint::fuzz`.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(payload: &[u8]) {
    for version in 1..=VERSION {
        let framed = frame::encode(FRAME, version, payload).expect("short");
        if let Ok(paused) = Paused::decode(&framed) {
            let again = paused.encode().expect("it was read");
            assert_eq!(Paused::decode(&again).expect("it was written"), paused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Program, *};

    #[test]
    fn version_2_had_only_volumes_that_are_mounted_read_only() {
        let spec = r#"{"name":"a","image":"host","command":["/a"],"cwd":"/","ready":"listening","ready_timeout_ms":1}"#;
        let blob = || postcard::from_bytes(&[0, 1, 7, 1]).unwrap();
        let program = Program { state: blob(), memory: blob(), base: Vec::new(), hot: None, contents: Vec::new() };
        let checkpoint = Checkpoint {
            spec: nouns::TemplateSpec::deserialize(&mut serde_json::Deserializer::from_str(spec)).unwrap(),
            created_ms: 1,
            program: Some(program),
            layers: Vec::new(),
            counts: Default::default(),
            volumes: Vec::new(),
        };
        let machine = sandbox::Machine::random();
        let id = SandboxId::random();
        let (volume, path): (VolumeName, _) = ("ws".parse().unwrap(), "/workspace".to_owned());
        let volumes = vec![(volume.clone(), path.clone(), None)];
        let second: Second = (checkpoint.clone(), id.clone(), None, 1, 2, machine.clone(), None, volumes);
        let framed = frame::encode(FRAME, 2, &postcard::to_stdvec(&second).unwrap()).unwrap();
        let volumes = vec![Mounted { volume, path, snapshot: None, read_only: true }];
        let (parent, holder) = (None, None);
        let network = NetworkPolicy::default();
        let read = Paused { checkpoint, id, parent, created_ms: 1, paused_ms: 2, machine, holder, volumes, network };
        assert_eq!(Paused::decode(&framed).unwrap(), read);
        assert_eq!(Paused::decode(&read.encode().unwrap()).unwrap(), read);
        let checkpoint = Checkpoint { program: None, ..read.checkpoint.clone() };
        let files = Paused { checkpoint, ..read };
        let framed = files.encode().unwrap();
        assert_eq!(Paused::decode(&framed).unwrap(), files);
        assert!(frame::decode(&framed, FRAME, 5).is_err(), "an older node refuses it");
        let mut limited = files;
        limited.checkpoint.spec.limits.disk_bytes = Some(1 << 30);
        let framed = limited.encode().unwrap();
        assert_eq!(Paused::decode(&framed).unwrap(), limited);
        assert!(frame::decode(&framed, FRAME, WITH_DISK - 1).is_err(), "an older node refuses it");
        for disk in [None, Some(1 << 30)] {
            let mut closed = limited.clone();
            closed.checkpoint.spec.limits.disk_bytes = disk;
            let net: ipnet::Ipv4Net = "203.0.113.0/24".parse().unwrap();
            closed.network = NetworkPolicy { closed: true, allow: vec![net.into()], ..NetworkPolicy::default() };
            // As nodes of before wrote it.
            let of_networks: (_, OfNetworks) = (disk, (true, vec![net], Vec::new(), Vec::new()));
            let mut older = postcard::to_stdvec(&closed).unwrap();
            older.append(&mut postcard::to_stdvec(&of_networks).unwrap());
            let framed = frame::encode(FRAME, WITH_NETWORK, &older).unwrap();
            assert_eq!(Paused::decode(&framed).unwrap(), closed);
            closed.network.domains = vec!["*.example.com".parse().unwrap()];
            let rule = |value| {
                let headers = vec![model::Header { name: "a".to_owned(), value }];
                vec![model::HeaderRule { domain: "a.example".parse().unwrap(), headers }]
            };
            closed.network.bandwidth = Some(1 << 20);
            closed.network.rules = rule(model::Hidden::Plain("secret".to_owned()));
            assert!(closed.encode().is_err(), "only sealed values are written");
            closed.network.rules = rule(model::Hidden::Sealed("0123".to_owned()));
            let framed = closed.encode().unwrap();
            assert_eq!(Paused::decode(&framed).unwrap(), closed);
            assert!(frame::decode(&framed, FRAME, WITH_NETWORK).is_err(), "an older node refuses it");
            closed.checkpoint.spec.user = Some("root".into());
            let framed = closed.encode().unwrap();
            assert_eq!(Paused::decode(&framed).unwrap(), closed);
            assert!(frame::decode(&framed, FRAME, WITH_DOMAINS).is_err(), "an older node refuses it");
        }
    }
}
