//! What the manifest of a checkpoint says.

use std::io::{Read, Write};

use base::{
    frame,
    id::{TemplateName, VolumeName},
    limits::RECORD_BYTES_MAX,
};
use model::{CheckpointVolume, KeptState, TemplateSpec};
use serde::{Deserialize, Serialize};
use store::{
    heads::{Head, HeadName, HeadsError},
    id::ManifestId,
    manifest::Manifest,
};
use tokio::runtime::Handle;

use super::{
    BlobRef, Durable, Paused, Writing,
    encoded::{Encoded, Tail},
    paused,
};
use crate::error::{Error, Result, Storing};

/// Of manifests, in the store's numbering of clients.
const MANIFEST_KIND: u16 = 1;
/// Of the encoding. Version 1 ends before the lists of contents, version 2 before the mount points; version 3 knows no references with
/// the names of pieces in them; version 4 ends before the volumes; version 5 always has a program; version 6 ends before the limit of the disk;
/// version 7 ends before the user; version 10 ends before what runs in copies. Versions 8 and 9 are of paused sandboxes only.
pub(super) const VERSION: u16 = WITH_ON_FORK;
/// The first version with what runs in copies.
pub(super) const WITH_ON_FORK: u16 = 11;
/// The first version with a user and a startup.
pub(super) const WITH_TAIL: u16 = 10;
/// The first version with a limit of the disk.
pub(super) const WITH_DISK: u16 = 7;
/// The first version of a checkpoint that has files only: its state and its memory are empty.
const FILES_ONLY: u16 = 6;
/// The first version with volumes.
const WITH_VOLUMES: u16 = 5;
/// The first version with all other fields; the one after it has other references.
const WHOLE: u16 = 3;
/// Of the frame around it.
const FRAME: u16 = 0x4e01;
const HEADS: &str = "checkpoint/";

/// Largest state and index that are read: what writers make is far smaller.
const STATE_BYTES_MAX: u64 = 1 << 30;
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// What a checkpoint is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub struct Checkpoint {
    /// Of the template at the root of the sandbox; its name is the checkpoint's.
    pub spec: TemplateSpec,
    /// When it was taken, in milliseconds since 1970.
    pub created_ms: u64,
    /// The program. None: the checkpoint has files only, and no program starts from it.
    pub program: Option<Program>,
    /// Its file changes, as layers above the image, topmost first.
    pub layers: Vec<BlobRef>,
    /// For people.
    pub counts: Counts,
    /// The volumes that it could write, of the same instant. A paused sandbox has none: the volumes themselves wait for it.
    pub volumes: Vec<Included>,
}

/// The program of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program apart from its memory.
    pub state: BlobRef,
    /// The root of its page image.
    pub memory: BlobRef,
    /// The roots of the images that it was taken against, newest first. Their chunks belong to the manifest's parent.
    pub base: Vec<BlobRef>,
    /// The pages that its copies touch first, once that is known: an encoded [`memory::hot::HotSet`].
    pub hot: Option<BlobRef>,
    /// Which pages are in its own chunks, and in those of its parents, newest first: framed lists for [`memory::Known`].
    pub contents: Vec<BlobRef>,
}

/// A volume of a checkpoint. The checkpoint's manifest includes its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Included {
    /// The volume's name then.
    pub volume: VolumeName,
    /// The directory that it was mounted on.
    pub path: String,
    /// The manifest of what was in it.
    pub state: [u8; 16],
}

/// For people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// How long the source stood still, in microseconds.
    pub pause_us: u64,
    /// Pages of memory.
    pub pages: u64,
    /// Those that are zeros.
    pub zero_pages: u64,
    /// Those that are equal to another.
    pub duplicate_pages: u64,
    /// Bytes that the pages take, compressed.
    pub memory_bytes: u64,
    /// Bytes of the layers' archives.
    pub layer_bytes: u64,
}

/// The head of a checkpoint.
pub fn name_of(name: &TemplateName) -> Result<HeadName> {
    format!("{HEADS}{name}").parse().storing("name a checkpoint")
}

/// How the heads of all checkpoints begin whose names begin with `prefix`.
pub fn heads_of(prefix: &str) -> String {
    format!("{HEADS}{prefix}")
}

/// The name of the checkpoint that has this head; none if the head is one of something else.
pub fn name_in(head: &HeadName) -> Option<TemplateName> {
    head.as_str().strip_prefix(HEADS)?.parse().ok()
}

