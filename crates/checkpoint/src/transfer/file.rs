//! Records of a checkpoint file: framed one by one, and all of them under one digest at the end.

use std::io::{Read, Write};

use base::{
    frame::{self, FrameError, HEADER_BYTES},
    limits::RECORD_BYTES_MAX,
};

use crate::error::{Context, Error, Result};

/// Newest version of the records of a file.
const VERSION: u16 = Contents::FilesOnly as u16;

/// What is in a file, by the first version that knows it: an older node reads what it can, and refuses the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Contents {
    /// A program without volumes.
    Program = 1,
    /// A program and volumes.
    WithVolumes = 2,
    /// No program; maybe volumes.
    FilesOnly = 3,
}

/// Bytes of the digest in the last record.
const DIGEST_BYTES: usize = blake3::OUT_LEN;

/// What a record is: the kind of its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    /// What the checkpoint is, and how long its parts are.
    Description = 0x4e10,
    /// A piece of the state or of a layer.
    Piece = 0x4e11,
    /// Packed pages.
    Chunk = 0x4e12,
    /// A part of the index of pages.
    Leaf = 0x4e13,
    /// The root of that index.
    Root = 0x4e14,
    /// The end, with a digest of everything before it.
    End = 0x4e15,
    /// What a volume is. Pieces of an archive follow.
    Volume = 0x4e16,
    /// The end of that archive.
    VolumeEnd = 0x4e17,
}

impl Kind {
    const ALL: [Self; 8] =
        [Self::Description, Self::Piece, Self::Chunk, Self::Leaf, Self::Root, Self::End, Self::Volume, Self::VolumeEnd];

    /// Most bytes in one: checked before they are read.
    fn bytes_max(self) -> usize {
        match self {
            Self::Description | Self::Volume => RECORD_BYTES_MAX,
            Self::Piece => PIECE_BYTES,
            Self::Chunk | Self::Leaf => store::limits::CHUNK_BYTES_MAX,
            Self::Root => memory::limits::ROOT_BYTES_MAX + HEADER_BYTES,
            Self::End => DIGEST_BYTES,
            Self::VolumeEnd => 0,
        }
    }
}

/// Bytes of a piece: a record's frame costs nothing beside it, and it is soon sent.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Writes records.
pub(super) struct FileWriter<W> {
    out: W,
    version: u16,
    digest: blake3::Hasher,
}

impl<W: Write> FileWriter<W> {
    pub(super) fn new(out: W, contents: Contents) -> Self {
        Self { out, version: contents as u16, digest: blake3::Hasher::new() }
    }

    pub(super) fn write(&mut self, kind: Kind, payload: &[u8]) -> Result<()> {
        let framed = frame::encode(kind as u16, self.version, payload).map_err(damaged)?;
        self.digest.update(&framed);
        self.out.write_all(&framed).doing("write the file")
    }

    /// Writes the last record.
    pub(super) fn finish(mut self) -> Result<()> {
        let digest = self.digest.finalize();
        self.write(Kind::End, digest.as_bytes())?;
        self.out.flush().doing("write the file")
    }
}

/// Reads records.
pub(super) struct FileReader<R> {
    input: R,
    /// Of the first record, and so of all.
    version: Option<u16>,
    digest: blake3::Hasher,
}

impl<R: Read> FileReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, version: None, digest: blake3::Hasher::new() }
    }

    /// The payload of the next record, which must be one of `kinds`.
    pub(super) fn next(&mut self, kinds: &[Kind]) -> Result<(Kind, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        // The frame is decoded below; this only says how much to read for that.
        let number = u16::from_le_bytes([header[4], header[5]]);
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let Some(kind) = Kind::ALL.into_iter().find(|kind| *kind as u16 == number) else {
            return Err(damaged(format!("there is no record of kind {number:#x}")));
        };
        if !kinds.contains(&kind) {
            return Err(damaged(format!("a record {kind:?} where one of {kinds:?} belongs")));
        }
        if length > kind.bytes_max() {
            return Err(damaged(format!("a record {kind:?} of {length} bytes")));
        }
        let mut framed = vec![0; HEADER_BYTES + length];
        framed[..HEADER_BYTES].copy_from_slice(&header);
        self.fill(&mut framed[HEADER_BYTES..])?;
        match frame::decode(&framed, number, VERSION).map_err(damaged)? {
            (version @ 1..=VERSION, _) if self.version.is_none_or(|first| first == version) => {
                self.version = Some(version);
            }
            _ => return Err(damaged("a version that never was, or another one than before")),
        }
        if kind != Kind::End {
            self.digest.update(&framed);
        }
        framed.drain(..HEADER_BYTES);
        Ok((kind, framed))
    }

    /// Whether what was read is of a file without a program.
    pub(super) fn has_files_only(&self) -> bool {
        self.version == Some(Contents::FilesOnly as u16)
    }

    /// Reads the last record, and that nothing follows.
    pub(super) fn finish(mut self) -> Result<()> {
        let (_, digest) = self.next(&[Kind::End])?;
        if digest != self.digest.finalize().as_bytes() {
            return Err(damaged("its records are not those that were written together"));
        }
        match self.input.read(&mut [0]).map_err(broken_off)? {
            0 => Ok(()),
            _ => Err(damaged(FrameError::Trailing { extra: 1 })),
        }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        self.input.read_exact(into).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
            _ => broken_off(error),
        })
    }
}

