//! Many starts at once.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::RunResponse;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    node::{Node, Setting},
    runner::Case,
};

use super::{checkpoint::take, pager::zygote, shared::Shared, volumes::with_scribe, volumes_faults::process};

const NODES: usize = 4;
const STARTS: usize = 50;

/// After this the starts are under way.
const BEGUN: Duration = Duration::from_millis(300);

/// Far less than the deadline of a start, far more than one takes.
const WAITED_MAX: Duration = Duration::from_secs(3);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("burst::a_checkpoint_is_restored_once_for_all_who_start_it_at_once", restored_once)
            .slow("it restores a program of full size"),
        Case::new("burst::starts_of_a_zygote_that_stands_still_do_not_delay_those_of_others", stuck_zygote)
            .alone("it measures how long starts take"),
        Case::new("burst::starts_that_wait_for_a_volume_keep_no_other_from_its_turn", || {
            with_scribe(&["--pool", "8"], |node| stuck_volume(node))
        })
        .alone("it measures how long starts take"),
    ]
}

/// The zygote of one template stands still while many more starts of it are asked for than are under way at a time.
fn stuck_zygote() -> Result<()> {
    let arguments = ["--pool", "8", "--ahead", "0"].map(str::to_owned).to_vec();
    let node = Node::start_with(Setting { arguments, ..Setting::default() })?;
    node.build_geo("stuck", &["--nidx", "2"])?;
    node.build_geo("well", &["--nidx", "2"])?;
    let id = beside_stuck(&node, zygote(&node, "stuck")? as i32, 300, ("stuck", ONE), ("well", ONE))?;
    node.ask(&id, "GET /health")?;
    node.finish()
}

/// The process that has the volumes stands still while many starts wait for one: one without a volume has its turn all the same.
fn stuck_volume(node: &Node) -> Result<()> {
    const WITH_VOLUME: &str = r#"{"count": 1, "volumes": [{"volume": "ws", "path": "/data", "read_only": false}]}"#;
    node.ok(&["volume", "create", "ws"])?;
    beside_stuck(node, process(node, "worker")?, 24, ("scribe", WITH_VOLUME), ("scribe", ONE)).map(drop)
}

/// What to start, and the request's body.
type Start = (&'static str, &'static str);

const ONE: &str = r#"{"count": 1}"#;

/// Starts `well` while process `still` stands still and so many starts per processor, which are `stuck`, wait for it. They end well when it
/// goes on. Gives the sandbox of `well`.
fn beside_stuck(node: &Node, still: i32, per_cpu: usize, stuck: Start, well: Start) -> Result<String> {
    let still = Pid::from_raw(still).context("no process")?;
    kill_process(still, Signal::STOP)?;
    let requests = per_cpu * thread::available_parallelism()?.get();
    let (well, started) = thread::scope(|scope| {
        let waiting: Vec<_> = (0..requests).map(|_| scope.spawn(|| start(node, stuck))).collect();
        thread::sleep(BEGUN);
        let began = Instant::now();
        let well = start(node, well).map(|well| (well, began.elapsed()));
        let woken = kill_process(still, Signal::CONT);
        let started: Result<Vec<_>> = waiting.into_iter().map(|one| one.join().expect("it does not panic")).collect();
        woken.map(|()| (well, started))
    })?;
    let (well, took) = well?;
    println!("    {took:?} beside {requests} that are stuck");
    ensure!(took < WAITED_MAX, "a start that had nothing to wait for took {took:?}");
    ensure!(well.sandboxes.len() == 1, "{:?}", well.failures);
    for response in started? {
        ensure!(response.sandboxes.len() == 1, "{:?}", response.failures);
    }
    Ok(well.sandboxes[0].id.to_string())
}

fn start(node: &Node, (template, body): Start) -> Result<RunResponse> {
    let (status, body) = node.api(&format!("POST /v1/templates/{template}/run"), body.as_bytes())?;
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
            let starting: Vec<_> = (0..STARTS).map(|_| scope.spawn(|| start(&fresh, ("kept", ONE)))).collect();
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
