//! Every order of events that one start can see, up to a length, against what must hold.

use std::rc::Rc;

use super::*;
use crate::protocol::FromKeeper;

const START: StartId = StartId(5);
/// The number of the request that starts or parks the copy.
const ASKS: u64 = 1;
/// The number of the request that releases it.
const RELEASES: u64 = 2;

const COPY: ProcessIdentity = ProcessIdentity { pid: 77, start_ticks: 1 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Forked,
    Unwatchable,
    Ready,
    Failed,
    Ended,
    Release,
}

const STEPS: [Step; 6] = [Step::Forked, Step::Unwatchable, Step::Ready, Step::Failed, Step::Ended, Step::Release];

/// The gates of these tests: one stays outside, to see whether the other was dropped.
type TestStarts = Starts<(), Rc<()>>;

fn sandbox() -> SandboxId {
    "s0123456789ab".parse().unwrap()
}

fn start(number: StartId, way: Way) -> Start<()> {
    Start { ticket: Ticket::new(ASKS), sandbox: sandbox(), start: number, way, files: () }
}

/// A machine whose zygote was asked for one start.
fn asked(way: Way) -> (TestStarts, Rc<()>) {
    let (mut starts, gate) = (TestStarts::new(), Rc::new(()));
    starts.push(start(START, way));
    let next = starts.next().unwrap();
    starts.asked(next, (way == Way::Parked).then(|| Rc::clone(&gate)));
    (starts, gate)
}

/// Performs one step and returns the answers. An opened gate is dropped, as the zygote's is when it was written to.
fn perform(starts: &mut TestStarts, step: Step) -> Option<Answer> {
    match step {
        Step::Forked => starts.forked(START, Ok(COPY)),
        Step::Unwatchable => starts.forked(START, Err(Failed::step("it cannot be watched"))),
        Step::Ready => starts.ready(START, Vec::new(), Vec::new()),
        Step::Failed => starts.failed(START, Failed::step("a step")),
        Step::Ended => starts.process_ended(COPY.pid, Status::Code(1)),
        Step::Release => starts.release(START, Ticket::new(RELEASES)).err(),
    }
}

/// All sequences of `length` steps in which the copy is released at most once: the server releases each copy once.
fn sequences(length: usize) -> impl Iterator<Item = Vec<Step>> {
    (0..STEPS.len().pow(length as u32))
        .map(move |mut number| {
            (0..length)
                .map(|_| {
                    let step = STEPS[number % STEPS.len()];
                    number /= STEPS.len();
                    step
                })
                .collect::<Vec<_>>()
        })
        .filter(|steps| steps.iter().filter(|step| **step == Step::Release).count() <= 1)
}

/// Runs a sequence, then loses the zygote. Returns the answers to the start and to the release, each with the number of steps before it.
fn run(way: Way, steps: &[Step]) -> [Vec<(usize, FromKeeper)>; 2] {
    let (mut starts, gate) = asked(way);
    let mut answers = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        answers.extend(perform(&mut starts, *step).map(|answer| (at, answer)));
    }
    answers.extend(starts.lose("the zygote died").into_iter().map(|answer| (steps.len(), answer)));
    assert_eq!(Rc::strong_count(&gate), 1, "{way:?} {steps:?}: a gate outlives its zygote");
    [ASKS, RELEASES].map(|seq| {
        let own = answers.iter().filter(|(_, answer)| answer.seq == seq);
        own.map(|(at, answer)| (*at, answer.message.clone())).collect()
    })
}

fn is_done(message: &FromKeeper) -> bool {
    matches!(message, FromKeeper::Done(_))
}

#[test]
fn every_request_is_answered_exactly_once() {
    for steps in (0..=5).flat_map(sequences) {
        for way in [Way::AtOnce, Way::Stepping, Way::Parked] {
            let [asks, releases] = run(way, &steps);
            assert_eq!(asks.len(), 1, "{way:?} {steps:?}: {asks:?}");
            assert_eq!(releases.len(), usize::from(steps.contains(&Step::Release)), "{way:?} {steps:?}: {releases:?}");
        }
    }
}

