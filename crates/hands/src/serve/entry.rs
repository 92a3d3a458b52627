//! A file as clients see it.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::{FileType, Stat, lstat, stat},
    io::Errno,
};

use super::{metadata, names::Names};
use crate::protocol::{Entry, Kind, Problem, RawPath};

/// Describes the file at `path`. A link is described itself, with the type and mode of what it leads to.
pub(super) fn describe(path: &Path, names: &Mutex<Names>) -> Result<Entry, Problem> {
    let own = lstat(path)?;
    let is_link = FileType::from_raw_mode(own.st_mode) == FileType::Symlink;
    let led_to = if is_link { stat(path).ok() } else { Some(own) };
    let (owner, group) = {
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        (names.user(own.st_uid), names.group(own.st_gid))
    };
    Ok(Entry {
        path: RawPath::new(path).ok_or(Problem::BadPath)?,
        kind: led_to.map_or(Kind::BrokenLink, |stat| kind(stat.st_mode)),
        size: own.st_size as u64,
        mode: led_to.map_or(0, |stat| stat.st_mode & 0o777),
        permissions: permissions(own.st_mode),
        owner,
        group,
        modified_ns: modified_ns(&own),
        link_target: if is_link { target(path) } else { None },
        metadata: metadata::read(path),
    })
}

/// Time of the last change, in nanoseconds since 1970.
pub(super) fn modified_ns(stat: &Stat) -> i64 {
    stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64)
}

fn kind(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        _ => Kind::Other,
    }
}

/// Where a link leads. If it leads nowhere: what it says, below the directory that it is in.
fn target(path: &Path) -> Option<RawPath> {
    let resolved = path.canonicalize().or_else(|_| -> Result<PathBuf, Errno> {
        let said = rustix::fs::readlink(path, Vec::new())?;
        let said = Path::new(std::ffi::OsStr::new(said.to_str().map_err(|_| Errno::ILSEQ)?)).to_owned();
        Ok(path.parent().unwrap_or(Path::new("/")).join(said))
    });
    RawPath::absolute(&resolved.ok()?)
}

/// As Go's `FileMode.String`: letters for the type and for set-uid, set-gid and sticky, then the nine permissions.
fn permissions(mode: u32) -> String {
    let letters = match FileType::from_raw_mode(mode) {
        FileType::Directory => "d",
        FileType::Symlink => "L",
        FileType::BlockDevice => "D",
        FileType::CharacterDevice => "Dc",
        FileType::Fifo => "p",
        FileType::Socket => "S",
        FileType::RegularFile => "",
        FileType::Unknown => "?",
    };
    // Go's order: d a l T L D p S u g c t.
    let special = [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')];
    let mut text = letters.trim_end_matches('c').to_owned();
    for (bit, letter) in special {
        if letter == 't' && letters.ends_with('c') {
            text.push('c');
        }
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    let nine = "rwxrwxrwx".chars().enumerate();
    text.extend(nine.map(|(at, letter)| if mode & (0o400 >> at) != 0 { letter } else { '-' }));
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn describe_at(path: &Path) -> Result<Entry, Problem> {
        describe(path, &Mutex::new(Names::of_this_root()))
    }

    #[test]
    fn permissions_are_those_that_go_prints() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o060_660, "Drw-rw----"),
            (0o010_600, "prw-------"),
            (0o140_755, "Srwxr-xr-x"),
            (0o106_000, "ug---------"),
        ];
        for (mode, text) in cases {
            assert_eq!(permissions(mode), text, "{mode:o}");
        }
    }

    #[test]
    fn a_link_has_the_type_of_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "abc").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nothing", at("broken")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let link = describe_at(&at("link")).unwrap();
        let resolved = at("file").canonicalize().unwrap();
        assert_eq!((link.kind, link.mode, link.size), (Kind::File, 0o644, 4));
        assert_eq!(link.link_target.unwrap().as_path(), resolved);
        let broken = describe_at(&at("broken")).unwrap();
        assert_eq!((broken.kind, broken.mode), (Kind::BrokenLink, 0));
        assert!(broken.link_target.unwrap().as_path().ends_with("nothing"));
        assert_eq!(describe_at(&at("loop")).unwrap().kind, Kind::BrokenLink);
        assert_eq!(describe_at(&at("none")).unwrap_err(), Problem::NotFound);
    }
}
