//! Stopped processes stop again.

use sys::ptrace::signal_number;

use super::{copy::Copy, descend::set_action};
use crate::{
    image::{Job, ProgramImage, SignalAction, Tree},
    script::{Arena, Check, Script},
};

/// `SA_NOCLDSTOP`
const NO_WORD_OF_STOPS: u64 = 1;
const CHILD: usize = libc::SIGCHLD as usize - 1;

/// The stopped children of the process at place `at`, by their numbers.
fn stopped(tree: &Tree, at: usize) -> impl Iterator<Item = (i32, Job)> {
    let children = tree.children(at).map(|child| &tree.members[child]);
    let own = children.filter(|child| child.kin.orphan.is_none() && child.kin.command.is_none());
    own.filter_map(|child| Some((child.image.threads[0].tid, child.image.job?)))
}

/// How many processes have such children.
pub(super) fn waiting(tree: &Tree) -> u64 {
    (0..tree.members.len()).filter(|at| stopped(tree, *at).next().is_some()).count() as u64
}

/// The action upon the ends of children, without a signal for their stops. None if it sends none, or if another action would lose one that waits.
fn silent(image: &ProgramImage) -> Option<SignalAction> {
    let [handler, flags, restorer, mask] = image.actions[CHILD];
    let mut pending = image.threads.iter().flat_map(|thread| &thread.pending).chain(&image.pending);
    let keeps = handler == libc::SIG_IGN as u64
        || flags & NO_WORD_OF_STOPS != 0
        || handler == libc::SIG_DFL as u64 && pending.any(|info| signal_number(info) == libc::SIGCHLD);
    (!keeps).then_some([handler, flags | NO_WORD_OF_STOPS, restorer, mask])
}

/// Before any other process goes on: the signal waits by which the process stops itself when it has its own mask. If another one tells it to go on
/// before that, it does not stop. And it gets no signal for the stops of its children.
pub(super) fn prepare(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    let image = &copy.tree.members[at].image;
    if stopped(copy.tree, at).next().is_some() {
        silent(image).into_iter().for_each(|action| set_action(arena, script, libc::SIGCHLD, &action));
    }
    if let Some(job) = image.job {
        let only = image.threads[0].tid;
        script.call(libc::SYS_tgkill, [only.into(), only.into(), job.signal.into()], Check::Success);
    }
}

/// When all are there, waits for the stops of children, and takes word of those that the program knew of. The first process waits for all who wait.
pub(super) fn meet(copy: Copy<'_>, script: &mut Script, at: usize) {
    let tree = copy.tree;
    let waits = copy.common + 32;
    for (child, job) in stopped(tree, at) {
        let options = libc::WSTOPPED | libc::__WALL | if job.is_told { 0 } else { libc::WNOWAIT };
        let args = [u64::from(libc::P_PID).into(), child.into(), 0u64.into(), options.into(), 0u64.into()];
        script.call(libc::SYS_waitid, args, Check::Success);
    }
    if stopped(tree, at).next().is_some() {
        script.count_down(waits);
    }
    if at == 0 && waiting(tree) > 0 {
        script.wait_zero(waits);
    }
}

/// The program's own action again.
pub(super) fn forget(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    let image = &copy.tree.members[at].image;
    if stopped(copy.tree, at).next().is_some() && silent(image).is_some() {
        set_action(arena, script, libc::SIGCHLD, &image.actions[CHILD]);
    }
}
