//! Small questions to an image: which pages it has, and the bytes of a few.

use std::sync::{Mutex, PoisonError};

use crate::{
    chunks::ChunkSource,
    error::{BoxError, Error},
    page::{PAGE_BYTES, PageRun},
    reader::PageReader,
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
