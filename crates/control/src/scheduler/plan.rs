//! What to do now, without a clock and without a database.

use base::id::SandboxId;
use db::{DbError, Fields};
use sqlx::any::AnyRow;

use crate::{Doing, OnTimeout, PauseMode, Time, sandboxes};

/// A sandbox that may be due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) id: SandboxId,
    pub(super) on_timeout: OnTimeout,
    pub(super) due: Time,
    /// What a server does with it, and until when its claim holds.
    pub(super) claim: Option<(Doing, Time)>,
}

/// What the end of a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Kill,
    Pause(PauseMode),
}

/// What to do now, and when to look again.
///
/// A sandbox that a server works on is left alone until the claim is over. A kill that was begun by a server that died
/// is finished, whatever the end of the sandbox is.
pub(super) fn plan(now: Time, rows: &[Due]) -> (Vec<(SandboxId, Action)>, Option<Time>) {
    let (mut actions, mut next) = (Vec::new(), None);
    for row in rows {
        let (action, at) = match row.claim {
            Some((Doing::Killing, until)) => (Action::Kill, until),
            Some((Doing::Pausing | Doing::Resuming, until)) => (row.on_timeout.action(), until.max(row.due)),
            None => (row.on_timeout.action(), row.due),
        };
        if at <= now {
            actions.push((row.id.clone(), action));
        } else {
            next = Some(next.map_or(at, |next: Time| next.min(at)));
        }
    }
    // A row that two statements found is done once.
    actions.sort_by(|a, b| a.0.cmp(&b.0));
    actions.dedup();
    (actions, next)
}

/// Reads a row.
pub(super) fn due(row: &AnyRow) -> Result<Due, DbError> {
    let until = Time::from_ms(row.count("doer_until_ms")?);
    Ok(Due {
        id: row.parsed("id", "sandbox id")?,
        on_timeout: sandboxes::on_timeout_of(row)?,
        due: Time::from_ms(row.count("due_ms")?),
        claim: Doing::parse(&row.text("doing")?).map(|doing| (doing, until)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(due: u64, on_timeout: OnTimeout, claim: Option<(Doing, u64)>) -> Due {
        let claim = claim.map(|(doing, until)| (doing, Time::from_ms(until)));
        Due { id: SandboxId::random(), on_timeout, due: Time::from_ms(due), claim }
    }

    #[test]
    fn what_is_due_ends_as_it_was_asked_to() {
        let rows = [
            row(10, OnTimeout::Kill, None),
            row(10, OnTimeout::Pause(PauseMode::Filesystem), None),
            row(11, OnTimeout::Kill, None),
        ];
        let (mut actions, next) = plan(Time::from_ms(10), &rows);
        actions.sort_by_key(|(id, _)| *id != rows[0].id);
        assert_eq!(actions[0], (rows[0].id.clone(), Action::Kill));
        assert_eq!(actions[1], (rows[1].id.clone(), Action::Pause(PauseMode::Filesystem)));
        assert_eq!((actions.len(), next), (2, Some(Time::from_ms(11))));
    }

    #[test]
    fn work_of_a_living_server_is_left_alone() {
        for doing in [Doing::Killing, Doing::Pausing, Doing::Resuming] {
            let claimed = row(10, OnTimeout::Kill, Some((doing, 50)));
            assert_eq!(plan(Time::from_ms(49), std::slice::from_ref(&claimed)), (Vec::new(), Some(Time::from_ms(50))));
            assert_eq!(plan(Time::from_ms(50), &[claimed]).0.len(), 1);
        }
    }

    #[test]
    fn a_kill_that_was_begun_is_finished_though_the_end_is_far() {
        let begun = row(1_000, OnTimeout::Pause(PauseMode::Full), Some((Doing::Killing, 5)));
        assert_eq!(plan(Time::from_ms(5), std::slice::from_ref(&begun)).0, [(begun.id, Action::Kill)]);
    }

    proptest! {
        #[test]
        fn nothing_ends_early_and_nothing_is_forgotten(
            now in 0u64..100,
            ends in proptest::collection::vec((0u64..100, any::<bool>(), proptest::option::of(0u64..100)), 0..20),
        ) {
            let rows: Vec<Due> = ends.iter().map(|(end, kill, claim)| {
                let on_timeout = if *kill { OnTimeout::Kill } else { OnTimeout::Pause(PauseMode::Full) };
                row(*end, on_timeout, claim.map(|until| (Doing::Pausing, until)))
            }).collect();
            let (actions, next) = plan(Time::from_ms(now), &rows);
            for row in &rows {
                let at = row.claim.map_or(row.due, |(_, until)| until.max(row.due));
                let acted = actions.iter().any(|(id, _)| *id == row.id);
                prop_assert_eq!(acted, at.ms() <= now);
                prop_assert!(acted || next.is_some_and(|next| next <= at && next.ms() > now));
            }
        }
    }
}
