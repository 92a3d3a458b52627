//! The transitions, and that no order of them breaks what the rest of the node relies on.

mod replaced;

use std::{collections::BTreeSet, fs::File, path::PathBuf, sync::Arc};

use base::id::{Arena, SandboxId, TemplateName, ZygoteId};
use model::{BuildTimings, Image, Ready, SandboxState, TemplateFacts, TemplateSpec, TemplateState};
use sandbox::ProcessIdentity;
use tokio::sync::oneshot;

use super::{Blank, CommandStreams, Parked, Readiness, State, ZygoteRef};
use crate::{
    error::Error,
    records::{Draft, ForkPoint, SandboxRecord, TemplateRecord},
};

fn name(text: &str) -> TemplateName {
    text.parse().unwrap()
}

fn spec(text: &str) -> TemplateSpec {
    TemplateSpec {
        name: name(text),
        image: Image::Host,
        command: vec!["true".into()],
        env: vec![],
        cwd: "/".into(),
        ready: Ready::Listening,
        ready_timeout_ms: 1,
        limits: model::Limits::default(),
        mount_points: vec![],
        user: None,
        startup: vec![],
        on_fork: vec![],
    }
}

fn record(text: &str, layer: &str) -> TemplateRecord {
    TemplateRecord {
        spec: spec(text),
        created_ms: 1,
        image_layers: vec!["/mask".into(), "/".into()],
        layer: layer.into(),
        timings: BuildTimings::default(),
        checkpoint: None,
        is_built: false,
        pages: None,
        volumes: Vec::new(),
    }
}

fn zygote(number: u64) -> ZygoteRef {
    let facts = TemplateFacts {
        zygote_pid: 1,
        threads: 1,
        mappings: 1,
        descriptors: 1,
        memory_bytes: 1,
        huge_bytes: 0,
        timings: BuildTimings::default(),
    };
    let number = ZygoteId(number);
    ZygoteRef { number, arena: Arena::default(), facts, engine: process::ZygoteFacts::default() }
}

pub(super) fn sandbox(state: &mut State, template: &str, layers: &[&str]) -> SandboxId {
    let id = state.claim();
    let identity = ProcessIdentity { pid: 1, start_ticks: 1 };
    state.started(SandboxRecord {
        id: id.clone(),
        template: name(template),
        parent: None,
        layers: layers.iter().map(PathBuf::from).collect(),
        pages: None,
        limits: model::Limits::default(),
        init: identity,
        main: identity,
        arena: None,
        created_ms: 1,
        start_us: 1,
        state: SandboxState::Running,
        reason: None,
        spec: None,
        paused_ms: None,
        held: None,
        volumes: Vec::new(),
        reservation: None,
        network: model::NetworkPolicy::default(),
        kept: None,
        fork_points: Vec::new(),
    });
    id
}

fn blank(state: &mut State, layers: &[PathBuf]) -> Blank {
    let init = ProcessIdentity { pid: 1, start_ticks: 1 };
    let dir = tempfile::tempdir().unwrap();
    Blank {
        id: state.claim(),
        init,
        layers: layers.to_vec(),
        output: Arc::new(File::create(dir.path().join("output")).unwrap().into()),
        carriage: None,
        record: Arc::new(Draft::create(&dir.path().join("record")).unwrap()),
        parked: None,
    }
}

/// Fills the pool; how many blanks that took.
fn fill(state: &mut State) -> usize {
    let mut filled = 0;
    while let Some(wanted) = state.wants_blank() {
        let blank = blank(state, &wanted.layers());
        assert!(state.put_blank(&wanted.spec.name, blank).is_none());
        filled += 1;
    }
    filled
}

pub(super) fn empty() -> State {
    State::new(vec![], vec![], 8, 8)
}

fn ready(template: &str, number: u64) -> State {
    let mut state = empty();
    state.begin_build(&spec(template)).unwrap();
    state.finish_build(record(template, "/t/layer"), Some(zygote(number)));
    state
}

#[test]
fn one_build_of_a_template_at_a_time() {
    let mut state = empty();
    state.begin_build(&spec("a")).unwrap();
    assert!(matches!(state.begin_build(&spec("a")), Err(Error::TemplateBusy(_))));
    assert!(matches!(state.remove_template(&name("a")), Err(Error::TemplateBusy(_))));
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Building)));
    state.begin_build(&spec("b")).unwrap();
}

#[test]
fn a_template_without_a_program_loses_nothing() {
    let mut state = empty();
    state.begin_build(&spec("a")).unwrap();
    let mut idle = record("a", "/t/layer");
    idle.spec.command.clear();
    state.finish_build(idle.clone(), None);
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Ready(ready)) if ready.zygote.is_none()));
    assert!(fill(&mut state) > 0, "the pool has blanks for it");
    state.keeper_lost();
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Ready(_))));
    state.begin_build(&spec("a")).unwrap();
    state.abandon_build(&name("a"));
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Ready(_))));
    let state = State::new(vec![idle], vec![], 8, 8);
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Ready(_))), "a new node has it at once");
}

