//! Many starts at once.

use std::thread;

use anyhow::{Context, Result, ensure};
use api::RunResponse;
use pando_host_tests::runner::Case;

use crate::checkpoint::{Shared, take};

const NODES: usize = 4;
const STARTS: usize = 50;

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("burst::a_checkpoint_is_restored_once_for_all_who_start_it_at_once", restored_once)]
}

fn restored_once() -> Result<()> {
    let shared = Shared::new()?;
    let node = shared.node()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    take(&node, &id, "kept")?;
    for _ in 0..NODES {
        let fresh = shared.node()?;
        let start = || -> Result<RunResponse> {
            let (status, body) = fresh.api("POST /v1/templates/kept/run", b"{\"count\": 1}")?;
            ensure!(status == 200, "{status} {body}");
            serde_json::from_str(&body).context("not an answer")
        };
        let responses: Vec<RunResponse> = thread::scope(|scope| {
            let starting: Vec<_> = (0..STARTS).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|one| one.join().expect("it does not panic")).collect::<Result<_>>()
        })?;
        let started = responses.iter().map(|response| response.sandboxes.len()).sum::<usize>();
        let failures: Vec<_> = responses.iter().flat_map(|response| &response.failures).collect();
        ensure!(started == STARTS && failures.is_empty(), "{started} started: {failures:?}");
        let notices: Vec<&String> = responses.iter().flat_map(|response| &response.notices).collect();
        ensure!(notices.len() == 1 && notices[0].contains("was restored"), "{notices:?}\n{}", fresh.log_tail());
        fresh.finish()?;
    }
    node.finish()
}
