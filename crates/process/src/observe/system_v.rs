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

/// Reads all that the sandbox of process `pid` has. Nothing stands still but the sandbox.
pub(crate) fn read(pid: i32, refusals: &mut Vec<Refusal>) -> Result<Vec<SystemV>, Error> {
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound).of("open", pid)?;
    let process = pidfd_open(process, PidfdFlags::empty()).of("open", pid)?;
    let found =
        inside(process.as_fd(), namespace::Kind::Ipc, list).flatten().of("read the System V objects of", pid)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let (count, max) = (found.len(), limits::SYSTEM_V_OBJECTS_MAX);
    if count > max {
        refusals.push(Refusal::TooMany { what: "System V objects".into(), found: count, max });
        return Ok(Vec::new());
    }
    let sizes = found.iter().map(|(object, _)| object).filter(|object| object.kind == Kind::Segment);
    let sizes = sizes.map(|object| object.amount).fold(0, u64::saturating_add);
    let bytes = found.iter().map(|(_, content)| content.bytes()).fold(0, u64::saturating_add);
    for (what, bytes, max) in [
        ("System V shared memory with its holes", sizes, limits::SYSTEM_V_BYTES_MAX),
        ("System V shared memory", bytes, limits::CARRIED_BYTES_MAX),
    ] {
        if bytes > max {
            refusals.push(Refusal::TooMuchContent { what: what.into(), bytes, max });
            return Ok(Vec::new());
        }
    }
    let ids = IdMaps::of(pid)?;
    found.into_iter().map(|(object, content)| as_data(&ids, object, content).of("read a segment of", pid)).collect()
}

/// What was found of an object in its namespace.
enum Found {
    Segment { file: File, parts: Vec<(u64, u64)> },
    Other(SystemVContent),
}

impl Found {
    fn bytes(&self) -> u64 {
        match self {
            Self::Segment { parts, .. } => parts.iter().map(|(start, end)| end - start).sum(),
            // The kernel bounds both (semmsl, msgmnb).
            Self::Other(_) => 0,
        }
    }
}

fn list() -> io::Result<Vec<(Object, Found)>> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        for object in Object::all(kind)?.into_iter().take(limits::SYSTEM_V_OBJECTS_MAX + 1) {
            let content = match kind {
                Kind::Segment => {
                    let file = object.open()?;
                    let parts = data_ranges(&file)?;
                    Found::Segment { file, parts }
                }
                Kind::Semaphores => Found::Other(SystemVContent::Values(object.values()?)),
                Kind::Queue => Found::Other(SystemVContent::Messages(object.messages()?)),
            };
            found.push((object, content));
        }
    }
    Ok(found)
}

fn as_data(ids: &IdMaps, object: Object, content: Found) -> io::Result<SystemV> {
    let inside = |[user, group]: [u32; 2]| [ids.user_inside(user), ids.group_inside(group)];
    let Object { kind, number, key, owner, creator, mode, amount: size } = object;
    let content = match content {
        Found::Other(content) => content,
        Found::Segment { file, parts } => {
            let part = |(offset, end): (u64, u64)| {
                let mut bytes = vec![0; (end - offset) as usize];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(Part { offset, bytes })
            };
            // The file has whole pages, and nothing behind the segment's end is anyone's.
            let parts = parts.into_iter().map(|(start, end)| part((start, end.min(size))));
            SystemVContent::Memory { size, parts: parts.collect::<io::Result<_>>()? }
        }
    };
    Ok(SystemV { kind, number, key, owner: inside(owner), creator: inside(creator), mode, content })
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
