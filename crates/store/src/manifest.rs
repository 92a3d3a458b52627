//! Manifests: each an immutable, sealed object that describes one state of something, such as a checkpoint or a volume.
//!
//! A manifest names everything that its state consists of: the roots of its trees, and all segments that these and its client's bytes
//! refer to. So the garbage collector reads manifests and nothing else, and opening a state is one request. The layout is in
//! docs/formats/manifest.md.

use std::collections::BTreeSet;

use base::frame::{self, FrameError};
use bytes::{Buf, Bytes, BytesMut};

use crate::{
    Store,
    id::{ManifestId, Realm, SegmentId},
    keys::{DataKey, KeyError},
    kind, limits,
    object::ObjectError,
    seal::{self, BrokenSeal, SegmentKey},
    tree::{Tree, TreeError},
};

/// Of the object.
const VERSION: u16 = 1;
/// Of the body. Version 1 includes no other states.
const BODY_VERSION: u16 = 2;

/// A manifest is sealed as the only chunk of a segment of its own.
const CHUNK: u32 = 0;

/// One state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// What it describes; its client gives out these numbers.
    pub kind: u16,
    /// Of the client's encoding, in trees, chunks and `client`.
    pub version: u16,
    /// A manifest that this one cannot be read without. The garbage collector keeps it, and its parents, as long as this one. Where a
    /// state merely comes from does not belong here: it would be kept for ever.
    pub parent: Option<ManifestId>,
    /// Manifests of other states that belong to this one, such as the volumes of a checkpoint: kept as long as this one, but not by those that
    /// have it as their parent.
    pub includes: BTreeSet<ManifestId>,
    /// The client knows what each is for.
    pub trees: Vec<Tree>,
    /// Every segment with a chunk of this state, except those that the parent or an included one names. Each tree's root must be in one of them.
    pub segments: BTreeSet<SegmentId>,
    /// Whatever else the client has to say, compressed by itself if that pays: at most [`limits::MANIFEST_CLIENT_BYTES_MAX`].
    pub client: Bytes,
}

/// Why a manifest cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ManifestError {
    #[error("there is no manifest {manifest}")]
    NotFound { manifest: ManifestId },
    #[error("manifest {manifest} is out of reach")]
    Object { manifest: ManifestId, source: ObjectError },
    #[error("the key of manifest {manifest} is not to be had")]
    Key { manifest: ManifestId, source: KeyError },
    #[error("manifest {manifest} is damaged")]
    Damaged { manifest: ManifestId, source: ManifestDamage },
    #[error("a manifest cannot hold {found} {what}, only {max}")]
    TooMany { what: &'static str, found: usize, max: usize },
    #[error("segment {segment} holds a tree's root and is not among the manifest's segments")]
    Unnamed { segment: SegmentId },
}

/// What is wrong with a manifest's bytes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ManifestDamage {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Seal(#[from] BrokenSeal),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("its payload is malformed: {0}")]
    Malformed(&'static str),
}

impl Manifest {
    /// Writes the manifest as `id`, which must be fresh and kept by a lease. It is durable when this returns; its segments must
    /// be so before.
    pub async fn write(&self, store: &Store, id: ManifestId) -> Result<(), ManifestError> {
        self.check()?;
        let key = store.keys().current().await.map_err(|source| ManifestError::Key { manifest: id, source })?;
        let sealed = seal_body(&self.encode()?, &key, store.realm(), id)?;
        let written = store.objects().put(&object_key(store.realm(), id), sealed.into()).await;
        written.map_err(|source| ManifestError::Object { manifest: id, source })
    }

    /// Reads manifest `id`.
    pub async fn read(store: &Store, id: ManifestId) -> Result<Self, ManifestError> {
        match Self::read_once(store, id).await {
            // A bit may also flip on the way.
            Err(ManifestError::Damaged { .. }) => Self::read_once(store, id).await,
            other => other,
        }
    }

    async fn read_once(store: &Store, id: ManifestId) -> Result<Self, ManifestError> {
        let read = store.objects().get(&object_key(store.realm(), id), limits::MANIFEST_BYTES_MAX).await;
        let object = read.map_err(|source| match source {
            ObjectError::NotFound { .. } => ManifestError::NotFound { manifest: id },
            source => ManifestError::Object { manifest: id, source },
        })?;
        let damaged = |source: ManifestDamage| ManifestError::Damaged { manifest: id, source };
        let (_, sealed) = frame::decode(&object, kind::MANIFEST, VERSION).map_err(|error| damaged(error.into()))?;
        let key = seal::key_id(sealed).map_err(|error| damaged(error.into()))?;
        let key = store.keys().get(key).await.map_err(|source| ManifestError::Key { manifest: id, source })?;
        Self::open(sealed, &key, store.realm(), id).map_err(damaged)
    }

