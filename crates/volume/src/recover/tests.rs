//! Damage of every kind.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use store::{
    Store,
    keys::{MasterKeys, RealmKeys},
    object::Objects,
};

use super::{Recovered, read};
use crate::{
    WalError,
    inode::{Ino, Time},
    op::{Op, Record},
    wal::Wal,
};

struct Place {
    directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    store: Store,
}

impl Place {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let objects = directory.path().join("objects").to_str().unwrap().parse().unwrap();
        let objects = Objects::open(&objects, Default::default()).unwrap();
        let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "a test").unwrap();
        let keys = RealmKeys::new(objects.clone(), Arc::new(master), "test".parse().unwrap());
        Self { directory, runtime, store: Store::new(objects, keys, None, None) }
    }

    fn folder(&self) -> std::path::PathBuf {
        self.directory.path().join("log")
    }

    fn begin(&self, last: u64, recovered: Recovered) -> Wal {
        let committed = recovered.operations.first().map_or(last, |(first, _)| first - 1);
        let key = self.runtime.block_on(self.store.keys().current()).unwrap();
        Wal::begin(&self.folder(), self.store.realm(), key, [7; 16], (committed, last), recovered.files).unwrap()
    }

    fn read(&self, committed: u64) -> Result<Recovered, WalError> {
        self.runtime.block_on(read(&self.folder(), &self.store, committed))
    }

    /// As another process would read it now: the log goes on.
    fn read_copy(&self, committed: u64) -> Recovered {
        let copy = tempfile::tempdir().unwrap();
        for path in super::files(&self.folder()).unwrap() {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        self.runtime.block_on(read(copy.path(), &self.store, committed)).unwrap()
    }

    /// The newest file.
    fn file(&self) -> std::path::PathBuf {
        super::files(&self.folder()).unwrap().pop().unwrap()
    }
}

fn append(wal: &Wal, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        wal.append(sequence, &record(sequence));
    }
}

fn record(sequence: u64) -> Record<'static> {
    let op = Op::Write { ino: Ino(sequence), offset: 0, data: b"data", drop_privileges: false, now: Time::default() };
    Record { request: 0, op, outcome: None }
}

/// The numbers of what was recovered; each must be what was written under it.
fn numbers(recovered: &Recovered) -> Vec<u64> {
    let check = |(sequence, bytes): &(u64, bytes::Bytes)| {
        assert_eq!(Record::decode(bytes).unwrap(), record(*sequence));
        *sequence
    };
    recovered.operations.iter().map(check).collect()
}

#[test]
fn operations_come_back_across_files_and_those_in_a_commit_do_not() {
    let place = Place::new();
    let wal = place.begin(10, Recovered::default());
    append(&wal, 11..=13);
    wal.sync().unwrap();
    wal.rotate().unwrap();
    append(&wal, 14..=15);
    wal.write().unwrap();
    append(&wal, 16..=16);
    assert_eq!(numbers(&place.read(10).unwrap()), [11, 12, 13, 14, 15]);
    assert_eq!(numbers(&place.read(12).unwrap()), [13, 14, 15]);
    wal.remove_through(12).unwrap();
    assert_eq!(numbers(&place.read(12).unwrap()), [13, 14, 15]);
    wal.remove_through(13).unwrap();
    assert_eq!(numbers(&place.read(13).unwrap()), [14, 15]);
    assert!(matches!(place.read(12), Err(WalError::Gap { expected: 13, found: 14, .. })));
    // A log goes on after a crash, and after one before anything was written.
    for _ in 0..2 {
        drop(place.begin(15, place.read(13).unwrap()));
    }
    let wal = place.begin(15, place.read(13).unwrap());
    append(&wal, 16..=16);
    wal.sync().unwrap();
    assert_eq!(numbers(&place.read(13).unwrap()), [14, 15, 16]);
}

