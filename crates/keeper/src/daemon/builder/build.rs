//! One build, as a state machine without system calls.
//!
//! ```text
//!              Captured                 result                 end of the process
//! building ──────────────> captured ─────────────> finished ─────────────────────> answered
//!     │                    (server is told)           ^
//!     └──────────────────── result ───────────────────┘
//! ```
//!
//! From every state, the end of the process without a result fails the request, and [`Build::cancel`] answers it at once. The end of a
//! cancelled build answers nothing, and its zygote is dropped.

use std::os::fd::OwnedFd;

use base::id::SandboxId;
use process::ZygoteFacts;
use serde::{Deserialize, Serialize};

use super::super::answer::{Answer, Ticket};
use crate::protocol::{Built, BuiltOrRefused, Failed, Refusal, Status};

/// What a builder tells the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The capture is done. The result follows.
    Captured,
    /// The last message.
    Result(Box<Outcome>),
}

/// The result of a builder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The files are the zygote's control socket and, if there is one, the file for the server.
    Built(Built),
    /// The program cannot be forked.
    Refused(Vec<Refusal>),
    /// A step failed.
    Failed(String),
}

/// A build whose process has not ended.
#[derive(Debug)]
pub(super) struct Build {
    /// None if the build was cancelled: its request is answered.
    ticket: Option<Ticket<BuiltOrRefused>>,
    /// The sandbox that the builder leaves frozen if it is killed. The server thaws only sandboxes that it asked to hold.
    freezes: Option<SandboxId>,
    result: Option<(Outcome, Vec<OwnedFd>)>,
}

/// What is left to do after a build.
#[derive(Debug)]
pub(in crate::daemon) struct Finished {
    /// None if the build was cancelled.
    pub(in crate::daemon) ticket: Option<Ticket<BuiltOrRefused>>,
    pub(in crate::daemon) outcome: Result<BuiltOrRefused, Failed>,
    /// A sandbox that the builder may have left frozen. The keeper thaws it.
    pub(in crate::daemon) frozen: Option<SandboxId>,
    /// The zygote and its control socket, if one was built.
    pub(in crate::daemon) built: Option<(ZygoteFacts, OwnedFd)>,
    /// For the server: the userfaultfd, or the file that describes the program.
    pub(in crate::daemon) file: Option<OwnedFd>,
}

impl Build {
    pub(super) fn new(ticket: Ticket<BuiltOrRefused>, freezes: Option<SandboxId>) -> Self {
        Self { ticket: Some(ticket), freezes, result: None }
    }

    /// The capture is done. The server is told, unless the build was cancelled.
    pub(super) fn captured(&self) -> Option<Answer> {
        self.ticket.as_ref().map(Ticket::captured)
    }

    /// The builder sent its result. The answer waits for the end of its process.
    pub(super) fn finished(&mut self, outcome: Outcome, files: Vec<OwnedFd>) {
        self.result = Some((outcome, files));
    }

    /// Gives up the build and answers its request.
    pub(super) fn cancel(&mut self) -> Option<Answer> {
        let ticket = self.ticket.take()?;
        Some(ticket.fail(Failed::zygote_gone("the build was cancelled")))
    }

    /// The builder's process ended.
    pub(super) fn ended(self, status: Status) -> Finished {
        let Self { ticket, freezes, result } = self;
        // A builder thaws what it froze before it sends its result.
        let frozen = freezes.filter(|_| result.is_none());
        let (outcome, files) = result.unzip();
        let mut files = files.into_iter().flatten();
        let (outcome, built) = match outcome {
            Some(Outcome::Built(built)) => {
                let zygote = files.next().map(|control| (built.facts.clone(), control));
                (Ok(Ok(built)), zygote)
            }
            Some(Outcome::Refused(refusals)) => (Ok(Err(refusals)), None),
            Some(Outcome::Failed(message)) => (Err(Failed::step(message)), None),
            None => (Err(Failed::step(format!("the builder of the zygote {status} without a result"))), None),
        };
        Finished { ticket, outcome, frozen, built, file: files.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::FromKeeper;

    fn sandbox() -> SandboxId {
        "s0123456789ab".parse().unwrap()
    }

    fn build() -> Build {
        Build::new(Ticket::new(1), Some(sandbox()))
    }

    fn files(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect()
    }

    fn built() -> Outcome {
        Outcome::Built(Built { facts: ZygoteFacts::default(), pause_us: 1, capture_us: 2, build_us: 3 })
    }

    #[test]
    fn a_build_gives_its_zygote_and_its_file_at_the_end_of_its_process() {
        for count in [1, 2] {
            let mut build = build();
            assert!(build.captured().is_some_and(|answer| answer.message == FromKeeper::Captured));
            build.finished(built(), files(count));
            let finished = build.ended(Status::Code(0));
            assert!(finished.ticket.is_some() && finished.built.is_some() && finished.frozen.is_none());
            assert!(matches!(finished.outcome, Ok(Ok(_))));
            assert_eq!(finished.file.is_some(), count == 2);
        }
    }

    #[test]
    fn a_refusal_and_a_failure_have_no_zygote() {
        let refusals = vec![Refusal { kind: "threads".to_owned(), reason: "it has one too many".to_owned() }];
        let expected: [(Outcome, Result<BuiltOrRefused, Failed>); 2] = [
            (Outcome::Refused(refusals.clone()), Ok(Err(refusals))),
            (Outcome::Failed("no memory".to_owned()), Err(Failed::step("no memory"))),
        ];
        for (outcome, answer) in expected {
            let mut build = build();
            build.finished(outcome, Vec::new());
            let finished = build.ended(Status::Code(0));
            assert_eq!(finished.outcome, answer);
            assert!(finished.built.is_none() && finished.file.is_none() && finished.frozen.is_none());
        }
    }

    #[test]
    fn a_builder_that_dies_without_a_result_may_leave_its_sandbox_frozen() {
        let finished = build().ended(Status::Signal(9));
        assert_eq!(finished.frozen, Some(sandbox()));
        let message = "the builder of the zygote was killed by signal 9 without a result";
        assert_eq!(finished.outcome, Err(Failed::step(message)));
        assert!(Build::new(Ticket::new(1), None).ended(Status::Signal(9)).frozen.is_none(), "the server holds it");
    }

    #[test]
    fn a_cancelled_build_is_answered_once_and_still_says_what_is_frozen() {
        let mut build = build();
        assert!(build.cancel().is_some_and(|answer| matches!(answer.message, FromKeeper::Failed(_))));
        assert!(build.cancel().is_none() && build.captured().is_none());
        let finished = build.ended(Status::Signal(9));
        assert!(finished.ticket.is_none() && finished.frozen.is_some());
    }

    #[test]
    fn a_cancelled_build_that_finishes_has_a_zygote_without_a_request() {
        let mut build = build();
        let _ = build.cancel();
        build.finished(built(), files(1));
        let finished = build.ended(Status::Code(0));
        assert!(finished.ticket.is_none() && finished.built.is_some() && finished.frozen.is_none());
    }
}
