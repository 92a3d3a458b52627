//! Files of an image that lies in a directory or in a tar archive, by name.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use tar::EntryType;

use crate::{
    decompress,
    error::{Context, Error, refused},
    limits::{DOCUMENT_BYTES_MAX, ENTRIES_MAX},
    unpack::clean,
};

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
        let mut file = File::open(path).at("open", path)?;
        let mut begin = [0; 512];
        let length = read_full(&mut file, &mut begin).at("read", path)?;
        file.rewind().at("read", path)?;
        let is_plain = length == 512 && (&begin[257..262] == b"ustar" || begin[148..156].iter().all(u8::is_ascii));
        let is_compressed =
            [&[0x1f, 0x8b][..], &[0xfd, b'7'], &[0x28, 0xb5, 0x2f, 0xfd]].iter().any(|m| begin.starts_with(m));
        if is_compressed || !is_plain {
            let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
            let unfolded = rustix::fs::open(aside, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
            let mut unfolded = File::from(unfolded.at("make a file in", aside)?);
            let mut content = decompress::content(file).map_err(Error::Archive)?;
            io::copy(&mut content, &mut unfolded).map_err(Error::Archive)?;
            drop(content);
            unfolded.rewind().at("read", path)?;
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

fn read_full(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < into.len() {
        match file.read(&mut into[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

fn list(mut file: &File) -> Result<BTreeMap<PathBuf, Place>, Error> {
    file.seek(SeekFrom::Start(0)).map_err(Error::Archive)?;
    let mut archive = tar::Archive::new(file);
    let mut entries = BTreeMap::new();
    for entry in archive.entries_with_seek().map_err(Error::Archive)? {
        let entry = entry.map_err(Error::Archive)?;
        // A root filesystem has more than an image's archive; whichever it is, the first ones tell.
        if entries.len() as u64 >= ENTRIES_MAX {
            return refused(format!("it has more than {ENTRIES_MAX} entries"));
        }
        let Ok(path) = clean(&entry.path_bytes()) else { continue };
        let place = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                Place::Data { at: entry.raw_file_position(), bytes: entry.size() }
            }
            EntryType::Link | EntryType::Symlink => {
                let Some(link) = entry.link_name_bytes() else { continue };
                let is_hard = entry.header().entry_type() == EntryType::Link;
                // Links of old archives lead to a neighbour's layer: `../ID/layer.tar`.
                let link = String::from_utf8_lossy(&link).into_owned();
                let above = if is_hard { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
                Place::Link(joined(above, &link))
            }
            _ => continue,
        };
        entries.insert(path, place);
    }
    Ok(entries)
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
