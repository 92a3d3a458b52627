//! Checkpoints as files: out of one store and into another, which has other keys. The layout is in `docs/formats/checkpoint-file.md`.
//!
//! A file is written and read from front to back, a few MiB at a time. It is not sealed: whoever has it has the program's memory.

mod file;
mod volumes;

use std::{
    collections::HashMap,
    io::{self, Read, Write},
};

use base::id::TemplateName;
use memory::{BoxError, ChunkId, ChunkMover, ChunkSink, ChunkSource};
use model::TemplateSpec;
use serde::{Deserialize, Serialize};
use store::{Store, id::ManifestId, segment::ChunkRef};
use tokio::runtime::Handle;

pub use self::volumes::Archives;
#[cfg(feature = "fuzzing")]
pub use self::volumes::NoArchives;
use self::{
    file::{Contents, FileReader, FileWriter, Kind, PIECE_BYTES, damaged},
    volumes::{count_volumes, read_volumes, write_volumes},
};
use super::{
    BlobRef, Checkpoint, Counts, Durable, Program, Storing, Writing,
    check::{self, Checked},
    name_of, nouns,
};
use crate::error::{Error, Result};

/// Chunks that are read at once: 2 MiB of pages.
const CHUNKS_AT_ONCE: usize = 8;
/// Most bytes of the index of a file's pages: room for terabytes of memory.
const INDEX_BYTES_MAX: usize = 64 << 20;
/// Most chunks of pages: their new places take 32 bytes each. That is 1 TiB of pages that differ.
const CHUNKS_MAX: usize = 4 << 20;
/// Most layers: the kernel stacks no more.
const LAYERS_MAX: usize = 500;

/// The first record.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    #[serde(with = "nouns::TemplateSpec")]
    spec: TemplateSpec,
    created_ms: u64,
    counts: Counts,
    /// How many images of memory follow the first one, which was taken against them.
    base: usize,
    /// Bytes of the state, and of each layer.
    state: u64,
    layers: Vec<u64>,
    /// How many volumes follow the layers.
    #[serde(default, skip_serializing_if = "is_zero")]
    volumes: usize,
    /// There is neither a state nor an image of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    files_only: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Writes `checkpoint` to `out`. Blocks.
pub fn export<A: Archives>(
    checkpoint: &Checkpoint,
    durable: &Durable,
    runtime: &Handle,
    archives: &mut A,
    out: impl Write,
) -> Result<(), A::Error> {
    // The working set is learned anew, where it is started. Lists of contents are believed, so none is taken from a file.
    let Checkpoint { spec, created_ms, program, layers, counts, volumes } = checkpoint;
    let contents = match program {
        None => Contents::FilesOnly,
        Some(_) if volumes.is_empty() => Contents::Program,
        Some(_) => Contents::WithVolumes,
    };
    let mut file = FileWriter::new(out, contents);
    let description = Description {
        spec: spec.clone(),
        created_ms: *created_ms,
        counts: counts.clone(),
        state: program.as_ref().map_or(0, |program| program.state.bytes),
        base: program.as_ref().map_or(0, |program| program.base.len()),
        layers: layers.iter().map(|layer| layer.bytes).collect(),
        volumes: count_volumes(volumes),
        files_only: program.is_none(),
    };
    file.write(Kind::Description, &serde_json::to_vec(&description).storing("describe the checkpoint")?)?;
    if let Some(program) = program {
        write_program(&mut file, program, durable, runtime)?;
    }
    for layer in layers {
        write_blob(&mut file, layer, &durable.store, runtime)?;
    }
    write_volumes(&mut file, &checkpoint.kept_volumes()?, archives)?;
    Ok(file.finish()?)
}

/// Writes the state and every image of memory.
fn write_program(
    file: &mut FileWriter<impl Write>,
    program: &Program,
    durable: &Durable,
    runtime: &Handle,
) -> Result<()> {
    write_blob(file, &program.state, &durable.store, runtime)?;
    let chunks = durable.chunks(runtime);
    for root in program.images() {
        let root = root.read(&durable.store, runtime, INDEX_BYTES_MAX as u64)?;
        let image = memory::PageImage::open(&root).storing("open a page image")?;
        let mut pages = Pages { file: &mut *file, source: &chunks, numbers: HashMap::new(), leaves: 0 };
        let root = image.moved(&chunks, &mut pages).storing("write the memory")?;
        file.write(Kind::Root, &root)?;
    }
    Ok(())
}

fn write_blob(file: &mut FileWriter<impl Write>, blob: &BlobRef, store: &Store, runtime: &Handle) -> Result<()> {
    let mut reader = blob.open(store, runtime)?;
    let mut left = blob.bytes;
    let mut piece = Vec::new();
    loop {
        piece.clear();
        let read = reader.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).storing("read a blob")? as u64;
        match left.checked_sub(read) {
            Some(0) if read == 0 => return Ok(()),
            Some(rest) if read > 0 => left = rest,
            Some(_) | None => return Err("it has not as many bytes as it should").storing("read a blob"),
        }
        file.write(Kind::Piece, &piece)?;
    }
}