#[test]
fn a_log_of_another_state_begins_anew() {
    let place = Place::new();
    let wal = place.begin(0, Recovered::default());
    append(&wal, 1..=3);
    wal.sync().unwrap();
    append(&wal, 4..=4);
    wal.restart([8; 16], 4).unwrap();
    append(&wal, 5..=5);
    wal.sync().unwrap();
    // Until the next commit both are there.
    assert_eq!(super::epochs(&place.folder()).unwrap().len(), 2);
    super::set_others_aside(&place.folder(), [8; 16]).unwrap();
    assert_eq!(super::epochs(&place.folder()).unwrap(), [[8; 16]].into());
    assert_eq!(numbers(&place.read(4).unwrap()), [5]);
    append(&wal, 6..=6);
    wal.sync().unwrap();
    wal.remove_through(4).unwrap();
    assert_eq!(numbers(&place.read(4).unwrap()), [5, 6]);
}

/// Batches 1-2 and 3-4 were synced, each told of by the next; 5-6 and 7 were not told of.
fn damaged(change: impl Fn(&Path, &[u8])) -> (Place, Vec<usize>, Vec<u8>) {
    let place = Place::new();
    let wal = place.begin(0, Recovered::default());
    let mut ends = Vec::new();
    let mut ended = || ends.push(fs::metadata(place.file()).unwrap().len() as usize);
    ended();
    for sequences in [1..=2, 3..=4] {
        append(&wal, sequences);
        wal.sync().unwrap();
        ended();
    }
    for sequences in [5..=6, 7..=7] {
        append(&wal, sequences);
        wal.write().unwrap();
        ended();
    }
    let sound = fs::read(place.file()).unwrap();
    change(&place.file(), &sound);
    (place, ends, sound)
}

#[test]
fn a_tail_that_was_cut_anywhere_is_dropped_from_its_first_unsound_batch() {
    let (place, ends, sound) = damaged(|_, _| {});
    let file = place.file();
    for length in (0..sound.len()).rev() {
        fs::write(&file, &sound[..length]).unwrap();
        let recovered = place.read(0).unwrap();
        let whole = ends.iter().skip(1).filter(|end| **end <= length).count();
        let expected = [0, 2, 4, 6][whole];
        assert_eq!(numbers(&recovered), (1..=expected).collect::<Vec<_>>(), "cut to {length}");
        // And what is left is sound.
        assert_eq!(numbers(&place.read(0).unwrap()).len() as u64, expected);
    }
}

#[test]
fn a_flipped_bit_is_named_where_the_disk_had_promised_and_never_changes_what_is_read() {
    let (place, ends, sound) = damaged(|_, _| {});
    let file = place.file();
    // Each bit as a soak, one of each byte without `PANDO_ROUNDS`.
    let all = std::env::var_os("PANDO_ROUNDS").is_some();
    for bit in (0..sound.len() * 8).filter(|bit| all || bit % 8 == bit / 8 % 8) {
        let mut flipped = sound.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, &flipped).unwrap();
        let batch = ends.iter().filter(|end| **end <= bit / 8).count();
        match (batch, place.read(0)) {
            // Of the header: another epoch is the opener's business, and the version may be lower.
            (0, _) => {}
            (1 | 2, Err(WalError::Damaged { offset, .. })) => assert_eq!(offset, ends[batch - 1]),
            (3 | 4, Ok(recovered)) => {
                let expected: &[u64] = if batch == 3 { &[1, 2, 3, 4] } else { &[1, 2, 3, 4, 5, 6] };
                let all = numbers(&recovered);
                assert!(all == expected || all.len() == 7, "bit {bit}: {all:?}");
            }
            // The version in a frame may be lower.
            (1 | 2, Ok(recovered)) => assert_eq!(numbers(&recovered).len(), 7, "bit {bit}"),
            (batch, other) => panic!("bit {bit} of batch {batch}: {:?}", other.map(|recovered| numbers(&recovered))),
        }
    }
}

