//! Checkpoints that are replaced while a template is restored of them.

use super::*;

fn restored(of: &str) -> TemplateRecord {
    TemplateRecord { checkpoint: Some(of.to_owned()), ..record("a", &format!("/t/{of}")) }
}

/// Whether a start takes this zygote; else whether it restores what a checkpoint was replaced by.
fn starts(state: &State) -> Result<u64, bool> {
    match state.readiness(&name("a")).unwrap() {
        Readiness::Ready(ready) => Ok(ready.zygote.as_ref().unwrap().number.0),
        Readiness::Lost { replaced, .. } => Err(replaced),
        Readiness::Building => panic!("it is being built"),
    }
}

#[test]
fn what_was_restored_of_a_replaced_checkpoint_starts_nothing_more() {
    let mut state = empty();
    state.begin_again(&spec("a")).unwrap();
    state.finish_build(restored("m1"), Some(zygote(1)));
    let blank = blank(&mut state, &restored("m1").layers());
    assert!(state.put_blank(&name("a"), blank).is_none());
    let (unused, blanks) = state.replaced(&name("a"), "m1");
    assert!(unused.is_none() && blanks.is_empty() && starts(&state) == Ok(1), "it is what it was restored of");
    assert!(state.hides_checkpoint(&name("a"), 2) && !state.hides_checkpoint(&name("a"), 1));
    let (unused, blanks) = state.replaced(&name("a"), "m2");
    assert!(unused.is_some_and(|zygote| zygote.number == ZygoteId(1)) && blanks.len() == 1);
    assert!(starts(&state) == Err(true) && !state.hides_checkpoint(&name("a"), 2));
    state.begin_again(&spec("a")).unwrap();
    assert!(state.finish_build(restored("m2"), Some(zygote(2))).0.is_empty());
    assert_eq!(starts(&state), Ok(2));
    let (unused, _) = state.replaced(&name("b"), "m3");
    assert!(unused.is_none() && starts(&state) == Ok(2), "another name");
}

#[test]
fn what_was_replaced_several_times_is_restored_once() {
    let mut state = empty();
    state.begin_again(&spec("a")).unwrap();
    state.finish_build(restored("m1"), Some(zygote(1)));
    state.replaced(&name("a"), "m2");
    state.replaced(&name("a"), "m3");
    state.begin_again(&spec("a")).unwrap();
    // Perhaps by another node since.
    assert!(state.finish_build(restored("m4"), Some(zygote(2))).0.is_empty());
    assert_eq!(starts(&state), Ok(2));
}

#[test]
fn a_checkpoint_without_a_program_is_restored_anew_when_it_was_replaced() {
    let idle = |of: &str| TemplateRecord { spec: TemplateSpec { command: vec![], ..spec("a") }, ..restored(of) };
    let mut state = empty();
    state.finish_build(idle("m1"), None);
    let blank = blank(&mut state, &idle("m1").layers());
    assert!(state.put_blank(&name("a"), blank).is_none());
    assert!(state.replaced(&name("a"), "m1").1.is_empty());
    assert!(matches!(state.replaced(&name("a"), "m2"), (None, blanks) if blanks.len() == 1));
    state.begin_again(&spec("a")).unwrap();
    state.abandon_build(&name("a"));
    assert_eq!(starts(&state), Err(true), "a restore that fails does not bring it back");
    let state = State::new(vec![idle("m2")], vec![], 8, 8);
    assert_eq!(starts(&state), Err(false), "a new node asks the store again");
}

#[test]
fn a_restore_of_what_is_replaced_meanwhile_counts_as_lost() {
    let mut state = empty();
    let before = state.replacements();
    state.begin_again(&spec("a")).unwrap();
    state.replaced(&name("a"), "m2");
    assert_ne!(state.replacements(), before, "who looked for it before has to look again");
    let (unused, _) = state.finish_build(restored("m1"), Some(zygote(1)));
    assert!(unused.len() == 1 && starts(&state) == Err(true));
    state.begin_again(&spec("a")).unwrap();
    state.replaced(&name("a"), "m3");
    assert!(state.finish_build(restored("m3"), Some(zygote(3))).0.is_empty());
    assert_eq!(starts(&state), Ok(3), "it was restored of the newer one already");
    // A build that fails does not bring back what was replaced meanwhile.
    state.begin_build(&spec("a")).unwrap();
    assert!(state.replaced(&name("a"), "m4").0.is_some_and(|zygote| zygote.number == ZygoteId(3)));
    state.abandon_build(&name("a"));
    assert_eq!(starts(&state), Err(true));
}

#[test]
fn a_template_that_was_built_hides_checkpoints_of_its_name_and_stays() {
    let mut state = ready("a", 1);
    assert!(state.replaced(&name("a"), "m").0.is_none() && starts(&state) == Ok(1));
    assert!(state.hides_checkpoint(&name("a"), 1) && !state.hides_checkpoint(&name("b"), 1));
}