    fn open(sealed: &[u8], key: &DataKey, realm: &Realm, id: ManifestId) -> Result<Self, ManifestDamage> {
        let body = segment_key(key, realm, id).open(CHUNK, sealed)?;
        let (version, payload) = frame::decode(&body, kind::MANIFEST_BODY, BODY_VERSION)?;
        Self::decode(version, body.slice_ref(payload))
    }

    fn check(&self) -> Result<(), ManifestError> {
        let counts = [
            ("trees", self.trees.len(), limits::MANIFEST_TREES_MAX),
            ("other manifests", self.includes.len(), limits::MANIFEST_INCLUDES_MAX),
            ("segments", self.segments.len(), limits::MANIFEST_SEGMENTS_MAX),
            ("bytes of its client", self.client.len(), limits::MANIFEST_CLIENT_BYTES_MAX),
        ];
        if let Some(&(what, found, max)) = counts.iter().find(|(_, found, max)| found > max) {
            return Err(ManifestError::TooMany { what, found, max });
        }
        let mut roots = self.trees.iter().filter_map(Tree::root_segment);
        match roots.find(|segment| !self.segments.contains(segment)) {
            Some(segment) => Err(ManifestError::Unnamed { segment }),
            None => Ok(()),
        }
    }

    fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        let mut body = Vec::with_capacity(128 + self.segments.len() * 16 + self.client.len());
        body.extend_from_slice(&self.kind.to_le_bytes());
        body.extend_from_slice(&self.version.to_le_bytes());
        match &self.parent {
            None => body.push(0),
            Some(parent) => {
                body.push(1);
                body.extend_from_slice(&parent.0);
            }
        }
        // Left out where there are none: an older program reads that.
        if !self.includes.is_empty() {
            body.push(self.includes.len() as u8);
            self.includes.iter().for_each(|included| body.extend_from_slice(&included.0));
        }
        body.push(self.trees.len() as u8);
        for tree in &self.trees {
            let tree = tree.encode();
            body.push(tree.len() as u8);
            body.extend_from_slice(&tree);
        }
        body.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        for segment in &self.segments {
            body.extend_from_slice(&segment.0);
        }
        body.extend_from_slice(&self.client);
        framed(kind::MANIFEST_BODY, if self.includes.is_empty() { 1 } else { BODY_VERSION }, &body)
    }

    fn decode(version: u16, mut body: Bytes) -> Result<Self, ManifestDamage> {
        let truncated = |_| ManifestDamage::Malformed("truncated");
        let kind = body.try_get_u16_le().map_err(truncated)?;
        let client_version = body.try_get_u16_le().map_err(truncated)?;
        let parent = match body.try_get_u8().map_err(truncated)? {
            0 => None,
            1 => Some(ManifestId(take_id(&mut body)?)),
            _ => return Err(ManifestDamage::Malformed("whether it has a parent")),
        };
        let mut includes = BTreeSet::new();
        if version > 1 {
            let count = usize::from(body.try_get_u8().map_err(truncated)?);
            if count == 0 || count > limits::MANIFEST_INCLUDES_MAX {
                return Err(ManifestDamage::Malformed("a number of other manifests that no writer gives"));
            }
            for _ in 0..count {
                let included = ManifestId(take_id(&mut body)?);
                if includes.last().is_some_and(|last| *last >= included) {
                    return Err(ManifestDamage::Malformed("other manifests do not ascend"));
                }
                includes.insert(included);
            }
        }
        let count = usize::from(body.try_get_u8().map_err(truncated)?);
        if count > limits::MANIFEST_TREES_MAX {
            return Err(ManifestDamage::Malformed("too many trees"));
        }
        let mut trees = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::from(body.try_get_u8().map_err(truncated)?);
            trees.push(Tree::decode(&take(&mut body, length)?)?);
        }
        let count = body.try_get_u32_le().map_err(truncated)? as usize;
        if count > limits::MANIFEST_SEGMENTS_MAX {
            return Err(ManifestDamage::Malformed("too many segments"));
        }
        let mut segments = BTreeSet::new();
        for _ in 0..count {
            let segment = SegmentId(take_id(&mut body)?);
            if segments.last().is_some_and(|last| *last >= segment) {
                return Err(ManifestDamage::Malformed("segments do not ascend"));
            }
            segments.insert(segment);
        }
        if body.len() > limits::MANIFEST_CLIENT_BYTES_MAX {
            return Err(ManifestDamage::Malformed("too many bytes of its client"));
        }
        Ok(Self { kind, version: client_version, parent, includes, trees, segments, client: body })
    }
}

