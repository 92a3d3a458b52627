//! Ends, pauses, kills, tokens.

use std::time::Duration;

use base::limits::{CLAIM_MAX, EVENTS_MAX};
use control::{ControlError, Doing, EventKind, Kind, Observed, PauseMode, State};

use crate::place::{MINUTE, Place, SECOND, create, pause, pausing, spec, team};

pub(crate) async fn a_connect_extends_and_a_timeout_is_exact(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let id = create(&control, &ours, &spec()).await.unwrap().id;
    let (sandboxes, start) = (control.sandboxes(), control.now());
    place.clock.advance(MINUTE);
    assert_eq!(sandboxes.extend(&ours, &id, SECOND).await.unwrap().end, start + 5 * MINUTE);
    assert_eq!(sandboxes.extend(&ours, &id, 5 * MINUTE).await.unwrap().end, start + 6 * MINUTE);
    assert_eq!(sandboxes.set_timeout(&ours, &id, SECOND).await.unwrap().end, control.now() + SECOND);
    assert_eq!(sandboxes.set_timeout(&ours, &id, Duration::ZERO).await.unwrap().end, control.now());
    assert_eq!(sandboxes.get(&ours, &id).await.unwrap().end, control.now());
    for other in [sandboxes.extend(&theirs, &id, MINUTE).await, sandboxes.set_timeout(&theirs, &id, MINUTE).await] {
        assert_eq!(other.unwrap_err().kind(), Kind::NotFound);
    }
    let error = sandboxes.set_timeout(&ours, &id, Duration::from_secs(31 * 86_400)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

pub(crate) async fn a_paused_sandbox_has_no_end_until_it_is_resumed(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let made = create(&control, &team, &pausing(PauseMode::Full)).await.unwrap();
    pause(&control, &made).await;
    let paused = control.sandboxes().get(&team, &made.id).await.unwrap();
    assert_eq!((paused.state, paused.doing), (State::Paused(PauseMode::Full), None));
    for error in [
        control.sandboxes().extend(&team, &made.id, MINUTE).await.unwrap_err(),
        control.begin_pause(&team, &made.id).await.unwrap_err(),
    ] {
        assert!(matches!(error, ControlError::Paused { .. }), "{error}");
    }
    place.clock.advance(60 * MINUTE);
    let resuming = control.begin_resume(&team, &made.id).await.unwrap();
    let resumed = control.resumed(resuming, 2 * MINUTE).await.unwrap();
    assert_eq!((resumed.state, resumed.end), (State::Running, control.now() + 2 * MINUTE));
    let found = control.sandboxes().get(&team, &made.id).await.unwrap();
    assert_eq!((found.end, found.started), (resumed.end, made.started));
    assert_eq!(found.spec.lifetime.on_timeout, made.spec.lifetime.on_timeout, "the end that was asked for is kept");
    assert!(matches!(control.begin_resume(&team, &made.id).await, Err(ControlError::Running { .. })));
}

pub(crate) async fn only_one_of_two_servers_resumes(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("b").await);
    let team = team(&here, "acme").await;
    let made = create(&here, &team, &spec()).await.unwrap();
    for _ in 0..10 {
        let found = here.sandboxes().find(&made.id).await.unwrap();
        pause(if found.server == "a" { &here } else { &there }, &made).await;
        let (a, b) =
            futures::future::join(here.begin_resume(&team, &made.id), there.begin_resume(&team, &made.id)).await;
        let (won, lost) = match (a, b) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            other => panic!("{other:?}"),
        };
        assert!(matches!(lost, ControlError::Busy { doing: Doing::Resuming, .. }), "{lost}");
        assert!(matches!(lost.kind(), Kind::Unavailable { .. }));
        here.resumed(won, MINUTE).await.unwrap();
    }
}