#[test]
fn a_batch_that_was_moved_or_repeated_is_not_taken_for_another() {
    let (place, ends, sound) = damaged(|_, _| {});
    let part = |batch: usize| &sound[ends[batch - 1]..ends[batch]];
    let swapped = [&sound[..ends[0]], part(1), part(1), part(3)].concat();
    fs::write(place.file(), swapped).unwrap();
    assert!(matches!(place.read(0), Err(WalError::Damaged { .. })), "batch 3 says that 4 was on disk");
    let repeated = [&sound[..ends[0]], part(1), part(1)].concat();
    fs::write(place.file(), repeated).unwrap();
    assert_eq!(numbers(&place.read(0).unwrap()), [1, 2]);
}

#[test]
fn a_file_that_was_filled_ahead_ends_where_its_batches_end() {
    let place = Place::new();
    let wal = place.begin(0, Recovered::default());
    for sequence in 1..=100 {
        append(&wal, sequence..=sequence);
        wal.sync().unwrap();
    }
    let bytes = fs::read(place.file()).unwrap();
    assert!(bytes.ends_with(&[0; 1000]));
    assert_eq!(numbers(&place.read(0).unwrap()).len(), 100);
    drop(wal);
    let wal = place.begin(100, place.read(0).unwrap());
    append(&wal, 101..=101);
    wal.sync().unwrap();
    assert_eq!(numbers(&place.read(0).unwrap()).len(), 101);
    // What was on disk and is zeros now is missing, not the end.
    let first = super::files(&place.folder()).unwrap().remove(0);
    fs::write(&first, [&bytes[..5000], &vec![0; bytes.len() - 5000]].concat()).unwrap();
    assert!(matches!(place.read(0), Err(WalError::Damaged { .. } | WalError::Gap { found: 101, .. })));
}

/// Three files, of operations 1-2, 3-4 and 5; how the first one was when all were written.
fn three_files(place: &Place, synced: bool) -> (Vec<PathBuf>, Vec<u8>) {
    let wal = place.begin(0, Recovered::default());
    append(&wal, 1..=1);
    wal.write().unwrap();
    append(&wal, 2..=2);
    wal.rotate().unwrap();
    append(&wal, 3..=4);
    wal.rotate().unwrap();
    append(&wal, 5..=5);
    if synced {
        wal.sync().unwrap()
    } else {
        wal.write().unwrap()
    }
    let files = super::files(&place.folder()).unwrap();
    let first = fs::read(&files[0]).unwrap();
    assert_eq!((files.len(), numbers(&place.read(0).unwrap())), (3, vec![1, 2, 3, 4, 5]));
    (files, first)
}

#[test]
fn what_was_never_synced_may_be_missing_before_other_files() {
    let place = Place::new();
    let (files, first) = three_files(&place, false);
    let later: Vec<Vec<u8>> = files[1..].iter().map(|file| fs::read(file).unwrap()).collect();
    // Cut anywhere behind the header, or zeros from there on, as a crash of the machine leaves files.
    for length in super::HEADER_FRAME_BYTES..first.len() {
        for zeros in [0, first.len() - length] {
            let cut = [&first[..length], &vec![0; zeros]].concat();
            if cut == first {
                // Its checksum may end with a zero.
                continue;
            }
            fs::write(&files[0], cut).unwrap();
            files[1..].iter().zip(&later).for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
            let left = numbers(&place.read(0).unwrap());
            assert!(left.is_empty() || left == [1], "cut to {length}, {zeros} zeros: {left:?}");
            assert_eq!(numbers(&place.read(0).unwrap()), left, "and what is left is sound");
            assert!(!files[1].exists() && !files[2].exists());
        }
    }
}

