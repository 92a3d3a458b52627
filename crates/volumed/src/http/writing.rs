//! Files that are received.

use api::volume::FileInfo;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use volume::{Attributes, Ino, Kind, New};

use super::{
    answer::info,
    files::{DIRECTORY_MODE, Job},
    finish,
};
use crate::{
    BoxError,
    failure::{Failure, Result},
    limits::{PIECE_BYTES, PIECES_WAITING},
    worker::work::Kind as Work,
};

const FILE_MODE: u16 = 0o644;

type Parts = mpsc::Receiver<Result<Bytes, BoxError>>;

/// Replaces the file, or makes it: whole, or not at all. `mode`: none leaves that of the file.
pub(super) async fn receive(job: Job, mode: Option<u16>, sync: bool, body: Body) -> Result<FileInfo> {
    let (sender, parts) = mpsc::channel(PIECES_WAITING);
    let work = async move {
        let table = job.table.clone();
        table.work.run(Work::Write, move || write(&job, mode, sync, parts)).await
    };
    let (received, ()) = tokio::join!(finish(work), pass_on(body, sender));
    received
}

async fn pass_on(mut body: Body, parts: mpsc::Sender<Result<Bytes, BoxError>>) {
    while let Some(frame) = body.frame().await {
        let part = match frame.map(|frame| frame.into_data()) {
            Ok(Ok(part)) => Ok(part),
            // Trailers.
            Ok(Err(_)) => continue,
            Err(error) => Err(error.into()),
        };
        let failed = part.is_err();
        if parts.send(part).await.is_err() || failed {
            return;
        }
    }
    // Without this the end looks as if the client had gone.
    let _ = parts.send(Ok(Bytes::new())).await;
}

/// Blocks until all parts have come.
fn write(job: &Job, mode: Option<u16>, sync: bool, parts: Parts) -> Result<FileInfo> {
    let failed = || job.failed("write");
    let engine = job.opened.engine();
    let new = job.new(Kind::File, FILE_MODE).map_err(failed())?;
    let directory_of = New { mode: DIRECTORY_MODE, ..new };
    let (directory, name) = engine.make_parents(&job.path, directory_of).map_err(failed())?;
    let replaced = job.entry(directory, &name).map_err(failed())?;
    let new = match &replaced {
        Some(Attributes { inode, .. }) if inode.kind == Kind::File => {
            New { mode: mode.unwrap_or(inode.mode), uid: inode.uid, gid: inode.gid, ..new }
        }
        Some(_) | None => New { mode: mode.unwrap_or(FILE_MODE), ..new },
    };
    let hold = engine.make_unnamed(directory, new).map_err(failed())?;
    fill(job, hold.ino(), parts)?;
    engine.place(hold.ino(), directory, &name).map_err(failed())?;
    let replaced: Vec<_> = replaced.into_iter().map(|replaced| replaced.ino).collect();
    job.changed(&[(directory, &name)], &replaced).map_err(failed())?;
    if sync {
        job.opened.volume().sync().map_err(failed())?;
    }
    Ok(info(&name, &engine.attributes(hold.ino()).map_err(failed())?))
}

fn fill(job: &Job, ino: Ino, mut parts: Parts) -> Result<()> {
    let (mut gathered, mut offset) = (Vec::new(), 0);
    loop {
        let part = parts.blocking_recv().unwrap_or_else(|| Err("the client went away".into()));
        let part = part.map_err(Failure::BrokenOff)?;
        gathered.extend_from_slice(&part);
        if gathered.len() < PIECE_BYTES && !part.is_empty() {
            continue;
        }
        for piece in gathered.chunks(PIECE_BYTES) {
            job.opened.engine().write(ino, offset, piece, false).map_err(job.failed("write"))?;
            job.opened.meter.wrote(piece.len());
            offset += piece.len() as u64;
        }
        gathered.clear();
        if part.is_empty() {
            return Ok(());
        }
    }
}
