//! Page images: the memory of a process, classified, deduplicated and compressed while it is read, and readable page by page.
//!
//! ```text
//!  dump     scan ──► read ──► classify ──► pack (all cores) ──► ChunkSink, in order
//!           which    in       zero,        clusters of pages,     │ names each chunk
//!           pages    bulk     seen before, compressed             ▼
//!                             known ◄── contents of older images  image: runs of pages ──► root (small, the caller keeps it)
//!
//!  restore  root ──► PageReader ──► a page and its neighbours      (a fault)
//!                               ──► everything, on all cores       (eager)
//!           HotSet ──► the working set, in the order it was used   (one sequential read)
//! ```
//!
//! A page of an image is *zero*, *data* (a place in a chunk, also one that an equal page already took, here or in an older image) or *parent*
//! (as in the image this one was taken against). What is in no image is not the process's own. The crate knows no store: chunks go to a [`ChunkSink`] and come from a
//! [`ChunkSource`], in bytes that are sealed elsewhere. It makes threads, but nothing asynchronous.
//!
//! Formats: `docs/formats/page-image.md`.

mod chunk;
mod chunks;
mod classify;
pub mod codec;
mod collect;
mod content;
mod dump;
mod error;
pub mod hot;
mod image;
pub mod limits;
mod list;
mod page;
mod read;
mod reader;
mod restore;
pub mod scan;

pub use chunks::{ChunkId, ChunkSink, ChunkSource};
pub use content::{Known, Sample};
pub use dump::{Dump, Options, dump};
pub use error::{BoxError, Damage, Error};
pub use image::{ChunkMover, PageImage, Totals};
pub use page::{PAGE_BYTES, PageRun};
pub use read::{PageSource, ProcessPages};
pub use reader::{ClusterPages, Fetched, PageReader};
pub use restore::PageTarget;