#[test]
fn a_template_that_was_restored_meanwhile_is_not_restored_again() {
    let mut state = ready("a", 1);
    assert!(matches!(state.begin_again(&spec("a")), Err(Error::TemplateBusy(_))));
    assert!(
        matches!(state.readiness(&name("a")), Ok(Readiness::Ready(ready)) if ready.zygote.as_ref().unwrap().number == ZygoteId(1))
    );
    state.zygote_lost(ZygoteId(1));
    state.begin_again(&spec("a")).unwrap();
    assert!(matches!(state.begin_again(&spec("a")), Err(Error::TemplateBusy(_))));
    state.begin_again(&spec("b")).unwrap();
}

#[test]
fn a_first_build_that_fails_leaves_no_template() {
    let mut state = empty();
    state.begin_build(&spec("a")).unwrap();
    assert_eq!(state.template(&name("a")).unwrap().state, TemplateState::Building);
    state.abandon_build(&name("a"));
    assert!(state.templates().is_empty());
    assert!(matches!(state.readiness(&name("a")), Err(Error::NoTemplate(_))));
}

#[test]
fn a_later_build_that_fails_leaves_the_zygote_before_it_in_use() {
    let mut state = ready("a", 1);
    state.begin_build(&spec("a")).unwrap();
    state.abandon_build(&name("a"));
    assert!(
        matches!(state.readiness(&name("a")), Ok(Readiness::Ready(ready)) if ready.zygote.as_ref().unwrap().number == ZygoteId(1))
    );
}

#[test]
fn a_zygote_that_dies_under_a_build_is_not_used_after_its_failure() {
    let mut state = ready("a", 1);
    state.begin_build(&spec("a")).unwrap();
    assert_eq!(state.zygote_lost(ZygoteId(1)), None);
    state.abandon_build(&name("a"));
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Lost { replaced: false, .. })));
}

#[test]
fn a_build_hands_over_what_it_replaces() {
    let mut state = ready("a", 1);
    let old = blank(&mut state, &record("a", "/t/layer").layers());
    let old_id = old.id.clone();
    assert!(state.put_blank(&name("a"), old).is_none());
    state.begin_build(&spec("a")).unwrap();
    let (previous, blanks) = state.finish_build(record("a", "/t/layer-2"), Some(zygote(2)));
    assert_eq!(previous.iter().map(|zygote| zygote.number).collect::<Vec<_>>(), [ZygoteId(1)]);
    assert_eq!(blanks.iter().map(|blank| &blank.id).collect::<Vec<_>>(), [&old_id]);
    assert_eq!(state.zygote_lost(ZygoteId(1)), None, "of a zygote that is not used any more");
    assert_eq!(state.zygote_lost(ZygoteId(2)), Some(name("a")));
}

#[test]
fn copies_with_much_shared_memory_of_their_own_are_not_forked_ahead() {
    for (more, is_looked_at) in [(0, true), (1, false)] {
        let mut state = empty();
        state.begin_build(&spec("a")).unwrap();
        let mut zygote = zygote(1);
        zygote.engine.copied_bytes = base::limits::PARKED_SHARED_BYTES_MAX + more;
        state.finish_build(record("a", "/t/layer"), Some(zygote));
        let id = sandbox(&mut state, "a", &["/t/layer"]);
        assert_eq!(state.begin_sample(&id), is_looked_at);
    }
}

#[test]
fn a_retired_zygote_is_dropped_with_its_last_use() {
    let mut state = empty();
    assert!(state.retire_zygote(ZygoteId(1)), "nothing uses it");
    state.use_zygote(ZygoteId(2));
    state.use_zygote(ZygoteId(2));
    assert!(!state.retire_zygote(ZygoteId(2)) && !state.end_zygote_use(ZygoteId(2)));
    assert!(state.end_zygote_use(ZygoteId(2)));
    state.use_zygote(ZygoteId(3));
    assert!(!state.end_zygote_use(ZygoteId(3)), "its template has it still");
}

#[test]
fn with_the_keeper_every_zygote_and_every_blank_is_lost_and_no_sandbox() {
    let mut state = ready("a", 1);
    let kept = sandbox(&mut state, "a", &["/t/layer"]);
    let blank = blank(&mut state, &record("a", "/t/layer").layers());
    let blank_id = blank.id.clone();
    state.put_blank(&name("a"), blank);
    state.keeper_lost();
    assert!(matches!(state.readiness(&name("a")), Ok(Readiness::Lost { replaced: false, .. })));
    assert!(state.keeps(&kept) && state.records(&kept) && !state.keeps(&blank_id));
    assert_eq!(state.pool_info().ready, 0);
}

