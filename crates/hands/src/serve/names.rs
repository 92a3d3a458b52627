//! Names of users and groups, from the sandbox's own files.

use std::{
    collections::HashMap,
    io::Read,
    path::{Path, PathBuf},
};

use base::limits::HAND_NAMES_BYTES_MAX;
use rustix::fs::{Stat, stat};

use super::open;

/// Both tables.
#[derive(Debug)]
pub(super) struct Names {
    users: Table,
    groups: Table,
}

impl Names {
    /// Those of this process's root.
    pub(super) fn of_this_root() -> Self {
        Self { users: Table::new("/etc/passwd"), groups: Table::new("/etc/group") }
    }

    /// The name of a user, else the number.
    pub(super) fn user(&mut self, id: u32) -> String {
        self.users.name(id)
    }

    /// The name of a group, else the number.
    pub(super) fn group(&mut self, id: u32) -> String {
        self.groups.name(id)
    }
}

/// One file, read again when it has changed.
#[derive(Debug)]
struct Table {
    path: PathBuf,
    version: Option<(u64, i64, i64, u64)>,
    names: HashMap<u32, String>,
}

impl Table {
    fn new(path: &str) -> Self {
        Self { path: path.into(), version: None, names: HashMap::new() }
    }

    fn name(&mut self, id: u32) -> String {
        let version = stat(&self.path).ok().map(version);
        if version != self.version {
            self.names = read(&self.path).map(|text| parse(&text)).unwrap_or_default();
            self.version = version;
        }
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

fn version(of: Stat) -> (u64, i64, i64, u64) {
    (of.st_ino, of.st_mtime, of.st_mtime_nsec as i64, of.st_size as u64)
}

/// The beginning of the file: a program may have made anything of it.
pub(super) fn read(path: &Path) -> Option<String> {
    let mut text = Vec::new();
    open::regular(path).ok()?.file.take(HAND_NAMES_BYTES_MAX).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// `NAME:PASSWORD:ID:...`, one a line. The first name of a number counts.
fn parse(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(Ok(id))) = (fields.next(), fields.next(), fields.next().map(str::parse))
            && (1..=NAME_BYTES_MAX).contains(&name.len())
        {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// Longest name that is taken, in bytes: as useradd(8) allows, with room.
const NAME_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_whole_lines_only() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let names =
            parse(&format!("root:x:0:0::/root:/bin/sh\nuser:x:1000:\ntwin:x:1000:\nbad\n:x:7:\nx:y:z\n{long}:x:8:"));
        assert_eq!((names[&0].as_str(), names[&1000].as_str(), names.len()), ("root", "user", 2));
    }

    #[test]
    fn a_changed_table_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwd");
        let mut table = Table { path: path.clone(), version: None, names: HashMap::new() };
        assert_eq!(table.name(5), "5");
        std::fs::write(&path, "a:x:5:\n").unwrap();
        assert_eq!(table.name(5), "a");
        std::fs::write(&path, "longer:x:5:\n").unwrap();
        assert_eq!(table.name(5), "longer");
    }
}
