//! Images written by version 1 of the formats stay readable. `PANDO_GOLDEN=write cargo test -p pando-memory --test golden` writes them anew,
//! which only a new version of a format may need.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fs, path::PathBuf};

use memory::{Known, PAGE_BYTES, codec::Packing, hot};
use support::{Chunks, Pages, Target, dump, dump_against, reader, restore};

/// Zero, equal, text and incompressible pages, with a gap.
fn pages() -> Pages {
    let mut noise = vec![0; 40 * PAGE_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    let text = |page: u64| format!("page {page} ").into_bytes().into_iter().cycle().take(PAGE_BYTES).collect();
    let page = |page: u64| match page {
        10..15 => vec![0; PAGE_BYTES],
        15..18 => vec![9; PAGE_BYTES],
        18..20 => noise[(page as usize) * PAGE_BYTES..][..PAGE_BYTES].to_vec(),
        _ => text(page),
    };
    (10..24).chain(40..80).map(|number| (number, page(number))).collect()
}

/// The same, changed since.
fn changed() -> Pages {
    let mut pages = pages();
    pages.remove(&12);
    pages.insert(41, vec![5; PAGE_BYTES]);
    pages
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

const FILES: [&str; 7] = [
    "page-image-v1.root",
    "page-image-v1.chunk",
    "page-image-delta-v1.root",
    "page-image-delta-v1.chunk",
    "page-image-lz4-v1.chunk",
    "hot-set-v1.set",
    "hot-set-v1.chunk",
];

const CONTENT_FILES: [&str; 4] =
    ["contents-v1.list", "contents-v1.piece", "page-image-known-v1.root", "page-image-known-v1.chunk"];

/// The list of contents of the image, and an image that refers to that one's chunk.
fn write_contents() {
    let mut chunks = Chunks::default();
    let contents = dump(&pages(), &mut chunks, Packing::SMALL, |_| false).contents;
    let known = Known::read([&contents[..]], &chunks).unwrap();
    let root = dump_against(&known, &changed(), &mut chunks, Packing::SMALL, |_| false).root;
    let files = [&contents, &chunks.chunks[1], &root, &chunks.chunks[2]];
    CONTENT_FILES.iter().zip(files).for_each(|(name, bytes)| fs::write(golden(name), bytes).unwrap());
}

#[test]
fn version_1_of_lists_of_contents_is_readable() {
    if std::env::var("PANDO_GOLDEN").is_ok_and(|value| value == "write") {
        write_contents();
    }
    let [contents, piece, root, new] = CONTENT_FILES.map(|name| fs::read(golden(name)).unwrap());
    let chunks = Chunks::of(vec![fs::read(golden("page-image-v1.chunk")).unwrap(), piece, new]);
    assert!(restore(&reader(&[&root], &chunks).unwrap(), 1).unwrap() == changed());
    let known = Known::read([&contents[..]], &chunks).unwrap();
    let dumped = dump_against(&known, &pages(), &mut Chunks::default(), Packing::SMALL, |_| false);
    assert_eq!((dumped.totals.data_pages, dumped.totals.duplicate_pages), (0, 0));
    assert_eq!(dumped.known_pages as usize, pages().values().filter(|page| **page != [0; PAGE_BYTES]).count());
}

fn write() {
    let mut chunks = Chunks::default();
    let image = dump(&pages(), &mut chunks, Packing::SMALL, |_| false).root;
    let (before, now) = (pages(), changed());
    let delta = dump(&now, &mut chunks, Packing::SMALL, |page| before.get(&page) == now.get(&page)).root;
    let mut lz4 = Chunks::default();
    dump(&pages(), &mut lz4, Packing::FAST, |_| false);
    let mut hot_chunks = Chunks::default();
    let set = hot::write(&reader(&[&image], &chunks).unwrap(), &[60, 10, 18, 61], &mut hot_chunks).unwrap();
    let files = [&image, &chunks.chunks[0], &delta, &chunks.chunks[1], &lz4.chunks[0]];
    let files = files.into_iter().cloned().chain([set.encode().unwrap(), hot_chunks.chunks[0].clone()]);
    FILES.iter().zip(files).for_each(|(name, bytes)| fs::write(golden(name), bytes).unwrap());
}

#[test]
fn version_1_is_readable() {
    if std::env::var("PANDO_GOLDEN").is_ok_and(|value| value == "write") {
        write();
    }
    let [image, chunk, delta, delta_chunk, lz4_chunk, set, hot_chunk] =
        FILES.map(|name| fs::read(golden(name)).unwrap());
    let chunks = Chunks::of(vec![chunk, delta_chunk.clone()]);
    assert!(restore(&reader(&[&image], &chunks).unwrap(), 1).unwrap() == pages());
    assert!(restore(&reader(&[&delta, &image], &chunks).unwrap(), 1).unwrap() == changed());
    let chunks = Chunks::of(vec![lz4_chunk, delta_chunk]);
    assert!(restore(&reader(&[&image], &chunks).unwrap(), 1).unwrap() == pages());
    let target = Target::default();
    hot::HotSet::open(&set).unwrap().read(&Chunks::of(vec![hot_chunk]), &target).unwrap();
    let order: Vec<u64> = target.calls.lock().unwrap().iter().flat_map(|run| run.first..run.end()).collect();
    assert_eq!(order, [60, 10, 18, 61]);
    assert!(target.pages.lock().unwrap().iter().all(|(page, bytes)| pages()[page] == *bytes));
}