impl Checkpoint {
    fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(self).storing("encode a checkpoint")?;
        if self.version() >= WITH_VOLUMES {
            bytes.append(&mut postcard::to_stdvec(&self.volumes).storing("encode a checkpoint")?);
        }
        if self.version() >= WITH_TAIL {
            bytes.append(&mut postcard::to_stdvec(&Tail::of(&self.spec)).storing("encode a checkpoint")?);
            bytes.append(&mut self.encoded_on_fork()?);
        } else if let Some(disk) = self.spec.limits.disk_bytes {
            bytes.append(&mut postcard::to_stdvec(&disk).storing("encode a checkpoint")?);
        }
        let framed = frame::encode(FRAME, self.version(), &bytes).storing("encode a checkpoint")?;
        super::readable(framed).storing("encode a checkpoint")
    }

    /// Of those with a tail, what the last version has behind it.
    pub(super) fn encoded_on_fork(&self) -> Result<Vec<u8>> {
        match self.version() {
            WITH_ON_FORK.. => postcard::to_stdvec(&self.spec.on_fork).storing("encode a checkpoint"),
            _ => Ok(Vec::new()),
        }
    }

    /// The same, read; `rest` is what is behind the tail.
    pub(super) fn decode_on_fork(&mut self, version: u16, rest: &[u8]) -> Result<()> {
        match version {
            WITH_ON_FORK.. => self.spec.on_fork = postcard::from_bytes(rest).storing("read a checkpoint")?,
            _ if !rest.is_empty() => return Err("bytes follow the tail".to_owned()).storing("read a checkpoint"),
            _ => {}
        }
        Ok(())
    }

    /// The first that can be read: an older node of the same store reads what is only amended here.
    pub(super) fn version(&self) -> u16 {
        if !self.spec.on_fork.is_empty() {
            return WITH_ON_FORK;
        }
        if Tail::is_needed(&self.spec) {
            return WITH_TAIL;
        }
        if self.spec.limits.disk_bytes.is_some() {
            return WITH_DISK;
        }
        let Some(Program { state, memory, base, hot, contents }) = &self.program else { return FILES_ONLY };
        if !self.volumes.is_empty() {
            return WITH_VOLUMES;
        }
        let layers = &self.layers;
        let references = [state, memory].into_iter().chain(base).chain(layers).chain(hot).chain(contents);
        if references.into_iter().all(BlobRef::is_old) { WHOLE } else { WHOLE + 1 }
    }

    fn decode(framed: &[u8]) -> Result<Self> {
        if framed.len() > RECORD_BYTES_MAX {
            return Err(format!("{} bytes are too many", framed.len())).storing("read a checkpoint");
        }
        let (version, bytes) = frame::decode(framed, FRAME, VERSION).storing("read a checkpoint")?;
        // An empty list for each that the version lacks.
        let lacking = &[0, 0][..usize::from(WHOLE.saturating_sub(version.max(1)))];
        let bytes = [bytes, lacking].concat();
        let (mut checkpoint, rest): (Self, _) = postcard::take_from_bytes(&bytes).storing("read a checkpoint")?;
        checkpoint.check_version(version)?;
        match version {
            WITH_TAIL.. => {
                let ((volumes, tail), rest): ((_, Tail), _) =
                    postcard::take_from_bytes(rest).storing("read a checkpoint")?;
                checkpoint.volumes = volumes;
                tail.apply(&mut checkpoint.spec);
                checkpoint.decode_on_fork(version, rest)?;
            }
            WITH_DISK.. => {
                let (volumes, disk) = postcard::from_bytes(rest).storing("read a checkpoint")?;
                checkpoint.volumes = volumes;
                checkpoint.spec.limits.disk_bytes = Some(disk);
            }
            WITH_VOLUMES.. => checkpoint.volumes = postcard::from_bytes(rest).storing("read a checkpoint")?,
            _ => {}
        }
        Ok(checkpoint)
    }

    /// Fails unless it has a program exactly if its version says so. That of the first with a limit of the disk does not.
    pub(super) fn check_version(&self, version: u16) -> Result<()> {
        let (is, has) = match &self.program {
            Some(_) if version < FILES_ONLY => return Ok(()),
            None if version == FILES_ONLY => return Ok(()),
            _ if version >= WITH_DISK => return Ok(()),
            Some(_) => ("one", "no program"),
            None => ("none", "a program"),
        };
        Err(format!("version {version} has {has}, and there is {is}")).storing("read a checkpoint")
    }

    /// Its volumes, for people and for who makes forks of them.
    pub fn kept_volumes(&self) -> Result<Vec<CheckpointVolume>> {
        let by = name_of(&self.spec.name)?.to_string();
        let shown = |Included { volume, path, state }: &Included| CheckpointVolume {
            volume: volume.clone(),
            path: path.clone(),
            state: KeptState { by: by.clone(), manifest: ManifestId(*state).to_string() },
        };
        Ok(self.volumes.iter().map(shown).collect())
    }

    /// Commits it under its name; `parent` is what it was taken against. Gives the manifest and the bytes of all its segments.
    pub fn commit(
        &self,
        writing: Writing,
        replaces: Option<&Head>,
        parent: Option<ManifestId>,
    ) -> Result<(ManifestId, u64)> {
        let client = self.encode()?.into();
        let includes = self.volumes.iter().map(|included| ManifestId(included.state)).collect();
        let (kind, version) = (MANIFEST_KIND, self.version());
        let manifest = Manifest { kind, version, parent, includes, client, ..Manifest::default() };
        writing.commit(&name_of(&self.spec.name)?, replaces, manifest)
    }

    /// Takes the place of what `head` names, with the segments of that and those of `writing`.
    pub fn amend(&self, writing: Writing, head: &Head) -> Result<()> {
        writing.amend(self.version(), self.encode()?.into(), head).map(drop)
    }

    /// The checkpoint of this name, if there is one.
    pub async fn find(durable: &Durable, name: &TemplateName) -> Result<Option<(Head, Self)>> {
        let head = match durable.heads.get(durable.store.realm(), &name_of(name)?).await {
            Ok(head) => head,
            Err(HeadsError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).storing("look for a checkpoint"),
        };
        let checkpoint = Self::read(durable, head.manifest).await?;
        Ok(Some((head, checkpoint)))
    }

    /// The checkpoint that a manifest describes, whatever its name is by now.
    pub async fn of_manifest(durable: &Durable, manifest: &str) -> Result<Self> {
        Self::read(durable, manifest.parse().storing("read a manifest's name")?).await
    }

    /// The checkpoint, or that of the paused sandbox, that a manifest describes.
    pub async fn read(durable: &Durable, id: ManifestId) -> Result<Self> {
        let manifest = Manifest::read(&durable.store, id).await.storing("read the manifest of a checkpoint")?;
        if manifest.kind == paused::MANIFEST_KIND {
            return Paused::decode(&manifest.client).map(|paused| paused.checkpoint);
        }
        if manifest.kind != MANIFEST_KIND || manifest.version > VERSION {
            let found = (manifest.kind, manifest.version);
            return Err(format!("manifest {id} has kind and version {found:?}; a newer program may know them"))
                .storing("read a checkpoint");
        }
        Self::decode(&manifest.client)
    }

    /// Heads of checkpoints by name, some of those after `after`; none if there are no more.
    pub async fn heads(durable: &Durable, after: Option<&HeadName>) -> Result<Vec<Head>> {
        durable.heads.list(durable.store.realm(), HEADS, after).await.storing("list checkpoints")
    }

    /// Every checkpoint, by name. One whose manifest cannot be read has none.
    pub async fn list(durable: &Durable) -> Result<Vec<(Head, Result<Self>)>> {
        durable.read_below(HEADS, |manifest| Self::read(durable, manifest)).await
    }

    /// The roots of its memory's images, newest first; none if it has files only.
    pub fn images(&self) -> impl Iterator<Item = &BlobRef> {
        self.program.iter().flat_map(Program::images)
    }

    /// Unpacks one of its layers into the new directory `into`. Blocks.
    pub fn unpack_layer(
        layer: &BlobRef,
        durable: &Durable,
        runtime: &Handle,
        into: &std::path::Path,
    ) -> Result<sandbox::ArchiveTotals> {
        let mut archive = layer.open(&durable.store, runtime)?;
        sandbox::unpack_layer(&mut archive as &mut dyn Read, into).map_err(Error::Sandbox)
    }
}

