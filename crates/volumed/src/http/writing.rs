//! Files that are received.

use std::io::Read;

use api::volume::FileInfo;
use axum::body::Body;
use rustix::io::Errno;
use volume::{Attributes, Ino, Kind, Links, New};

use super::{
    answer::info,
    files::Job,
    finish,
    stream::{Inlet, inlet},
};
use crate::{
    failure::{Failure, Result},
    limits::PIECE_BYTES,
    worker::work::Kind as Work,
};

const FILE_MODE: u16 = 0o644;

/// Replaces the file, or makes it: whole, or not at all. `mode`: none leaves that of the file.
pub(super) async fn receive(job: Job, mode: Option<u16>, sync: bool, body: Body) -> Result<FileInfo> {
    let (inlet, passing) = inlet(body);
    let work = async move {
        let (table, volume) = (job.table.clone(), job.opened.source.volume.clone());
        table.work.run(Work::Write, &volume, move || write(&job, mode, sync, inlet)).await
    };
    let (received, ()) = tokio::join!(finish(work), passing);
    received
}

/// Blocks until all parts have come.
fn write(job: &Job, mode: Option<u16>, sync: bool, inlet: Inlet) -> Result<FileInfo> {
    let failed = || job.failed("write");
    let engine = job.opened.engine();
    let new = job.to_make(Kind::File, FILE_MODE).map_err(failed())?;
    let new = match engine.resolve(&job.path, Links::Keep) {
        Ok(Attributes { inode, .. }) if inode.kind == Kind::File => {
            New { mode: mode.unwrap_or(inode.mode), uid: inode.uid, gid: inode.gid, ..new }
        }
        Ok(_) | Err(Errno::NOENT) => New { mode: mode.unwrap_or(FILE_MODE), ..new },
        Err(errno) => return Err(failed()(errno)),
    };
    // Directories that are missing are made when all is there: an upload that breaks off leaves none.
    let above = engine.nearest(&job.path).map_err(failed())?;
    let hold = engine.make_unnamed(above, new).map_err(failed())?;
    fill(job, hold.ino(), inlet)?;
    let (directory, name) = job.make_parents(&job.path).map_err(failed())?;
    let replaced = job.entry(directory, &name).map_err(failed())?;
    engine.place(hold.ino(), directory, &name).map_err(failed())?;
    let replaced: Vec<_> = replaced.into_iter().map(|replaced| replaced.ino).collect();
    job.changed(&[(directory, &name)], &replaced).map_err(failed())?;
    if sync {
        job.opened.volume().sync().map_err(failed())?;
    }
    Ok(info(&name, &engine.attributes(hold.ino()).map_err(failed())?))
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