/// The object that holds a manifest.
pub fn object_key(realm: &Realm, manifest: ManifestId) -> String {
    format!("realms/{realm}/manifests/{manifest}")
}

fn seal_body(body: &[u8], key: &DataKey, realm: &Realm, id: ManifestId) -> Result<Vec<u8>, ManifestError> {
    let mut sealed = BytesMut::new();
    segment_key(key, realm, id).seal(CHUNK, body, &mut sealed);
    framed(kind::MANIFEST, VERSION, &sealed)
}

/// Manifest ids and segment ids are both 128 fresh random bits, so no segment shares a manifest's key. What is sealed has its
/// kind inside, so neither is ever taken for the other.
fn segment_key(key: &DataKey, realm: &Realm, id: ManifestId) -> SegmentKey {
    SegmentKey::derive(key, realm, SegmentId(id.0))
}

fn framed(kind: u16, version: u16, payload: &[u8]) -> Result<Vec<u8>, ManifestError> {
    let max = u32::MAX as usize;
    let too_long = |_| ManifestError::TooMany { what: "bytes", found: payload.len(), max };
    frame::encode(kind, version, payload).map_err(too_long)
}

fn take(body: &mut Bytes, length: usize) -> Result<Bytes, ManifestDamage> {
    if body.len() < length {
        return Err(ManifestDamage::Malformed("truncated"));
    }
    Ok(body.split_to(length))
}

fn take_id(body: &mut Bytes) -> Result<[u8; 16], ManifestDamage> {
    let mut id = [0; 16];
    id.copy_from_slice(&take(body, 16)?);
    Ok(id)
}

