//! Two teams do the same things, in any order. Neither sees, or changes, anything of the other.

use base::id::{BuildId, KeyId, SandboxId, TeamId, TemplateId, VolumeId};
use control::{
    BuildUpdate, Control, ControlError, EventKind, Filter, Kind, NewSandbox, NewSnapshot, Order, Page, Sandbox, Scope,
    SnapshotFilter, TemplateRef,
};

use crate::{
    place::{MINUTE, Place, create, kill, scopes, spec, team},
    templates::{SIZE, built, name},
};

/// What a team has, by what this test did for it.
#[derive(Debug, Default)]
struct Model {
    keys: Vec<KeyId>,
    sandboxes: Vec<Sandbox>,
    ended: Vec<SandboxId>,
    templates: Vec<(TemplateId, BuildId)>,
    snapshots: Vec<TemplateId>,
    volumes: Vec<VolumeId>,
}

pub(crate) async fn two_teams_see_nothing_of_each_other(place: &Place) {
    let control = place.open("a").await;
    let teams = [team(&control, "one").await, team(&control, "two").await];
    let mut models = [Model::default(), Model::default()];
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for step in 0..120 {
        let at = random.usize(..2);
        act(&control, &teams[at], &mut models[at], random.u8(..8), step).await;
        if step % 10 == 0 {
            for at in 0..2 {
                sees_its_own(&control, &teams[at], &models[at]).await;
                is_shut_out(&control, &teams[at], &models[1 - at]).await;
            }
        }
    }
    // The attempts of one team have changed nothing of the other's.
    for at in 0..2 {
        sees_its_own(&control, &teams[at], &models[at]).await;
    }
}

/// One step of a team.
async fn act(control: &Control, team: &TeamId, model: &mut Model, action: u8, step: usize) {
    match action {
        0 => model.keys.push(control.keys().create(team, "key", &scopes(Scope::All)).await.unwrap().0.id),
        1..4 => {
            // Both teams have the same metadata and names.
            let asked = NewSandbox { metadata: [("k".to_owned(), "v".to_owned())].into(), ..spec() };
            model.sandboxes.push(create(control, team, &asked).await.unwrap());
        }
        4 if !model.sandboxes.is_empty() => {
            let ended = model.sandboxes.swap_remove(0);
            kill(control, &ended).await;
            model.ended.push(ended.id);
        }
        5 => {
            let build = built(control, team, &format!("t{step}")).await;
            model.templates.push((build.template, build.id));
        }
        6 => {
            let named = name(&format!("s{step}"));
            let new = NewSnapshot { origin: &SandboxId::random(), name: Some(&named), size: SIZE, source: "s" };
            model.snapshots.push(control.templates().add_snapshot(team, &new).await.unwrap().0.template.id);
        }
        _ => model.volumes.push(control.volumes().create(team, &format!("v{step}")).await.unwrap().id),
    }
}

fn sorted<T: Ord + Clone>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

/// Lists show a team what it has and nothing else.
async fn sees_its_own(control: &Control, team: &TeamId, model: &Model) {
    let keys = control.keys().list(team).await.unwrap();
    assert_eq!(sorted(keys.into_iter().map(|key| key.id)), sorted(model.keys.clone()));
    for filter in
        [Filter::default(), Filter { metadata: [("k".to_owned(), "v".to_owned())].into(), ..Filter::default() }]
    {
        let page = control.sandboxes().list(team, &filter, Order::Asc, &Page::default()).await.unwrap();
        let expected = sorted(model.sandboxes.iter().map(|sandbox| sandbox.id.clone()));
        assert_eq!(sorted(page.sandboxes.into_iter().map(|sandbox| sandbox.id)), expected);
        assert_eq!(page.total_running, expected.len() as u64);
    }
    let (templates, _) = control.templates().list(team, &Page::default()).await.unwrap();
    let expected = sorted(model.templates.iter().map(|(template, _)| template.clone()));
    assert_eq!(sorted(templates.into_iter().map(|template| template.id)), expected);
    let (snapshots, _) =
        control.templates().snapshots(team, &SnapshotFilter::default(), &Page::default()).await.unwrap();
    assert_eq!(sorted(snapshots.into_iter().map(|template| template.id)), sorted(model.snapshots.clone()));
    let volumes = control.volumes().list(team).await.unwrap();
    assert_eq!(sorted(volumes.into_iter().map(|volume| volume.id)), sorted(model.volumes.clone()));
    for id in &model.ended {
        assert_eq!(control.sandboxes().events(team, id, 0).await.unwrap().last().unwrap().kind, EventKind::Killed);
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ControlError>, kind: Kind) {
    assert_eq!(answer.unwrap_err().kind(), kind);
}

/// Every request of a team about a thing of the other one fails.
async fn is_shut_out(control: &Control, team: &TeamId, other: &Model) {
    for key in &other.keys {
        refused(control.keys().revoke(team, key).await, Kind::NotFound);
    }
    for sandbox in other.sandboxes.iter().take(3) {
        let (id, sandboxes) = (&sandbox.id, control.sandboxes());
        refused(sandboxes.get(team, id).await, Kind::NotFound);
        refused(sandboxes.extend(team, id, MINUTE).await, Kind::NotFound);
        refused(sandboxes.set_timeout(team, id, MINUTE).await, Kind::NotFound);
        refused(sandboxes.set_network(team, id, None, false).await, Kind::NotFound);
        refused(control.begin_pause(team, id).await, Kind::NotFound);
        refused(control.begin_resume(team, id).await, Kind::NotFound);
        refused(control.begin_kill(team, id).await, Kind::NotFound);
    }
    for id in other.sandboxes.iter().map(|sandbox| &sandbox.id).chain(&other.ended) {
        assert!(control.sandboxes().events(team, id, 0).await.unwrap().is_empty());
    }
    let builds = other.templates.iter().map(|(template, build)| (template, Some(build)));
    for (template, build) in builds.chain(other.snapshots.iter().map(|template| (template, None))).take(4) {
        let (id, templates) = (TemplateRef::from(template), control.templates());
        refused(templates.get(team, &id).await, Kind::Forbidden);
        refused(templates.resolve(team, &id).await, Kind::Forbidden);
        refused(templates.tags(team, &id).await, Kind::Forbidden);
        refused(templates.builds(team, template).await, Kind::Forbidden);
        refused(templates.delete(team, &id).await, Kind::Forbidden);
        refused(templates.set_public(team, &id, true).await, Kind::Forbidden);
        refused(templates.assign_tags(team, &id, &["x".to_owned()]).await, Kind::Forbidden);
        refused(templates.remove_tags(team, &id, &["default".to_owned()]).await, Kind::Forbidden);
        refused(templates.request_build(team, &id, &[], SIZE).await, Kind::Forbidden);
        if let Some(build) = build {
            refused(templates.build(team, template, build).await, Kind::Forbidden);
            // A build of their own with the id of the other's.
            let own = built(control, team, "t").await;
            let stolen = control::Build { id: build.clone(), ..own.clone() };
            refused(templates.update_build(team, &stolen, &BuildUpdate::Building).await, Kind::NotFound);
            templates.delete(team, &TemplateRef::from(&own.template)).await.unwrap();
        }
    }
    for volume in &other.volumes {
        refused(control.volumes().get(team, volume).await, Kind::NotFound);
        refused(control.volumes().delete(team, volume).await, Kind::NotFound);
    }
}