/// The pages of an image on their way into a file. Chunks and leaves are numbered there, each from 0.
struct Pages<'a, W> {
    file: &'a mut FileWriter<W>,
    source: &'a super::Chunks,
    numbers: HashMap<ChunkId, u64>,
    leaves: u64,
}

impl<W: Write> ChunkSink for Pages<'_, W> {
    fn append(&mut self, bytes: &[u8]) -> std::result::Result<ChunkId, BoxError> {
        self.file.write(Kind::Leaf, bytes)?;
        self.leaves += 1;
        number_name(self.leaves - 1)
    }
}

impl<W: Write> ChunkMover for Pages<'_, W> {
    fn names(&mut self, chunks: &[ChunkId]) -> std::result::Result<Vec<ChunkId>, BoxError> {
        let new: Vec<ChunkId> = chunks.iter().filter(|id| !self.numbers.contains_key(*id)).copied().collect();
        for ids in new.chunks(CHUNKS_AT_ONCE) {
            for (id, bytes) in ids.iter().zip(self.source.read_many(ids)?) {
                self.file.write(Kind::Chunk, &bytes)?;
                self.numbers.insert(*id, self.numbers.len() as u64);
            }
        }
        chunks.iter().map(|id| number_name(*self.numbers.get(id).ok_or("a chunk that was not written")?)).collect()
    }
}

fn number_name(number: u64) -> std::result::Result<ChunkId, BoxError> {
    ChunkId::new(&number.to_le_bytes()).ok_or_else(|| "a chunk's name is too long".into())
}

fn number_of(id: &ChunkId) -> std::result::Result<usize, BoxError> {
    Ok(u64::from_le_bytes(id.as_bytes().try_into()?).try_into()?)
}

/// What becomes of a file.
pub struct Import<'a, E> {
    /// Another name than it had.
    pub name: Option<TemplateName>,
    /// Take the place of a checkpoint of that name.
    pub replace: bool,
    /// Whether this node would take such a template.
    pub admit: fn(&TemplateSpec) -> Result<(), E>,
    /// A directory that is not there yet, for what has to be unpacked to be checked.
    pub scratch: &'a std::path::Path,
}

/// Takes a checkpoint over from `input`. It gets its name when everything is stored, has been read back and is whole. Blocks.
pub fn import<A: Archives>(
    import: Import<'_, A::Error>,
    durable: &Durable,
    runtime: &Handle,
    archives: &mut A,
    input: impl Read,
) -> Result<(Checkpoint, ManifestId), A::Error> {
    let mut file = FileReader::new(input);
    let (_, description) = file.next(&[Kind::Description])?;
    let Description { mut spec, created_ms, counts, base, state, layers, volumes, files_only } =
        serde_json::from_slice(&description).map_err(damaged)?;
    spec.name = import.name.unwrap_or(spec.name);
    (import.admit)(&spec)?;
    if layers.len() > LAYERS_MAX || base >= memory::limits::LAYERS_MAX {
        return Err(damaged(format!("it has {} layers and {base} images", layers.len())).into());
    }
    let may_replace = import.replace;
    let replaced =
        |name: &TemplateName| match runtime.block_on(durable.heads.get(durable.store.realm(), &name_of(name)?)) {
            Ok(_) if !may_replace => Err(Error::Exists(name.clone())),
            Ok(head) => Ok(Some(head)),
            Err(store::heads::HeadsError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error).storing("look for a checkpoint"),
        };
    // Before a long transfer in vain.
    replaced(&spec.name)?;
    let mut writing = Writing::begin(durable, runtime, &format!("import {}", spec.name))?;
    if files_only != file.has_files_only() || files_only && (state != 0 || base != 0) {
        return Err(damaged("its version, its description and its parts do not agree on a program").into());
    }
    let program = if files_only { None } else { Some(read_program(&mut file, &mut writing, state, base)?) };
    let layers = layers.into_iter().map(|bytes| read_blob(&mut file, &mut writing, bytes)).collect::<Result<_>>()?;
    let volumes = read_volumes(&mut file, volumes, &spec.mount_points, &writing, archives)?;
    file.finish()?;
    writing.finish_segment()?;
    let checkpoint = Checkpoint { spec, created_ms, program, layers, counts, volumes };
    let mut checked = Checked::default();
    check::contents(&checkpoint, durable, runtime, import.scratch, &mut checked);
    check::volumes(&checkpoint, durable, runtime, &mut checked);
    if let Some(model::Damage { part, problem }) = checked.damage.into_iter().next() {
        return Err(damaged(format!("what was stored of it does not read back: {part}: {problem}")).into());
    }
    // Again: meanwhile it may have been replaced, or its working set noted.
    let (manifest, _) = checkpoint.commit(writing, replaced(&checkpoint.spec.name)?.as_ref(), None)?;
    Ok((checkpoint, manifest))
}