pub(crate) async fn a_kill_takes_over_what_is_under_way(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("b").await);
    let team = team(&here, "acme").await;
    let made = create(&here, &team, &spec()).await.unwrap();
    let pausing = here.begin_pause(&team, &made.id).await.unwrap();
    let killing = there.begin_kill(&team, &made.id).await.unwrap();
    assert_eq!(here.sandboxes().get(&team, &made.id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(here.begin_resume(&team, &made.id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(here.paused(pausing, PauseMode::Full, false).await.unwrap_err().kind(), Kind::NotFound);
    there.killed(killing, "asked for").await.unwrap();
    assert_eq!(there.begin_kill(&team, &made.id).await.unwrap_err().kind(), Kind::NotFound);
    let events = here.sandboxes().events(&team, &made.id, 0).await.unwrap();
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Created, EventKind::Killed]);
}

pub(crate) async fn tokens_survive_a_restart_and_differ_between_sandboxes(place: &Place) {
    let first = place.open("a").await;
    let team = team(&first, "acme").await;
    let made = [create(&first, &team, &spec()).await.unwrap(), create(&first, &team, &spec()).await.unwrap()];
    let tokens = made.each_ref().map(|sandbox| first.sandboxes().envd_token(sandbox));
    assert_ne!(tokens[0], tokens[1]);
    assert_ne!(first.sandboxes().traffic_token(&made[0]), tokens[0]);
    first.close().await;
    let second = place.open("a").await;
    let found = second.sandboxes().get(&team, &made[0].id).await.unwrap();
    assert_eq!(second.sandboxes().envd_token(&found), tokens[0]);
    second.sandboxes().envd_token(&found).verify(tokens[0].as_str()).unwrap();
    let wrong = second.sandboxes().envd_token(&found).verify(tokens[1].as_str()).unwrap_err();
    assert_eq!(wrong.kind(), Kind::Unauthorised);
}

pub(crate) async fn a_server_that_starts_learns_what_its_node_has(place: &Place) {
    let first = place.open("a").await;
    let team = team(&first, "acme").await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(create(&first, &team, &spec()).await.unwrap().id);
    }
    // It dies in the middle of a pause, which the node finishes.
    std::mem::forget(first.begin_pause(&team, &made[0]).await.unwrap());
    let second = place.open("a").await;
    assert_eq!(second.sandboxes().all().await.unwrap().len(), 3);
    assert!(second.observe(&made[0], Observed::Paused(PauseMode::Full)).await.unwrap());
    assert!(!second.observe(&made[1], Observed::Running).await.unwrap());
    assert!(second.observe(&made[2], Observed::Gone).await.unwrap());
    let paused = second.sandboxes().get(&team, &made[0]).await.unwrap();
    assert_eq!((paused.state, paused.doing), (State::Paused(PauseMode::Full), None));
    assert_eq!(second.sandboxes().get(&team, &made[2]).await.unwrap_err().kind(), Kind::NotFound);
    // A resume that was not noted: the sandbox gets its time, and is not ended at once.
    place.clock.advance(60 * MINUTE);
    assert!(second.observe(&made[0], Observed::Running).await.unwrap());
    let resumed = second.sandboxes().get(&team, &made[0]).await.unwrap();
    assert_eq!((resumed.state, resumed.end), (State::Running, second.now() + 5 * MINUTE));
    // Another server's claim would have held for two minutes.
    std::mem::forget(second.begin_pause(&team, &made[1]).await.unwrap());
    let other = place.open("b").await;
    assert!(matches!(other.begin_pause(&team, &made[1]).await, Err(ControlError::Busy { .. })));
    place.clock.advance(CLAIM_MAX);
    other.sandboxes().extend(&team, &made[1], MINUTE).await.unwrap();
    assert!(matches!(other.begin_pause(&team, &made[1]).await, Err(ControlError::Elsewhere { .. })));
    let taken = second.begin_pause(&team, &made[1]).await.unwrap();
    second.cancel(taken).await.unwrap();
}

pub(crate) async fn events_are_kept_within_bounds(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let id = create(&control, &ours, &spec()).await.unwrap().id;
    for _ in 0..EVENTS_MAX + 10 {
        control.sandboxes().set_timeout(&ours, &id, MINUTE).await.unwrap();
    }
    let events = control.sandboxes().events(&ours, &id, 0).await.unwrap();
    assert_eq!((events.len() as u64, events[0].sequence), (EVENTS_MAX, 12));
    assert_eq!(control.sandboxes().events(&ours, &id, EVENTS_MAX + 10).await.unwrap().len(), 1);
    assert!(control.sandboxes().events(&theirs, &id, 0).await.unwrap().is_empty());
}