#[test]
fn a_template_with_sandboxes_is_not_removed() {
    let mut state = ready("a", 1);
    let id = sandbox(&mut state, "a", &["/t/layer"]);
    assert!(matches!(state.remove_template(&name("a")), Err(Error::TemplateInUse { sandboxes: 1, .. })));
    state.forget(&id);
    assert_eq!(state.remove_template(&name("a")).unwrap().0.map(|zygote| zygote.number), Some(ZygoteId(1)));
}

#[test]
fn a_layer_is_given_up_with_its_last_user_only() {
    let mut state = ready("a", 1);
    let point = "/state/sandboxes/s0123456789ab/layer";
    let first = sandbox(&mut state, "a", &[point, "/t/layer", "/"]);
    let second = sandbox(&mut state, "a", &[point, "/t/layer", "/"]);
    assert!(state.keeps(&"s0123456789ab".parse().unwrap()), "a fork point in use is kept by the sweep");
    assert!(state.forget(&first).is_empty());
    state.pin(&[point.into()]);
    assert!(state.forget(&second).is_empty());
    assert_eq!(state.unpin(&[point.into()]), [PathBuf::from(point)]);
    assert!(state.keeps(&"s0123456789ab".parse().unwrap()), "no leftover for the sweep while it is removed");
    state.layer_removed(point.as_ref());
    assert!(!state.keeps(&"s0123456789ab".parse().unwrap()));
}

#[test]
fn how_files_were_at_a_fork_is_kept_for_those_who_descend_from_it() {
    let mut state = ready("a", 1);
    let (point, id) = (PathBuf::from("/state/changes/s0123456789ab/upper"), "s0123456789ab".parse().unwrap());
    let (first, second) = (sandbox(&mut state, "a", &["/t/layer"]), sandbox(&mut state, "a", &["/t/layer"]));
    for copy in [&first, &second] {
        let layers = vec![point.clone(), "/t/layer".into()];
        let of = "s0123456789ac".parse().unwrap();
        state.sandboxes.get_mut(copy).unwrap().fork_points = vec![ForkPoint { of, at_ms: 1, layers }];
    }
    assert!(state.uses_layer(&point) && state.keeps(&id) && state.records(&id));
    let third = sandbox(&mut state, "a", &["/t/layer"]);
    state.sandboxes.get_mut(&third).unwrap().fork_points = state.sandboxes[&second].fork_points.clone();
    assert!(state.forget(&first).is_empty());
    // Only one of them is left: it has nothing to go back to.
    assert_eq!(state.forget(&third), [point]);
    assert!(state.sandboxes[&second].fork_points.is_empty());
}

#[test]
fn the_pool_waits_for_starts_and_shares_its_room() {
    let mut state = ready("a", 1);
    state.begin_build(&spec("b")).unwrap();
    state.finish_build(record("b", "/u/layer"), Some(zygote(2)));
    state.start_begins();
    assert!(state.wants_blank().is_none());
    state.start_ends();
    let filled = fill(&mut state);
    assert_eq!((filled, state.pool_info().ready), (8, 8));
    assert!(state.take_blank(&name("a"), &record("a", "/t/layer").layers(), None).is_some());
    assert!(state.take_blank(&name("a"), &record("a", "/t/other").layers(), None).is_none(), "of an earlier build");
}

#[test]
fn a_blank_for_a_template_that_changed_meanwhile_is_given_back() {
    let mut state = ready("a", 1);
    let old = blank(&mut state, &record("a", "/t/earlier").layers());
    let id = old.id.clone();
    assert_eq!(state.put_blank(&name("a"), old).map(|blank| blank.id), Some(id));
}

fn parked(state: &mut State, zygote: ZygoteId) -> Blank {
    let mut blank = blank(state, &record("a", "/t/layer").layers());
    let main = ProcessIdentity { pid: 2, start_ticks: 1 };
    blank.parked = Some(Parked {
        zygote,
        start: state.new_start(),
        first: main,
        ended: oneshot::channel().1,
        is_program: true,
        streams: CommandStreams::default(),
    });
    blank
}

/// Three sandboxes of `a` were looked at.
fn teach(state: &mut State) {
    for _ in 0..3 {
        let id = sandbox(state, "a", &["/t/layer"]);
        assert!(state.begin_sample(&id));
        assert!(state.take_sample(&id).is_some() && state.take_sample(&id).is_none());
        state.end_sample(&name("a"));
        state.forget(&id);
    }
}

