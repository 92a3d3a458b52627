//! What happens when the time of sandboxes is over.

use std::{sync::Arc, time::Duration};

use base::limits::{CLAIM_MAX, PAUSE_RETRY};
use control::{EventKind, Kind, PauseMode, State};

use crate::place::{MINUTE, Node, Place, SECOND, create, look, pause, pausing, spec, team};

pub(crate) async fn a_sandbox_is_killed_at_its_end_and_not_before(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let node = Arc::new(Node::default());
    let scheduler = control.scheduler(node.clone());
    let killed = create(&control, &team, &spec()).await.unwrap();
    let paused = create(&control, &team, &pausing(PauseMode::Filesystem)).await.unwrap();
    place.clock.advance(5 * MINUTE - Duration::from_millis(1));
    let (work, pause) = scheduler.look().await.unwrap();
    assert_eq!((work.len(), pause), (0, Duration::from_millis(1)));
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(look(&scheduler).await, 2);
    let mut done = node.done();
    done.sort_by_key(|(id, _)| *id != killed.id);
    assert_eq!(done, [(killed.id.clone(), None), (paused.id.clone(), Some(PauseMode::Filesystem))]);
    assert_eq!(control.sandboxes().get(&team, &killed.id).await.unwrap_err().kind(), Kind::NotFound);
    let found = control.sandboxes().get(&team, &paused.id).await.unwrap();
    assert_eq!(found.state, State::Paused(PauseMode::Filesystem));
    place.clock.advance(60 * MINUTE);
    assert_eq!(look(&scheduler).await, 0, "a paused sandbox is never due");
}

pub(crate) async fn a_refused_pause_is_retried_every_minute_and_never_kills(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let node = Arc::new(Node::default());
    node.refuse(Some("it has two processes"));
    let scheduler = control.scheduler(node.clone());
    let id = create(&control, &team, &pausing(PauseMode::Full)).await.unwrap().id;
    place.clock.advance(5 * MINUTE);
    for attempt in 1..=5 {
        assert_eq!(look(&scheduler).await, 1);
        assert_eq!(look(&scheduler).await, 0, "attempt {attempt} is repeated at once");
        let found = control.sandboxes().get(&team, &id).await.unwrap();
        assert_eq!((found.state, found.refusals, found.doing), (State::Running, attempt, None));
        place.clock.advance(PAUSE_RETRY - SECOND);
        assert_eq!(look(&scheduler).await, 0);
        place.clock.advance(SECOND);
    }
    let events = control.sandboxes().events(&team, &id, 0).await.unwrap();
    let refusals: Vec<_> = events.iter().filter(|event| event.kind == EventKind::PauseRefused).collect();
    assert_eq!((refusals.len(), &*refusals[0].detail), (3, "it has two processes"));
    // It runs, so it counts.
    let quota = control::Quota { sandboxes: 1, ..control::Quota::default() };
    control.teams().set_quota(&team, quota).await.unwrap();
    assert!(create(&control, &team, &spec()).await.is_err());
    node.refuse(None);
    assert_eq!(look(&scheduler).await, 1);
    assert_eq!(node.done(), [(id.clone(), Some(PauseMode::Full))]);
    let found = control.sandboxes().get(&team, &id).await.unwrap();
    assert_eq!((found.state, found.refusals), (State::Paused(PauseMode::Full), 0));
}

pub(crate) async fn what_fell_due_while_no_server_ran_is_done_at_the_next_start(place: &Place) {
    let first = place.open("a").await;
    let team = team(&first, "acme").await;
    let due = create(&first, &team, &spec()).await.unwrap();
    let mut later = spec();
    later.lifetime.timeout = 60 * MINUTE;
    let later = create(&first, &team, &later).await.unwrap();
    // It dies in the middle of a kill.
    std::mem::forget(first.begin_kill(&team, &later.id).await.unwrap());
    first.close().await;
    place.clock.advance(30 * MINUTE);
    let node = Arc::new(Node::default());
    let second = place.open("a").await;
    assert_eq!(look(&second.scheduler(node.clone())).await, 2);
    let mut expected = vec![(due.id, None), (later.id, None)];
    let mut done = node.done();
    expected.sort();
    done.sort();
    assert_eq!(done, expected);
    assert!(second.sandboxes().all().await.unwrap().is_empty());
}

pub(crate) async fn two_servers_end_each_its_own_sandboxes(place: &Place) {
    let servers = [place.open("a").await, place.open("b").await];
    let team = team(&servers[0], "acme").await;
    let nodes = [Arc::new(Node::default()), Arc::new(Node::default())];
    let schedulers = [0, 1].map(|at| servers[at].scheduler(nodes[at].clone()));
    let mut made = [Vec::new(), Vec::new()];
    for number in 0..60 {
        made[number % 2].push(create(&servers[number % 2], &team, &spec()).await.unwrap().id);
    }
    place.clock.advance(5 * MINUTE);
    while !servers[0].sandboxes().all().await.unwrap().is_empty() {
        futures::future::join(look(&schedulers[0]), look(&schedulers[1])).await;
    }
    for (node, made) in nodes.iter().zip(&mut made) {
        let mut done: Vec<_> = node.done().into_iter().map(|(id, _)| id).collect();
        done.sort();
        made.sort();
        assert_eq!(done, *made);
    }
}

