//! The pages of a restored zygote.

use std::{os::fd::OwnedFd, sync::Arc};

use memory::{PageRun, PageTarget};
use sys::uffd::{Outcome, Uffd};
use tokio::runtime::Handle;

use super::Node;
use crate::{
    durable::{Checkpoint, Storing},
    error::{Context, Result},
};

impl Node {
    /// Fills a zygote with the memory of its checkpoint. When this returns it depends on nobody.
    pub(super) async fn fill(self: &Arc<Self>, checkpoint: &Checkpoint, faults: OwnedFd) -> Result<()> {
        let (checkpoint, durable, runtime) = (checkpoint.clone(), self.durable.clone(), Handle::current());
        let fill = move || {
            let reader = checkpoint.pages(&durable, &runtime)?;
            let target = Zygote(Uffd::from(faults));
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            reader.restore(PageRun::ALL, threads, &target).storing("fill the zygote")
        };
        tokio::task::spawn_blocking(fill).await.doing("fill the zygote").flatten()
    }
}

struct Zygote(Uffd);

impl PageTarget for Zygote {
    fn data(&self, first: u64, bytes: &[u8]) -> std::result::Result<(), memory::BoxError> {
        let (mut at, mut end) = (0, bytes.len());
        while at < bytes.len() {
            let address = first * memory::PAGE_BYTES as u64 + at as u64;
            match self.0.copy(address, &bytes[at..end])? {
                Outcome::Done(filled) => at += filled as usize,
                // The kernel fills within one mapping only.
                Outcome::NoMapping if end - at > memory::PAGE_BYTES => end = at + memory::PAGE_BYTES,
                // Changed pages of files do not arrive by fault; they are in place.
                Outcome::NoMapping | Outcome::Exists => at += memory::PAGE_BYTES,
                other @ (Outcome::Again | Outcome::Gone) => return Err(format!("page {address:#x}: {other:?}").into()),
            }
            if at >= end {
                end = bytes.len().min(at + memory::PAGE_BYTES);
            }
        }
        Ok(())
    }

    fn zero(&self, _pages: PageRun) -> std::result::Result<(), memory::BoxError> {
        // What is not filled reads as zeros once nobody watches it.
        Ok(())
    }
}
