//! Rounds on nodes that are new each time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use crate::{
    node::{PrivateNode, Started},
    pages::Paged,
    place::Way,
};

/// After a removal a node makes room again.
const SETTLE: Duration = Duration::from_millis(200);

/// The kernel takes its time to free what the node before has had: gigabytes, in the longest rounds.
const CALM: Duration = Duration::from_secs(1);

/// After this the first restore of a checkpoint has written its working set down.
const RECORDED: Duration = Duration::from_secs(4);

/// The first start of a checkpoint on a node.
pub(super) struct First {
    pub(super) started: Started,
    /// What came from the objects for it, if that is counted on the way.
    pub(super) bytes: Option<u64>,
    /// What the pager had handed out, if there was one.
    pub(super) paged: Option<Paged>,
    /// The second one.
    pub(super) again: Started,
}

/// Starts the checkpoint on `rounds` nodes, one after the other. Beside them: what the restore before these, which records the working set
/// if that was not done yet, faulted on until the first answer.
pub(super) async fn first_answers(way: &Way, name: &str, rounds: u32) -> Result<(Vec<First>, Option<Paged>)> {
    let (mut firsts, mut recording) = (Vec::new(), None);
    for round in 0..=rounds {
        let node = PrivateNode::fresh(way).await?;
        tokio::time::sleep(CALM).await;
        let before = way.bytes();
        let (sandbox, started) = node.start_one(name).await?;
        let bytes = way.bytes().zip(before).map(|(after, before)| after - before);
        let paged = node.paged().await?;
        node.remove(&sandbox.id).await?;
        tokio::time::sleep(SETTLE).await;
        let (_, again) = node.start_one(name).await?;
        if round == 0 {
            tokio::time::sleep(RECORDED).await;
        }
        node.stop().await?;
        // The first one brings files of the host into memory that no node owns, and records the working set.
        if round > 0 {
            firsts.push(First { started, bytes, paged, again });
        } else {
            recording = paged;
        }
    }
    Ok((firsts, recording))
}

/// Starts the checkpoint so many times at once on one node; gives the times of each, and the time of all.
pub(super) async fn many_at_once(way: &Way, name: &str, count: u32) -> Result<(Vec<Started>, Duration)> {
    let node = Arc::new(PrivateNode::fresh(way).await?);
    let began = Instant::now();
    let mut starting = JoinSet::new();
    for _ in 0..count {
        let (node, name) = (node.clone(), name.to_owned());
        starting.spawn(async move { node.start_one(&name).await });
    }
    let mut started = Vec::new();
    while let Some(one) = starting.join_next().await {
        started.push(one??.1);
    }
    let total = began.elapsed();
    Arc::into_inner(node).context("the node is still in use")?.stop().await?;
    Ok((started, total))
}