#[test]
fn damage_in_a_file_before_another_is_named_if_it_was_synced() {
    let place = Place::new();
    let (files, first) = three_files(&place, true);
    for length in super::HEADER_FRAME_BYTES..first.len() {
        fs::write(&files[0], &first[..length]).unwrap();
        let read = place.read(0);
        assert!(matches!(read, Err(WalError::Damaged { .. } | WalError::Gap { found: 3, .. })), "cut to {length}");
        let recovered = place.read(2).unwrap();
        assert_eq!(numbers(&recovered), [3, 4, 5], "of what is committed nothing is asked");
        // It is left as long as it says something.
        assert_eq!(recovered.files.iter().any(|(path, _)| *path == files[0]), !recovered.committed.is_empty());
        assert_eq!(files[0].exists(), !recovered.committed.is_empty());
    }
    files[..2].iter().for_each(|file| fs::remove_file(file).unwrap());
    assert!(matches!(place.read(2), Err(WalError::Gap { expected: 3, found: 5, .. })));
}

#[test]
fn what_was_replayed_counts_as_synced_only_when_it_was() {
    for synced in [false, true] {
        let place = Place::new();
        let wal = place.begin(0, Recovered::default());
        append(&wal, 1..=2);
        wal.write().unwrap();
        drop(wal);
        let wal = place.begin(2, place.read(0).unwrap());
        if synced {
            wal.sync().unwrap();
        }
        append(&wal, 3..=3);
        wal.write().unwrap();
        let first = super::files(&place.folder()).unwrap().remove(0);
        let length = fs::metadata(&first).unwrap().len();
        File::options().write(true).open(&first).unwrap().set_len(length - 1).unwrap();
        match place.read(0) {
            Ok(recovered) => assert!(!synced && numbers(&recovered).is_empty()),
            Err(error) => assert!(synced && matches!(error, WalError::Damaged { .. }), "{error}"),
        }
    }
}

#[test]
fn what_a_commit_has_need_not_be_in_the_log() {
    for zeros in [false, true] {
        let place = Place::new();
        let wal = place.begin(10, Recovered::default());
        append(&wal, 11..=13);
        wal.write().unwrap();
        drop(wal);
        // A commit has 12 by now, and the next process says so in its file.
        let wal = place.begin(13, place.read(12).unwrap());
        append(&wal, 14..=14);
        wal.write().unwrap();
        let first = super::files(&place.folder()).unwrap().remove(0);
        let mut bytes = fs::read(&first).unwrap();
        let length = bytes.len();
        bytes.truncate(super::HEADER_FRAME_BYTES + 5);
        bytes.resize(if zeros { length } else { bytes.len() }, 0);
        fs::write(&first, bytes).unwrap();
        assert!(numbers(&place.read(12).unwrap()).is_empty());
    }
}

#[test]
fn a_file_whose_header_is_damaged_is_kept_under_another_name() {
    let place = Place::new();
    let wal = place.begin(0, Recovered::default());
    append(&wal, 1..=2);
    wal.sync().unwrap();
    let file = place.file();
    let mut bytes = fs::read(&file).unwrap();
    bytes[20] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert!(numbers(&place.read(0).unwrap()).is_empty());
    assert_eq!(fs::read(file.with_extension("unsound")).unwrap(), bytes);
    assert!(!file.exists());
}

/// Operations 1-40 in a file that a commit has, taken over for 51-53 behind 41-50 in another. Gives the file as it was before and is now.
fn taken_over(place: &Place, synced: bool) -> ((PathBuf, Vec<u8>), (PathBuf, Vec<u8>)) {
    let mut wal = place.begin(0, Recovered::default());
    wal.use_again_from(0);
    append(&wal, 1..=20);
    wal.write().unwrap();
    append(&wal, 21..=40);
    wal.sync().unwrap();
    let before = place.file();
    let content = fs::read(&before).unwrap();
    wal.rotate().unwrap();
    append(&wal, 41..=50);
    wal.sync().unwrap();
    wal.remove_through(40).unwrap();
    wal.rotate().unwrap();
    append(&wal, 51..=53);
    if synced {
        wal.sync().unwrap()
    } else {
        wal.write().unwrap()
    }
    let now = place.file();
    let taken = fs::read(&now).unwrap();
    assert!(!before.exists() && taken.len() == content.len(), "{} and {} bytes", taken.len(), content.len());
    ((before, content), (now, taken))
}

