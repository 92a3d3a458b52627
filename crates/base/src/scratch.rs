//! Directories for the files of one run.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, mkdir},
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// Where they are: /tmp may be memory, and sandboxes need a disk.
const PLACE: &str = "/var/tmp";

/// A scratch directory cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a directory in {}", place.display())]
pub struct ScratchError {
    place: PathBuf,
    source: io::Error,
}

/// Makes the directory `/var/tmp/pando-NAME-RANDOM`, for its owner only. The caller removes it.
///
/// Every user can write to its parent. If a name could be guessed, or an existing directory were taken, symbolic links in it could lead root's
/// writes elsewhere.
///
/// # Errors
///
/// The directory cannot be made.
pub fn make(name: &str) -> Result<PathBuf, ScratchError> {
    let place = Path::new(PLACE);
    make_in(place, name).map_err(|error| ScratchError { place: place.to_owned(), source: error.into() })
}

fn make_in(place: &Path, name: &str) -> Result<PathBuf, Errno> {
    loop {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let path = place.join(format!("pando-{name}-{:016x}", u64::from_ne_bytes(random)));
        match mkdir(&path, Mode::RWXU) {
            Ok(()) => return Ok(path),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn each_directory_is_new_and_closed_to_others() {
        let [one, other] = [(); 2].map(|()| make("test").unwrap());
        let modes = [&one, &other].map(|path| path.metadata().unwrap().permissions().mode() & 0o7777);
        [&one, &other].into_iter().for_each(|path| std::fs::remove_dir(path).unwrap());
        assert_ne!(one, other);
        assert_eq!(modes, [0o700; 2]);
    }

    #[test]
    fn a_place_that_is_not_there_is_an_error() {
        assert_eq!(make_in(Path::new("/var/tmp/pando-none"), "test"), Err(Errno::NOENT));
    }
}
