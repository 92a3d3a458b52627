//! The working set of a checkpoint, put into its zygote before anybody is forked from that: all copies share these pages, and none waits.

use std::sync::{Mutex, PoisonError};

use memory::{PAGE_BYTES, PageRun, PageTarget};
use sys::uffd::{Outcome, Uffd};
use tokio::runtime::Handle;

use super::{Durable, Program};
use crate::error::{Context, Result, Storing};

/// Pages that are touched first: their numbers, and their bytes unless they are zeros.
pub struct HotPages(Vec<(u64, Option<Vec<u8>>)>);

/// Gathers runs of pages, in any order.
#[derive(Default)]
struct Gathered(Mutex<Vec<(u64, Option<Vec<u8>>)>>);

impl Gathered {
    fn add(&self, first: u64, bytes: Option<Vec<u8>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((first, bytes));
    }
}

impl PageTarget for Gathered {
    fn data(&self, first: u64, bytes: &[u8]) -> std::result::Result<(), memory::BoxError> {
        self.add(first, Some(bytes.to_vec()));
        Ok(())
    }

    fn zero(&self, pages: PageRun) -> std::result::Result<(), memory::BoxError> {
        (pages.first..pages.end()).for_each(|page| self.add(page, None));
        Ok(())
    }
}

impl HotPages {
    /// Those of a checkpoint's program; none if they are not known. Blocks.
    pub fn read(program: &Program, durable: &Durable, runtime: &Handle) -> Result<Self> {
        let gathered = Gathered::default();
        if let Some(set) = program.hot_set(durable, runtime)? {
            set.read(&durable.chunks(runtime), &gathered).storing("read the working set")?;
        }
        let mut pages = gathered.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Neighbours are filled by one call.
        pages.sort_unstable_by_key(|(first, _)| *first);
        Ok(Self(join(pages)))
    }

    /// Puts them into the process that `faults` is of. It must stand still, and nobody else read its events.
    pub fn fill(&self, faults: &Uffd) -> Result<()> {
        const PAGE: u64 = PAGE_BYTES as u64;
        self.0.iter().try_for_each(|(first, bytes)| match bytes {
            Some(bytes) => fill_run(faults, first * PAGE, bytes),
            None => {
                let page = first * PAGE..(first + 1) * PAGE;
                let filled = faults.zeropage(page).doing("fill the working set")?;
                check(filled).map(drop)
            }
        })
    }
}

fn join(pages: Vec<(u64, Option<Vec<u8>>)>) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut joined: Vec<(u64, Option<Vec<u8>>)> = Vec::with_capacity(pages.len());
    for (first, bytes) in pages {
        match (joined.last_mut(), bytes) {
            (Some((start, Some(run))), Some(bytes)) if *start + (run.len() / PAGE_BYTES) as u64 == first => {
                run.extend_from_slice(&bytes);
            }
            (_, bytes) => joined.push((first, bytes)),
        }
    }
    joined
}

fn fill_run(faults: &Uffd, address: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    // A run may cross mappings, which one call may not: then page by page.
    let mut step = bytes.len();
    while done < bytes.len() {
        let part = &bytes[done..bytes.len().min(done + step)];
        let outcome = faults.copy(address + done as u64, part).doing("fill the working set")?;
        if outcome == Outcome::NoMapping && part.len() > PAGE_BYTES {
            step = PAGE_BYTES;
        } else {
            done += check(outcome)? as usize;
        }
    }
    Ok(())
}

/// How many bytes are settled.
fn check(outcome: Outcome) -> Result<u64> {
    match outcome {
        Outcome::Done(bytes) => Ok(bytes),
        // Not all of the image is filled by faults: the rest was there from the start.
        Outcome::Exists | Outcome::NoMapping => Ok(PAGE_BYTES as u64),
        Outcome::Gone => Err("the zygote is gone").storing("fill the working set"),
        Outcome::Again => Err("the zygote does not stand still").storing("fill the working set"),
    }
}