#[test]
fn what_a_file_was_before_is_not_read_again() {
    for synced in [false, true] {
        let place = Place::new();
        let (_, (now, taken)) = taken_over(&place, synced);
        assert_eq!(numbers(&place.read(40).unwrap()), (41..=53).collect::<Vec<_>>());
        assert!(fs::metadata(&now).unwrap().len() < taken.len() as u64, "what was of before is cut off");
        let wal = place.begin(53, place.read(40).unwrap());
        append(&wal, 54..=54);
        wal.sync().unwrap();
        assert_eq!(numbers(&place.read(40).unwrap()), (41..=54).collect::<Vec<_>>());
        assert_eq!(numbers(&place.read(50).unwrap()), [51, 52, 53, 54]);
    }
}

#[test]
fn files_are_used_again_and_again_and_what_they_were_before_is_not_damage() {
    let place = Place::new();
    let inode = |path: &PathBuf| fs::metadata(path).unwrap().ino();
    let mut wal = place.begin(0, Recovered::default());
    wal.use_again_from(0);
    let (mut committed, mut last, mut inodes) = (0, 0, BTreeSet::new());
    for round in [40, 3, 30, 1, 50, 2, 1] {
        let before = last;
        // Two batches: the second says that the first was on disk, and all before it.
        for next in [last + round, last + round + 1] {
            append(&wal, last + 1..=next);
            wal.sync().unwrap();
            last = next;
        }
        assert_eq!(numbers(&place.read_copy(committed)), (committed + 1..=last).collect::<Vec<_>>());
        inodes.insert(inode(&place.file()));
        wal.rotate().unwrap();
        wal.remove_through(before).unwrap();
        committed = before;
    }
    assert!(inodes.len() <= 3, "{} files for seven", inodes.len());
    assert!(super::files(&place.folder()).unwrap().len() <= 3, "one that is read, the open one, one to use again");
}

#[test]
fn when_little_is_written_files_and_what_they_were_before_go() {
    let place = Place::new();
    let mut wal = place.begin(0, Recovered::default());
    let bytes = 2 * crate::limits::WAL_FILL_BYTES;
    wal.use_again_from(bytes);
    let large = vec![7; bytes as usize];
    let mut last = 0;
    let mut write = |data: &[u8]| {
        let op = Op::Write { ino: Ino(1), offset: 0, data, drop_privileges: false, now: Time::default() };
        last += 1;
        wal.append(last, &Record { request: 0, op, outcome: None });
        wal.write().unwrap();
        last
    };
    let mut commit = |data: &[u8]| {
        write(data);
        wal.rotate().unwrap();
        // As much is written while it commits.
        let last = write(data);
        wal.remove_through(last - 1).unwrap();
        super::files(&place.folder()).unwrap().iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>()
    };
    (0..4).for_each(|_| assert!(commit(&large) > bytes));
    assert!(commit(b"little") < bytes, "neither a file to use again nor more of the open one than it needs");
}

/// Neither the name nor the header nor a batch was synced: the disk may have any of them.
#[test]
fn a_crash_while_a_file_is_taken_over_leaves_what_was_promised() {
    let whole = taken_over(&Place::new(), false).1.1.len();
    for length in (0..=whole).step_by(7) {
        for (old_name, old_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let place = Place::new();
            let ((before, content), (now, taken)) = taken_over(&place, false);
            fs::remove_file(&now).unwrap();
            // Of the new bytes the first or the last have come to the disk.
            let mixed = if old_first {
                [&content[..length], &taken[length..]].concat()
            } else {
                [&taken[..length], &content[length..]].concat()
            };
            fs::write(if old_name { &before } else { &now }, mixed).unwrap();
            let left = numbers(&place.read(40).unwrap());
            assert!(left.len() >= 10 && left.iter().copied().eq(41..41 + left.len() as u64), "{length}: {left:?}");
            assert_eq!(numbers(&place.read(40).unwrap()), left, "and what is left is sound");
        }
    }
}