/// It came from a client, which has hung up.
fn broken_off(error: std::io::Error) -> Error {
    tracing::debug!(%error, "a checkpoint file broke off");
    Error::Cancelled
}

/// The file is not one that was written here.
pub(super) fn damaged(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::DamagedFile { source: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[(Kind, &[u8])] = &[
        (Kind::Description, b"{}"),
        (Kind::Piece, b"piece"),
        (Kind::Chunk, b"chunk"),
        (Kind::Leaf, b""),
        (Kind::Root, b"root"),
    ];
    const VOLUME: &[(Kind, &[u8])] = &[(Kind::Volume, b"{}"), (Kind::Piece, b"archive"), (Kind::VolumeEnd, b"")];

    fn file() -> Vec<u8> {
        file_of(ALL, Contents::Program)
    }

    fn file_of(records: &[(Kind, &[u8])], contents: Contents) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = FileWriter::new(&mut bytes, contents);
        for (kind, payload) in records {
            writer.write(*kind, payload).unwrap();
        }
        writer.finish().unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<(Kind, Vec<u8>)>> {
        read_as(bytes, ALL)
    }

    fn read_as(bytes: &[u8], records: &[(Kind, &[u8])]) -> Result<Vec<(Kind, Vec<u8>)>> {
        let mut reader = FileReader::new(bytes);
        let kinds: Vec<Kind> = records.iter().map(|(kind, _)| *kind).collect();
        let records = kinds.iter().map(|_| reader.next(&kinds)).collect::<Result<_>>()?;
        reader.finish().map(|()| records)
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        assert_eq!(file(), include_bytes!("../../tests/golden/checkpoint-file-v1.bin"));
        let records = read(&file()).unwrap();
        assert_eq!(records.len(), 5);
        assert_eq!(records[2], (Kind::Chunk, b"chunk".to_vec()));
        let whole = [ALL, VOLUME].concat();
        let bytes = file_of(&whole, Contents::WithVolumes);
        assert_eq!(bytes, include_bytes!("../../tests/golden/checkpoint-file-v2.bin"));
        let records = read_as(&bytes, &whole).unwrap();
        assert!(records.iter().map(|(kind, bytes)| (*kind, &bytes[..])).eq(whole));
        let files: Vec<_> = [&ALL[..2], VOLUME].concat();
        let bytes = file_of(&files, Contents::FilesOnly);
        assert_eq!(bytes, include_bytes!("../../tests/golden/checkpoint-file-v3.bin"));
        let records = read_as(&bytes, &files).unwrap();
        assert!(records.iter().map(|(kind, bytes)| (*kind, &bytes[..])).eq(files));
    }

    #[test]
    fn every_truncation_and_every_bit_flip_is_refused() {
        let bytes = file();
        for length in 0..bytes.len() {
            assert!(matches!(read(&bytes[..length]), Err(Error::DamagedFile { .. })), "cut to {length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read(&flipped), Err(Error::DamagedFile { .. })), "bit {bit}");
        }
    }

    #[test]
    fn records_that_are_lost_doubled_swapped_or_too_many_are_refused() {
        let bytes = file();
        // Description of 18 bytes, piece and chunk of 21 each.
        let (description, piece, chunk, rest) = (&bytes[..18], &bytes[18..39], &bytes[39..60], &bytes[60..]);
        for wrong in [
            [description, chunk, piece, rest],
            [description, piece, piece, rest],
            [description, piece, rest, b""],
            [&bytes, b"x", b"", b""],
        ] {
            assert!(read(&wrong.concat()).is_err());
        }
    }

    #[test]
    fn a_length_is_checked_before_anything_is_read_for_it() {
        let mut bytes = file();
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read(&bytes), Err(Error::DamagedFile { .. })));
    }
}
