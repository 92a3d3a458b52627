//! Many starts at once.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::RunResponse;
use pando_host_tests::{
    node::{Node, Setting},
    runner::Case,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    checkpoint::{Shared, take},
    pager::zygote,
};

const NODES: usize = 4;
const STARTS: usize = 50;

/// After this the starts are under way.
const BEGUN: Duration = Duration::from_millis(300);

/// A third of the deadline of a start, which it takes if turns are kept and waited for without bound. One of the two bounds is enough: the stuck
/// ones each make a sandbox once they are under way, and that takes four seconds of two processors, about as long as the other bound leaves.
const WAITED_MAX: Duration = Duration::from_secs(10);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("burst::a_checkpoint_is_restored_once_for_all_who_start_it_at_once", restored_once),
        Case::new("burst::starts_that_wait_do_not_keep_other_starts_from_their_turn", stuck),
    ]
}

/// The zygote of one template stands still while many more starts of it are asked for than are under way at a time.
fn stuck() -> Result<()> {
    let arguments = ["--pool", "8", "--ahead", "0"].map(str::to_owned).to_vec();
    let node = Node::start_with(Setting { arguments, ..Setting::default() })?;
    node.build_geo("stuck", &["--nidx", "2"])?;
    node.build_geo("well", &["--nidx", "2"])?;
    let still = Pid::from_raw(zygote(&node, "stuck")? as i32).context("no zygote")?;
    kill_process(still, Signal::STOP)?;
    let requests = 300 * thread::available_parallelism()?.get();
    let (well, started) = thread::scope(|scope| {
        let waiting: Vec<_> = (0..requests).map(|_| scope.spawn(|| start(&node, "stuck"))).collect();
        thread::sleep(BEGUN);
        let began = Instant::now();
        let well = start(&node, "well").map(|well| (well, began.elapsed()));
        let woken = kill_process(still, Signal::CONT);
        let started: Result<Vec<_>> = waiting.into_iter().map(|one| one.join().expect("it does not panic")).collect();
        woken.map(|()| (well, started))
    })?;
    let (well, took) = well?;
    ensure!(took < WAITED_MAX, "a start of another template took {took:?}");
    ensure!(well.sandboxes.len() == 1, "{:?}", well.failures);
    node.ask(well.sandboxes[0].id.as_str(), "GET /health")?;
    for response in started? {
        ensure!(response.sandboxes.len() == 1, "{:?}", response.failures);
    }
    node.finish()
}

fn start(node: &Node, template: &str) -> Result<RunResponse> {
    let (status, body) = node.api(&format!("POST /v1/templates/{template}/run"), b"{\"count\": 1}")?;
    ensure!(status == 200, "{status} {body}");
    serde_json::from_str(&body).context("not an answer")
}

fn restored_once() -> Result<()> {
    let shared = Shared::new()?;
    let node = shared.node()?;
    node.build_geo("geo", &["--nidx", "2"])?;
    let id = node.run("geo", 1)?[0].id.to_string();
    take(&node, &id, "kept")?;
    for _ in 0..NODES {
        let fresh = shared.node()?;
        let responses: Vec<RunResponse> = thread::scope(|scope| {
            let starting: Vec<_> = (0..STARTS).map(|_| scope.spawn(|| start(&fresh, "kept"))).collect();
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
