//! What copies inherit from their zygote as a process, beside its memory: signal actions, limits, personality.

use crate::{
    image::Tree,
    script::{Arena, Check, Script},
    start::{self, limit_bounding_set},
};

const RLIMIT_NOFILE: usize = 7;
const KEYCTL_JOIN_SESSION_KEYRING: i32 = 1;

/// Adds what copies inherit: actions, the kernel's view of the address space, limits. Their ids are those of a user namespace, so not those.
/// `program` is the descriptor of the program's file, if the kernel is to be told of it.
pub(super) fn inherit(arena: &mut Arena, script: &mut Script, tree: &Tree, program: Option<i32>) {
    let image = tree.first();
    let name = arena.text(b"pando-zygote");
    script.call(libc::SYS_prctl, [libc::PR_SET_NAME.into(), name.into()], Check::Success);
    script.call(libc::SYS_setsid, [], Check::Success);
    for (n, action) in image.actions.iter().enumerate() {
        let signal = n as i32 + 1;
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            let action = arena.words(action);
            script.call(
                libc::SYS_rt_sigaction,
                [signal.into(), action.into(), 0u64.into(), 8u64.into()],
                Check::Success,
            );
        }
    }
    start::set_layout(arena, script, image, program);
    for bit in (0..64).filter(|bit| image.membarrier >> bit & 1 != 0) {
        script.call(libc::SYS_membarrier, [(1u64 << bit).into(), 0u64.into(), 0u64.into()], Check::Success);
    }
    for (resource, (soft, hard)) in image.limits.iter().enumerate() {
        match start::is_set_late(resource, tree) {
            true if resource == RLIMIT_NOFILE => {}
            true => start::lift_limit(arena, script, resource),
            false => start::set_limit(arena, script, resource, *soft, *hard),
        }
    }
    script.call(libc::SYS_umask, [u64::from(image.umask).into()], Check::Ignore);
    // What a daemon may have and hand down, and no program should get: its priorities, its session's keys.
    script.call(libc::SYS_setpriority, [u64::from(libc::PRIO_PROCESS).into(), 0u64.into(), 0u64.into()], Check::Ignore);
    script.call(libc::SYS_keyctl, [KEYCTL_JOIN_SESSION_KEYRING.into(), 0u64.into()], Check::Ignore);
    script.call(libc::SYS_personality, [image.personality.into()], Check::Ignore);
    // Beside whether they are off, for what they are not: an argument of its own.
    let (off, but) = (image.no_huge_pages & 1, image.no_huge_pages & !1);
    let no_huge_pages = [libc::PR_SET_THP_DISABLE.into(), off.into(), but.into(), 0u64.into(), 0u64.into()];
    script.call(libc::SYS_prctl, no_huge_pages, Check::Ignore);
    // It is privileged, and its memory is what all copies will be: only the host's root may look into it or write to it, and no root of a sandbox's
    // own users. Copies inherit this.
    script.call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 0u64.into()], Check::Success);
    // The bounding set limits what can be gained, not what is held.
    limit_bounding_set(script, 0);
}