#[test]
fn copies_are_forked_ahead_once_it_is_known_what_they_touch_and_up_to_the_limit() {
    let mut state = State::new(vec![], vec![], 4, 2);
    state.begin_build(&spec("a")).unwrap();
    state.finish_build(record("a", "/t/layer"), Some(zygote(7)));
    fill(&mut state);
    assert!(state.take_unparked().is_none(), "nothing is known yet");
    teach(&mut state);
    let later = sandbox(&mut state, "a", &["/t/layer"]);
    assert!(!state.begin_sample(&later), "three are enough");
    let mut forked_ahead = 0;
    while let Some((template, blank, ZygoteId(7))) = state.take_unparked() {
        state.forget(&blank.id);
        let parked = parked(&mut state, ZygoteId(7));
        assert!(state.put_blank(&template, parked).is_none());
        forked_ahead += 1;
    }
    assert_eq!((forked_ahead, state.pool_info().ready), (2, 4));
    state.start_begins();
    assert!(state.take_unparked().is_none(), "a start is under way");
}

#[test]
fn templates_share_the_copies_that_are_forked_ahead() {
    let mut state = State::new(vec![], vec![], 8, 4);
    state.begin_build(&spec("a")).unwrap();
    state.finish_build(record("a", "/t/layer"), Some(zygote(1)));
    teach(&mut state);
    fill(&mut state);
    while let Some((template, blank, zygote)) = state.take_unparked() {
        state.forget(&blank.id);
        let parked = parked(&mut state, zygote);
        state.put_blank(&template, parked);
    }
    assert_eq!(state.pool_info().ahead, 4);
    state.begin_build(&spec("b")).unwrap();
    state.finish_build(record("b", "/u/layer"), Some(zygote(2)));
    for _ in 0..3 {
        let id = sandbox(&mut state, "b", &["/u/layer"]);
        assert!(state.begin_sample(&id));
        state.take_sample(&id);
        state.end_sample(&name("b"));
        state.forget(&id);
    }
    // Blanks beyond the share of `a` go first, then its copies beyond theirs.
    let mut gone = 0;
    while let Some(blank) = state.take_surplus() {
        state.forget(&blank.id);
        gone += 1;
    }
    assert!(gone >= 4 && state.pool_info().ahead <= 2, "{:?}", state.pool_info());
    fill(&mut state);
    assert!(matches!(state.take_unparked(), Some((_, _, ZygoteId(1 | 2)))));
}

#[test]
fn a_start_takes_a_parked_copy_of_its_own_zygote_only() {
    let mut state = ready("a", 1);
    let layers = record("a", "/t/layer").layers();
    let (own, of_another) = (parked(&mut state, ZygoteId(1)), parked(&mut state, ZygoteId(5)));
    assert!(state.put_blank(&name("a"), of_another).is_some(), "its zygote is not the template's");
    assert!(state.put_blank(&name("a"), own).is_none());
    let bare = blank(&mut state, &layers);
    assert!(state.put_blank(&name("a"), bare).is_none());
    assert!(state.take_blank(&name("a"), &layers, Some(ZygoteId(1))).unwrap().parked.is_some());
    assert!(
        state.take_blank(&name("a"), &layers, Some(ZygoteId(1))).unwrap().parked.is_none(),
        "none is parked any more"
    );
    let own = parked(&mut state, ZygoteId(1));
    state.put_blank(&name("a"), own);
    assert!(state.take_blank(&name("a"), &layers, None).is_none(), "by stepping it begins with a blank");
}

#[test]
fn the_pool_never_exceeds_its_limit_and_is_for_the_templates_used_last() {
    let mut state = State::new(vec![], vec![], 2, 2);
    for (number, template) in ["a", "b", "c"].into_iter().enumerate() {
        state.begin_build(&spec(template)).unwrap();
        state.finish_build(record(template, &format!("/{template}/layer")), Some(zygote(number as u64)));
        while let Some(surplus) = state.take_surplus() {
            state.release(&surplus.id);
        }
        fill(&mut state);
        assert_eq!(state.pool_info().ready, 2);
    }
    assert!(
        state.take_blank(&name("a"), &record("a", "/a/layer").layers(), None).is_none(),
        "it was used least recently"
    );
    assert_eq!(state.take_surplus().unwrap().layers, record("b", "/b/layer").layers());
    assert!(state.take_surplus().is_none());
}

#[test]
fn limits_are_bound_once_for_each_start() {
    let mut state = ready("a", 1);
    let id = sandbox(&mut state, "a", &["/t/layer"]);
    assert_eq!(state.take_unbound(), BTreeSet::from([id]));
    assert!(state.take_unbound().is_empty());
}

#[test]
fn an_end_is_news_once() {
    let mut state = ready("a", 1);
    let id = sandbox(&mut state, "a", &["/t/layer"]);
    let ended = SandboxState::Exited(model::ExitStatus::Code(0));
    assert!(state.set_state(&id, ended).is_some() && state.set_state(&id, ended).is_none());
    assert!(matches!(state.running(&id), Err(Error::NotRunning { .. })));
}
