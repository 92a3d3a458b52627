//! Making directories, renaming.

use std::path::Path;

use rustix::{
    fs::{CWD, FileType, Mode, lstat, mkdirat, stat},
    io::Errno,
};

use super::{Job, relocate::relocate};
use crate::protocol::Problem;

/// Mode of a new directory.
const DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// Makes a directory that is not there, with those above it.
pub(super) fn make_directory(path: &Path) -> Result<(), Problem> {
    match stat(path) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => return Err(Problem::Exists),
        Ok(_) => return Err(Problem::ExistsAsFile),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    make_all(path, &|_| Ok(()))
}

/// Makes the directory that a file is to be in.
pub(super) fn make_parents(path: &Path) -> Result<(), Problem> {
    make_parents_with(path, &|_| Ok(()))
}

/// As [`make_parents`]; `made` has its say about each that was not there.
pub(super) fn make_parents_with(path: &Path, made: &dyn Fn(&Path) -> Result<(), Problem>) -> Result<(), Problem> {
    path.parent().map_or(Ok(()), |parent| make_all(parent, made))
}

fn make_all(path: &Path, made: &dyn Fn(&Path) -> Result<(), Problem>) -> Result<(), Problem> {
    let mut missing = Vec::new();
    for directory in path.ancestors() {
        match stat(directory) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => break,
            Ok(_) => return Err(Problem::NotDirectory),
            Err(Errno::NOENT) => missing.push(directory),
            Err(error) => return Err(error.into()),
        }
    }
    for directory in missing.into_iter().rev() {
        match mkdirat(CWD, directory, DIRECTORY) {
            // Another process was faster.
            Err(Errno::EXIST) => {}
            Ok(()) => made(directory)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Renames a file or directory, and makes the directories above the new name.
pub(super) fn rename(job: &Job, from: &Path, to: &Path) -> Result<(), Problem> {
    // Without the old one nothing is made.
    lstat(from)?;
    make_parents(to)?;
    relocate(job, from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c");
        make_directory(&path).unwrap();
        assert_eq!(make_directory(&path), Err(Problem::Exists));
        std::fs::write(path.join("file"), "").unwrap();
        assert_eq!(make_directory(&path.join("file")), Err(Problem::ExistsAsFile));
        assert_eq!(make_directory(&path.join("file/d")), Err(Problem::NotDirectory));
    }
}
