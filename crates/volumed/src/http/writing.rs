//! Files that are received.

use api::volume::FileInfo;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use rustix::io::Errno;
use tokio::sync::mpsc;
use volume::{Kind, ROOT};

use super::{answer::info, files::Job, finish};
use crate::{
    BoxError,
    failure::{Failure, Result},
    limits::{PIECE_BYTES, PIECES_WAITING},
    uploads::Upload,
    walk::{Last, Missing, Place},
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
fn write(job: &Job, mode: Option<u16>, sync: bool, mut parts: Parts) -> Result<FileInfo> {
    let failed = || job.failed("write");
    let engine = job.opened.engine();
    let Place { directory, name, found } = job.walk(Last::Follow, Missing::Make).map_err(failed())?;
    let permitted = match found.as_ref().map(|found| found.inode.kind) {
        None | Some(Kind::File) => Ok(()),
        Some(Kind::Directory) => Err(Errno::ISDIR),
        Some(Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice) => Err(Errno::INVAL),
    };
    permitted.map_err(failed())?;
    // As the file that is replaced, or as its directory.
    let like = found.as_ref().map_or(&directory.inode, |found| &found.inode);
    let mode = mode.or_else(|| found.as_ref().map(|found| found.inode.mode)).unwrap_or(FILE_MODE);
    let mut upload = Upload::begin(engine, mode, like.uid, like.gid).map_err(failed())?;
    let mut gathered = Vec::new();
    loop {
        let part = parts.blocking_recv().unwrap_or_else(|| Err("the client went away".into()));
        let part = part.map_err(Failure::BrokenOff)?;
        let at_end = part.is_empty();
        gathered.extend_from_slice(&part);
        if gathered.len() >= PIECE_BYTES || at_end {
            gathered.chunks(PIECE_BYTES).try_for_each(|piece| upload.write(piece)).map_err(failed())?;
            job.opened.meter.wrote(gathered.len());
            gathered.clear();
        }
        if at_end {
            break;
        }
    }
    let placed = upload.place(directory.ino, &name).map_err(failed())?;
    let replaced = found.map(|found| found.ino);
    let known: Vec<_> = replaced.into_iter().chain([ROOT]).collect();
    job.changed(directory.ino, &name, &known).map_err(failed())?;
    if sync {
        job.opened.volume().sync().map_err(failed())?;
    }
    Ok(info(&name, &placed))
}
