//! What must be true of all open files of a program together: pipes and sockets have their other ends among them.

use std::{
    collections::{HashMap, HashSet},
    os::fd::OwnedFd,
};

use crate::{
    error::{Context, Error},
    image::{End, FileKind, OpenFile, Socket, table},
    observe::{
        descriptors::Holder,
        files::Files,
        sockets::{Passing, shown},
    },
    refusal::Refusal,
};

/// Refuses what has another end elsewhere. `pipes` are the inodes of pipes and their indices.
pub(crate) fn check(
    holders: &[Holder<'_>],
    passing: &Passing,
    files: &mut Files,
    pipes: &HashMap<u64, usize>,
) -> Result<(), Error> {
    check_pipes(holders, passing, files, pipes)?;
    check_senders(holders, passing, files);
    check_peers(holders, passing, files);
    Ok(())
}

/// What waits at a datagram socket is sent again by the socket that sent it.
fn check_senders(holders: &[Holder<'_>], passing: &Passing, files: &mut Files) {
    let names = files.files.iter().filter_map(|file| match &file.kind {
        FileKind::Socket(socket) => socket.address.as_deref(),
        _ => None,
    });
    let of_pairs = files.added.sockets.iter().filter_map(|(_, state)| Some(&*state.name.as_ref()?.address));
    let names: HashSet<&[u8]> = names.chain(of_pairs).collect();
    for (file, state) in &files.added.sockets {
        let number = files.files[*file].numbers[0].0;
        let from =
            state.queue.iter().map(|message| &*message.from).find(|from| from.len() > 2 && !names.contains(from));
        if let Some(from) = from {
            let what = format!("a socket at which a message of another one ({}) waits", shown(from));
            files.refusals.extend(passing.refused(holders, number, |fd| Refusal::UnknownDescriptor { fd, what }));
        }
    }
}

/// Sockets are connected by address, and a socket to its peer before that one is connected to another.
fn check_peers(holders: &[Holder<'_>], passing: &Passing, files: &mut Files) {
    let all = || files.files.iter().enumerate();
    let pairs = all().filter_map(|(index, file)| match file.kind {
        FileKind::UnixPair { pair, .. } if files.pairs[pair].kind == libc::SOCK_DGRAM => Some((index, pair)),
        _ => None,
    });
    // Pair of the socket that has an address, and whether there is another socket of that address.
    let mut by_address: HashMap<&[u8], (Option<usize>, bool)> = HashMap::new();
    let mut ends: HashMap<usize, usize> = HashMap::new();
    let mut note = |address, pair| {
        by_address.entry(address).and_modify(|(_, again)| *again = true).or_insert((pair, false));
    };
    for (index, pair) in pairs {
        *ends.entry(pair).or_default() += 1;
        let name = files.added.socket(index).and_then(|state| state.name.as_ref());
        name.into_iter().for_each(|name| note(&*name.address, Some(pair)));
    }
    let sockets = all().filter_map(|(_, file)| match &file.kind {
        FileKind::Socket(socket) if (socket.family, socket.kind) == (libc::AF_UNIX, libc::SOCK_DGRAM) => {
            Some((file.numbers[0].0, socket))
        }
        _ => None,
    });
    let sockets: Vec<_> = sockets.collect();
    sockets.iter().filter_map(|(_, socket)| socket.address.as_deref()).for_each(|address| note(address, None));
    let refusal = |(number, socket): &(i32, &Socket)| {
        let peer = socket.peer.as_deref()?;
        let why = match by_address.get(peer)? {
            (_, true) => "a name that several of its sockets have",
            (Some(pair), _) if ends.get(pair) == Some(&1) => "whose own peer is closed",
            _ => return None,
        };
        let what = format!("a socket that sends to another one ({}), {why}", shown(peer));
        Some(passing.refused(holders, *number, |fd| Refusal::UnknownDescriptor { fd, what }))
    };
    let refusals: Vec<Refusal> = sockets.iter().filter_map(refusal).flatten().collect();
    files.refusals.extend(refusals);
}

/// Every pipe must have its ends here or closed: another process would lose its peer.
fn check_pipes(
    holders: &[Holder<'_>],
    passing: &Passing,
    files: &mut Files,
    pipes: &HashMap<u64, usize>,
) -> Result<(), Error> {
    let mut refusals = Vec::new();
    for index in pipes.values() {
        let ends: Vec<(i32, End)> = files.files.iter().filter_map(|file| pipe_end(file, *index)).collect();
        match ends[..] {
            [(_, first), (_, second)] if first != second => {}
            [(number, _)] => {
                let holder = &holders[table::process_of(number)];
                if !is_other_end_closed(&holder.duplicate(table::fd_of(number))?).of("poll a pipe", holder.pid)? {
                    refusals.extend(passing.refused(holders, number, |fd| Refusal::ForeignPipe { fd }));
                }
            }
            [(number, _), ..] => {
                let what = "a pipe with an end that was opened twice".into();
                refusals.extend(passing.refused(holders, number, |fd| Refusal::UnknownDescriptor { fd, what }));
            }
            [] => {}
        }
    }
    files.refusals.extend(refusals);
    Ok(())
}

/// The reading end hangs up without writers; the writing end has an error without readers.
fn is_other_end_closed(end: &OwnedFd) -> std::io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut poll_end = [PollFd::new(end, PollFlags::empty())];
    poll(&mut poll_end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(poll_end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

fn pipe_end(file: &OpenFile, index: usize) -> Option<(i32, End)> {
    match file.kind {
        FileKind::Pipe { pipe, end } if pipe == index => Some((file.numbers.first()?.0, end)),
        _ => None,
    }
}