impl Program {
    /// Its encoded state. Blocks.
    pub fn read_state(&self, durable: &Durable, runtime: &Handle) -> Result<Vec<u8>> {
        self.state.read(&durable.store, runtime, STATE_BYTES_MAX)
    }

    /// Its working set, if it is known. Blocks.
    pub fn hot_set(&self, durable: &Durable, runtime: &Handle) -> Result<Option<memory::hot::HotSet>> {
        let Some(hot) = &self.hot else { return Ok(None) };
        let bytes = hot.read(&durable.store, runtime, INDEX_BYTES_MAX)?;
        memory::hot::HotSet::open(&bytes).map(Some).storing("open the working set of a checkpoint")
    }

    /// A reader of its memory. Blocks.
    pub fn pages(&self, durable: &Durable, runtime: &Handle) -> Result<memory::PageReader<super::Chunks>> {
        page_reader(self.images(), durable, runtime)
    }

    /// The roots of its memory's images, newest first.
    pub fn images(&self) -> impl Iterator<Item = &BlobRef> {
        std::iter::once(&self.memory).chain(&self.base)
    }
}

/// A reader of images, each followed by the one it was taken against. Blocks.
pub fn page_reader<'a>(
    roots: impl Iterator<Item = &'a BlobRef>,
    durable: &Durable,
    runtime: &Handle,
) -> Result<memory::PageReader<super::Chunks>> {
    let open = |root: &BlobRef| {
        let root = root.read(&durable.store, runtime, INDEX_BYTES_MAX)?;
        memory::PageImage::open(&root).storing("open a page image")
    };
    let images = roots.map(open).collect::<Result<Vec<_>>>()?;
    memory::PageReader::new(images, durable.chunks(runtime)).storing("open a page image")
}

