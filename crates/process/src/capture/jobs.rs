//! Processes that a signal has stopped: jobs of a shell. A copy of one stops itself by its last step, before its program has made one of its own.
//!
//! What stops it is a signal that waits, blocked, until the step that gives the program back its own mask. SIGSTOP cannot be blocked; which signal it
//! was shows to no one but a parent that has not asked yet.

use super::{inject::Answers, targets::Target};
use crate::{
    image::{Job, ProgramImage, Tree},
    observe::blame::blame,
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
        let why = match signal(&member.image, job.signal) {
            _ if at == 0 => "it is the sandbox's first process",
            _ if member.image.threads.len() > 1 => "it has several threads",
            _ if !job.has_shell => "no process outside its group can tell it to go on: the group has lost its shell",
            None => "it handles, ignores or blocks SIGTSTP, SIGTTIN and SIGTTOU",
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
    let bit = |signal: i32| 1u64 << (signal - 1);
    let waits = |signal: i32| image.pending.iter().chain(&image.threads[0].pending).any(|info| number(info) == signal);
    let stops = |signal: &i32| {
        image.actions[*signal as usize - 1][0] == libc::SIG_DFL as u64
            && image.threads[0].mask & bit(*signal) == 0
            && !waits(*signal)
    };
    Job::SIGNALS
        .into_iter()
        .find(|signal| *signal == stopped_by && stops(signal))
        .or(Job::SIGNALS.into_iter().find(stops))
}

/// The signal's number, which is first in a `siginfo_t`.
fn number(info: &[u8; 128]) -> i32 {
    i32::from_ne_bytes([info[0], info[1], info[2], info[3]])
}
