//! Images of made-up memory, judged by a map of pages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use memory::{
    BoxError, ChunkId, ChunkSink, Error, Fetched, Known, Options, PAGE_BYTES, PageRun,
    codec::{Codec, Packing},
    hot,
};
use proptest::prelude::*;
use support::{Chunks, Pages, Source, Target, dump, dump_against, pieces, reader, restore};

/// Of the frame around a chunk of data (docs/formats/page-image.md).
const CHUNK_KIND: u16 = 0x4d03;

/// A page: zeros, one of few (so that some are equal), text-like, or noise.
fn page() -> impl Strategy<Value = Vec<u8>> {
    let repeat = |seed: &[u8]| seed.iter().copied().cycle().take(PAGE_BYTES).collect::<Vec<u8>>();
    prop_oneof![
        2 => Just(vec![0; PAGE_BYTES]),
        2 => (1u8..5).prop_map(|byte| vec![byte; PAGE_BYTES]),
        4 => prop::collection::vec(any::<u8>(), 1..200).prop_map(move |seed| repeat(&seed)),
        1 => any::<u64>().prop_map(noise),
    ]
}

fn noise(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn pages() -> impl Strategy<Value = Pages> {
    prop::collection::btree_map(0u64..400, page(), 0..200)
}

fn packing() -> impl Strategy<Value = Packing> {
    let codec = prop_oneof![Just(Codec::Raw), Just(Codec::Lz4), Just(Codec::Zstd)];
    (codec, 1u16..20, 1u16..40).prop_map(|(codec, cluster_pages, chunk_pages)| Packing {
        codec,
        cluster_pages,
        chunk_pages,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_image_gives_back_its_pages(pages in pages(), packing in packing(), threads in 1usize..4) {
        let mut chunks = Chunks::default();
        let dumped = dump(&pages, &mut chunks, packing, |_| false);
        let reader = reader(&[&dumped.root], &chunks).unwrap();
        for page in 0..401 {
            let expected = pages.get(&page);
            match reader.fetch(page).unwrap() {
                Fetched::Absent => prop_assert!(expected.is_none()),
                Fetched::Zero(run) => {
                    prop_assert!(run.first <= page && page < run.end());
                    prop_assert!((run.first..run.end()).all(|page| pages[&page] == [0; PAGE_BYTES]));
                }
                Fetched::Data(run, bytes) => {
                    prop_assert!(run.first <= page && page < run.end());
                    let expected: Vec<u8> = pages.range(run.first..run.end()).flat_map(|(_, page)| page.clone()).collect();
                    prop_assert!(bytes[..] == expected[..]);
                }
            }
        }
        prop_assert!(restore(&reader, threads).unwrap() == pages);
        let totals = dumped.totals;
        prop_assert_eq!(totals.zero_pages + totals.data_pages + totals.duplicate_pages, pages.len() as u64);
        // The others are the list of contents.
        let data = chunks.chunks.iter().filter(|chunk| base::frame::decode(chunk, CHUNK_KIND, 1).is_ok());
        prop_assert_eq!(totals.chunk_bytes, data.map(|chunk| chunk.len() as u64).sum::<u64>());
    }

    #[test]
    fn a_chain_of_images_gives_back_its_pages(
        first in pages(), changes in pages(), more in pages(), gone in prop::collection::btree_set(0u64..400, 0..50)
    ) {
        let mut chunks = Chunks::default();
        let mut roots = vec![dump(&first, &mut chunks, Packing::SMALL, |_| false).root];
        let mut now = first;
        for changes in [changes, more] {
            now.retain(|page, _| !gone.contains(page));
            let before = now.clone();
            now.extend(changes);
            let same = |page| before.get(&page) == now.get(&page);
            roots.insert(0, dump(&now, &mut chunks, Packing::FAST, same).root);
            let roots: Vec<&[u8]> = roots.iter().map(|root| &root[..]).collect();
            let reader = reader(&roots, &chunks).unwrap();
            prop_assert!(restore(&reader, 2).unwrap() == now);
            for page in 0..400 {
                let bytes = match reader.fetch(page).unwrap() {
                    Fetched::Absent => None,
                    Fetched::Zero(_) => Some(vec![0; PAGE_BYTES]),
                    Fetched::Data(run, bytes) => Some(bytes[(page - run.first) as usize * PAGE_BYTES..][..PAGE_BYTES].to_vec()),
                };
                prop_assert!(bytes.as_ref() == now.get(&page));
            }
        }
    }

    #[test]
    fn pages_of_older_images_are_found_wherever_they_are(
        first in pages(), changes in pages(), more in pages(), shift in 0u64..50, frames in any::<bool>(), packing in packing()
    ) {
        let mut chunks = Chunks::default();
        let base = dump(&first, &mut chunks, packing, |_| false);
        let (mut now, mut lists, mut roots) = (first, vec![base.contents], vec![base.root]);
        let mut older = std::collections::HashSet::new();
        for changes in [changes, more] {
            let before = now.clone();
            // Moved, so that only the contents are the same, and changed.
            now = now.into_iter().map(|(page, bytes)| (page + shift, bytes)).collect();
            now.extend(changes);
            let known = Known::read(lists.iter().map(|list| &list[..]), &chunks).unwrap();
            let same = |page| frames && before.get(&page) == now.get(&page);
            let dumped = dump_against(&known, &now, &mut chunks, Packing::SMALL, same);
            let totals = dumped.totals;
            prop_assert_eq!(totals.zero_pages + totals.data_pages + totals.duplicate_pages + totals.parent_pages, now.len() as u64);
            // None is stored that was there.
            older.extend(before.values().cloned());
            let new = now.values().filter(|page| **page != [0; PAGE_BYTES] && !older.contains(*page));
            prop_assert_eq!(totals.data_pages, new.collect::<std::collections::HashSet<_>>().len() as u64);
            lists.insert(0, dumped.contents);
            roots.insert(0, dumped.root);
            // Without pages that are shown to be the same by frames the image needs no other.
            let needed = if dumped.known_pages == totals.parent_pages { 1 } else { roots.len() };
            let roots: Vec<&[u8]> = roots[..needed].iter().map(|root| &root[..]).collect();
            let reader = reader(&roots, &chunks).unwrap();
            prop_assert!(restore(&reader, 2).unwrap() == now);
            for page in 0..600 {
                let bytes = match reader.fetch(page).unwrap() {
                    Fetched::Absent => None,
                    Fetched::Zero(_) => Some(vec![0; PAGE_BYTES]),
                    Fetched::Data(run, bytes) => Some(bytes[(page - run.first) as usize * PAGE_BYTES..][..PAGE_BYTES].to_vec()),
                };
                prop_assert!(bytes.as_ref() == now.get(&page));
            }
        }
    }

    #[test]
    fn a_working_set_comes_in_its_order(pages in pages(), order in prop::collection::vec(0u64..450, 0..300)) {
        let mut chunks = Chunks::default();
        let root = dump(&pages, &mut chunks, Packing::SMALL, |_| false).root;
        let mut hot_chunks = Chunks::default();
        let set = hot::write(&reader(&[&root], &chunks).unwrap(), &order, &mut hot_chunks).unwrap();
        let set = hot::HotSet::open(&set.encode().unwrap()).unwrap();
        let target = Target::default();
        set.read(&hot_chunks, &target).unwrap();
        let mut seen = std::collections::HashSet::new();
        let expected: Vec<u64> = order.into_iter().filter(|page| pages.contains_key(page) && seen.insert(*page)).collect();
        let came: Vec<u64> = target.calls.lock().unwrap().iter().flat_map(|run| run.first..run.end()).collect();
        prop_assert_eq!(&came, &expected);
        prop_assert_eq!(set.pages(), expected.len() as u64);
        prop_assert!(target.pages.lock().unwrap().iter().all(|(page, bytes)| pages[page] == *bytes));
    }

    #[test]
    fn a_working_set_that_is_extended_has_all_its_pages_once(
        pages in pages(),
        orders in prop::collection::vec(prop::collection::vec(0u64..450, 0..200), 1..4),
    ) {
        let mut chunks = Chunks::default();
        let root = dump(&pages, &mut chunks, Packing::SMALL, |_| false).root;
        let reader = reader(&[&root], &chunks).unwrap();
        let mut hot_chunks = Chunks::default();
        let (mut set, mut expected) = (hot::HotSet::default(), Vec::new());
        for order in orders {
            let known = set.numbers(&hot_chunks).unwrap();
            prop_assert_eq!(&known, &expected.iter().copied().collect());
            let missed: Vec<u64> = order.into_iter().filter(|page| !known.contains(page)).collect();
            set.extend(&reader, &missed, &mut hot_chunks).unwrap();
            let mut seen = std::collections::HashSet::new();
            expected.extend(missed.into_iter().filter(|page| pages.contains_key(page) && seen.insert(*page)));
        }
        let set = hot::HotSet::open(&set.encode().unwrap()).unwrap();
        let target = Target::default();
        set.read(&hot_chunks, &target).unwrap();
        let came: Vec<u64> = target.calls.lock().unwrap().iter().flat_map(|run| run.first..run.end()).collect();
        prop_assert_eq!(&came, &expected);
        prop_assert!(target.pages.lock().unwrap().iter().all(|(page, bytes)| pages[page] == *bytes));
    }

    #[test]
    fn noise_is_no_cluster(bytes in prop::collection::vec(any::<u8>(), 0..300), pages in 1usize..4) {
        let mut decoder = memory::codec::Decoder::new().unwrap();
        let mut plain = vec![0; pages * PAGE_BYTES];
        for codec in [Codec::Raw, Codec::Lz4, Codec::Zstd] {
            // It may be a cluster by chance (never of 4096 bytes here), but must not panic.
            let _ = decoder.decode(codec, &bytes, &mut plain);
        }
    }
}

/// Memory with every kind of page.
fn mixed() -> Pages {
    let kinds = |page: u64| match page % 4 {
        0 => vec![0; PAGE_BYTES],
        1 => vec![7; PAGE_BYTES],
        2 => b"some words ".iter().copied().cycle().skip(page as usize).take(PAGE_BYTES).collect(),
        _ => noise(page),
    };
    (100..140).map(|page| (page, kinds(page))).collect()
}

#[test]
fn every_truncation_and_every_bit_flip_of_a_chunk_is_refused() {
    let mut pages = mixed();
    pages.retain(|page, _| page % 4 != 3);
    let mut chunks = Chunks::default();
    let packing = Packing { chunk_pages: 1024, ..Packing::SMALL };
    let root = dump(&pages, &mut chunks, packing, |_| false).root;
    let chunk = chunks.chunks[0].clone();
    let refused = |damaged: Vec<u8>| {
        let chunks = Chunks::of(vec![damaged]);
        let reader = reader(&[&root], &chunks).unwrap();
        reader.fetch(101).is_err() && restore(&reader, 1).is_err()
    };
    for length in 0..chunk.len() {
        assert!(refused(chunk[..length].to_vec()), "cut to {length}");
    }
    for bit in 0..chunk.len() * 8 {
        let mut damaged = chunk.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(damaged), "bit {bit}");
    }
}

#[test]
fn damage_behind_a_sound_checksum_is_refused_or_gives_the_same_place() {
    let mut chunks = Chunks::default();
    let root = dump(&mixed(), &mut chunks, Packing::SMALL, |_| false).root;
    let payload = base::frame::decode(&chunks.chunks[0], 0x4d03, 1).unwrap().1.to_vec();
    for at in 0..payload.len().min(200) {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut damaged = payload.clone();
            damaged[at] = byte;
            let chunks = Chunks::of(vec![base::frame::encode(0x4d03, 1, &damaged).unwrap()]);
            let reader = reader(&[&root], &chunks).unwrap();
            // Sealing refuses such a chunk; here it must only not panic and never read past its bounds.
            let _ = (reader.fetch(101), restore(&reader, 1));
        }
    }
}

#[test]
fn every_truncation_and_every_bit_flip_of_a_working_set_is_refused() {
    let mut chunks = Chunks::default();
    let root = dump(&mixed(), &mut chunks, Packing::SMALL, |_| false).root;
    let mut hot_chunks = Chunks::default();
    let set = hot::write(&reader(&[&root], &chunks).unwrap(), &[100, 101, 102], &mut hot_chunks).unwrap();
    let framed = set.encode().unwrap();
    let damaged = |whole: &[u8]| {
        let flips = (0..whole.len() * 8).map(|bit| {
            let mut damaged = whole.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            damaged
        });
        (0..whole.len()).map(|length| whole[..length].to_vec()).chain(flips).collect::<Vec<Vec<u8>>>()
    };
    assert!(damaged(&framed).iter().all(|framed| hot::HotSet::open(framed).is_err()));
    for chunk in damaged(&hot_chunks.chunks[0]) {
        assert!(set.read(&Chunks::of(vec![chunk]), &Target::default()).is_err());
    }
}

#[test]
fn equal_pages_are_stored_once() {
    let pages: Pages = (0..1000).map(|page| (page, noise(page % 10))).collect();
    let mut chunks = Chunks::default();
    let totals = dump(&pages, &mut chunks, Packing::FAST, |_| false).totals;
    assert_eq!((totals.data_pages, totals.duplicate_pages, totals.chunks), (10, 990, 1));
}

#[test]
fn what_does_not_shrink_is_stored_as_it_is() {
    let pages: Pages = (0..640).map(|page| (page, noise(page))).collect();
    for packing in [Packing::SMALL, Packing::FAST] {
        let totals = dump(&pages, &mut Chunks::default(), packing, |_| false).totals;
        let raw = (pages.len() * PAGE_BYTES) as u64;
        assert!((raw..raw + raw / 1000).contains(&totals.chunk_bytes), "{} bytes", totals.chunk_bytes);
    }
}

#[test]
fn a_fault_reads_one_chunk_and_its_neighbours_none() {
    let pages: Pages = (0..640).map(|page| (page, noise(page))).collect();
    let mut chunks = Chunks::default();
    let root = dump(&pages, &mut chunks, Packing::SMALL, |_| false).root;
    let reader = reader(&[&root], &chunks).unwrap();
    let Fetched::Data(run, _) = reader.fetch(70).unwrap() else { panic!("page 70 is data") };
    assert_eq!((run, chunks.reads.load(std::sync::atomic::Ordering::Relaxed)), (PageRun { first: 64, count: 16 }, 1));
    reader.fetch(100).unwrap();
    assert_eq!(chunks.reads.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_part_is_restored_alone() {
    let pages = mixed();
    let mut chunks = Chunks::default();
    let root = dump(&pages, &mut chunks, Packing::SMALL, |_| false).root;
    let target = Target::default();
    reader(&[&root], &chunks).unwrap().restore(PageRun { first: 113, count: 9 }, 2, &target).unwrap();
    let expected: Pages = pages.range(113..122).map(|(page, bytes)| (*page, bytes.clone())).collect();
    assert!(*target.pages.lock().unwrap() == expected);
}

#[test]
fn an_image_without_its_parent_is_refused_and_never_zero() {
    let mut chunks = Chunks::default();
    let (whole, empty) = (mixed(), Pages::new());
    let delta = dump(&whole, &mut chunks, Packing::SMALL, |_| true).root;
    let other = dump(&empty, &mut chunks, Packing::SMALL, |_| false).root;
    let alone = reader(&[&delta], &chunks).unwrap();
    assert!(matches!(alone.fetch(101), Err(Error::NoParent { page: 101 })));
    assert!(matches!(restore(&alone, 1), Err(Error::NoParent { .. })));
    let wrong = reader(&[&delta, &other], &chunks).unwrap();
    assert!(wrong.fetch(101).is_err() && restore(&wrong, 1).is_err());
}

/// Fails at the given append.
struct FullStore(usize);

impl ChunkSink for FullStore {
    fn append(&mut self, _: &[u8]) -> Result<ChunkId, BoxError> {
        self.0 = self.0.checked_sub(1).ok_or("no space left")?;
        Ok(ChunkId::new(b"x").unwrap())
    }
}

#[test]
fn a_store_that_fails_ends_the_dump() {
    let pages: Pages = (0..6400).map(|page| (page, noise(page))).collect();
    let (options, none) = (Options { packing: Packing::FAST, threads: 2 }, Known::default());
    for appends in [0, 1, 50] {
        let result = memory::dump(
            &Source(&pages),
            pieces(&pages, |_| false).into_iter(),
            &mut FullStore(appends),
            options,
            &none,
        );
        assert!(matches!(result, Err(Error::Write { .. })));
    }
}

#[test]
fn a_scan_that_fails_ends_the_dump() {
    let pages = mixed();
    let mut pieces = pieces(&pages, |_| false);
    pieces.push(Err(Error::TooLarge("a test")));
    let options = Options { packing: Packing::FAST, threads: 2 };
    let result = memory::dump(&Source(&pages), pieces.into_iter(), &mut Chunks::default(), options, &Known::default());
    assert!(matches!(result, Err(Error::TooLarge("a test"))));
}

#[test]
fn a_missing_chunk_ends_a_restore() {
    let pages: Pages = (0..6400).map(|page| (page, noise(page))).collect();
    let mut chunks = Chunks::default();
    let root = dump(&pages, &mut chunks, Packing::FAST, |_| false).root;
    chunks.chunks.truncate(2);
    let reader = reader(&[&root], &chunks).unwrap();
    for threads in [1, 4] {
        assert!(matches!(restore(&reader, threads), Err(Error::Read { .. })));
    }
}
