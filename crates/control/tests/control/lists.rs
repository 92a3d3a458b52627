//! Lists of sandboxes.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use base::id::SandboxId;
use control::{Control, Filter, Kind, NewSandbox, Order, Page, Reserved, Sandbox, States};

use crate::place::{Place, create, kill, pause, spec, team};

async fn ids(control: &Control, team: &base::id::TeamId, filter: &Filter) -> Vec<String> {
    let page = control.sandboxes().list(team, filter, Order::Desc, &Page::default()).await.unwrap();
    page.sandboxes.into_iter().map(|sandbox| sandbox.id.to_string()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(crate) async fn metadata_of_any_characters_is_matched_exactly(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let sets = [
        pairs(&[("k", "v")]),
        pairs(&[("k", "v"), ("a=b", "c&d")]),
        pairs(&[("a", "b=c&d")]),
        pairs(&[("na me", "\u{1F600}\u{0}\u{e4} %20+")]),
        pairs(&[("", "")]),
        pairs(&[("kv", "")]),
    ];
    let mut made = Vec::new();
    for metadata in &sets {
        let asked = NewSandbox { metadata: metadata.clone(), ..spec() };
        made.push(create(&control, &ours, &asked).await.unwrap().id.to_string());
        create(&control, &theirs, &asked).await.unwrap();
    }
    for (index, metadata) in sets.iter().enumerate() {
        let found = ids(&control, &ours, &Filter { metadata: metadata.clone(), ..Filter::default() }).await;
        let expected: HashSet<_> = match index {
            0 => made[..2].iter().cloned().collect(),
            _ => [made[index].clone()].into(),
        };
        assert_eq!(found.into_iter().collect::<HashSet<_>>(), expected, "{metadata:?}");
    }
    for metadata in [pairs(&[("k", "V")]), pairs(&[("k", "")]), pairs(&[("k", "v"), ("x", "y")])] {
        assert!(ids(&control, &ours, &Filter { metadata, ..Filter::default() }).await.is_empty());
    }
}

pub(crate) async fn forks_are_known_as_long_as_one_descends_from_them(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "acme").await, team(&control, "other").await);
    let alone = create(&control, &ours, &spec()).await.unwrap();
    let root = create(&control, &ours, &spec()).await.unwrap();
    let fork = async |parent: &Sandbox| {
        place.clock.advance(Duration::from_millis(1));
        let reserved = control.sandboxes().reserve(&ours, &spec(), None, Duration::ZERO).await.unwrap();
        let Reserved::New(room) = reserved else { panic!("nothing was asked twice") };
        control.sandboxes().confirm_copy(&room, &SandboxId::random(), Some(&parent.id)).await.unwrap()
    };
    let (one, other) = (fork(&root).await, fork(&root).await);
    let deep = fork(&one).await;
    let shown = async |of: Option<&Sandbox>| {
        let found = control.sandboxes().forks(&ours, of.map(|of| &of.id)).await.unwrap();
        found.into_iter().map(|found| (found.id, found.parent, found.is_running)).collect::<Vec<_>>()
    };
    let line = |of: &Sandbox, parent: Option<&Sandbox>, is_running| {
        (of.id.clone(), parent.map(|parent| parent.id.clone()), is_running)
    };
    pause(&control, &other).await;
    let (running, paused) = (Some(true), Some(false));
    let all = [
        line(&root, None, running),
        line(&one, Some(&root), running),
        line(&other, Some(&root), paused),
        line(&deep, Some(&one), running),
    ];
    assert_eq!(shown(None).await, all);
    assert_eq!(shown(Some(&deep)).await, all);
    assert_eq!(shown(Some(&alone)).await, [line(&alone, None, running)]);
    assert!(control.sandboxes().forks(&theirs, None).await.unwrap().is_empty());
    assert!(control.sandboxes().forks(&theirs, Some(&one.id)).await.is_err());
    kill(&control, &root).await;
    kill(&control, &one).await;
    let left = [
        line(&root, None, None),
        line(&one, Some(&root), None),
        line(&other, Some(&root), paused),
        line(&deep, Some(&one), running),
    ];
    assert_eq!(shown(None).await, left);
    kill(&control, &deep).await;
    assert_eq!(shown(None).await, [line(&root, None, None), line(&other, Some(&root), paused)]);
    kill(&control, &other).await;
    assert!(shown(None).await.is_empty());
}

