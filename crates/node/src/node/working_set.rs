//! Which pages the sandboxes of a checkpoint touch first: recorded by the first restore anywhere, and merged with what later ones had to wait for.
//!
//! A later restore fills the set before anybody runs, so what is faulted on then is what the set lacks. What it has for nothing is not seen: a
//! page that was filled is touched without anybody noticing. So a set only grows, and how far is bounded ([`missed`]).

use std::{collections::HashSet, path::Path, sync::Arc};

use base::id::TemplateName;
use checkpoint::{Checkpoint, Durable, Program, Writing, lost_race, write_bytes};
use memory::hot::HotSet;
use pager::Client;
use store::verify::is_out_of_reach;
use tokio::runtime::Handle;

use super::Node;
use crate::error::{Context, Result, Storing};

/// Fewer pages that a set lacks are not written down: a quarter of a millisecond of faults.
const MISSED_MIN: usize = 16;
/// Nor less than this part of the set: programs differ a little each time.
const MISSED_PART: usize = 10;
/// What a set grows to by merging at most: 8 MiB. One sandbox that reads all of its memory would otherwise have all later ones wait for that.
const MERGED_PAGES_MAX: usize = 2048;

impl Node {
    /// Some time after a restore, writes down which pages its copies touched first, as far as nobody has done so yet.
    pub(super) fn record_working_set(self: &Arc<Self>, name: &TemplateName, manifest: String, pages: String) {
        let (node, name) = (Arc::clone(self), name.clone());
        tokio::spawn(async move {
            tokio::time::sleep(pager::RECORDING).await;
            let (durable, socket, runtime) = (node.durable.clone(), node.pager.socket(), Handle::current());
            let record = move || record((&name, &manifest), &pages, &socket, &durable, &runtime);
            match tokio::task::spawn_blocking(record).await.doing("record a working set").flatten() {
                Ok(Recorded { pages: 0, .. }) => {}
                Ok(Recorded { pages, known: 0 }) => {
                    tracing::info!(pages, "recorded what copies of the checkpoint touch first")
                }
                Ok(Recorded { pages, known }) => {
                    tracing::info!(pages, known, "merged what copies of the checkpoint had to wait for")
                }
                Err(error) if lost_race(&error) => {
                    tracing::info!("the checkpoint is gone, or another node has recorded a working set")
                }
                // The next restore on any node may do better.
                Err(error) => tracing::warn!(error = crate::chain(&error), "the working set was not recorded"),
            }
        });
    }
}

/// What was written down.
#[derive(Default)]
struct Recorded {
    pages: usize,
    /// Pages that were known before.
    known: usize,
}

/// For the checkpoint `name` that was restored from `manifest`. Blocks.
fn record(
    (name, manifest): (&TemplateName, &str),
    pages: &str,
    socket: &Path,
    durable: &Durable,
    runtime: &Handle,
) -> Result<Recorded> {
    let order = Client::connect(socket).and_then(|mut client| client.working_set(pages)).storing("ask the pager")?;
    let Some((head, mut checkpoint)) = runtime.block_on(Checkpoint::find(durable, name))? else {
        return Ok(Recorded::default());
    };
    // Another one may have its name by now, whose pages these are not.
    if head.manifest.to_string() != manifest
        && !runtime.block_on(Checkpoint::of_manifest(durable, manifest))?.images().eq(checkpoint.images())
    {
        return Ok(Recorded::default());
    }
    let Some(program) = &mut checkpoint.program else { return Ok(Recorded::default()) };
    let order: Vec<u64> = order.iter().map(|address| address / memory::PAGE_BYTES as u64).collect();
    let (mut set, known) = match read(program, durable, runtime) {
        Err(error) if is_out_of_reach(&error) => return Err(error),
        // One that is damaged is recorded anew.
        read => read.unwrap_or_default(),
    };
    let missed = missed(&order, &known);
    if missed.is_empty() {
        return Ok(Recorded::default());
    }
    let reader = program.pages(durable, runtime)?;
    let mut writing = Writing::begin(durable, runtime, &format!("working set of {name}"))?;
    set.extend(&reader, &missed, &mut writing).storing("write the working set")?;
    let encoded = set.encode().storing("write the working set")?;
    program.hot = Some(write_bytes(&mut writing, &encoded)?);
    checkpoint.amend(writing, &head)?;
    Ok(Recorded { pages: missed.len(), known: known.len() })
}

fn read(program: &Program, durable: &Durable, runtime: &Handle) -> Result<(HotSet, HashSet<u64>)> {
    let Some(set) = program.hot_set(durable, runtime)? else { return Ok(Default::default()) };
    let numbers = set.numbers(&durable.chunks(runtime)).storing("read the working set")?;
    Ok((set, numbers))
}

/// What of the pages `order`, as they were faulted on, belongs behind those that are known. A set doubles at most.
fn missed(order: &[u64], known: &HashSet<u64>) -> Vec<u64> {
    if known.is_empty() {
        return order.to_vec();
    }
    let missed = order.iter().copied().filter(|page| !known.contains(page));
    let room = MERGED_PAGES_MAX.saturating_sub(known.len()).min(known.len());
    let missed: Vec<u64> = missed.take(room).collect();
    if missed.len() < MISSED_MIN.max(known.len() / MISSED_PART) { Vec::new() } else { missed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_grows_by_what_it_lacks_if_that_is_worth_it_and_not_without_end() {
        let known = |count: u64| (0..count).collect::<HashSet<u64>>();
        let order = |count: u64| (10_000..10_000 + count).rev().collect::<Vec<u64>>();
        assert_eq!(missed(&order(3), &known(0)), order(3), "the first recording");
        assert!(missed(&order(15), &known(100)).is_empty());
        assert_eq!(missed(&order(16), &known(100)), order(16));
        assert!(missed(&order(39), &known(400)).is_empty());
        assert_eq!(missed(&order(40), &known(400)), order(40));
        let mixed: Vec<u64> = (0..100).chain(order(50)).collect();
        assert_eq!(missed(&mixed, &known(100)), order(50), "in the order of the faults");
        assert_eq!(missed(&order(5_000), &known(100)), order(5_000)[..100], "doubled at most");
        assert_eq!(missed(&order(5_000), &known(1_500)), order(5_000)[..548]);
        assert!(missed(&order(5_000), &known(2_048)).is_empty());
        assert!(missed(&order(5_000), &known(100_000)).is_empty(), "one that was recorded larger stays");
    }
}
