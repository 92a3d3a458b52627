//! Creation, quotas, idempotency keys.

use std::{collections::HashSet, time::Duration};

use base::{
    id::SandboxId,
    limits::{IDEMPOTENCY_KEPT, METADATA_PAIRS_MAX, RESERVATION_MAX},
};
use control::{
    ControlError, IdempotencyKey, Kind, NewSandbox, OnTimeout, PauseMode, Quota, Reserved, Resource, State, VolumeMount,
};

use crate::place::{Place, create, create_with, kill, pause, spec, team};

fn key(text: &str) -> IdempotencyKey {
    text.parse().unwrap()
}

fn new(reserved: Reserved) -> control::Reservation {
    match reserved {
        Reserved::New(reservation) => reservation,
        Reserved::Existing(sandbox) => panic!("there is {sandbox:?}"),
    }
}

pub(crate) async fn a_sandbox_is_found_as_it_was_asked_for(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let mut asked = NewSandbox {
        metadata: [("a=b&c".to_owned(), "\u{0}\u{1F600} \u{e4}".to_owned())].into(),
        env_vars: [("TOKEN".to_owned(), "x\ny".to_owned())].into(),
        network: Some(serde_json::json!({"denyOut": ["0.0.0.0/0"], "maskRequestHost": "${PORT}"})),
        volume_mounts: vec![VolumeMount { name: "data".to_owned(), path: "/data".to_owned() }],
        allow_internet: false,
        ..spec()
    };
    asked.lifetime.on_timeout = OnTimeout::Pause(PauseMode::Filesystem);
    asked.lifetime.auto_resume = true;
    let made = create(&control, &ours, &asked).await.unwrap();
    let found = control.sandboxes().get(&ours, &made.id).await.unwrap();
    assert_eq!((&found, &found.spec), (&made, &asked));
    assert_eq!(
        (found.state, found.started, found.end),
        (State::Running, control.now(), control.now() + asked.lifetime.timeout)
    );
    assert_eq!(control.sandboxes().find(&made.id).await.unwrap(), made);
    assert_eq!(control.sandboxes().get(&theirs, &made.id).await.unwrap_err().kind(), Kind::NotFound);
}

pub(crate) async fn a_team_gets_no_more_than_its_quota(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let quota = Quota { sandboxes: 2, memory_mb: 1_024, cpus: 4, starts: 1 };
    let limited = async |quota: Quota| {
        control.teams().set_quota(&team, quota).await.unwrap();
        match create(&control, &team, &spec()).await.unwrap_err() {
            ControlError::OverQuota { resource, retry_after, .. } if retry_after > Duration::ZERO => resource,
            other => panic!("{other}"),
        }
    };
    control.teams().set_quota(&team, quota).await.unwrap();
    let first = create(&control, &team, &spec()).await.unwrap();
    let reservation = new(control.sandboxes().reserve(&team, &spec(), None, Duration::ZERO).await.unwrap());
    assert_eq!(limited(Quota { sandboxes: 9, memory_mb: 9_999, cpus: 99, ..quota }).await, Resource::Starts);
    control.sandboxes().abandon(&reservation).await.unwrap();
    control.teams().set_quota(&team, quota).await.unwrap();
    create(&control, &team, &spec()).await.unwrap();
    assert_eq!(limited(quota).await, Resource::Sandboxes);
    assert_eq!(limited(Quota { sandboxes: 3, ..quota }).await, Resource::MemoryMb);
    assert_eq!(limited(Quota { sandboxes: 3, memory_mb: 2_000, ..quota }).await, Resource::Cpus);
    // A paused sandbox makes room, and needs it again when it is resumed.
    control.teams().set_quota(&team, quota).await.unwrap();
    pause(&control, &first).await;
    let third = create(&control, &team, &spec()).await.unwrap();
    let refused = control.begin_resume(&team, &first.id).await.unwrap_err();
    assert!(matches!(refused.kind(), Kind::OverQuota { .. }), "{refused}");
    kill(&control, &third).await;
    let resuming = control.begin_resume(&team, &first.id).await.unwrap();
    assert_eq!(limited(quota).await, Resource::Starts);
    control.cancel(resuming).await.unwrap();
    create(&control, &team, &spec()).await.unwrap();
}

