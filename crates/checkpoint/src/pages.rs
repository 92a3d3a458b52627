//! The memory of a checkpoint, as the pager asks for it. In the pager's process: with a runtime and a store of its own.

use std::{
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, TryLockError},
};

use base::frame;
use memory::{Fetched, PageReader, PageRun};
use pager::{Cluster, OpenSource, PageSource, SourceError};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::{BlobRef, Chunks, Durable, Program, Settings, page_reader};
use crate::error::{Error, Result, Storing};

/// Of the frame around what the pager is told.
const FRAME: u16 = 0x4e03;
const VERSION: u16 = 1;

const PAGE: u64 = memory::PAGE_BYTES as u64;

/// What the pager is told of the memory of a checkpoint, so that it need not ask for the manifest.
#[derive(Serialize, Deserialize)]
pub struct PageImageRoots {
    /// Newest first.
    roots: Vec<BlobRef>,
    is_recorded: bool,
}

impl PageImageRoots {
    /// Of the program of a checkpoint.
    pub fn of(program: &Program) -> Self {
        Self { roots: program.images().cloned().collect(), is_recorded: program.hot.is_some() }
    }

    /// As the pager is told them.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let bytes = postcard::to_stdvec(self).storing("describe the memory of a checkpoint")?;
        frame::encode(FRAME, VERSION, &bytes).storing("describe the memory of a checkpoint")
    }

    /// A pager may be older or newer than the node that asks it.
    fn decode(framed: &[u8]) -> Result<Self> {
        let (_, bytes) = frame::decode(framed, FRAME, VERSION).storing("read the description of a page image")?;
        postcard::from_bytes(bytes).storing("read the description of a page image")
    }
}

/// Opens the memory of checkpoints; what it gets are encoded [`PageImageRoots`]. It is made before the process has threads, so it opens nothing
/// before it is asked.
pub struct Opener {
    settings: Settings,
    state_dir: PathBuf,
    node: String,
    opened: OnceLock<(Runtime, Durable)>,
    /// Held while the store is opened.
    opening: Mutex<()>,
}

impl Opener {
    /// For the node of this id, with this state.
    pub fn new(settings: Settings, state_dir: PathBuf, node: String) -> Self {
        Self { settings, state_dir, node, opened: OnceLock::new(), opening: Mutex::new(()) }
    }

    fn opened(&self) -> Result<&(Runtime, Durable)> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _only = match self.opening.try_lock() {
            Ok(only) => only,
            Err(TryLockError::Poisoned(only)) => only.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Whoever is at it does it for all who wait. Failures, too, or each would wait for those of all before it.
                drop(self.opening.lock());
                return self.opened.get().ok_or("it could not be opened: the log says why").storing("open the store");
            }
        };
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let runtime = Runtime::new().map_err(|source| Error::System { action: "start a runtime", source })?;
        let durable = runtime.block_on(Durable::open(&self.settings, &self.state_dir, &self.node))?;
        Ok(self.opened.get_or_init(|| (runtime, durable)))
    }

    fn open_pages(&self, image: PageImageRoots) -> Result<Stored> {
        let PageImageRoots { roots, is_recorded } = image;
        let (runtime, durable) = self.opened()?;
        let reader = page_reader(roots.iter(), durable, runtime.handle())?;
        let clusters = reader.clusters().storing("read the index of a page image")?;
        Ok(Stored { reader, clusters, is_recorded })
    }
}

impl OpenSource for Opener {
    fn prepare(&self) {
        if let Err(error) = self.opened() {
            tracing::warn!(error = base::error::chain(&error), "the store cannot be opened yet");
        }
    }

    fn open(&self, image: &[u8]) -> std::result::Result<Arc<dyn PageSource>, SourceError> {
        let image = PageImageRoots::decode(image).map_err(|error| SourceError::Permanent(Box::new(error)))?;
        // Asked again for as long as the pager has patience: the store may be out of reach for a while.
        let stored = self.open_pages(image).map_err(|error| SourceError::Transient(Box::new(error)))?;
        Ok(Arc::new(stored))
    }
}

struct Stored {
    reader: PageReader<Chunks>,
    /// Pages that are decoded together, in order.
    clusters: Vec<PageRun>,
    /// The pages that are touched first are known, and were in the zygote before the pager got it.
    is_recorded: bool,
}

impl Stored {
    /// The cluster that has the page at `address`, or that page alone as long as no working set is known, so that what is recorded are the
    /// pages that are touched and not their neighbours.
    fn find(&self, address: u64) -> PageRun {
        let page = address / PAGE;
        if !self.is_recorded {
            return PageRun { first: page, count: 1 };
        }
        let at = self.clusters.partition_point(|run| run.end() <= page);
        match self.clusters.get(at) {
            Some(run) if run.first <= page => *run,
            Some(_) | None => PageRun { first: page, count: 1 },
        }
    }
}

impl PageSource for Stored {
    fn extent(&self, address: u64) -> Range<u64> {
        let run = self.find(address);
        run.address()..run.address() + run.bytes()
    }

    fn cluster(&self, address: u64) -> std::result::Result<Cluster, SourceError> {
        let run = self.find(address);
        let bytes = match self.reader.fetch(address / PAGE).map_err(failed)? {
            Fetched::Data(pages, bytes) if pages.first <= run.first && run.end() <= pages.end() => {
                let from = ((run.first - pages.first) * PAGE) as usize;
                bytes[from..from + run.bytes() as usize].to_vec()
            }
            // Packed otherwise than usual: the same pages, in more steps.
            Fetched::Data(..) | Fetched::Zero(_) => self.reader.read(run).map_err(failed)?,
            Fetched::Absent => return Err(SourceError::Permanent("the checkpoint has no such page".into())),
        };
        Ok(Cluster { start: run.address(), bytes: Arc::new(bytes) })
    }

    fn is_local(&self, address: u64) -> bool {
        self.reader.is_open(address / PAGE)
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for run in &self.clusters {
            match ranges.last_mut() {
                Some(last) if last.end == run.address() => last.end += run.bytes(),
                _ => ranges.push(run.address()..run.address() + run.bytes()),
            }
        }
        ranges
    }

    fn is_recorded(&self) -> bool {
        self.is_recorded
    }
}

/// What is damaged stays so; everything else may pass.
fn failed(error: memory::Error) -> SourceError {
    let damaged = match &error {
        memory::Error::Read { source, .. } => matches!(
            source.downcast_ref::<store::chunks::ChunkError>(),
            Some(store::chunks::ChunkError::Damaged { .. } | store::chunks::ChunkError::Impossible { .. })
        ),
        memory::Error::Damaged { .. } => true,
        _ => false,
    };
    if damaged { SourceError::Permanent(Box::new(error)) } else { SourceError::Transient(Box::new(error)) }
}

/// As `checkpoint::fuzz`.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(payload: &[u8]) {
    let framed = frame::encode(FRAME, VERSION, payload).expect("short");
    if let Ok(roots) = PageImageRoots::decode(&framed) {
        let again = roots.encode().expect("it was read");
        let again = PageImageRoots::decode(&again).expect("it was written");
        assert!(again.roots == roots.roots && again.is_recorded == roots.is_recorded);
    }
}
