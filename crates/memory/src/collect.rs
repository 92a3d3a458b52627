//! Small questions to an image: which pages it has, and the bytes of a few.

use std::sync::{Mutex, PoisonError};

use crate::{
    chunks::ChunkSource,
    codec::Packing,
    error::{BoxError, Error},
    page::{PAGE_BYTES, PageRun},
    reader::{PageReader, Place},
    restore::PageTarget,
};

impl<S: ChunkSource> PageReader<S> {
    /// All pages that the image has, zeros among them, in order and joined.
    pub fn runs(&self) -> Result<Vec<PageRun>, Error> {
        let mut runs: Vec<PageRun> = Vec::new();
        self.walk(PageRun::ALL, &mut |pages, _| {
            match runs.last_mut() {
                Some(last) if last.end() == pages.first => *last = PageRun::between(last.first, pages.end()),
                _ => runs.push(pages),
            }
            Ok(())
        })?;
        Ok(runs)
    }

    /// The pages that have bytes, in the clusters they were packed in, in order. Reads the index only, so images that are packed in
    /// clusters of another size are cut where theirs are not.
    pub fn clusters(&self) -> Result<Vec<PageRun>, Error> {
        let size = usize::from(Packing::SMALL.cluster_pages);
        let mut clusters = Vec::new();
        self.walk(PageRun::ALL, &mut |pages, place| {
            let Place::Data { ordinal, .. } = place else { return Ok(()) };
            let (mut at, mut ordinal) = (pages.first, ordinal);
            while at < pages.end() {
                let end = pages.end().min(at + (size - ordinal % size) as u64);
                clusters.push(PageRun::between(at, end));
                ordinal += (end - at) as usize;
                at = end;
            }
            Ok(())
        })?;
        Ok(clusters)
    }

    /// Whether `page` can be had without asking the source.
    pub fn is_open(&self, page: u64) -> bool {
        match self.locate(page) {
            Ok(Some((_, Place::Data { id, .. }))) => self.has_open(&id),
            Ok(Some((_, Place::Zero)) | None) => true,
            Err(_) => false,
        }
    }

    /// The bytes of `pages`, in this thread. Pages that the image does not have are zeros. For runs that fit in memory.
    pub fn read(&self, pages: PageRun) -> Result<Vec<u8>, Error> {
        let bytes = Mutex::new(vec![0; pages.bytes() as usize]);
        self.restore(pages, 1, &Collector { first: pages.first, bytes: &bytes })?;
        Ok(bytes.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Collector<'a> {
    first: u64,
    bytes: &'a Mutex<Vec<u8>>,
}

impl PageTarget for Collector<'_> {
    fn data(&self, first: u64, bytes: &[u8]) -> Result<(), BoxError> {
        let at = (first - self.first) as usize * PAGE_BYTES;
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&self, _pages: PageRun) -> Result<(), BoxError> {
        Ok(())
    }
}