/// A body is parsed as a reader with the key does, behind frame and seal; one that parses has one encoding.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(body: &[u8]) {
    let (key, id) = (DataKey::new(crate::id::KeyId([7; 8]), 0, [1; 32]), ManifestId([2; 16]));
    let realm: Realm = "default".parse().expect("a name");
    for version in 1..=BODY_VERSION {
        let framed = framed(kind::MANIFEST_BODY, version, body).expect("short");
        let object = seal_body(&framed, &key, &realm, id).expect("short");
        let (_, sealed) = frame::decode(&object, kind::MANIFEST, VERSION).expect("a frame");
        if let Ok(manifest) = Manifest::open(sealed, &key, &realm, id) {
            assert_eq!(manifest.encode().expect("it was read"), &framed[..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::KeyId;

    const ID: ManifestId = ManifestId(*b"0123456789abcdef");

    fn realm() -> Realm {
        "golden".parse().unwrap()
    }

    fn key() -> DataKey {
        let secret: Vec<u8> = (0..32).collect();
        DataKey::new(KeyId(*b"\x10\x11\x12\x13\x14\x15\x16\x17"), 0, secret.try_into().unwrap())
    }

    fn manifest() -> Manifest {
        let mut tree = vec![2];
        tree.extend_from_slice(&[0xaa; 16]);
        tree.extend_from_slice(&0x1122_3344u64.to_le_bytes());
        tree.extend_from_slice(&0x5566u32.to_le_bytes());
        tree.extend_from_slice(&7u32.to_le_bytes());
        tree.extend_from_slice(&[0xbb; 32]);
        Manifest {
            kind: 0x0102,
            version: 3,
            parent: Some(ManifestId([0xcc; 16])),
            includes: BTreeSet::new(),
            trees: vec![Tree::decode(&tree).unwrap(), Tree::EMPTY],
            segments: [SegmentId([0x11; 16]), SegmentId([0xaa; 16])].into(),
            client: Bytes::from_static(b"what the client says"),
        }
    }

    fn with_others() -> Manifest {
        Manifest { includes: [ManifestId([0xdd; 16]), ManifestId([0xee; 16])].into(), ..manifest() }
    }

    fn object(manifest: &Manifest) -> Vec<u8> {
        seal_body(&manifest.encode().unwrap(), &key(), &realm(), ID).unwrap()
    }

    fn opened(object: &[u8]) -> Result<Manifest, ManifestDamage> {
        let (_, sealed) = frame::decode(object, kind::MANIFEST, VERSION)?;
        Manifest::open(sealed, &key(), &realm(), ID)
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        assert_eq!(manifest().encode().unwrap(), include_bytes!("../tests/golden/manifest-body-v1.bin"));
        assert_eq!(object(&manifest()), include_bytes!("../tests/golden/manifest-v1.bin"));
        assert_eq!(with_others().encode().unwrap(), include_bytes!("../tests/golden/manifest-body-v2.bin"));
    }

    #[test]
    fn a_manifest_reads_back_as_what_it_was() {
        for manifest in [Manifest::default(), manifest(), with_others()] {
            assert_eq!(opened(&object(&manifest)).unwrap(), manifest);
        }
    }

    #[test]
    fn every_truncation_and_every_bit_flip_is_refused() {
        for object in [object(&manifest()), object(&with_others())] {
            for length in 0..object.len() {
                assert!(opened(&object[..length]).is_err(), "cut to {length}");
            }
            for bit in 0..object.len() * 8 {
                let mut damaged = object.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                // The frame's version may sink to 0, which reads as 1 does; what matters is sealed.
                assert!(opened(&damaged).is_err() || (48..64).contains(&bit), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_manifest_is_of_its_id_realm_and_key() {
        let object = object(&manifest());
        let (_, sealed) = frame::decode(&object, kind::MANIFEST, VERSION).unwrap();
        assert!(Manifest::open(sealed, &key(), &realm(), ManifestId([1; 16])).is_err());
        assert!(Manifest::open(sealed, &key(), &"other".parse().unwrap(), ID).is_err());
        assert!(Manifest::open(sealed, &DataKey::new(key().id(), 0, [9; 32]), &realm(), ID).is_err());
    }

    #[test]
    fn what_does_not_fit_or_would_not_be_kept_is_refused() {
        let with = |change: fn(&mut Manifest)| {
            let mut changed = manifest();
            change(&mut changed);
            changed.check()
        };
        assert!(with(|_| ()).is_ok());
        let unnamed = with(|manifest| manifest.segments.retain(|segment| segment.0[0] != 0xaa));
        assert!(matches!(unnamed, Err(ManifestError::Unnamed { segment: SegmentId([0xaa, ..]) })));
        let bytes = with(|manifest| manifest.client = vec![0; limits::MANIFEST_CLIENT_BYTES_MAX + 1].into());
        assert!(matches!(bytes, Err(ManifestError::TooMany { .. })));
        let others = with(|manifest| {
            manifest.includes =
                (0..=limits::MANIFEST_INCLUDES_MAX).map(|number| ManifestId([number as u8; 16])).collect();
        });
        assert!(matches!(others, Err(ManifestError::TooMany { .. })));
        let trees = with(|manifest| manifest.trees = vec![Tree::EMPTY; limits::MANIFEST_TREES_MAX + 1]);
        assert!(matches!(trees, Err(ManifestError::TooMany { .. })));
    }

    #[test]
    fn the_largest_manifest_is_below_the_bound_that_a_reader_checks() {
        let id = |number: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            SegmentId(id)
        };
        let largest = Manifest {
            parent: Some(ID),
            includes: (0..limits::MANIFEST_INCLUDES_MAX).map(|number| ManifestId([number as u8; 16])).collect(),
            trees: vec![manifest().trees[0]; limits::MANIFEST_TREES_MAX],
            segments: (0..limits::MANIFEST_SEGMENTS_MAX as u32).map(id).collect(),
            client: vec![0x5a; limits::MANIFEST_CLIENT_BYTES_MAX].into(),
            ..Manifest::default()
        };
        let object = object(&largest);
        assert!(object.len() as u64 <= limits::MANIFEST_BYTES_MAX, "{}", object.len());
        assert_eq!(opened(&object).unwrap(), largest);
    }

    proptest! {
        /// Somebody with the key cannot make the parser fail, or accept two encodings of one manifest.
        #[test]
        fn no_body_breaks_the_parser(
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
            version in 1..=BODY_VERSION,
        ) {
            let written = if version == 1 { manifest() } else { with_others() };
            let mut body = written.encode().unwrap().split_off(frame::HEADER_BYTES);
            for (at, byte) in edits {
                let at = at.index(body.len());
                body[at] = byte;
            }
            body.truncate(cut.index(body.len()) + 1);
            if let Ok(parsed) = Manifest::decode(version, body.clone().into()) {
                prop_assert_eq!(&parsed.encode().unwrap()[frame::HEADER_BYTES..], &body);
            }
        }
    }
}
