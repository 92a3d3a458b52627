//! Nothing is readable without the realm's key, nothing stands in for anything else, no damage goes unnoticed.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use store::{
    Store,
    chunks::ChunkError,
    keys::{KeyError, KeyProvider, MasterKeys, RealmKeys, Rewrapped},
    object::{FaultInjector, FaultPlan, Objects, RequestOptions},
    segment::{ChunkRef, SegmentError, object_key},
};

use crate::common::{all_bytes, contains, directory, keys, masters, noise, open, store};

struct Fixture {
    folder: tempfile::TempDir,
    objects: Objects,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let objects = open(&directory(folder.path()));
        Self { store: store(&objects, None), objects, folder }
    }

    async fn segment(&self, chunks: &[&[u8]]) -> Vec<ChunkRef> {
        let mut writer = self.store.write().await.unwrap();
        let mut refs = Vec::new();
        for chunk in chunks {
            refs.push(writer.append(chunk).await.unwrap());
        }
        writer.finish().await.unwrap();
        refs
    }

    fn file(&self, realm: &str, chunk: &ChunkRef) -> PathBuf {
        self.folder.path().join(object_key(&realm.parse().unwrap(), chunk.segment))
    }
}

fn is_damaged(outcome: &Result<bytes::Bytes, ChunkError>) -> bool {
    matches!(outcome, Err(ChunkError::Damaged { .. }))
}

#[tokio::test]
async fn every_bit_flip_in_a_segment_is_found() {
    let fixture = Fixture::new();
    let chunks = fixture.segment(&[b"first chunk", b"second"]).await;
    let file = fixture.file("test", &chunks[0]);
    let sound = fs::read(&file).unwrap();
    let verify = async || fixture.store.segment(chunks[0].segment).await?.verify().await;
    verify().await.unwrap();
    // Frames tell all but the lowered version of one (see base::frame); here all versions are 1, so that only 0 is lower.
    let lowered = |bit: usize| {
        let footer = sound.len() - 48;
        let index = footer - 16 - 8;
        [0, index, footer].iter().any(|frame| bit == (frame + 6) * 8)
    };
    for bit in 0..sound.len() * 8 {
        let mut damaged = sound.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, damaged).unwrap();
        assert!(verify().await.is_err() || lowered(bit), "bit {bit} of {}", sound.len() * 8);
        let inside =
            |chunk: &ChunkRef| (chunk.offset..chunk.offset + u64::from(chunk.length)).contains(&(bit as u64 / 8));
        for chunk in &chunks {
            assert_eq!(fixture.store.read(chunk).await.is_err(), inside(chunk), "bit {bit}");
        }
    }
    for length in 0..sound.len() {
        fs::write(&file, &sound[..length]).unwrap();
        assert!(verify().await.is_err(), "cut to {length}");
    }
}

#[tokio::test]
async fn a_chunk_is_refused_in_any_place_but_its_own() {
    let fixture = Fixture::new();
    let first = fixture.segment(&[b"chunk a", b"chunk b"]).await;
    let second = fixture.segment(&[b"chunk c", b"chunk d"]).await;
    let read = async |chunk| fixture.store.read(&chunk).await;
    // References that lie about the segment's inside.
    let wrong_number = ChunkRef { number: 1, ..first[0] };
    let wrong_offset = ChunkRef { offset: first[1].offset, ..first[0] };
    for chunk in [wrong_number, wrong_offset, ChunkRef { length: first[0].length - 1, ..first[0] }] {
        assert!(is_damaged(&read(chunk).await), "{chunk:?}");
    }
    // Sealed bytes moved within and between objects.
    let (one, other) = (fixture.file("test", &first[0]), fixture.file("test", &second[0]));
    let (a, b) = (fs::read(&one).unwrap(), fs::read(&other).unwrap());
    let span = |chunk: &ChunkRef| chunk.offset as usize..(chunk.offset as usize + chunk.length as usize);
    let mut swapped = a.clone();
    swapped[span(&first[0])].copy_from_slice(&a[span(&first[1])]);
    swapped[span(&first[1])].copy_from_slice(&b[span(&second[1])]);
    fs::write(&one, &swapped).unwrap();
    assert!(is_damaged(&read(first[0]).await), "another place in the segment");
    assert!(is_damaged(&read(first[1]).await), "the same place in another segment");
    fs::write(&one, &b).unwrap();
    assert!(is_damaged(&read(first[0]).await), "another segment under this name");
    let verified = fixture.store.segment(first[0].segment).await;
    assert!(matches!(verified, Err(SegmentError::Layout { .. })));
    fs::write(&one, &a).unwrap();
    assert_eq!(read(first[0]).await.unwrap(), "chunk a");
}