#[test]
fn a_start_is_done_when_its_copy_is_forked_and_ready_in_either_order() {
    for steps in (0..=5).flat_map(sequences) {
        let [asks, releases] = run(Way::AtOnce, &steps);
        // What ends the start: its copy can end only after it was forked.
        let (mut forked, mut ready, mut done_at, mut over) = (false, false, None, false);
        for (at, step) in steps.iter().enumerate() {
            match step {
                _ if over => {}
                Step::Forked => forked = true,
                Step::Unwatchable => over = !forked,
                Step::Ready => ready = true,
                Step::Failed => over = true,
                Step::Ended => over = forked,
                Step::Release => {}
            }
            if forked && ready && !over {
                (done_at, over) = (Some(at), true);
            }
        }
        let done = asks.iter().find(|(_, message)| is_done(message)).map(|(at, _)| *at);
        assert_eq!(done, done_at, "{steps:?}");
        assert!(!releases.iter().any(|(_, message)| is_done(message)), "{steps:?}: nothing was parked");
    }
}

#[test]
fn a_release_is_done_when_the_copy_was_parked_and_is_ready_afterwards() {
    for steps in (0..=5).flat_map(sequences) {
        let [asks, releases] = run(Way::Parked, &steps);
        #[derive(PartialEq)]
        enum Model {
            Parking,
            Parked,
            Released,
            Over,
        }
        let (mut model, mut parked_at, mut done_at) = (Model::Parking, None, None);
        for (at, step) in steps.iter().enumerate() {
            model = match (model, step) {
                (Model::Parking, Step::Forked) => {
                    parked_at = Some(at);
                    Model::Parked
                }
                (Model::Parking, Step::Unwatchable | Step::Failed) => Model::Over,
                (Model::Parked, Step::Failed | Step::Ended) => Model::Over,
                (Model::Parked, Step::Release) => Model::Released,
                (Model::Released, Step::Ready) => {
                    done_at = Some(at);
                    Model::Over
                }
                (Model::Released, Step::Failed | Step::Ended) => Model::Over,
                (model, _) => model,
            };
        }
        let done = |answers: &[(usize, FromKeeper)]| answers.iter().find(|(_, m)| is_done(m)).map(|(at, _)| *at);
        assert_eq!((done(&asks), done(&releases)), (parked_at, done_at), "{steps:?}");
    }
}

#[test]
fn no_more_starts_are_asked_for_than_the_zygote_takes() {
    let mut starts = TestStarts::new();
    (0..REQUESTED_MAX as u64 + 2).for_each(|number| starts.push(start(StartId(number), Way::AtOnce)));
    for number in 0..REQUESTED_MAX as u64 {
        let next = starts.next().unwrap();
        assert_eq!(next.start, StartId(number), "in the order of the requests");
        starts.asked(next, None);
    }
    assert!(starts.next().is_none());
    let _ = starts.failed(StartId(3), Failed::step("a step"));
    assert_eq!(starts.next().map(|start| start.start), Some(StartId(REQUESTED_MAX as u64)));
}

#[test]
fn a_zygote_with_only_parked_copies_is_not_busy() {
    let (mut starts, gate) = asked(Way::Parked);
    assert!(starts.is_busy());
    assert!(starts.forked(START, Ok(COPY)).is_some_and(|answer| is_done(&answer.message)));
    assert!(!starts.is_busy());
    assert_eq!(Rc::strong_count(&gate), 2);
    assert!(starts.process_ended(COPY.pid, Status::Signal(9)).is_none());
    assert_eq!(Rc::strong_count(&gate), 1, "the gate of a dead copy is dropped");
}

#[test]
fn the_end_of_a_copy_says_how_it_ended() {
    let (mut starts, _gate) = asked(Way::AtOnce);
    assert!(starts.forked(START, Ok(COPY)).is_none());
    assert!(starts.process_ended(COPY.pid + 1, Status::Code(0)).is_none());
    let answer = starts.process_ended(COPY.pid, Status::Signal(9)).unwrap();
    assert_eq!(answer.message, FromKeeper::Failed(Failed::step("the copy was killed by signal 9 during its start")));
}
