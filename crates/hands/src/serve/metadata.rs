//! Metadata of files: extended attributes whose names begin with `user.e2b.`.

use std::{fs::File, os::fd::AsFd, path::Path};

use base::limits::{METADATA_BYTES_MAX, METADATA_KEY_BYTES_MAX};
use rustix::{
    fs::{FileType, Mode, OFlags, XattrFlags, flistxattr, fremovexattr, fsetxattr, fstat, lgetxattr, llistxattr},
    io::Errno,
};

use super::open::{self, NEVER_WAIT};
use crate::protocol::{Metadata, Problem};

const PREFIX: &str = "user.e2b.";

/// Longest list of attributes' names: the kernel's XATTR_LIST_MAX.
const LIST_BYTES_MAX: usize = 64 << 10;

/// The metadata of a file, as far as the user may read it and as far as it has a size that a client could have set.
pub(super) fn read(path: &Path) -> Metadata {
    let mut metadata = Metadata::new();
    let mut list = [0u8; 1024];
    let listed = match llistxattr(path, &mut list) {
        Ok(length) => list[..length].to_vec(),
        Err(Errno::RANGE) => long_list(|buffer| llistxattr(path, buffer)),
        Err(_) => return metadata,
    };
    let mut bytes = 0;
    for key in keys(&listed) {
        let mut value = [0; METADATA_BYTES_MAX];
        let Ok(length) = lgetxattr(path, format!("{PREFIX}{key}"), &mut value) else { continue };
        bytes += key.len() + length;
        if bytes > METADATA_BYTES_MAX {
            break;
        }
        metadata.insert(key, String::from_utf8_lossy(&value[..length]).into_owned());
    }
    metadata
}

fn long_list(mut list: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Vec<u8> {
    let mut names = vec![0; LIST_BYTES_MAX];
    let length = list(&mut names).unwrap_or_default();
    names.truncate(length);
    names
}

fn keys(list: &[u8]) -> Vec<String> {
    let names = list.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    names.filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned).collect()
}

/// Fails unless a client may set this.
pub(super) fn check(metadata: &Metadata) -> Result<(), Problem> {
    let printable = |text: &str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let good = |(key, value): (&String, &String)| {
        (1..=METADATA_KEY_BYTES_MAX).contains(&key.len()) && printable(key) && printable(value)
    };
    if bytes <= METADATA_BYTES_MAX && metadata.iter().all(good) { Ok(()) } else { Err(Problem::BadMetadata) }
}

/// Replaces all metadata of an open file. Nothing is asked of a filesystem that keeps none, if there is none to set.
pub(super) fn replace(file: impl AsFd, metadata: &Metadata) -> Result<(), Problem> {
    let old = long_list(|buffer| flistxattr(&file, buffer));
    for key in keys(&old).iter().filter(|key| !metadata.contains_key(*key)) {
        match fremovexattr(&file, format!("{PREFIX}{key}")) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (key, value) in metadata {
        fsetxattr(&file, format!("{PREFIX}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// As [`replace`], of the file or directory at `path`.
pub(super) fn replace_at(path: &Path, metadata: &Metadata) -> Result<(), Problem> {
    check(metadata)?;
    let opened = rustix::fs::open(path, OFlags::RDONLY | NEVER_WAIT, Mode::empty());
    let file = File::from(opened.map_err(|errno| open::refusal(path, errno))?);
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile | FileType::Directory => replace(&file, metadata),
        _ => Err(Problem::NotRegular),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_short_printable_metadata_is_taken() {
        assert!(check(&of(&[("a", "b c"), ("key-2", "")])).is_ok());
        let long = "x".repeat(METADATA_KEY_BYTES_MAX + 1);
        let large = "x".repeat(METADATA_BYTES_MAX);
        for bad in [("", "a"), ("a\n", "b"), ("a", "\u{e9}"), (long.as_str(), ""), ("a", large.as_str())] {
            assert_eq!(check(&of(&[bad])), Err(Problem::BadMetadata), "{bad:?}");
        }
    }

    #[test]
    fn replacing_removes_what_was_there() {
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        replace_at(file.path(), &of(&[("a", "1"), ("b", "2")])).unwrap();
        replace_at(file.path(), &of(&[("b", "3"), ("c", "4")])).unwrap();
        assert_eq!(read(file.path()), of(&[("b", "3"), ("c", "4")]));
        replace_at(file.path(), &Metadata::new()).unwrap();
        assert!(read(file.path()).is_empty());
    }
}
