//! Refuses files that a program has open below a directory where its copies may find another filesystem. A copy opens files by path, so it
//! would open another file there.
//!
//! The working directory is exempt. A copy enters its path, whatever is there by then, like a shell that starts in that directory.

use std::{os::unix::ffi::OsStrExt, path::Path};

use crate::{
    image::{Backing, FileKind, ProgramImage},
    refusal::Refusal,
};

/// One refusal for each thing of the program that lies at or below one of `mount_points`.
pub(crate) fn refusals(image: &ProgramImage, mount_points: &[impl AsRef<Path>]) -> Vec<Refusal> {
    let refuse = |what, path, mount_point| Refusal::BelowMountPoint { what, path, mount_point };
    below(program(image).chain(files(image)).chain(mappings(image)), mount_points, refuse)
}

/// The same for what the zygote would have to run: it has no filesystems but its root.
pub(crate) fn program_refusals(image: &ProgramImage, volumes: &[impl AsRef<Path>]) -> Vec<Refusal> {
    let refuse = |what, path, mount_point| Refusal::OnVolume { what, path, mount_point };
    below(program(image), volumes, refuse)
}

/// A zygote has no files in memory either: its program must be none of them.
pub(crate) fn memory_refusal(image: &ProgramImage, directory: Option<&Path>) -> Option<Refusal> {
    let exe = Path::new(std::ffi::OsStr::from_bytes(&image.layout.exe));
    directory.filter(|directory| exe.starts_with(directory))?;
    Some(Refusal::ProgramInMemory { path: exe.display().to_string() })
}

/// Something of the program, for people, and its path.
type Named = (String, Vec<u8>);

fn below(
    named: impl Iterator<Item = Named>,
    mount_points: &[impl AsRef<Path>],
    refuse: fn(String, String, String) -> Refusal,
) -> Vec<Refusal> {
    let below = |(what, path): Named| {
        let path = Path::new(std::ffi::OsStr::from_bytes(&path));
        let mount_point = mount_points.iter().map(AsRef::as_ref).find(|point| path.starts_with(point))?;
        let [path, mount_point] = [path, mount_point].map(|path| path.display().to_string());
        Some(refuse(what, path, mount_point))
    };
    named.filter_map(below).collect()
}

fn program(image: &ProgramImage) -> impl Iterator<Item = Named> {
    std::iter::once(("its program file".to_owned(), image.layout.exe.clone()))
}

fn files(image: &ProgramImage) -> impl Iterator<Item = Named> {
    image.files.iter().flat_map(|file| {
        let number = file.numbers.first().map_or(-1, |(number, _)| *number);
        let paths = match &file.kind {
            FileKind::Path { path, .. } | FileKind::Fifo { path, .. } | FileKind::GoneDirectory { path, .. } => {
                vec![path.clone()]
            }
            FileKind::Inotify { watches } => watches.iter().map(|watch| watch.path.clone()).collect(),
            // A path that begins with a slash replaces the one before.
            FileKind::Socket(socket) => {
                let bound = socket.path.as_ref().map(|file| Path::new(std::ffi::OsStr::from_bytes(&file.path)));
                let cwd = Path::new(std::ffi::OsStr::from_bytes(&image.cwd));
                bound.map(|bound| cwd.join(bound).as_os_str().as_bytes().to_vec()).into_iter().collect()
            }
            FileKind::Stream(_)
            | FileKind::Pipe { .. }
            | FileKind::Eventfd { .. }
            | FileKind::Timerfd { .. }
            | FileKind::Signalfd { .. }
            | FileKind::Epoll { .. }
            | FileKind::Memfd { .. }
            | FileKind::UnixPair { .. }
            | FileKind::Pidfd { .. }
            | FileKind::ResetConnection { .. }
            | FileKind::Connection { .. } => Vec::new(),
        };
        paths.into_iter().map(move |path| (format!("descriptor {number}"), path))
    })
}

fn mappings(image: &ProgramImage) -> impl Iterator<Item = Named> {
    image.mappings.iter().filter_map(|mapping| match &mapping.backing {
        Backing::File { path, .. } | Backing::SharedFile { path, .. } => {
            Some((format!("the mapping at {:#x}", mapping.range.start), path.clone()))
        }
        Backing::Anonymous | Backing::Object { .. } | Backing::Handed { .. } | Backing::Segment { .. } => None,
    })
}