pub(crate) async fn an_extended_sandbox_is_not_ended(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let node = Arc::new(Node::default());
    let scheduler = control.scheduler(node.clone());
    for _ in 0..20 {
        let made = create(&control, &team, &spec()).await.unwrap();
        place.clock.advance(5 * MINUTE);
        let (extended, begun) =
            futures::future::join(control.sandboxes().extend(&team, &made.id, MINUTE), look(&scheduler)).await;
        // Either it was extended, and lives, or it was ended, and the client learns that.
        match extended {
            Ok(_) => assert_eq!((begun, node.done().len()), (0, 0)),
            Err(error) => assert_eq!((begun, node.done().len(), error.kind()), (1, 1, Kind::NotFound)),
        }
        place.clock.advance(MINUTE);
        look(&scheduler).await;
        node.done();
    }
}

pub(crate) async fn work_that_a_server_began_and_did_not_end_is_taken_up(place: &Place) {
    let (dead, alive) = (place.open("a").await, place.open("a").await);
    let team = team(&dead, "acme").await;
    let node = Arc::new(Node::default());
    let scheduler = alive.scheduler(node.clone());
    let id = create(&dead, &team, &pausing(PauseMode::Full)).await.unwrap().id;
    place.clock.advance(5 * MINUTE);
    std::mem::forget(dead.begin_pause(&team, &id).await.unwrap());
    place.clock.advance(CLAIM_MAX - SECOND);
    assert_eq!(look(&scheduler).await, 0);
    place.clock.advance(SECOND);
    assert_eq!(look(&scheduler).await, 1);
    assert_eq!(node.done(), [(id, Some(PauseMode::Full))]);
}

pub(crate) async fn a_kill_that_fails_is_finished_later(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let node = Arc::new(Node::default());
    let scheduler = control.scheduler(node.clone());
    let due = create(&control, &team, &spec()).await.unwrap();
    let mut later = pausing(PauseMode::Full);
    later.lifetime.timeout = 60 * MINUTE;
    let later = create(&control, &team, &later).await.unwrap();
    // The one at a client's request, the other at its end.
    pause(&control, &later).await;
    let transition = control.begin_kill(&team, &later.id).await.unwrap();
    control.cancel(transition).await.unwrap();
    place.clock.advance(5 * MINUTE);
    node.refuse(Some("a process does not end"));
    assert_eq!(look(&scheduler).await, 2);
    for sandbox in [&due, &later] {
        assert_eq!(control.sandboxes().get(&team, &sandbox.id).await.unwrap_err().kind(), Kind::NotFound);
        let events = control.sandboxes().events(&team, &sandbox.id, 0).await.unwrap();
        assert_eq!(events.last().unwrap().kind, EventKind::KillRefused);
    }
    node.refuse(None);
    assert_eq!(look(&scheduler).await, 0);
    place.clock.advance(PAUSE_RETRY);
    assert_eq!(look(&scheduler).await, 2);
    let done = node.done();
    assert!(done.len() == 2 && done.iter().all(|(_, mode)| mode.is_none()), "{done:?}");
    assert!(control.sandboxes().all().await.unwrap().is_empty());
}

pub(crate) async fn a_claim_is_renewed_while_its_transition_lives(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("a").await);
    let team = team(&here, "acme").await;
    let scheduler = here.scheduler(Arc::new(Node::default()));
    let id = create(&here, &team, &spec()).await.unwrap().id;
    let pausing = here.begin_pause(&team, &id).await.unwrap();
    let killing = here.begin_kill(&team, &id).await.unwrap();
    drop(pausing);
    for _ in 0..3 {
        place.clock.advance(CLAIM_MAX - SECOND);
        scheduler.renew().await.unwrap();
        assert_eq!(look(&there.scheduler(Arc::new(Node::default()))).await, 0);
    }
    drop(killing);
    place.clock.advance(CLAIM_MAX - SECOND);
    scheduler.renew().await.unwrap();
    place.clock.advance(SECOND);
    assert_eq!(look(&there.scheduler(Arc::new(Node::default()))).await, 1);
}

pub(crate) async fn a_running_scheduler_ends_a_sandbox_whose_timeout_is_set_to_zero(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let node = Arc::new(Node::default());
    let scheduler = control.scheduler(node.clone());
    let running = tokio::spawn(async move { scheduler.run().await });
    let id = create(&control, &team, &spec()).await.unwrap().id;
    control.sandboxes().set_timeout(&team, &id, Duration::ZERO).await.unwrap();
    let gone = async {
        while control.sandboxes().find(&id).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Sooner than it looks by itself.
    tokio::time::timeout(4 * SECOND, gone).await.unwrap();
    assert_eq!(node.done(), [(id, None)]);
    running.abort();
}
