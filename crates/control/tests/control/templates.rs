//! Templates, builds, tags, snapshots.

use base::{
    id::{SandboxId, TeamId, TemplateId},
    limits::TEMPLATE_BUILDS_MAX,
};
use control::{
    Build, BuildStatus, BuildUpdate, Control, ControlError, Kind, NewSnapshot, Page, Size, SnapshotFilter,
    TemplateKind, TemplateRef,
};

use crate::place::{Place, SECOND, create, spec, team};

pub(crate) const SIZE: Size = Size { cpus: 2, memory_mb: 512, disk_mb: 1_024 };

pub(crate) fn name(text: &str) -> TemplateRef {
    text.parse().unwrap()
}

/// A build that is ready, of what the node calls by the name of the template.
pub(crate) async fn built(control: &Control, team: &TeamId, text: &str) -> Build {
    let asked = control.templates().request_build(team, &name(text), &[], SIZE).await.unwrap();
    let ready = BuildUpdate::Ready { source: format!("node-{text}") };
    control.templates().update_build(team, &asked.build, &ready).await.unwrap()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub(crate) async fn a_template_is_found_by_name_tag_and_id_once_it_is_ready(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let templates = control.templates();
    let asked = templates.request_build(&team, &name("App"), &strings(&["v1", "stable"]), SIZE).await.unwrap();
    assert_eq!((asked.build.status, &asked.tags), (BuildStatus::Waiting, &strings(&["v1", "stable"])));
    assert_eq!(templates.unfinished_builds().await.unwrap(), [(team.clone(), asked.build.clone())]);
    assert_eq!(templates.resolve(&team, &name("app:v1")).await.unwrap_err().kind(), Kind::NotFound);
    let building = templates.update_build(&team, &asked.build, &BuildUpdate::Building).await.unwrap();
    assert_eq!(building.status, BuildStatus::Building);
    let ready = BuildUpdate::Ready { source: "node-app".to_owned() };
    templates.update_build(&team, &asked.build, &ready).await.unwrap();
    // An answer that comes late changes nothing.
    let late = BuildUpdate::Failed { reason: "late".to_owned() };
    assert_eq!(templates.update_build(&team, &asked.build, &late).await.unwrap().status, BuildStatus::Ready);
    let id = asked.template.id.to_string();
    for text in ["app:v1", "APP:stable", "acme/app:v1", &format!("{id}:v1")] {
        let found = templates.resolve(&team, &name(text)).await.unwrap();
        assert_eq!((&*found.build.source, found.build.size), ("node-app", SIZE), "{text}");
        assert_eq!((&found.template.names, found.template.build_count), (&strings(&["app"]), 1));
    }
    for text in ["app", "app:v2", "other", &TemplateId::random().to_string()] {
        assert_eq!(templates.resolve(&team, &name(text)).await.unwrap_err().kind(), Kind::NotFound, "{text}");
    }
    let mut asked_for = spec();
    asked_for.template = asked.template.id.clone();
    create(&control, &team, &asked_for).await.unwrap();
    let found = templates.get(&team, &name("app")).await.unwrap();
    assert_eq!((found.spawn_count, found.spawned), (1, Some(control.now())));
}

pub(crate) async fn a_failed_build_leaves_the_one_before(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let templates = control.templates();
    let first = built(&control, &team, "app").await;
    let second = templates.request_build(&team, &name("app"), &[], SIZE).await.unwrap().build;
    assert_eq!(second.template, first.template);
    let failed = BuildUpdate::Failed { reason: "step 3: no such file".to_owned() };
    let failed = templates.update_build(&team, &second, &failed).await.unwrap();
    assert_eq!((failed.status, &*failed.reason), (BuildStatus::Error, "step 3: no such file"));
    assert_eq!(templates.resolve(&team, &name("app")).await.unwrap().build.id, first.id);
    assert_eq!(templates.build(&team, &first.template, &second.id).await.unwrap(), failed);
    assert_eq!(templates.builds(&team, &first.template).await.unwrap().len(), 2);
    // A team's only build that failed is said to be missing, not ready: it never had its tag.
    let broken = templates.request_build(&team, &name("broken"), &[], SIZE).await.unwrap().build;
    let update = BuildUpdate::Failed { reason: String::new() };
    templates.update_build(&team, &broken, &update).await.unwrap();
    assert_eq!(templates.resolve(&team, &name("broken")).await.unwrap_err().kind(), Kind::NotFound);
}

pub(crate) async fn tags_are_assigned_listed_and_removed(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let templates = control.templates();
    let first = built(&control, &team, "app").await;
    place.clock.advance(SECOND);
    assert_eq!(templates.assign_tags(&team, &name("app"), &strings(&["v1", "Prod"])).await.unwrap(), first.id);
    place.clock.advance(SECOND);
    let second = built(&control, &team, "app").await;
    let tags = templates.tags(&team, &name("app")).await.unwrap();
    let pairs: Vec<_> = tags.iter().map(|tag| (&*tag.tag, &tag.build)).collect();
    assert_eq!(pairs, [("default", &second.id), ("prod", &first.id), ("v1", &first.id)]);
    assert_eq!(templates.resolve(&team, &name("app:prod")).await.unwrap().build.id, first.id);
    templates.assign_tags(&team, &name("app:default"), &strings(&["prod"])).await.unwrap();
    assert_eq!(templates.resolve(&team, &name("app:prod")).await.unwrap().build.id, second.id);
    let missing = templates.remove_tags(&team, &name("app"), &strings(&["v1", "v9"])).await.unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    templates.remove_tags(&team, &name("app"), &strings(&["v1"])).await.unwrap();
    assert_eq!(templates.tags(&team, &name("app")).await.unwrap().len(), 2);
    assert_eq!(templates.assign_tags(&team, &name("app:v1"), &[]).await.unwrap_err().kind(), Kind::NotFound);
    let bad = templates.assign_tags(&team, &name("app"), &strings(&["a b"])).await.unwrap_err();
    assert_eq!(bad.kind(), Kind::Invalid);
}

pub(crate) async fn a_name_of_another_team_is_forbidden_and_a_missing_one_not_found(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let templates = control.templates();
    let build = built(&control, &theirs, "app").await;
    let id = build.template.to_string();
    // The answer is the same for names that the other team has and has not, and for teams that there are and are not.
    for text in [&*id, "theirs/app", "theirs/nothing", "nobody/app"] {
        assert_eq!(templates.get(&ours, &name(text)).await.unwrap_err().kind(), Kind::Forbidden, "{text}");
    }
    for text in ["app", "ours/app"] {
        assert_eq!(templates.get(&ours, &name(text)).await.unwrap_err().kind(), Kind::NotFound, "{text}");
    }
    templates.set_public(&theirs, &name("app"), true).await.unwrap();
    for text in [&*id, "theirs/app"] {
        let found = templates.resolve(&ours, &name(text)).await.unwrap();
        assert_eq!((found.build.id.clone(), found.template.build_count), (build.id.clone(), 0), "{text}");
        let shut = [
            templates.delete(&ours, &name(text)).await.map(drop),
            templates.set_public(&ours, &name(text), false).await,
            templates.assign_tags(&ours, &name(text), &strings(&["x"])).await.map(drop),
            templates.remove_tags(&ours, &name(text), &strings(&["default"])).await,
        ];
        for answer in shut {
            assert_eq!(answer.unwrap_err().kind(), Kind::Forbidden, "{text}");
        }
    }
    assert!(templates.list(&ours, &Page::default()).await.unwrap().0.is_empty());
}

pub(crate) async fn templates_of_the_server_are_found_by_plain_names(place: &Place) {
    let control = place.open("a").await;
    let ours = team(&control, "ours").await;
    let system = control.teams().system().await.unwrap().id;
    assert_eq!(control.teams().system().await.unwrap().id, system);
    let theirs = built(&control, &system, "base").await;
    assert_eq!(control.templates().resolve(&ours, &name("base")).await.unwrap_err().kind(), Kind::NotFound);
    control.templates().set_public(&system, &name("base"), true).await.unwrap();
    assert_eq!(control.templates().resolve(&ours, &name("base")).await.unwrap().build.id, theirs.id);
    let own = built(&control, &ours, "base").await;
    assert_ne!(own.template, theirs.template);
    assert_eq!(control.templates().resolve(&ours, &name("base")).await.unwrap().build.id, own.id);
    assert_eq!(control.templates().resolve(&ours, &name("pando/base")).await.unwrap().build.id, theirs.id);
}

pub(crate) async fn a_snapshot_is_found_by_either_of_its_names(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let templates = control.templates();
    let origin = SandboxId::random();
    let mut taken = Vec::new();
    for text in [None, Some("warm"), Some("warm:v2")] {
        let named = text.map(name);
        let new = NewSnapshot { origin: &origin, name: named.as_ref(), size: SIZE, source: "node-snapshot" };
        let (resolved, dropped) = templates.add_snapshot(&team, &new).await.unwrap();
        assert!(dropped.is_empty() && resolved.template.kind == TemplateKind::Snapshot);
        taken.push(resolved);
    }
    assert_eq!(taken[0].template.snapshot_id("default"), format!("{}:default", taken[0].template.id));
    assert!(taken[0].template.full_names("default").is_empty());
    assert_eq!(taken[2].template.snapshot_id("v2"), "acme/warm:v2");
    let by = [
        (taken[0].template.snapshot_id("default"), 0),
        (taken[0].template.id.to_string(), 0),
        ("acme/warm:default".to_owned(), 1),
        ("warm".to_owned(), 1),
        ("acme/warm:v2".to_owned(), 2),
        (format!("{}:v2", taken[1].template.id), 2),
    ];
    for (text, index) in by {
        let found = templates.resolve(&team, &name(&text)).await.unwrap();
        assert_eq!((&found.build, &found.build.origin), (&taken[index].build, &Some(origin.clone())), "{text}");
    }
    let count =
        async |filter: SnapshotFilter| templates.snapshots(&team, &filter, &Page::default()).await.unwrap().0.len();
    let of = |origin: &SandboxId| SnapshotFilter { origin: Some(origin.clone()), ..SnapshotFilter::default() };
    let named = |text: &str| SnapshotFilter { name: Some(name(text)), ..SnapshotFilter::default() };
    assert_eq!(count(SnapshotFilter::default()).await, 2);
    assert_eq!((count(of(&origin)).await, count(of(&SandboxId::random())).await), (2, 0));
    assert_eq!((count(named("warm")).await, count(named("cold")).await, count(named("x/y")).await), (1, 0, 0));
    assert!(templates.list(&team, &Page::default()).await.unwrap().0.is_empty(), "a snapshot is in the other list");
    let clash = templates.request_build(&team, &name("warm"), &[], SIZE).await.unwrap_err();
    assert!(matches!(clash, ControlError::Exists { .. }), "{clash}");
}

pub(crate) async fn a_tag_of_several_is_deleted_alone(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let templates = control.templates();
    let first = built(&control, &team, "app:v1").await;
    let second = built(&control, &team, "app:v2").await;
    templates.assign_tags(&team, &name("app:v2"), &strings(&["latest"])).await.unwrap();
    assert!(templates.delete(&team, &name("app:latest")).await.unwrap().is_empty(), "v2 still needs the build");
    assert_eq!(templates.delete(&team, &name("app:v1")).await.unwrap(), [first]);
    assert_eq!(templates.delete(&team, &name("app:v1")).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(templates.delete(&team, &name("app:v2")).await.unwrap(), [second]);
    assert_eq!(templates.get(&team, &name("app")).await.unwrap_err().kind(), Kind::NotFound);
    built(&control, &team, "app").await;
    assert_eq!(templates.delete(&team, &name("app")).await.unwrap().len(), 1);
    assert_eq!(templates.delete(&team, &name("app")).await.unwrap_err().kind(), Kind::NotFound);
}

pub(crate) async fn the_oldest_build_without_a_tag_makes_room(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let first = built(&control, &team, "app:keep").await;
    place.clock.advance(SECOND);
    let second = built(&control, &team, "app").await;
    for _ in 2..TEMPLATE_BUILDS_MAX {
        place.clock.advance(SECOND);
        built(&control, &team, "app").await;
    }
    let asked = control.templates().request_build(&team, &name("app"), &[], SIZE).await.unwrap();
    assert_eq!(asked.dropped.iter().map(|build| &build.id).collect::<Vec<_>>(), [&second.id]);
    assert_eq!(control.templates().resolve(&team, &name("app:keep")).await.unwrap().build.id, first.id);
}

pub(crate) async fn templates_and_snapshots_are_paged(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let origin = SandboxId::random();
    for number in 0..7 {
        built(&control, &team, &format!("t{number}")).await;
        let new = NewSnapshot { origin: &origin, name: None, size: SIZE, source: "s" };
        control.templates().add_snapshot(&team, &new).await.unwrap();
    }
    for snapshots in [false, true] {
        let (mut page, mut seen) = (Page { limit: 3, after: None }, Vec::new());
        loop {
            let (found, next) = match snapshots {
                true => {
                    let filter = SnapshotFilter { origin: Some(origin.clone()), name: None };
                    control.templates().snapshots(&team, &filter, &page).await.unwrap()
                }
                false => control.templates().list(&team, &page).await.unwrap(),
            };
            assert!(found.len() <= 3);
            seen.extend(found.into_iter().map(|template| template.id));
            match next {
                Some(next) => page.after = Some(next.to_string().parse().unwrap()),
                None => break,
            }
        }
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!((all, seen.len()), (7, 7));
    }
}
