//! The mapped files of a program must be the same where it is restored: its registers and pages contain parts of them.
//!
//! Binaries and libraries carry a build id, which the linker computes from their content. It is a few hundred bytes to read. Any other file
//! is identified by the hash of its whole content.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::{
        fd::BorrowedFd,
        unix::fs::{FileExt, MetadataExt},
    },
};

use rustix::fs::{Mode, OFlags, openat2};

use crate::{
    error::{Context, Error},
    image::{Backing, FileContent, FileIdentity, Tree},
    observe::root,
    refusal::Unfit,
};

/// Of every file that the program has mapped or runs.
pub(super) fn identify(tree: &Tree, rootfs: BorrowedFd<'_>) -> Result<Vec<FileIdentity>, Error> {
    let mut paths: BTreeSet<&[u8]> = tree.images().map(|image| &*image.layout.exe).collect();
    for mapping in tree.images().flat_map(|image| &image.mappings) {
        match &mapping.backing {
            Backing::File { path, .. } => drop(paths.insert(path)),
            Backing::SharedFile { path, writable: false, .. } if is_roots(path, rootfs) => drop(paths.insert(path)),
            Backing::SharedFile { .. }
            | Backing::Anonymous
            | Backing::Object { .. }
            | Backing::Handed { .. }
            | Backing::Segment { .. } => {}
        }
    }
    let identity = |path: &[u8]| identity(path, rootfs).on("look at", String::from_utf8_lossy(path));
    paths.into_iter().map(identity).collect()
}

/// Those that are not there, or not the same.
pub(super) fn unfit(files: &[FileIdentity], rootfs: BorrowedFd<'_>) -> Result<Vec<Unfit>, Error> {
    let mut unfit = Vec::new();
    for file in files {
        let path = String::from_utf8_lossy(&file.path).into_owned();
        match identity(&file.path, rootfs) {
            Ok(here) if here == *file => {}
            Ok(_) => unfit.push(Unfit::AlteredFile { path }),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => unfit.push(Unfit::MissingFile { path }),
                io::ErrorKind::IsADirectory => unfit.push(Unfit::AlteredFile { path }),
                _ => return Err(error).on("look at", path),
            },
        }
    }
    Ok(unfit)
}

/// Whether a file can only be of the image: programs are never root. What they write themselves goes with the checkpoint as a layer, and may
/// change while it is looked at.
fn is_roots(path: &[u8], rootfs: BorrowedFd<'_>) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let found = open(path, rootfs).and_then(|file| file.metadata());
    found.is_ok_and(|found| found.uid() == 0 && found.mode() & OTHERS_WRITE == 0)
}

/// As the zygote opens them.
fn open(path: &[u8], rootfs: BorrowedFd<'_>) -> io::Result<File> {
    Ok(File::from(openat2(rootfs, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), root::INSIDE)?))
}

fn identity(path: &[u8], rootfs: BorrowedFd<'_>) -> io::Result<FileIdentity> {
    let file = open(path, rootfs)?;
    let bytes = file.metadata()?.len();
    let content = match build_id(&file)? {
        Some(id) => FileContent::BuildId(id),
        None => FileContent::Hash(hash(&file)?),
    };
    Ok(FileIdentity { path: path.to_vec(), bytes, content })
}

fn hash(file: &File) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(*hasher.finalize().as_bytes())
}

/// The GNU build id of a 64-bit little-endian ELF file (elf(5)); none if it has none, or is no such file.
fn build_id(file: &File) -> io::Result<Option<Vec<u8>>> {
    const HEADER_BYTES: usize = 64;
    const PROGRAM_HEADER_BYTES: usize = 56;
    const PROGRAM_HEADERS_MAX: usize = 128;
    let mut header = [0; HEADER_BYTES];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let half = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    if header[..6] != *b"\x7fELF\x02\x01" || half(54) != PROGRAM_HEADER_BYTES {
        return Ok(None);
    }
    let count = half(56).min(PROGRAM_HEADERS_MAX);
    let mut table = vec![0; count * PROGRAM_HEADER_BYTES];
    if file.read_exact_at(&mut table, word(&header, 32)).is_err() {
        return Ok(None);
    }
    let notes = table.chunks_exact(PROGRAM_HEADER_BYTES).filter(|entry| word(entry, 0) as u32 == NOTE);
    for entry in notes {
        let (offset, bytes) = (word(entry, 8), word(entry, 32).min(NOTE_BYTES_MAX));
        let mut notes = vec![0; bytes as usize];
        if file.read_exact_at(&mut notes, offset).is_ok()
            && let Some(id) = gnu_build_id(&notes)
        {
            return Ok(Some(id.to_vec()));
        }
    }
    Ok(None)
}

const NOTE: u32 = 4;
/// Longer notes are not read further: a build id stands near the beginning.
const NOTE_BYTES_MAX: u64 = 64 << 10;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Finds it in a list of notes: three 32-bit words (length of name, of content, type), then both, padded to words.
fn gnu_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const TYPE: u32 = 3;
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let field = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name_bytes, content_bytes) = (field(0) as usize, field(4) as usize);
        let (name, rest) = rest.split_at_checked(name_bytes.checked_next_multiple_of(4)?)?;
        if field(8) == TYPE && name.starts_with(b"GNU\0") {
            return rest.get(..content_bytes);
        }
        notes = rest.get(content_bytes.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_system_has_a_build_id_and_a_text_has_none() {
        assert!(build_id(&File::open("/bin/ls").unwrap()).unwrap().is_some_and(|id| id.len() == 20));
        assert_eq!(build_id(&File::open("/etc/passwd").unwrap()).unwrap(), None);
    }

    #[test]
    fn damaged_notes_have_none() {
        let note = b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\xcd\0\0";
        assert_eq!(gnu_build_id(note), Some(&b"\xab\xcd"[..]));
        for length in 0..18 {
            assert_eq!(gnu_build_id(&note[..length]), None, "{length}");
        }
        assert_eq!(gnu_build_id(&[0xff; 64]), None);
    }
}