/// Reads a state of so many bytes, an image of memory, and those that it was taken against.
fn read_program(file: &mut FileReader<impl Read>, writing: &mut Writing, state: u64, base: usize) -> Result<Program> {
    let state = read_blob(file, writing, state)?;
    let memory = read_pages(file, writing)?;
    let base = (0..base).map(|_| read_pages(file, writing)).collect::<Result<_>>()?;
    Ok(Program { state, memory, base, hot: None, contents: Vec::new() })
}

fn read_blob(file: &mut FileReader<impl Read>, writing: &mut Writing, bytes: u64) -> Result<BlobRef> {
    let mut blob = writing.blob();
    let mut left = bytes;
    while left > 0 {
        let (_, piece) = file.next(&[Kind::Piece])?;
        left = left.checked_sub(piece.len() as u64).ok_or_else(|| damaged("a part is longer than it should be"))?;
        if piece.is_empty() {
            return Err(damaged("a piece is empty"));
        }
        blob.write_all(&piece).storing("write a blob")?;
    }
    blob.finish()
}

fn read_pages(file: &mut FileReader<impl Read>, writing: &mut Writing) -> Result<BlobRef> {
    let (mut chunks, mut leaves, mut leaf_bytes) = (Vec::new(), Vec::new(), 0);
    let root = loop {
        let (kind, bytes) = file.next(&[Kind::Chunk, Kind::Leaf, Kind::Root])?;
        match kind {
            Kind::Root => break bytes,
            Kind::Leaf => {
                leaf_bytes += bytes.len();
                leaves.push(bytes);
            }
            _ => chunks.push(writing.append(&bytes)?),
        }
        if leaf_bytes > INDEX_BYTES_MAX || chunks.len() > CHUNKS_MAX {
            return Err(damaged("it has more memory than a program can"));
        }
    };
    let image = memory::PageImage::open(&root).map_err(damaged)?;
    // What is wrong here is in the file's index, unless the store failed, which says so.
    let root = image.moved(&Leaves(leaves), &mut Moving { chunks, writing }).map_err(|error| match error {
        memory::Error::Write { source } if source.is::<Error>() => {
            Error::Store { action: "write the index of the memory", source }
        }
        error => damaged(error),
    })?;
    super::write_bytes(writing, &root)
}

/// Parts of an index by their numbers.
struct Leaves(Vec<Vec<u8>>);

impl ChunkSource for Leaves {
    fn read(&self, id: &ChunkId) -> std::result::Result<Vec<u8>, BoxError> {
        Ok(self.0.get(number_of(id)?).ok_or("no such part of the index")?.clone())
    }
}

/// The pages of an image on their way into a store, where its chunks are already.
struct Moving<'a> {
    chunks: Vec<ChunkRef>,
    writing: &'a mut Writing,
}

impl ChunkSink for Moving<'_> {
    fn append(&mut self, bytes: &[u8]) -> std::result::Result<ChunkId, BoxError> {
        ChunkSink::append(self.writing, bytes)
    }
}

impl ChunkMover for Moving<'_> {
    fn names(&mut self, chunks: &[ChunkId]) -> std::result::Result<Vec<ChunkId>, BoxError> {
        let name = |id: &ChunkId| {
            let chunk = self.chunks.get(number_of(id)?).ok_or("no such chunk")?;
            ChunkId::new(&chunk.encode()).ok_or_else(|| BoxError::from("a chunk's name is too long"))
        };
        chunks.iter().map(name).collect()
    }
}

/// A file that arrives in parts, from the other end of a connection.
pub struct Arriving {
    parts: tokio::sync::mpsc::Receiver<io::Result<bytes::Bytes>>,
    part: bytes::Bytes,
}

impl Arriving {
    /// In these parts.
    pub fn new(parts: tokio::sync::mpsc::Receiver<io::Result<bytes::Bytes>>) -> Self {
        Self { parts, part: bytes::Bytes::new() }
    }

    /// Lets the other end say all it has to say: it listens to an answer only then.
    pub fn discard_rest(&mut self) {
        while let Some(Ok(_)) = self.parts.blocking_recv() {}
    }
}

impl Read for Arriving {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part?,
                None => return Ok(0),
            }
        }
        let taken = into.len().min(self.part.len());
        into[..taken].copy_from_slice(&self.part.split_to(taken));
        Ok(taken)
    }
}

/// A file that leaves in parts, to the other end of a connection.
pub struct Leaving(pub tokio::sync::mpsc::Sender<io::Result<bytes::Bytes>>);

impl Write for Leaving {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(bytes::Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