#[tokio::test]
async fn another_realm_cannot_read_even_with_the_object_in_hand() {
    let fixture = Fixture::new();
    let chunks = fixture.segment(&[b"of realm test"]).await;
    let other = Store::new(fixture.objects.clone(), keys(&fixture.objects, "other"), None, None);
    let mut writer = other.write().await.unwrap();
    writer.append(b"so that it has a key").await.unwrap();
    writer.finish().await.unwrap();
    fs::copy(fixture.file("test", &chunks[0]), fixture.file("other", &chunks[0])).unwrap();
    assert!(is_damaged(&other.read(&chunks[0]).await));
    // Nor by the other's wrapped key under its own name.
    let wrapped = fixture.objects.list("realms/test/keys").await.unwrap();
    let stolen = wrapped[0].key.replace("realms/test", "realms/other");
    fixture.objects.put(&stolen, fixture.objects.get(&wrapped[0].key, 1 << 10).await.unwrap()).await.unwrap();
    let outcome = other.read(&chunks[0]).await;
    let Err(ChunkError::Key { source, .. }) = &outcome else { panic!("{outcome:?}") };
    assert!(matches!(**source, KeyError::Unwrap { .. }), "{source}");
}

#[tokio::test]
async fn what_was_stored_is_nowhere_in_the_clear() {
    let fixture = Fixture::new();
    let canary = noise(77, 64);
    let cache_folder = tempfile::tempdir().unwrap();
    let cache = store::cache::Cache::open(cache_folder.path(), 1 << 30).unwrap();
    let store = store(&fixture.objects, Some(cache));
    let mut writer = store.write().await.unwrap();
    let chunk = writer.append(&[&noise(1, 9 << 20)[..], &canary, &noise(2, 1000)].concat()).await.unwrap();
    let small = writer.append(&canary).await.unwrap();
    writer.finish().await.unwrap();
    for chunk in [&chunk, &small] {
        assert!(contains(&store.read(chunk).await.unwrap(), &canary));
    }
    store.cache().unwrap().settle().await;
    for folder in [fixture.folder.path(), cache_folder.path()] {
        let bytes = all_bytes(folder);
        assert!(bytes.len() > 9 << 20, "the files are there");
        assert!(!contains(&bytes, &canary) && !contains(&bytes, &canary[..8]));
    }
}

#[tokio::test]
async fn a_reference_that_no_writer_makes_is_refused_before_anything_is_fetched() {
    let fixture = Fixture::new();
    let chunk = fixture.segment(&[b"x"]).await[0];
    let before = fixture.objects.counters().requests;
    for bad in [
        ChunkRef { length: u32::MAX, ..chunk },
        ChunkRef { length: 0, ..chunk },
        ChunkRef { offset: u64::MAX, ..chunk },
        ChunkRef { number: u32::MAX, ..chunk },
    ] {
        assert!(ChunkRef::decode(&bad.encode()).is_err());
        assert!(matches!(fixture.store.read(&bad).await, Err(ChunkError::Impossible { .. })));
        assert!(matches!(fixture.store.read_many(&[chunk, bad]).await, Err(ChunkError::Impossible { .. })));
    }
    assert_eq!(ChunkRef::decode(&chunk.encode()), Ok(chunk));
    assert_eq!(fixture.objects.counters().requests, before);
}

