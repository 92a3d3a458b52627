//! System V objects of a copy. Its caller has made them, empty and with their numbers. The first process fills them before anything of the program
//! is in force, and each process attaches the segments that it has.

use sys::{
    remote::{PAGE, Range},
    system_v::Kind,
};

use super::room_of;
use crate::{
    image::{ProgramImage, SystemV, SystemVContent, Tree, attachments, places},
    script::{Arena, Check, Script},
};

/// Where the first process has all segments until all processes have theirs: far from where kernels and runtimes place things.
const FIRST: u64 = 0x3d00_0000_0000;

/// `SHM_EXEC` of `linux/shm.h`.
const SHM_EXEC: i32 = 0o100_000;
const SHM_LOCK: i32 = 11;
const ACCESS: u32 = 0o777;

/// Adds the filling of all objects, with every right there is.
pub(super) fn fill(arena: &mut Arena, script: &mut Script, tree: &Tree) {
    let mut free = first_free(tree, arena.base());
    for object in &tree.first().system_v {
        set_owner(arena, script, object);
        match &object.content {
            SystemVContent::Memory { size, parts } => {
                let at = free;
                free += size.next_multiple_of(PAGE);
                script.call(libc::SYS_shmat, [object.number.into(), at.into(), 0u64.into()], Check::Equal(at as i64));
                // No other process has it from here.
                let args = [at.into(), (free - at).into(), libc::MADV_DONTFORK.into()];
                script.call(libc::SYS_madvise, args, Check::Success);
                let own = tree.first().threads[0].tid;
                for part in parts {
                    let (from, length) = (arena.data(&part.bytes, 8), part.bytes.len() as u64);
                    let (from, to) = (arena.words(&[from, length]), arena.words(&[at + part.offset, length]));
                    let [one, none] = [1u64, 0].map(Into::into);
                    let args = [own.into(), from.into(), one, to.into(), one, none];
                    script.call(libc::SYS_process_vm_writev, args, Check::Equal(length as i64));
                }
                if object.is_locked() {
                    // Where its user may not lock as much, it may be paged out.
                    script.call(libc::SYS_shmctl, [object.number.into(), SHM_LOCK.into(), 0u64.into()], Check::Ignore);
                }
                if object.is_removed() {
                    let args = [object.number.into(), libc::IPC_RMID.into(), 0u64.into()];
                    script.call(libc::SYS_shmctl, args, Check::Success);
                }
            }
            SystemVContent::Values(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
                let values = arena.data(&bytes, 8);
                let args = [object.number.into(), 0u64.into(), libc::SETALL.into(), values.into()];
                script.call(libc::SYS_semctl, args, Check::Success);
            }
            SystemVContent::Messages(messages) => {
                for (kind, bytes) in messages {
                    let message = arena.data(&[&kind.to_ne_bytes()[..], bytes].concat(), 8);
                    let (length, flags) = ((bytes.len() as u64).into(), libc::IPC_NOWAIT.into());
                    let args = [object.number.into(), message.into(), length, flags];
                    script.call(libc::SYS_msgsnd, args, Check::Success);
                }
            }
        }
    }
}

/// Its owner and its mode, which its creator has chosen by now or changed since.
fn set_owner(arena: &mut Arena, script: &mut Script, object: &SystemV) {
    /// Where `struct msqid64_ds` has the most bytes of a queue. A new one takes as many as any may without more rights.
    const QUEUE_BYTES: usize = 11;
    /// `MSGMNB` of `linux/msg.h`.
    const NEW_QUEUE_BYTES: u64 = 16_384;
    let [user, group] = object.owner.map(u64::from);
    // struct ipc64_perm: key and user, group and creator, the creator's group and the mode.
    let mut words = [0; 15];
    (words[0], words[1], words[2]) = (user << 32, group, u64::from(object.mode & ACCESS) << 32);
    let call = match object.kind {
        Kind::Segment => libc::SYS_shmctl,
        Kind::Semaphores => {
            let args = [object.number.into(), 0u64.into(), libc::IPC_SET.into(), arena.words(&words).into()];
            script.call(libc::SYS_semctl, args, Check::Success);
            return;
        }
        Kind::Queue => {
            words[QUEUE_BYTES] = NEW_QUEUE_BYTES;
            libc::SYS_msgctl
        }
    };
    script.call(call, [object.number.into(), libc::IPC_SET.into(), arena.words(&words).into()], Check::Success);
}

/// Adds the giving up of what the first process has for the others, when they all have theirs.
pub(super) fn let_go(arena: &Arena, script: &mut Script, tree: &Tree) {
    let mut at = first_free(tree, arena.base());
    for object in tree.first().system_v.iter().filter(|object| object.kind == Kind::Segment) {
        script.call(libc::SYS_shmdt, [at.into()], Check::Success);
        at += object.amount().next_multiple_of(PAGE);
    }
}

/// Adds the attaching of a process's own segments, with the right to use those of others.
pub(super) fn attach(script: &mut Script, image: &ProgramImage) {
    for attachment in attachments(image) {
        let Range { start, .. } = attachment.range();
        let may =
            |protection: i32| attachment.mappings.iter().any(|mapping| mapping.protection & protection as u64 != 0);
        let writable = attachment.mappings.iter().any(crate::image::Mapping::may_be_written);
        let mut flags = if writable { 0 } else { libc::SHM_RDONLY };
        flags |= if may(libc::PROT_EXEC) { SHM_EXEC } else { 0 };
        let args = [attachment.number.into(), start.into(), flags.into()];
        script.call(libc::SYS_shmat, args, Check::Equal(start as i64));
        let writing = if writable { libc::PROT_WRITE } else { 0 };
        let executing = if may(libc::PROT_EXEC) { libc::PROT_EXEC } else { 0 };
        let attached = (libc::PROT_READ | writing | executing) as u64;
        for mapping in attachment.mappings.iter().filter(|mapping| mapping.protection != attached) {
            let Range { start, end } = mapping.range;
            let args = [start.into(), (end - start).into(), mapping.protection.into()];
            script.call(libc::SYS_mprotect, args, Check::Success);
        }
    }
}

/// Where nothing of the tree lies, neither in the zygote nor in any process, nor the room of the arena at `arena`.
fn first_free(tree: &Tree, arena: u64) -> u64 {
    let bytes: u64 = tree.first().system_v.iter().map(|object| object.amount().next_multiple_of(PAGE)).sum();
    let mapped = tree.members.iter().flat_map(|member| member.mapped().chain(member.parked()));
    let taken = places::joined(mapped.chain([room_of(arena)]));
    places::find_free(&taken, FIRST, bytes.max(PAGE)).map_or(FIRST, |range| range.start)
}
