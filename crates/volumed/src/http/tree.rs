//! Lists of directories with everything below them, line by line. They have any number of entries. The memory depends on the depth alone.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

use api::volume::TreeEntry;
use axum::response::Response;
use rustix::io::Errno;
use volume::{Engine, Ino, Kind, Listed};

use super::{
    answer::info,
    files::Job,
    stream::{self, Outlet},
};
use crate::{failure::Result, limits::TREE_ENTRIES, percent};

/// A directory that is being listed.
struct Level {
    ino: Ino,
    /// Of its entries: empty, or with a slash at its end.
    prefix: Vec<u8>,
    /// Behind the last entry that was read.
    cookie: u64,
    /// Entries that were read and not told yet.
    read: VecDeque<Listed>,
}

impl Level {
    fn new(ino: Ino, prefix: Vec<u8>) -> Self {
        Self { ino, prefix, cookie: 0, read: VecDeque::new() }
    }

    /// The next entry, none at the end. A directory that is removed meanwhile ends.
    fn next(&mut self, engine: &Engine) -> Result<Option<Listed>, Errno> {
        loop {
            if let Some(entry) = self.read.pop_front() {
                return Ok(Some(entry));
            }
            let listed = match engine.list(self.ino, self.cookie, TREE_ENTRIES) {
                Err(Errno::STALE | Errno::NOENT) => Vec::new(),
                listed => listed?,
            };
            let Some(last) = listed.last() else { return Ok(None) };
            self.cookie = last.cookie;
            self.read = listed.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")).collect();
        }
    }
}

/// A directory comes right before its entries. Entries that are removed meanwhile are left out.
pub(super) fn send(job: Job, directory: Ino, depth: u32) -> Response {
    let (table, volume) = (job.table.clone(), job.opened.source.volume.clone());
    stream::answer(&table, &volume, "application/x-ndjson", move |outlet| {
        match walk(job.opened.engine(), directory, depth, outlet) {
            // An error of the outlet means that the client has gone.
            Ok(Err(_)) | Ok(Ok(())) => Ok(()),
            Err(errno) => Err(job.failed("list")(errno)),
        }
    })
}

fn walk(engine: &Engine, top: Ino, depth: u32, outlet: &mut Outlet) -> Result<io::Result<()>, Errno> {
    let mut levels = vec![Level::new(top, Vec::new())];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next(engine)? else {
            levels.pop();
            continue;
        };
        let found = match engine.attributes(entry.ino) {
            Err(Errno::STALE) => continue,
            found => found?,
        };
        let path = [&level.prefix[..], &entry.name].concat();
        let line = TreeEntry { path: percent::encode(&path), info: info(&entry.name, &found) };
        if let Err(error) = tell(outlet, &line) {
            return Ok(Err(error));
        }
        if entry.kind == Kind::Directory && levels.len() < depth as usize {
            levels.push(Level::new(entry.ino, [&path[..], b"/"].concat()));
        }
    }
    Ok(Ok(()))
}

fn tell(outlet: &mut Outlet, line: &TreeEntry) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    outlet.write_all(&bytes)
}
