//! Files that are received.

use std::io::Read;

use api::volume::FileInfo;
use axum::body::Body;
use rustix::io::Errno;
use volume::{Attributes, Ino, Kind, Links, New};

use super::{
    answer::info,
    changes::Parents,
    files::Job,
    finish,
    query::Owner,
    stream::{Inlet, inlet},
};
use crate::{
    failure::{Failure, Result},
    limits::PIECE_BYTES,
    worker::work::Kind as Work,
};

const FILE_MODE: u16 = 0o644;

/// How a file is received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upload {
    /// A replaced file keeps what this does not name.
    pub(super) owner: Owner,
    pub(super) parents: Parents,
    /// An existing file is replaced. If false, the upload is refused.
    pub(super) replace: bool,
    /// As if followed by `fsync`.
    pub(super) sync: bool,
}

/// Replaces the file, or makes it: whole, or not at all.
pub(super) async fn receive(job: Job, upload: Upload, body: Body) -> Result<FileInfo> {
    let (inlet, passing) = inlet(body);
    let work = async move {
        let (table, volume) = (job.table.clone(), job.opened.source.volume.clone());
        table.work.run(Work::Write, &volume, move || write(&job, upload, inlet)).await
    };
    let (received, ()) = tokio::join!(finish(work), passing);
    received
}

/// Blocks until all parts have come.
fn write(job: &Job, upload: Upload, inlet: Inlet) -> Result<FileInfo> {
    let failed = || job.failed("write");
    let engine = job.opened.engine();
    let above = begin(job, upload).map_err(failed())?;
    let new = to_write(job, upload).map_err(failed())?;
    let hold = engine.make_unnamed(above, new).map_err(failed())?;
    fill(job, hold.ino(), inlet)?;
    let name = place(job, upload, hold.ino()).map_err(failed())?;
    if upload.sync {
        job.opened.volume().sync().map_err(failed())?;
    }
    Ok(info(&name, &engine.attributes(hold.ino()).map_err(failed())?))
}

/// Where the file is made. Directories that are missing are made when all is there: an upload that breaks off leaves none.
fn begin(job: &Job, upload: Upload) -> Result<Ino, Errno> {
    match upload.parents {
        Parents::Made => job.opened.engine().nearest(&job.path),
        Parents::Needed => job.parent(Parents::Needed).map(|(directory, _)| directory),
    }
}

/// The file as it will be. An existing file that must stay is refused before any byte is read.
fn to_write(job: &Job, upload: Upload) -> Result<New<'static>, Errno> {
    let new = job.to_make(Kind::File, FILE_MODE)?;
    let new = match job.opened.engine().resolve(&job.path, Links::Keep) {
        Ok(_) if !upload.replace => return Err(Errno::EXIST),
        Ok(Attributes { inode, .. }) if inode.kind == Kind::File => {
            New { mode: inode.mode, uid: inode.uid, gid: inode.gid, ..new }
        }
        Ok(_) | Err(Errno::NOENT) => new,
        Err(errno) => return Err(errno),
    };
    Ok(upload.owner.of(new))
}

/// Gives the file its name, which it tells.
fn place(job: &Job, upload: Upload, ino: Ino) -> Result<Vec<u8>, Errno> {
    let engine = job.opened.engine();
    let (directory, name) = job.parent(upload.parents)?;
    let replaced = job.entry(directory, &name)?;
    match upload.replace {
        true => engine.place(ino, directory, &name)?,
        false => engine.place_new(ino, directory, &name)?,
    }
    let replaced: Vec<_> = replaced.into_iter().map(|replaced| replaced.ino).collect();
    job.changed(&[(directory, &name)], &replaced)?;
    Ok(name)
}

fn fill(job: &Job, ino: Ino, mut inlet: Inlet) -> Result<()> {
    let (mut piece, mut offset) = (Vec::with_capacity(PIECE_BYTES), 0);
    loop {
        piece.clear();
        let read = inlet.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece);
        if read.map_err(|error| Failure::BrokenOff(error.into()))? == 0 {
            return Ok(());
        }
        job.opened.engine().write(ino, offset, &piece, false).map_err(job.failed("write"))?;
        job.opened.meter.wrote(piece.len());
        offset += piece.len() as u64;
    }
}