pub(crate) async fn a_reservation_of_a_dead_server_ends(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    control.teams().set_quota(&team, Quota { sandboxes: 1, ..Quota::default() }).await.unwrap();
    let (key, asked) = (key("k"), spec());
    let lost = new(control.sandboxes().reserve(&team, &asked, Some(&key), Duration::ZERO).await.unwrap());
    assert!(create(&control, &team, &asked).await.is_err());
    place.clock.advance(RESERVATION_MAX);
    create_with(&control, &team, &asked, Some(&key)).await.unwrap();
    drop(lost);
}

pub(crate) async fn one_key_gives_one_sandbox(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let asked = spec();
    let first = create_with(&control, &ours, &asked, Some(&key("k-1"))).await.unwrap();
    for (team, name, same) in [(&ours, "k-1", true), (&ours, "k-2", false), (&theirs, "k-1", false)] {
        let made = create_with(&control, team, &asked, Some(&key(name))).await.unwrap();
        assert_eq!(made.id == first.id, same, "{name}");
    }
    // The key of a sandbox that has ended makes no second one until it is forgotten.
    kill(&control, &first).await;
    let gone = create_with(&control, &ours, &asked, Some(&key("k-1"))).await.unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
    place.clock.advance(IDEMPOTENCY_KEPT);
    create_with(&control, &ours, &asked, Some(&key("k-1"))).await.unwrap();
    for bad in ["", "A", "a b", "\u{e4}", &"a".repeat(256)] {
        assert!(bad.parse::<IdempotencyKey>().is_err(), "{bad}");
    }
}

pub(crate) async fn concurrent_creates_with_one_key_make_one_sandbox(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("b").await);
    let team = team(&here, "acme").await;
    let (asked, key) = (spec(), key("k"));
    let creates = (0..16).map(|number| {
        let control = if number % 2 == 0 { here.clone() } else { there.clone() };
        let (team, asked, key) = (team.clone(), asked.clone(), key.clone());
        tokio::spawn(async move { create_with(&control, &team, &asked, Some(&key)).await.unwrap().id })
    });
    let ids: HashSet<SandboxId> = futures::future::join_all(creates).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(here.sandboxes().all().await.unwrap().len(), 1);
    // Without patience a request under way is a conflict.
    let other = "other".parse().unwrap();
    let under_way = new(here.sandboxes().reserve(&team, &asked, Some(&other), Duration::ZERO).await.unwrap());
    let error = there.sandboxes().reserve(&team, &asked, Some(&other), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, ControlError::KeyInUse { .. }), "{error}");
    here.sandboxes().abandon(&under_way).await.unwrap();
}

pub(crate) async fn a_failed_start_leaves_its_key_free(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let (asked, key) = (spec(), key("k"));
    let failed = new(control.sandboxes().reserve(&team, &asked, Some(&key), Duration::ZERO).await.unwrap());
    control.sandboxes().abandon(&failed).await.unwrap();
    create_with(&control, &team, &asked, Some(&key)).await.unwrap();
}

pub(crate) async fn a_key_used_for_another_request_is_a_conflict(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let asked = spec();
    create_with(&control, &team, &asked, Some(&key("k"))).await.unwrap();
    let other = NewSandbox { allow_internet: false, ..asked };
    let error = create_with(&control, &team, &other, Some(&key("k"))).await.unwrap_err();
    assert!(matches!(error, ControlError::KeyReused { .. }) && error.kind() == Kind::Conflict, "{error}");
}

pub(crate) async fn too_much_metadata_is_refused(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let many = (0..=METADATA_PAIRS_MAX).map(|number| (number.to_string(), String::new())).collect();
    let long = [("k".to_owned(), "v".repeat(70_000))].into();
    for metadata in [many, long] {
        let error = create(&control, &team, &NewSandbox { metadata, ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    }
    let mut asked = spec();
    asked.lifetime.timeout = Duration::from_secs(u64::MAX / 1_000);
    assert_eq!(create(&control, &team, &asked).await.unwrap_err().kind(), Kind::Invalid);
}