#[tokio::test]
async fn bytes_of_version_1_stay_readable() {
    let fixture = Fixture::new();
    let realm = fixture.folder.path().join("realms/golden");
    fs::create_dir_all(realm.join("keys/1011121314151617")).unwrap();
    fs::create_dir_all(realm.join("segments")).unwrap();
    fs::write(realm.join("keys/1011121314151617/test"), include_bytes!("../golden/wrapped-key-v1.bin")).unwrap();
    let name = "30313233343536373839616263646566";
    fs::write(realm.join("segments").join(name), include_bytes!("../golden/segment-v1.bin")).unwrap();

    let store = Store::new(fixture.objects.clone(), keys(&fixture.objects, "golden"), None, None);
    let segment = store.segment(name.parse().unwrap()).await.unwrap();
    segment.verify().await.unwrap();
    let plain = store.read_many(segment.chunks()).await.unwrap();
    assert_eq!(plain, [&b"first chunk"[..], b"", &[0; 100]]);
}

#[tokio::test]
async fn keys_rotate_without_writing_data_again() {
    let fixture = Fixture::new();
    let old = fixture.segment(&[b"under the first key"]).await[0];
    fixture.store.keys().rotate().await.unwrap();
    let new = fixture.segment(&[b"under the second key"]).await[0];

    let (text, next) = ("0123456789abcdef".repeat(4), "f".repeat(64));
    let both = Arc::new(MasterKeys::parse(&format!("next:{next}\ntest:{text}"), "the test").unwrap());
    let with = |masters: Arc<MasterKeys>| RealmKeys::new(fixture.objects.clone(), masters, "test".parse().unwrap());
    let done = |wrapped| Rewrapped { master: "next".to_owned(), keys: 2, wrapped };
    assert_eq!(with(both.clone()).rewrap().await.unwrap(), done(2));
    assert_eq!(with(both).rewrap().await.unwrap(), done(0));

    let only_next = Arc::new(MasterKeys::parse(&format!("next:{next}"), "the test").unwrap());
    let later = Store::new(fixture.objects.clone(), with(only_next), None, None);
    assert_eq!(later.read(&old).await.unwrap(), "under the first key");
    assert_eq!(later.read(&new).await.unwrap(), "under the second key");
    assert_eq!(later.keys().current().await.unwrap().id(), fixture.store.keys().current().await.unwrap().id());
    let refused = with(masters()).current().await.err().unwrap();
    assert_eq!(
        refused.to_string(),
        "master key \"next\" is not among the known ones (test): add it to the master keys"
    );
}

#[tokio::test]
async fn a_wrapping_that_does_not_open_costs_no_other() {
    let fixture = Fixture::new();
    let chunk = fixture.segment(&[b"kept"]).await[0];
    let (text, next) = ("0123456789abcdef".repeat(4), "f".repeat(64));
    let with = |keys: String| {
        let masters = Arc::new(MasterKeys::parse(&keys, "the test").unwrap());
        RealmKeys::new(fixture.objects.clone(), masters, "test".parse().unwrap())
    };
    // By another key of the same name.
    with(format!("next:{}\ntest:{text}", "e".repeat(64))).rewrap().await.unwrap();
    let lost = with(format!("next:{next}\ntest:{text}")).rewrap().await.unwrap_err();
    assert!(matches!(&lost, KeyError::Unwrap { master } if master == "next"), "{lost}");
    with(format!("test:{text}\nnext:{}", "e".repeat(64))).rewrap().await.unwrap();
    let wrapped = fixture.objects.list("realms/test/keys").await.unwrap();
    let [wrapped] = &wrapped[..] else { panic!("{wrapped:?}") };
    let false_one = format!("{}/next", wrapped.key.rsplit_once('/').unwrap().0);
    fixture.objects.put(&false_one, "noise".into()).await.unwrap();
    with(format!("next:{next}\ntest:{text}")).rewrap().await.unwrap_err();
    for masters in [format!("test:{text}"), format!("next:{next}\ntest:{text}")] {
        let store = Store::new(fixture.objects.clone(), with(masters), None, None);
        assert_eq!(store.read(&chunk).await.unwrap(), "kept");
    }
}

