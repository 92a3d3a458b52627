//! What each codec makes of real memory: `cargo run --release -p pando-memory --example codecs -- PID...`
//!
//! The rule in `memory::codec` stands on this table. Speeds are of one core, in MB/s of unpacked pages.

mod common;

use std::collections::HashSet;

use anyhow::{Context, Result};
use memory::{
    PAGE_BYTES,
    codec::{Codec, Decoder, Encoder},
};
use zstd::bulk::{Compressor, Decompressor};

/// Unpacked clusters and their packed forms, by a codec that may keep state.
trait Packer {
    fn pack(&mut self, plain: &[u8]) -> Result<(Codec, Vec<u8>)>;
    fn unpack(&mut self, codec: Codec, packed: &[u8], plain: &mut [u8]) -> Result<()>;
}

/// What images are made of.
struct Own(Encoder, Decoder);

impl Packer for Own {
    fn pack(&mut self, plain: &[u8]) -> Result<(Codec, Vec<u8>)> {
        let mut packed = Vec::new();
        Ok((self.0.encode(plain, &mut packed), packed))
    }

    fn unpack(&mut self, codec: Codec, packed: &[u8], plain: &mut [u8]) -> Result<()> {
        Ok(self.1.decode(codec, packed, plain)?)
    }
}

/// Other levels of zstd, and dictionaries.
struct Zstd(Compressor<'static>, Decompressor<'static>);

impl Packer for Zstd {
    fn pack(&mut self, plain: &[u8]) -> Result<(Codec, Vec<u8>)> {
        Ok((Codec::Zstd, self.0.compress(plain)?))
    }

    fn unpack(&mut self, _: Codec, packed: &[u8], plain: &mut [u8]) -> Result<()> {
        self.1.decompress_to_buffer(packed, plain)?;
        Ok(())
    }
}

fn row(name: &str, all: usize, data: &[u8], pages: usize, packer: &mut dyn Packer) -> Result<()> {
    let clusters = || data.chunks(pages * PAGE_BYTES);
    let mut packed = Vec::new();
    let pack = common::seconds(3, || {
        packed = clusters().map(|plain| packer.pack(plain)).collect::<Result<_>>()?;
        Ok(())
    })?;
    let mut plain = vec![0; pages * PAGE_BYTES];
    let unpack = common::seconds(9, || {
        packed
            .iter()
            .zip(clusters())
            .try_for_each(|((codec, packed), cluster)| packer.unpack(*codec, packed, &mut plain[..cluster.len()]))
    })?;
    let bytes: usize = packed.iter().map(|(_, packed)| packed.len()).sum();
    let (percent, million) = (bytes as f64 * 100. / all as f64, data.len() as f64 / 1e6);
    let (pack, unpack, fault) = (million / pack, million / unpack, unpack * 1e6 / packed.len() as f64);
    println!("| {name} | {pages} | {percent:.2} % | {pack:.0} | {unpack:.0} | {fault:.1} us |");
    Ok(())
}

fn main() -> Result<()> {
    for pid in common::pids()? {
        let _stopped = common::Stopped::new(pid)?;
        let memory = common::read(pid)?;
        let all = memory.bytes.len();
        let mut seen = HashSet::new();
        let new = |page: &&[u8]| **page != [0; PAGE_BYTES] && seen.insert(*blake3::hash(page).as_bytes());
        let data: Vec<u8> = memory.bytes.chunks(PAGE_BYTES).filter(new).flatten().copied().collect();
        let zero = |page: &&[u8]| **page == [0; PAGE_BYTES];
        let zeros = memory.bytes.chunks(PAGE_BYTES).filter(zero).count() * PAGE_BYTES;
        let percent = |bytes: usize| bytes as f64 * 100. / all as f64;
        println!("\n{} (pid {pid}): {:.1} MB in {} runs", memory.name, all as f64 / 1e6, memory.runs.len());
        println!("zero {:.2} %, equal to another {:.2} %\n", percent(zeros), percent(all - zeros - data.len()));
        println!("| codec | pages | size | pack | unpack | one cluster |\n|---|---|---|---|---|---|");
        for (codec, sizes) in [(Codec::Raw, &[16][..]), (Codec::Lz4, &[1, 4, 16, 64]), (Codec::Zstd, &[1, 4, 16, 64])] {
            for pages in sizes {
                row(&format!("{codec:?}"), all, &data, *pages, &mut Own(Encoder::new(codec)?, Decoder::new()?))?;
            }
        }
        for level in [-3, 3] {
            let mut packer = Zstd(Compressor::new(level)?, Decompressor::new()?);
            row(&format!("zstd level {level}"), all, &data, 16, &mut packer)?;
        }
        dictionary(all, &data)?;
        let whole = zstd::bulk::compress(&memory.bytes, 3)?;
        println!("\nall of it as one stream, zstd level 3: {:.2} %", percent(whole.len()));
    }
    Ok(())
}

/// A dictionary trained on 8 MiB of the same memory.
fn dictionary(all: usize, data: &[u8]) -> Result<()> {
    const DICTIONARY_BYTES: usize = 64 << 10;
    let samples: Vec<&[u8]> = data.chunks(PAGE_BYTES).step_by((data.len() >> 23).max(1)).collect();
    let start = std::time::Instant::now();
    let dictionary = zstd::dict::from_samples(&samples, DICTIONARY_BYTES).context("train a dictionary")?;
    let trained = start.elapsed().as_secs_f64();
    for pages in [4, 16] {
        let packer = Zstd(Compressor::with_dictionary(1, &dictionary)?, Decompressor::with_dictionary(&dictionary)?);
        row(&format!("zstd, dictionary (trained in {trained:.2} s)"), all, data, pages, &mut { packer })?;
    }
    Ok(())
}
