//! Several servers on one database, each with sandboxes of its own.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use base::{
    id::{SandboxId, TeamId},
    limits::SERVER_SILENT,
};
use control::{
    Control, ControlError, IdempotencyKey, Kind, NewSandbox, PauseMode, Reservation, Reserved, Started, State,
};

use crate::place::{MINUTE, Node, Place, create, look, pause, pausing, spec, team};

async fn reserve(control: &Control, team: &TeamId, asked: &NewSandbox, key: Option<&IdempotencyKey>) -> Reservation {
    match control.sandboxes().reserve(team, asked, key, Duration::ZERO).await.unwrap() {
        Reserved::New(reservation) => reservation,
        Reserved::Existing(sandbox) => panic!("there is {sandbox:?}"),
    }
}

pub(crate) async fn a_server_leaves_what_other_nodes_have_alone(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("b").await);
    let team = team(&here, "acme").await;
    let theirs = create(&there, &team, &pausing(PauseMode::Full)).await.unwrap();
    let ours = create(&here, &team, &spec()).await.unwrap();
    let own: Vec<_> = here.sandboxes().of_this_server().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(own, std::slice::from_ref(&ours.id));
    here.check_here(&ours).unwrap();
    for refused in [here.check_here(&theirs), here.begin_pause(&team, &theirs.id).await.map(drop)] {
        let error = refused.unwrap_err();
        assert!(matches!(&error, ControlError::Elsewhere { server, .. } if server == "b"), "{error}");
        assert!(matches!(error.kind(), Kind::Unavailable { .. }));
    }
    // A kill is noted here, and done there.
    let (here_node, there_node) = (Arc::new(Node::default()), Arc::new(Node::default()));
    let killing = here.begin_kill(&team, &theirs.id).await.unwrap();
    here.leave_kill(killing).await.unwrap();
    assert_eq!(here.sandboxes().get(&team, &theirs.id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(look(&here.scheduler(here_node.clone())).await, 0);
    assert_eq!(look(&there.scheduler(there_node.clone())).await, 1);
    assert_eq!(there_node.done(), [(theirs.id, None)]);
    // Nor does a server end what is due on another node.
    place.clock.advance(5 * MINUTE);
    assert_eq!(look(&there.scheduler(there_node)).await, 0);
    assert_eq!(look(&here.scheduler(here_node)).await, 1);
}

pub(crate) async fn what_is_paused_goes_on_at_any_server(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("b").await);
    let team = team(&here, "acme").await;
    let made = create(&here, &team, &spec()).await.unwrap();
    pause(&here, &made).await;
    let resuming = there.begin_resume(&team, &made.id).await.unwrap();
    assert_eq!(there.resumed(resuming, MINUTE).await.unwrap().server, "b");
    assert!(matches!(here.begin_pause(&team, &made.id).await, Err(ControlError::Elsewhere { .. })));
    assert!(here.sandboxes().of_this_server().await.unwrap().is_empty());
    pause(&there, &made).await;
}

pub(crate) async fn a_removed_server_takes_along_what_ran_there(place: &Place) {
    let (gone, stays) = (place.open("a").await, place.open("b").await);
    let team = team(&gone, "acme").await;
    gone.appear().await.unwrap();
    let running = create(&gone, &team, &spec()).await.unwrap();
    let paused = create(&gone, &team, &spec()).await.unwrap();
    pause(&gone, &paused).await;
    let lost = reserve(&gone, &team, &spec(), None).await;
    let listed = stays.servers().list().await.unwrap();
    assert_eq!((listed.len(), &*listed[0].name, listed[0].running, listed[0].paused), (1, "a", 1, 1));
    let error = stays.servers().remove("a").await.unwrap_err();
    assert!(matches!(error, ControlError::ServerRuns { .. }), "{error}");
    assert_eq!(stays.servers().remove("c").await.unwrap_err().kind(), Kind::NotFound);
    place.clock.advance(SERVER_SILENT);
    assert_eq!(stays.servers().remove("a").await.unwrap(), std::slice::from_ref(&running.id));
    assert_eq!(stays.sandboxes().get(&team, &running.id).await.unwrap_err().kind(), Kind::NotFound);
    assert!(stays.servers().list().await.unwrap().is_empty());
    let found = stays.sandboxes().get(&team, &paused.id).await.unwrap();
    assert_eq!((found.state, &*found.server), (State::Paused(PauseMode::Full), ""));
    let resuming = stays.begin_resume(&team, &paused.id).await.unwrap();
    assert_eq!(stays.resumed(resuming, MINUTE).await.unwrap().server, "b");
    drop(lost);
}

pub(crate) async fn a_start_that_was_broken_off_is_found_by_its_server(place: &Place) {
    let first = place.open("a").await;
    let team = team(&first, "acme").await;
    let (asked, key) = (spec(), "k".parse().unwrap());
    let broken = reserve(&first, &team, &asked, Some(&key)).await;
    let beside = match first.sandboxes().reserve_beside(&broken).await.unwrap() {
        Reserved::New(reservation) => reservation,
        Reserved::Existing(sandbox) => panic!("there is {sandbox:?}"),
    };
    assert_eq!(beside.batch(), broken.batch());
    // Of two that were started together one was confirmed when the server died.
    let confirmed = SandboxId::random();
    first.sandboxes().confirm(&beside, &confirmed).await.unwrap();
    let lost = SandboxId::random();
    let on_node = |id: &SandboxId, batch: &str| Started { id: id.clone(), batch: batch.to_owned() };
    let all = vec![
        on_node(&confirmed, broken.batch()),
        on_node(&lost, broken.batch()),
        // Its reservation was ended long ago, or is of another database.
        on_node(&SandboxId::random(), "another"),
    ];
    let (second, other) = (place.open("a").await, place.open("b").await);
    assert_eq!(second.sandboxes().unconfirmed(all.clone()).await.unwrap(), std::slice::from_ref(&lost));
    assert!(other.sandboxes().unconfirmed(all.clone()).await.unwrap().is_empty());
    let again = second.sandboxes().reserve(&team, &asked, Some(&key), Duration::ZERO).await.unwrap_err();
    assert!(matches!(again, ControlError::KeyInUse { .. }), "{again}");
    second.sandboxes().drop_own_reservations().await.unwrap();
    let _reserved = reserve(&second, &team, &asked, Some(&key)).await;
    assert!(second.sandboxes().unconfirmed(all).await.unwrap().is_empty());
    let known: BTreeSet<_> = second.sandboxes().all().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(known, BTreeSet::from([confirmed]));
}
