//! Volumes in a checkpoint file: what each is, and all that is in it as a tar archive.

use std::{
    collections::BTreeMap,
    io::{self, Cursor, Read, Write},
};

use base::{id::VolumeName, limits::MOUNT_POINTS_MAX};
use model::{CheckpointVolume, KeptState, VolumeSpec};
use serde::{Deserialize, Serialize};
use store::heads::HeadName;

use super::file::{FileReader, FileWriter, Kind, PIECE_BYTES, damaged};
use crate::{
    Included, Storing, Writing,
    error::{Context, Error, Result},
    nouns,
};

/// Who has the volumes of checkpoints. Functions block.
pub trait Archives {
    /// How that fails; what is wrong with a file or the store can be told with it, too.
    type Error: From<Error>;

    /// What kind of volume a state is of, and an archive of all that is in it.
    fn export(&mut self, state: &KeptState) -> Result<(VolumeSpec, Box<dyn Read>), Self::Error>;

    /// Makes a volume from an archive, whatever it is called then. Gives the name of its state, which is there as long as this.
    fn import(&mut self, spec: VolumeSpec, archive: &mut dyn Read) -> Result<HeadName, Self::Error>;
}

/// The record before an archive.
#[derive(Debug, Serialize, Deserialize)]
struct Described {
    #[serde(with = "nouns::VolumeSpec")]
    spec: VolumeSpec,
    /// Where the program has it.
    paths: Vec<String>,
}

/// One that is mounted twice counts once.
pub(super) fn count_volumes(volumes: &[Included]) -> usize {
    let mut names: Vec<_> = volumes.iter().map(|included| &included.volume).collect();
    names.sort_unstable();
    names.dedup();
    names.len()
}

pub(super) fn write_volumes<A: Archives>(
    file: &mut FileWriter<impl Write>,
    volumes: &[CheckpointVolume],
    archives: &mut A,
) -> Result<(), A::Error> {
    let mut by_name: BTreeMap<&VolumeName, (&KeptState, Vec<String>)> = BTreeMap::new();
    for CheckpointVolume { volume, path, state } in volumes {
        by_name.entry(volume).or_insert((state, Vec::new())).1.push(path.clone());
    }
    let mut piece = Vec::new();
    for (volume, (state, paths)) in by_name {
        let (spec, mut archive) = archives.export(state)?;
        let described = Described { spec: VolumeSpec { name: volume.clone(), ..spec }, paths };
        file.write(Kind::Volume, &serde_json::to_vec(&described).storing("describe a volume")?)?;
        loop {
            piece.clear();
            archive.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).doing("read a volume")?;
            if piece.is_empty() {
                break;
            }
            file.write(Kind::Piece, &piece)?;
        }
        file.write(Kind::VolumeEnd, &[])?;
    }
    Ok(())
}

/// The next `count` volumes of a file, for a program with these mount points.
pub(super) fn read_volumes<A: Archives>(
    file: &mut FileReader<impl Read>,
    count: usize,
    mount_points: &[String],
    writing: &Writing,
    archives: &mut A,
) -> Result<Vec<Included>, A::Error> {
    if count > MOUNT_POINTS_MAX {
        return Err(damaged(format!("it has {count} volumes")).into());
    }
    let mut included: Vec<Included> = Vec::new();
    for _ in 0..count {
        let (_, described) = file.next(&[Kind::Volume])?;
        let Described { spec, paths } = serde_json::from_slice(&described).map_err(damaged)?;
        let volume = spec.name.clone();
        let is_known = included.iter().any(|known| known.volume == volume || paths.contains(&known.path));
        let is_double = (1..paths.len().min(MOUNT_POINTS_MAX)).any(|at| paths[..at].contains(&paths[at]));
        if is_known
            || is_double
            || paths.is_empty()
            || paths.len() > mount_points.len()
            || !paths.iter().all(|path| mount_points.contains(path))
        {
            return Err(damaged(format!("{volume} is not where it can be: {paths:?}")).into());
        }
        let mut pieces = Pieces { file, piece: Cursor::default(), has_ended: false, failed: None };
        let made = archives.import(spec, &mut pieces);
        let rest = pieces.finish();
        let name = match (made, rest) {
            // Whoever takes the archive only hears that it breaks off.
            (_, Err(error)) => return Err(error.into()),
            (made, Ok(())) => made?,
        };
        let head = writing.keep(&name)?.ok_or("it was removed meanwhile").storing("keep a volume")?;
        let state = head.manifest.0;
        included.extend(paths.into_iter().map(|path| Included { volume: volume.clone(), path, state }));
    }
    Ok(included)
}

/// An archive in a file.
struct Pieces<'a, R> {
    file: &'a mut FileReader<R>,
    piece: Cursor<Vec<u8>>,
    has_ended: bool,
    failed: Option<Error>,
}

impl<R: Read> Pieces<'_, R> {
    fn next(&mut self) -> Result<()> {
        match self.file.next(&[Kind::Piece, Kind::VolumeEnd])? {
            (Kind::VolumeEnd, _) => self.has_ended = true,
            (_, piece) if piece.is_empty() => return Err(damaged("a piece is empty")),
            (_, piece) => self.piece = Cursor::new(piece),
        }
        Ok(())
    }

    /// Reads what nobody has read: whoever takes an archive may have stopped at its end, or at an error.
    fn finish(mut self) -> Result<()> {
        while self.failed.is_none() && !self.has_ended {
            self.next()?;
        }
        self.failed.map_or(Ok(()), Err)
    }
}

impl<R: Read> Read for Pieces<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.piece.read(into)? {
                0 if !self.has_ended => {}
                read => return Ok(read),
            }
            if let Err(error) = self.next() {
                self.failed = Some(error);
                return Err(io::Error::other("the archive breaks off"));
            }
        }
    }
}

/// For checkpoints that have none.
#[cfg(feature = "fuzzing")]
pub struct NoArchives;

#[cfg(feature = "fuzzing")]
impl Archives for NoArchives {
    type Error = Error;

    fn export(&mut self, _: &KeptState) -> Result<(VolumeSpec, Box<dyn Read>)> {
        Err(damaged("volumes cannot be written here"))
    }

    fn import(&mut self, _: VolumeSpec, archive: &mut dyn Read) -> Result<HeadName> {
        io::copy(archive, &mut io::sink()).doing("read a volume")?;
        Err(damaged("volumes cannot be made here"))
    }
}
