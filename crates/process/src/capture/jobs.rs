//! Processes that a signal has stopped: jobs of a shell. A copy of one stops itself by its last step, before its program has made one of its own.
//!
//! What stops it is a signal that waits, blocked, until the step that gives the program back its own mask. SIGSTOP cannot be blocked; which signal it
//! was shows to no one but a parent that has not asked yet.

use sys::ptrace::signal_number;

use super::{inject::Answers, targets::Target};
use crate::{
    image::{Job, ProgramImage, Tree},
    observe::{blame::blame, checks},
    refusal::Refusal,
    stop::stopped::Stopped,
};

/// A process that may be stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pid: i32,
    /// 0: none has stopped it.
    signal: i32,
    /// See [`super::pause::GatheredAll::has_shell`].
    has_shell: bool,
    /// A child of it has stopped, and it was not told.
    is_untold: bool,
}

/// What is known of all processes, in one order.
pub(super) fn look(targets: &[Target], stopped: &[Stopped], answers: &[Answers], has_shell: &[bool]) -> Vec<Seen> {
    let each = targets.iter().zip(stopped).zip(answers.iter().zip(has_shell));
    let seen = each.map(|((target, stopped), (answers, has_shell))| Seen {
        pid: target.pid,
        signal: stopped.stop_signal(),
        has_shell: *has_shell,
        is_untold: answers.is_untold,
    });
    seen.collect()
}

/// Says of each process how a copy of it stops; refuses what could not.
pub(super) fn settle(tree: &mut Tree, seen: &[Seen]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (at, job) in seen.iter().enumerate().filter(|(_, job)| job.signal != 0) {
        let member = &mut tree.members[at];
        let is_told = member.kin.orphan.is_none() && member.kin.command.is_none() && !seen[member.kin.parent].is_untold;
        // It goes on as soon as it is let go.
        if waits(&member.image, libc::SIGCONT) {
            continue;
        }
        let why = match signal(&member.image, job.signal) {
            _ if at == 0 => checks::FIRST,
            _ if member.image.threads.len() > 1 => checks::THREADS,
            _ if !job.has_shell => "the kernel ignores SIGTSTP in its process group, which no shell watches",
            None => checks::NO_SIGNAL,
            Some(signal) => {
                member.image.job = Some(Job { signal, is_told });
                continue;
            }
        };
        let refusal = vec![Refusal::Stopped { why: why.into() }];
        refusals.extend(if at == 0 { refusal } else { blame(job.pid, refusal) });
    }
    refusals
}

/// One that stops the program, preferably the one that has.
fn signal(image: &ProgramImage, stopped_by: i32) -> Option<i32> {
    let stops = |signal: &i32| image.is_stopped_by(*signal) && !waits(image, *signal);
    Job::SIGNALS
        .into_iter()
        .find(|signal| *signal == stopped_by && stops(signal))
        .or(Job::SIGNALS.into_iter().find(stops))
}

fn waits(image: &ProgramImage, signal: i32) -> bool {
    let pending = image.threads.iter().flat_map(|thread| &thread.pending).chain(&image.pending);
    pending.into_iter().any(|info| signal_number(info) == signal)
}
