//! Requests on all of a volume's content: what differs, what is damaged, archives both ways.

use std::{io::Write, ops::ControlFlow, sync::Arc};

use api::{Change, Damage, VolumeChange, VolumeVerification};
use axum::{Json, body::Body, extract::State, response::Response};
use base::id::{SnapshotName, VolumeName};
use rustix::io::Errno;
use volume::{Attributes, Changed, Ino, Kind, Links, ROOT, Verified, archive};

use super::{
    Shared, answer,
    files::{DIRECTORY_MODE, Job},
    finish,
    query::Target,
    stream,
};
use crate::{
    failure::{Failure, Result},
    message::Source,
    percent,
    worker::{
        table::{Purpose, Table, origin},
        work::Kind as Work,
    },
};

/// What makes `to=` out of `from=`, line by line; each a snapshot or, if it is not given, the present state. `to=` is one of `with=`, if that is given.
pub(super) async fn diff(State(table): Shared, target: Target) -> Result<Response> {
    let mut origins = Vec::new();
    let volume = &target.source.volume;
    let with = target.query.parsed::<VolumeName>("with")?;
    for (volume, key) in [(volume, "from"), (with.as_ref().unwrap_or(volume), "to")] {
        let snapshot = target.query.parsed::<SnapshotName>(key)?;
        origins.push(committed(&table, &Source::new(volume.clone(), snapshot)).await?);
    }
    let (volumes, to) = (table.volumes.clone(), origins.pop());
    let (Some(from), Some(to)) = (origins.pop(), to) else { return Err(Failure::Interrupted) };
    // Here, so that a snapshot that is not there is no answer that breaks off.
    for origin in [from.clone(), to.clone()] {
        let volumes = volumes.clone();
        table.work.run_whole(move || Ok(volumes.inspect(&origin)?)).await.map(drop)?;
    }
    Ok(stream::answer(&table, volume, "application/x-ndjson", move |outlet| {
        let mut tell = |changed: Changed| {
            let line = serde_json::to_vec(&change(changed)).map_err(std::io::Error::from);
            match line.and_then(|line| outlet.write_all(&line)).and_then(|()| outlet.write_all(b"\n")) {
                Ok(()) => ControlFlow::Continue(()),
                // The client has gone.
                Err(_) => ControlFlow::Break(()),
            }
        };
        Ok(volumes.diff(&from, &to, &mut tell)?)
    }))
}

fn change(Changed { path, kind, change }: Changed) -> VolumeChange {
    let (change, from) = match change {
        volume::Change::Added => (Change::Added, None),
        volume::Change::Removed => (Change::Removed, None),
        volume::Change::Modified => (Change::Modified, None),
        volume::Change::Metadata => (Change::Metadata, None),
        volume::Change::Renamed { from } => (Change::Renamed, Some(percent::encode(&from))),
    };
    VolumeChange { path: percent::encode(&path), change, kind: answer::kind(kind), from }
}

/// What is in the store of it: all, unless another node writes it.
async fn committed(table: &Arc<Table>, source: &Source) -> Result<volume::Origin> {
    if source.is_current()
        && let Some(opened) = table.open_unless_elsewhere(source, Purpose::Read).await?
    {
        opened.meter.request();
        table.work.run_whole(move || Ok(opened.volume().commit()?)).await?;
    }
    Ok(origin(source))
}

/// Reads and opens everything. A client that goes away does not end it.
pub(super) async fn verify(State(table): Shared, target: Target) -> Result<Json<VolumeVerification>> {
    let origin = committed(&table, &target.source).await?;
    let volumes = table.volumes.clone();
    let verified = table.work.run_whole(move || Ok(volumes.verify(&origin)?)).await?;
    Ok(Json(verification(verified)))
}

fn verification(Verified { inodes, bytes, findings, .. }: Verified) -> VolumeVerification {
    let (unreachable, damage): (Vec<_>, Vec<_>) = findings.into_iter().partition(|finding| finding.out_of_reach);
    let told = |findings: Vec<volume::Finding>| {
        let part = |path: Option<Vec<u8>>| path.map_or_else(|| "volume".to_owned(), |path| percent::encode(&path));
        findings.into_iter().map(|finding| Damage { part: part(finding.path), problem: finding.what }).collect()
    };
    VolumeVerification { inodes, bytes, damage: told(damage), unreachable: told(unreachable) }
}

/// All of a volume or a snapshot as a tar archive.
pub(super) async fn export(State(table): Shared, target: Target) -> Result<Response> {
    let opened = table.open_to_read(&target.source).await?;
    opened.meter.request();
    let volume = opened.source.volume.clone();
    Ok(stream::answer(&table, &volume, "application/x-tar", move |outlet| {
        Ok(archive::export(opened.engine(), ROOT, outlet)?)
    }))
}

/// Unpacks a tar archive into the directory `path=`, which is made if it is missing. What was unpacked stays if it breaks off.
pub(super) async fn import(State(table): Shared, target: Target, body: Body) -> Result<Json<()>> {
    target.is_volume()?;
    let path = target.query.bytes("path").unwrap_or_default().to_vec();
    let job = Job { path, ..Job::begin(table, &target).await? };
    let (inlet, passing) = stream::inlet(body);
    let work = async move {
        let (table, volume) = (job.table.clone(), job.opened.source.volume.clone());
        let import = move || {
            let directory = directory(&job).map_err(job.failed("make"))?;
            let imported = archive::import(job.opened.engine(), directory, inlet);
            job.opened.forget_all();
            job.opened.engine().write_log().map_err(job.failed("write"))?;
            imported?;
            Ok(())
        };
        table.work.run(Work::Write, &volume, import).await
    };
    let (imported, ()) = tokio::join!(finish(work), passing);
    imported.map(Json)
}

fn directory(job: &Job) -> Result<Ino, Errno> {
    let engine = job.opened.engine();
    match engine.resolve(&job.path, Links::Follow) {
        Err(Errno::NOENT) => {
            let new = job.to_make(Kind::Directory, DIRECTORY_MODE)?;
            let (parent, name) = job.make_parents(&job.path)?;
            Ok(engine.make(parent, &name, new)?.ino)
        }
        Ok(Attributes { inode, .. }) if !inode.is_directory() => Err(Errno::NOTDIR),
        found => Ok(found?.ino),
    }
}
