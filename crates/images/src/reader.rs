//! Files of an image that lies in a directory or in a tar archive, by name.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use tar::EntryType;
use tarball::Members;

use crate::{
    decompress,
    error::{Context, Error, refused},
    limits::{ARCHIVE_BYTES_MAX, DOCUMENT_BYTES_MAX},
    unpack::clean,
};

/// Most files of an image's archive: layers, manifests.
const FILES_MAX: usize = 20_000;
/// Links of an archive that are followed.
const LINKS_MAX: usize = 8;

/// Where the files are.
pub(crate) enum Files {
    Directory(PathBuf),
    Archive { file: File, entries: BTreeMap<PathBuf, Place> },
}

/// What an archive has under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Data { at: u64, bytes: u64 },
    Link(PathBuf),
}

impl Files {
    /// Of a directory, or of an archive, plain or compressed. An archive is read once, to know what is in it; one that is compressed is unfolded
    /// to a file without a name in `aside` first.
    pub(crate) fn open(path: &Path, aside: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut file = open_regular(path)?;
        if decompress::is_compressed(&mut file).at("read", path)? {
            let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
            let unfolded = rustix::fs::open(aside, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
            let mut unfolded = File::from(unfolded.at("make a file in", aside)?);
            let mut content = decompress::content(file).map_err(Error::Archive)?.take(ARCHIVE_BYTES_MAX + 1);
            copy(&mut content, &mut unfolded, aside)?;
            file = unfolded;
        }
        let entries = list(&file)?;
        Ok(Self::Archive { file, entries })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(path) => path.join(name).is_file(),
            Self::Archive { entries, .. } => entries.contains_key(Path::new(name)),
        }
    }

    /// A small one, whole.
    pub(crate) fn document(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.read(name)?.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::Archive)?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            return refused(format!("{name} has more than {DOCUMENT_BYTES_MAX} bytes"));
        }
        Ok(bytes)
    }

    /// Its bytes, as they are stored.
    pub(crate) fn read(&self, name: &str) -> Result<Box<dyn Read + '_>, Error> {
        match self {
            Self::Directory(path) => {
                let path = path.join(clean(name.as_bytes())?);
                Ok(Box::new(File::open(&path).at("open", &path)?))
            }
            Self::Archive { file, entries } => {
                let mut wanted = clean(name.as_bytes())?;
                for _ in 0..LINKS_MAX {
                    match entries.get(&wanted) {
                        Some(Place::Data { at, bytes }) => {
                            return Ok(Box::new(Part { file, at: *at, left: *bytes }));
                        }
                        Some(Place::Link(to)) => wanted.clone_from(to),
                        None => break,
                    }
                }
                refused(format!("it has no {name}"))
            }
        }
    }
}

/// Reads at its own place: several may be open at once.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = std::os::unix::fs::FileExt::read_at(self.file, &mut into[..most], self.at)?;
        self.at += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}

/// A plain file: others may be endless, or wait for ever.
pub(crate) fn open_regular(path: &Path) -> Result<File, Error> {
    if !std::fs::metadata(path).at("open", path)?.is_file() {
        return refused(format!("{} is neither a file nor a directory", path.display()));
    }
    File::open(path).at("open", path)
}

/// As io::copy, which does not tell which side has failed.
fn copy(from: &mut impl Read, to: &mut File, aside: &Path) -> Result<(), Error> {
    let (mut buffer, mut bytes) = (vec![0; 128 << 10], 0);
    loop {
        let length = from.read(&mut buffer).map_err(Error::Archive)?;
        bytes += length as u64;
        if bytes > ARCHIVE_BYTES_MAX {
            return refused(format!("it has more than {} GiB", ARCHIVE_BYTES_MAX >> 30));
        }
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length]).at("unfold the archive in", aside)?;
    }
}

/// What is in an archive, by name. One with more entries is no image, but a root filesystem.
fn list(mut file: &File) -> Result<BTreeMap<PathBuf, Place>, Error> {
    file.seek(SeekFrom::Start(0)).map_err(Error::Archive)?;
    let mut members = Members::new(BufReader::with_capacity(128 << 10, file));
    let mut found = BTreeMap::new();
    while let Some(member) = members.next_member()? {
        if found.len() >= FILES_MAX {
            break;
        }
        let Ok(path) = clean(&member.path) else { continue };
        let place = match member.header.entry_type() {
            EntryType::Regular | EntryType::Continuous => Place::Data { at: members.position(), bytes: member.size },
            kind @ (EntryType::Link | EntryType::Symlink) => {
                // Links of old archives lead to a neighbour's layer: `../ID/layer.tar`.
                let link = String::from_utf8_lossy(&member.link).into_owned();
                let is_hard = kind == EntryType::Link;
                let above = if is_hard { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
                Place::Link(joined(above, &link))
            }
            _ => continue,
        };
        found.insert(path, place);
    }
    Ok(found)
}

fn joined(above: &Path, link: &str) -> PathBuf {
    let mut path = above.to_owned();
    for part in Path::new(link).components() {
        match part {
            std::path::Component::Normal(part) => path.push(part),
            std::path::Component::ParentDir => drop(path.pop()),
            _ => {}
        }
    }
    path
}