/// What is in the chunks that `lists` describe, the first list preferred. Blocks.
pub fn known_pages(lists: &[BlobRef], durable: &Durable, runtime: &Handle) -> Result<memory::Known> {
    let read = |list: &BlobRef| list.read(&durable.store, runtime, INDEX_BYTES_MAX);
    let lists = lists.iter().map(read).collect::<Result<Vec<_>>>()?;
    let known = memory::Known::read(lists.iter().map(|list| &list[..]), &durable.chunks(runtime));
    known.storing("read what an earlier checkpoint has")
}

/// Writes one layer. Blocks.
pub fn pack_layer(writing: &mut Writing, layer: &std::path::Path) -> Result<BlobRef> {
    let mut blob = writing.blob();
    sandbox::pack_layer(layer, &mut blob as &mut dyn Write).map_err(Error::Sandbox)?;
    blob.finish()
}

/// Writes the state of a program. Blocks.
pub fn write_bytes(writing: &mut Writing, bytes: &[u8]) -> Result<BlobRef> {
    writing.write_blob(bytes)
}

/// A checkpoint of each version behind a good checksum; one that decodes is the same when it has been written and read again.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(payload: &[u8]) {
    for version in 1..=VERSION {
        let framed = frame::encode(FRAME, version, payload).expect("short");
        if let Ok(checkpoint) = Checkpoint::decode(&framed) {
            let again = checkpoint.encode().expect("it was read");
            assert_eq!(Checkpoint::decode(&again).expect("it was written"), checkpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::nouns, *};

    #[test]
    fn older_versions_lack_the_last_lists() {
        let spec = r#"{"name":"a","image":"host","command":["/a"],"cwd":"/","ready":"listening","ready_timeout_ms":1}"#;
        let blob = || postcard::from_bytes::<BlobRef>(&[0, 1, 7, 1]).unwrap();
        let program = Program { state: blob(), memory: blob(), base: vec![blob()], hot: None, contents: Vec::new() };
        let checkpoint = Checkpoint {
            spec: nouns::TemplateSpec::deserialize(&mut serde_json::Deserializer::from_str(spec)).unwrap(),
            created_ms: 1,
            program: Some(program.clone()),
            layers: Vec::new(),
            counts: Counts::default(),
            volumes: Vec::new(),
        };
        let encoded = postcard::to_stdvec(&checkpoint).unwrap();
        for (version, lists) in [(1, 2), (2, 1)] {
            let (before, last) = encoded.split_at(encoded.len() - lists);
            assert!(last.iter().all(|byte| *byte == 0));
            let framed = frame::encode(FRAME, version, before).unwrap();
            assert_eq!(Checkpoint::decode(&framed).unwrap(), checkpoint, "version {version}");
        }
        let listed = Program { contents: vec![blob(), blob()], ..program };
        let mut newer = Checkpoint { program: Some(listed), ..checkpoint };
        newer.spec.mount_points = vec!["/workspace".to_owned()];
        assert_eq!(Checkpoint::decode(&newer.encode().unwrap()).unwrap(), newer);
        let volume = |path: &str| Included { volume: "ws".parse().unwrap(), path: path.to_owned(), state: [7; 16] };
        let with_volumes = Checkpoint { volumes: vec![volume("/a"), volume("/b")], ..newer.clone() };
        assert_eq!(Checkpoint::decode(&with_volumes.encode().unwrap()).unwrap(), with_volumes);
        let cut = with_volumes.encode().unwrap();
        assert!((0..cut.len()).all(|length| Checkpoint::decode(&cut[..length]).is_err()));
        let cut = newer.encode().unwrap();
        assert!((0..cut.len()).all(|length| Checkpoint::decode(&cut[..length]).is_err()));
        for bit in 0..cut.len() * 8 {
            let mut flipped = cut.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // An older version only lacks lists: those that are there are read.
            assert!(
                Checkpoint::decode(&flipped).is_ok_and(|found| found == newer) == (48..50).contains(&bit),
                "bit {bit}"
            );
        }
    }

    /// Everything that can be in one of version 6.
    fn files_only() -> Checkpoint {
        let spec = r#"{"name":"a","image":"host","command":[],"cwd":"/","ready":"listening","ready_timeout_ms":1,
            "limits":{"memory_bytes":4294967296,"pids":4096,"cpu_millis":null}}"#;
        Checkpoint {
            spec: nouns::TemplateSpec::deserialize(&mut serde_json::Deserializer::from_str(spec)).unwrap(),
            created_ms: 1,
            program: None,
            layers: vec![postcard::from_bytes(&[0, 1, 7, 1]).unwrap()],
            counts: Counts { pause_us: 2, layer_bytes: 3, ..Counts::default() },
            volumes: vec![Included { volume: "ws".parse().unwrap(), path: "/a".to_owned(), state: [7; 16] }],
        }
    }

    #[test]
    fn a_checkpoint_of_files_is_what_its_golden_file_says() {
        let golden = include_bytes!("../tests/golden/checkpoint-v6.bin");
        assert_eq!(Checkpoint::decode(golden).unwrap(), files_only());
        assert_eq!(files_only().encode().unwrap(), golden);
        assert!((0..golden.len()).all(|length| Checkpoint::decode(&golden[..length]).is_err()));
        for bit in 0..golden.len() * 8 {
            let mut flipped = golden.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // No version but its own fits what is in it, and 0 means no version.
            assert!(Checkpoint::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_limit_of_the_disk_lies_behind_all_else() {
        let mut limited = files_only();
        limited.spec.limits.disk_bytes = Some(64 << 20);
        let golden = include_bytes!("../tests/golden/checkpoint-v6.bin");
        let (_, before) = frame::decode(golden, FRAME, VERSION).unwrap();
        // 64 MiB as a number of 7 bits in each byte.
        let bytes = [before, &[0x80, 0x80, 0x80, 0x20]].concat();
        let framed = frame::encode(FRAME, WITH_DISK, &bytes).unwrap();
        assert_eq!(limited.encode().unwrap(), framed);
        assert_eq!(Checkpoint::decode(&framed).unwrap(), limited);
        assert!((0..framed.len()).all(|length| Checkpoint::decode(&framed[..length]).is_err()));
        assert!(Checkpoint::decode(&frame::encode(FRAME, WITH_DISK, before).unwrap()).is_err());
    }

    #[test]
    fn a_version_says_whether_there_is_a_program() {
        let bytes = postcard::to_stdvec(&files_only()).unwrap();
        for version in 1..FILES_ONLY {
            assert!(Checkpoint::decode(&frame::encode(FRAME, version, &bytes).unwrap()).is_err(), "version {version}");
        }
        let (state, memory) = (files_only().layers[0].clone(), BlobRef::none());
        let program = Program { state, memory, base: Vec::new(), hot: None, contents: Vec::new() };
        let with = postcard::to_stdvec(&Checkpoint { program: Some(program), ..files_only() }).unwrap();
        let with = [with, vec![0]].concat();
        assert!(Checkpoint::decode(&frame::encode(FRAME, FILES_ONLY, &with).unwrap()).is_err());
    }
}