pub(crate) async fn lists_are_filtered_by_state_template_and_start(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let mut made: Vec<Sandbox> = Vec::new();
    for alias in ["one", "two", "two"] {
        place.clock.advance(Duration::from_millis(1));
        let asked = NewSandbox { alias: Some(alias.to_owned()), ..spec() };
        made.push(create(&control, &team, &asked).await.unwrap());
    }
    pause(&control, &made[1]).await;
    let id = |index: usize| made[index].id.to_string();
    let of = async |filter: Filter| ids(&control, &team, &filter).await;
    let default = Filter::default;
    assert_eq!(of(default()).await, [id(2), id(1), id(0)]);
    assert_eq!(of(Filter { states: States::Running, ..default() }).await, [id(2), id(0)]);
    assert_eq!(of(Filter { states: States::Paused, ..default() }).await, [id(1)]);
    assert_eq!(of(Filter { template: Some("two".to_owned()), ..default() }).await, [id(2), id(1)]);
    let template = Some(made[0].spec.template.to_string());
    assert_eq!(of(Filter { template, ..default() }).await, [id(0)]);
    assert!(of(Filter { template: Some("\0'; --".to_owned()), ..default() }).await.is_empty());
    assert_eq!(of(Filter { started_after: Some(made[0].started), ..default() }).await, [id(2), id(1), id(0)]);
    let ascending = control.sandboxes().list(&team, &default(), Order::Asc, &Page::default()).await.unwrap();
    assert_eq!(ascending.sandboxes[0].id, made[0].id);
    assert_eq!((ascending.total_running, ascending.next), (2, None));
}

/// Walks all pages, each of one sandbox.
async fn walk(control: &Control, team: &base::id::TeamId, order: Order) -> Vec<String> {
    let (mut page, mut seen) = (Page { limit: 1, after: None }, Vec::new());
    loop {
        let got = control.sandboxes().list(team, &Filter::default(), order, &page).await.unwrap();
        assert!(got.sandboxes.len() <= 1);
        seen.extend(got.sandboxes.iter().map(|sandbox| sandbox.id.to_string()));
        match got.next {
            // As a client sends it back.
            Some(next) => page.after = Some(next.to_string().parse().unwrap()),
            None => return seen,
        }
    }
}

pub(crate) async fn a_thousand_sandboxes_are_paged_while_others_come_and_go(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    control
        .teams()
        .set_quota(&team, control::Quota { sandboxes: 5_000, memory_mb: 1 << 40, cpus: 1 << 20, starts: 50 })
        .await
        .unwrap();
    let mut stay = HashSet::new();
    for number in 0..1_000 {
        // Several have one time.
        if number % 3 == 0 {
            place.clock.advance(Duration::from_millis(1));
        }
        stay.insert(create(&control, &team, &spec()).await.unwrap().id.to_string());
    }
    for order in [Order::Desc, Order::Asc] {
        let done = AtomicBool::new(false);
        let others = async {
            let mut here: Vec<Sandbox> = Vec::new();
            while !done.load(Ordering::Relaxed) {
                place.clock.advance(Duration::from_millis(1));
                here.push(create(&control, &team, &spec()).await.unwrap());
                if here.len() > 5 {
                    kill(&control, &here.swap_remove(fastrand::usize(..here.len()))).await;
                }
            }
            for sandbox in &here {
                kill(&control, sandbox).await;
            }
        };
        let reader = async {
            let seen = walk(&control, &team, order).await;
            done.store(true, Ordering::Relaxed);
            seen
        };
        let (seen, ()) = futures::future::join(reader, others).await;
        let distinct: HashSet<_> = seen.iter().cloned().collect();
        assert_eq!(distinct.len(), seen.len(), "a sandbox was listed twice");
        assert!(stay.is_subset(&distinct), "{} of 1000 are missing", stay.difference(&distinct).count());
    }
}

pub(crate) async fn a_token_of_another_order_is_refused(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    for _ in 0..2 {
        create(&control, &team, &spec()).await.unwrap();
    }
    let (order, page) = (Order::Desc, Page { limit: 1, after: None });
    let first = control.sandboxes().list(&team, &Filter::default(), order, &page).await.unwrap();
    let page = Page { limit: 1, after: first.next };
    let error = control.sandboxes().list(&team, &Filter::default(), Order::Asc, &page).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    for limit in [0, 101] {
        let page = Page { limit, after: None };
        let error = control.sandboxes().list(&team, &Filter::default(), order, &page).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    }
}
