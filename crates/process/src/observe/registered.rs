//! Finds the files of epoll registrations. The kernel lists a registration by the number that the file had then. That number may name
//! another file by now.

use std::{cmp::Ordering, io};
use sys::remote::{self, Registration};

use crate::{
    error::{Context, Error},
    image::{EpollEntry, FileKind, OpenFile, Reused, table},
    observe::descriptors::{Holder, place_of},
    refusal::Refusal,
};

/// Finds the registrations whose number names another file now, or none: they are of a file that has another descriptor, or refused.
pub(crate) fn find(
    holders: &[Holder<'_>],
    files: &[OpenFile],
    refusals: &mut Vec<Refusal>,
) -> Result<Vec<Reused>, Error> {
    let mut found = Vec::new();
    let mut by_order: Option<(usize, Vec<i32>)> = None;
    for (set, file) in files.iter().enumerate() {
        let (FileKind::Epoll { entries }, Some((number, _))) = (&file.kind, file.numbers.first()) else { continue };
        let (process, (pid, epoll_fd)) = (table::process_of(*number), place_of(holders, *number));
        for (entry, registration) in registrations(epoll_fd, entries) {
            let target = registration.target_fd;
            match remote::registered_file_order(pid, target, registration) {
                Ok(Ordering::Equal) => continue,
                Ok(_) => {}
                // No file has the number now.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                Err(error) => return Err(error).of("compare descriptors", pid),
            }
            let known = by_order.take().filter(|(of, _)| *of == process);
            let (_, among) = by_order.insert(match known {
                Some(known) => known,
                None => (process, in_order(pid, process, files).of("compare descriptors", pid)?),
            });
            let compare = |fd: &i32| remote::registered_file_order(pid, *fd, registration);
            match place(among, compare).of("compare descriptors", pid)? {
                Ok(at) => found.push(Reused { set, entry, fd: table::number(process, among[at]) }),
                Err(_) => refusals.push(Refusal::EpollTarget { fd: epoll_fd, target }),
            }
        }
    }
    Ok(found)
}

/// The entries of a set as the kernel finds them: those of one number by their order.
fn registrations(epoll_fd: i32, entries: &[EpollEntry]) -> impl Iterator<Item = (usize, Registration)> {
    let mut before = std::collections::HashMap::<i32, u32>::new();
    entries.iter().enumerate().map(move |(at, entry)| {
        let before = before.entry(entry.fd).or_default();
        *before += 1;
        (at, Registration { epoll_fd, target_fd: entry.fd, before: *before - 1 })
    })
}

/// A descriptor of each open file of one process, in the kernel's order.
fn in_order(pid: i32, process: usize, files: &[OpenFile]) -> io::Result<Vec<i32>> {
    let own = |file: &OpenFile| file.numbers.iter().find(|(number, _)| table::process_of(*number) == process).copied();
    let mut sorted = Vec::with_capacity(files.len());
    for fd in files.iter().filter_map(|file| Some(table::fd_of(own(file)?.0))) {
        let place = place(&sorted, |known| remote::open_file_order((pid, *known), (pid, fd)))?;
        sorted.insert(place.unwrap_or_else(|place| place), fd);
    }
    Ok(sorted)
}

/// Where the one among `sorted` is that `compare` calls equal to what is looked for, or else would be.
pub(crate) fn place<T>(
    sorted: &[T],
    mut compare: impl FnMut(&T) -> io::Result<Ordering>,
) -> io::Result<Result<usize, usize>> {
    let (mut low, mut high) = (0, sorted.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match compare(&sorted[middle])? {
            Ordering::Equal => return Ok(Ok(middle)),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    Ok(Err(low))
}
