//! Stopped processes stop again.

use super::{copy::Copy, descend::set_action};
use crate::{
    image::{ProgramImage, SignalAction, Tree},
    script::{Arena, Check, Script},
};

/// `SA_NOCLDSTOP`
const NO_WORD_OF_STOPS: u64 = 1;
const CHILD: usize = libc::SIGCHLD as usize - 1;

/// The stopped children of the process at place `at` whose stop it knows of.
fn told<'a>(tree: &'a Tree, at: usize) -> impl Iterator<Item = i32> + 'a {
    let children = tree.children(at).map(|child| &tree.members[child].image);
    children.filter(|image| image.job.is_some_and(|job| job.is_told)).map(|image| image.threads[0].tid)
}

/// How many processes wait for such children.
pub(super) fn waiting(tree: &Tree) -> u64 {
    (0..tree.members.len()).filter(|at| told(tree, *at).next().is_some()).count() as u64
}

/// The action upon the ends of children, without a signal for their stops. None if it sends none, or if another action would lose one that waits.
fn silent(image: &ProgramImage) -> Option<SignalAction> {
    let [handler, flags, restorer, mask] = image.actions[CHILD];
    let waits =
        image.pending.iter().any(|info| i32::from_ne_bytes([info[0], info[1], info[2], info[3]]) == libc::SIGCHLD);
    let keeps =
        handler == libc::SIG_IGN as u64 || flags & NO_WORD_OF_STOPS != 0 || handler == libc::SIG_DFL as u64 && waits;
    (!keeps).then_some([handler, flags | NO_WORD_OF_STOPS, restorer, mask])
}

/// Before children can stop: the process gets no signal for it.
pub(super) fn expect(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    if told(copy.tree, at).next().is_some() {
        let action = silent(&copy.tree.members[at].image);
        action.into_iter().for_each(|action| set_action(arena, script, libc::SIGCHLD, &action));
    }
}

/// Takes word of the stops of children, which the program had, and lets the signal wait by which the process stops itself when it has its own mask. All
/// wait with the program for the last of them: from then on others may tell it to go on.
pub(super) fn stop(copy: Copy<'_>, script: &mut Script, at: usize) {
    let tree = copy.tree;
    let stopping = copy.common + 32;
    let mut waits = false;
    for child in told(tree, at) {
        let options = (libc::WSTOPPED | libc::__WALL) as u64;
        let args = [u64::from(libc::P_PID).into(), child.into(), 0u64.into(), options.into(), 0u64.into()];
        script.call(libc::SYS_waitid, args, Check::Success);
        waits = true;
    }
    if waits {
        script.count_down(stopping);
    }
    let image = &tree.members[at].image;
    if let Some(job) = image.job {
        // Of all processes that are captured stopped, none has further threads.
        let only = image.threads[0].tid;
        script.call(libc::SYS_tgkill, [only.into(), only.into(), job.signal.into()], Check::Success);
    }
    if at == 0 && waiting(tree) > 0 {
        script.wait_zero(stopping);
    }
}

/// The program's own action again.
pub(super) fn forget(copy: Copy<'_>, arena: &mut Arena, script: &mut Script, at: usize) {
    let image = &copy.tree.members[at].image;
    if told(copy.tree, at).next().is_some() && silent(image).is_some() {
        set_action(arena, script, libc::SIGCHLD, &image.actions[CHILD]);
    }
}
