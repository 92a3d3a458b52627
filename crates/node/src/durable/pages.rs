//! The memory of a checkpoint, as the pager asks for it. In the pager's process: with a runtime and a store of its own.

use std::{
    collections::HashMap,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use memory::{Fetched, PageReader, PageRun, PageTarget};
use pager::{Cluster, OpenSource, PageSource, SourceError};
use tokio::runtime::{Handle, Runtime};

use super::{Checkpoint, Chunks, Durable, Settings, Storing};
use crate::error::{Error, Result};

const PAGE: u64 = memory::PAGE_BYTES as u64;

/// Opens the memory of checkpoints; what it gets is the manifest's name. It is made before the process has threads, so it opens nothing
/// before it is asked.
pub(crate) struct Opener {
    settings: Settings,
    state_dir: PathBuf,
    opened: OnceLock<(Runtime, Durable)>,
}

impl Opener {
    pub(crate) fn new(settings: Settings, state_dir: PathBuf) -> Self {
        Self { settings, state_dir, opened: OnceLock::new() }
    }

    fn opened(&self) -> Result<&(Runtime, Durable)> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let runtime = Runtime::new().map_err(|source| Error::System { action: "start a runtime", source })?;
        let durable = runtime.block_on(Durable::open(&self.settings, &self.state_dir))?;
        // If another thread was faster, this one's is dropped.
        Ok(self.opened.get_or_init(|| (runtime, durable)))
    }

    fn open_pages(&self, manifest: &[u8]) -> Result<Stored> {
        let (runtime, durable) = self.opened()?;
        let manifest = String::from_utf8_lossy(manifest).into_owned();
        let checkpoint = runtime.block_on(Checkpoint::of_manifest(durable, &manifest))?;
        let reader = checkpoint.pages(durable, runtime.handle())?;
        let clusters = reader.clusters().storing("read the index of a page image")?;
        // Every page is in the image as well: without the working set they come later.
        let hot = Hot::of(&checkpoint, durable, runtime.handle()).unwrap_or_else(|error| {
            tracing::warn!(error = crate::chain(&error), "the working set cannot be read");
            Hot::default()
        });
        Ok(Stored { reader, clusters, hot })
    }
}

impl OpenSource for Opener {
    fn open(&self, image: &[u8]) -> std::result::Result<Arc<dyn PageSource>, SourceError> {
        // Asked again for as long as the pager has patience: the store may be out of reach for a while.
        let stored = self.open_pages(image).map_err(|error| SourceError::Transient(Box::new(error)))?;
        Ok(Arc::new(stored))
    }
}

/// The pages that are touched first, read from front to back when the image is opened.
#[derive(Default)]
struct Hot {
    order: Vec<u64>,
    pages: HashMap<u64, Arc<Vec<u8>>>,
}

impl Hot {
    fn of(checkpoint: &Checkpoint, durable: &Durable, runtime: &Handle) -> Result<Self> {
        let hot = Mutex::new(Self::default());
        if let Some(set) = checkpoint.hot_set(durable, runtime)? {
            set.read(&durable.chunks(runtime), &Collector(&hot)).storing("read the working set")?;
        }
        Ok(hot.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Collector<'a>(&'a Mutex<Hot>);

impl PageTarget for Collector<'_> {
    fn data(&self, first: u64, bytes: &[u8]) -> std::result::Result<(), memory::BoxError> {
        let mut hot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, bytes) in (first..).zip(bytes.chunks(memory::PAGE_BYTES)) {
            hot.order.push(page * PAGE);
            hot.pages.insert(page, Arc::new(bytes.to_vec()));
        }
        Ok(())
    }

    fn zero(&self, _pages: PageRun) -> std::result::Result<(), memory::BoxError> {
        // Zeros need no prefetching.
        Ok(())
    }
}

struct Stored {
    reader: PageReader<Chunks>,
    /// Pages that are decoded together, in order.
    clusters: Vec<PageRun>,
    hot: Hot,
}

impl Stored {
    /// The cluster that has the page at `address`, or that page alone: if it came with the working set, and as long as none is known, so
    /// that what is recorded are the pages that are touched and not their neighbours.
    fn find(&self, address: u64) -> PageRun {
        let page = address / PAGE;
        if self.hot.order.is_empty() || self.hot.pages.contains_key(&page) {
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
        if let Some(bytes) = self.hot.pages.get(&run.first).filter(|_| run.count == 1) {
            return Ok(Cluster { start: run.address(), bytes: Arc::clone(bytes) });
        }
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
        self.hot.pages.contains_key(&(address / PAGE)) || self.reader.is_open(address / PAGE)
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

    fn hot(&self) -> Vec<u64> {
        self.hot.order.clone()
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
