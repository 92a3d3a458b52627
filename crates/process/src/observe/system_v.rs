//! Reading the System V objects of a sandbox: shared memory, semaphores and message queues, which live as long as it does.
//!
//! The kernel shows them inside their ipc namespace only, so this thread enters that for a moment.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
};

use base::limits;
use procfs::IdMaps;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sys::{
    namespace::{self, inside},
    system_v::{Kind, Object},
};

use crate::{
    error::{Context, Error},
    image::{Part, SystemV, SystemVContent, Tree, attachments},
    observe::{blame::blame, objects::data_ranges},
    refusal::Refusal,
};

/// Reads all that the sandbox of process `pid` has, while its processes stand still. Nothing, with the reason, if it is more than a copy takes.
pub(crate) fn read(pid: i32, refusals: &mut Vec<Refusal>) -> Result<Vec<SystemV>, Error> {
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound).of("open", pid)?;
    let process = pidfd_open(process, PidfdFlags::empty()).of("open", pid)?;
    let ids = IdMaps::of(pid)?;
    let found = inside(process.as_fd(), namespace::Kind::Ipc, || read_all(&ids)).flatten();
    match found.of("read the System V objects of", pid)? {
        Ok(found) => Ok(found),
        Err(refusal) => {
            refusals.push(refusal);
            Ok(Vec::new())
        }
    }
}

fn read_all(ids: &IdMaps) -> io::Result<Result<Vec<SystemV>, Refusal>> {
    let mut objects = Vec::new();
    for kind in Kind::ALL {
        objects.extend(Object::all(kind)?);
    }
    let (count, max) = (objects.len(), limits::SYSTEM_V_OBJECTS_MAX);
    if count > max {
        return Ok(Err(Refusal::TooMany { what: "System V objects".into(), found: count, max }));
    }
    let too_much = |what: &str, bytes, max| Refusal::TooMuchContent { what: what.into(), bytes, max };
    let segments = objects.iter().filter(|object| object.kind == Kind::Segment);
    let bytes = segments.map(|object| object.amount).fold(0, u64::saturating_add);
    if bytes > limits::SYSTEM_V_BYTES_MAX {
        return Ok(Err(too_much("System V shared memory with its holes", bytes, limits::SYSTEM_V_BYTES_MAX)));
    }
    let (mut found, mut bytes) = (Vec::with_capacity(count), 0);
    for object in objects {
        let content = match object.kind {
            Kind::Segment => {
                let file = object.open()?;
                let ranges = data_ranges(&file)?;
                bytes += ranges.iter().map(|(start, end)| end - start).sum::<u64>();
                if bytes > limits::CARRIED_BYTES_MAX {
                    return Ok(Err(too_much("System V shared memory", bytes, limits::CARRIED_BYTES_MAX)));
                }
                memory_of(&file, object.amount, ranges)?
            }
            Kind::Semaphores => SystemVContent::Values(object.values()?),
            Kind::Queue => SystemVContent::Messages(object.messages()?),
        };
        let inside = |[user, group]: [u32; 2]| [ids.user_inside(user), ids.group_inside(group)];
        let Object { kind, number, key, owner, creator, mode, amount: _ } = object;
        found.push(SystemV { kind, number, key, owner: inside(owner), creator: inside(creator), mode, content });
    }
    Ok(Ok(found))
}

fn memory_of(file: &File, size: u64, ranges: Vec<(u64, u64)>) -> io::Result<SystemVContent> {
    let part = |(offset, end): (u64, u64)| {
        // The file has whole pages, and nothing behind the segment's end is anyone's.
        let mut bytes = vec![0; (end.min(size) - offset) as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(Part { offset, bytes })
    };
    Ok(SystemVContent::Memory { size, parts: ranges.into_iter().map(part).collect::<io::Result<_>>()? })
}

/// What of them processes have attached in a way that copies could not.
pub(crate) fn check(tree: &Tree, pids: &[i32]) -> Vec<Refusal> {
    let objects = &tree.first().system_v;
    let mut refusals = Vec::new();
    for ((at, image), pid) in tree.images().enumerate().zip(pids) {
        let parts = attachments(image).filter(|attachment| !attachment.is_whole(objects));
        let own = parts.map(|part| Refusal::SystemV { address: part.range().start, number: part.number }).collect();
        refusals.extend(if at == 0 { own } else { blame(*pid, own) });
    }
    refusals
}