#[tokio::test]
async fn a_key_that_is_damaged_costs_no_other() {
    let fixture = Fixture::new();
    let old = fixture.segment(&[b"under the first key"]).await[0];
    let first = fixture.objects.list("realms/test/keys").await.unwrap().remove(0).key;
    fixture.store.keys().rotate().await.unwrap();
    let new = fixture.segment(&[b"under the second key"]).await[0];
    fixture.objects.delete(&first).await.unwrap();
    fixture.objects.put(&first, "noise".into()).await.unwrap();
    let later = store(&fixture.objects, None);
    assert_eq!(later.read(&new).await.unwrap(), "under the second key");
    assert!(later.read(&old).await.is_err());
    // It may be the newest one.
    let refused = later.keys().current().await.err().unwrap();
    assert!(matches!(refused, KeyError::Damaged { .. }), "{refused}");
}

#[tokio::test]
async fn a_key_that_is_wrapped_anew_while_it_is_looked_for_is_found() {
    let fixture = Fixture::new();
    let key = fixture.store.keys().current().await.unwrap().id();
    let masters = format!("next:{}\ntest:{}", "f".repeat(64), "0123456789abcdef".repeat(4));
    let with = |objects: &Objects| {
        let masters = Arc::new(MasterKeys::parse(&masters, "the test").unwrap());
        RealmKeys::new(objects.clone(), masters, "test".parse().unwrap())
    };
    // Time between the list of what there is and the look at it.
    let slow = FaultPlan { latency: Duration::from_millis(100), ..FaultPlan::default() };
    let injector = Arc::new(FaultInjector::new(1, slow));
    let slow = Objects::open_faulty(&directory(fixture.folder.path()), RequestOptions::default(), injector).unwrap();
    let reader = with(&slow);
    let (found, ()) = tokio::join!(reader.get(key), async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        with(&fixture.objects).rewrap().await.unwrap();
    });
    assert_eq!(found.unwrap().id(), key);
}

#[tokio::test]
async fn nodes_that_make_a_realms_first_key_at_once_read_each_other() {
    let fixture = Fixture::new();
    let nodes: Vec<Store> = (0..8).map(|_| store(&fixture.objects, None)).collect();
    let written = futures::future::join_all(nodes.iter().map(async |node| {
        let mut writer = node.write().await.unwrap();
        let chunk = writer.append(b"plain").await.unwrap();
        writer.finish().await.unwrap();
        chunk
    }))
    .await;
    for (node, chunk) in nodes.iter().flat_map(|node| written.iter().map(move |chunk| (node, chunk))) {
        assert_eq!(node.read(chunk).await.unwrap(), "plain");
    }
}

#[test]
fn master_keys_come_from_a_file_that_only_its_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/master.keys");
    let current = MasterKeys::from_file(&path).unwrap().current().to_owned();
    assert_ne!(MasterKeys::from_file(&folder.path().join("other.keys")).unwrap().current(), current);
    assert!(MasterKeys::from_file(folder.path()).is_err(), "a folder");
    let made = fs::read_to_string(&path).unwrap();
    MasterKeys::from_file(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), made, "an existing file is not made anew");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(MasterKeys::from_file(&path).is_err());
    let good = "ab".repeat(32);
    for bad in
        ["", "a", "a:12", &format!("a:{good},a:{good}"), &format!("../x:{good}"), &format!("a:{}", "AB".repeat(32))]
    {
        assert!(MasterKeys::parse(bad, "the test").is_err(), "{bad}");
    }
}
