//! Requests on files.

use std::sync::Arc;

use api::volume::{FileInfo, FileList};
use axum::{
    Json,
    body::Body,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use rustix::io::Errno;
use volume::{Attributes, Changes, Engine, Ino, Kind, Links, New, ROOT, Rename};

use super::{Shared, answer::info, finish, query::Target, reading, writing};
use crate::{
    failure::{Failure, Result},
    limits::{LIST_DEFAULT, LIST_MAX},
    percent,
    removal::remove_all,
    worker::{opened::Opened, table::Table, work::Kind as Work},
};

/// A file's or directory's place in an open volume.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) table: Arc<Table>,
    pub(super) opened: Arc<Opened>,
    pub(super) path: Vec<u8>,
}

impl Job {
    /// To change something.
    pub(super) async fn begin(table: Arc<Table>, target: &Target) -> Result<Self> {
        let opened = table.open(&target.source).await?;
        Ok(Self::in_open(table, opened, target))
    }

    async fn begin_to_read(table: Arc<Table>, target: &Target) -> Result<Self> {
        let opened = table.open_to_read(&target.source).await?;
        Ok(Self::in_open(table, opened, target))
    }

    fn in_open(table: Arc<Table>, opened: Arc<Opened>, target: &Target) -> Self {
        opened.meter.request();
        Self { table, opened, path: target.path.clone() }
    }

    /// One step in the volume, that changes nothing. `action` says what cannot be done if it fails.
    async fn step<T: Send + 'static>(
        &self,
        action: &'static str,
        step: impl FnOnce(&Self) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T> {
        let job = self.clone();
        let volume = &self.opened.source.volume;
        self.table.work.run(Work::Step, volume, move || step(&job).map_err(job.failed(action))).await
    }

    /// One that changes something, which has to wait while too much is dirty; to its end, although the client may go away.
    async fn change<T: Send + 'static>(
        self,
        action: &'static str,
        change: impl FnOnce(&Self) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T> {
        finish(async move {
            let (table, volume) = (self.table.clone(), self.opened.source.volume.clone());
            table.work.run(Work::Change, &volume, move || change(&self).map_err(self.failed(action))).await
        })
        .await
    }

    /// For `map_err`.
    pub(super) fn failed(&self, action: &'static str) -> impl FnOnce(Errno) -> Failure {
        let (volume, path) =
            (self.opened.source.volume.clone(), format!("/{}", percent::encode(&self.path).trim_start_matches('/')));
        move |source| Failure::File { action, volume, path, source }
    }

    /// What has this name now.
    pub(super) fn entry(&self, directory: Ino, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        match self.opened.engine().lookup(directory, name) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    /// A new inode: whoever the volume was made for has what is made by HTTP.
    pub(super) fn to_make(&self, kind: Kind, mode: u16) -> Result<New<'static>, Errno> {
        let top = self.opened.engine().attributes(ROOT)?.inode;
        Ok(New { kind, mode, uid: top.uid, gid: top.gid, device: 0, target: b"" })
    }

    /// The directory that `path` is to be in, and its name there. Directories that are missing are made, and the kernel is told of each.
    pub(super) fn make_parents(&self, path: &[u8]) -> Result<(Ino, Vec<u8>), Errno> {
        let new = self.to_make(Kind::Directory, DIRECTORY_MODE)?;
        let made = |directory, name: &[u8]| self.opened.forget(&[(directory, name)], &[]);
        self.opened.engine().make_parents(path, new, made)
    }

    /// The last component of the path.
    fn name(&self) -> &[u8] {
        let parts = self.path.split(|byte| *byte == b'/');
        parts.rev().find(|part| !part.is_empty()).unwrap_or(b".")
    }

    /// After a change: what was done survives this process, and the kernel asks again for these names and inodes.
    pub(super) fn changed(&self, names: &[(Ino, &[u8])], inodes: &[Ino]) -> Result<(), Errno> {
        self.opened.forget(names, inodes);
        self.opened.engine().write_log()
    }
}

pub(super) async fn get(State(table): Shared, target: Target, headers: HeaderMap) -> Result<Response> {
    let links = match target.query.operation()? {
        None => Links::Follow,
        Some("stat") => Links::Keep,
        Some(other) => return Err(Failure::invalid(format!("op={other}: GET knows only stat"))),
    };
    let job = Job::begin_to_read(table, &target).await?;
    let found = job.step("find", move |job| job.opened.engine().resolve(&job.path, links)).await?;
    if links == Links::Keep {
        return Ok(Json(info(job.name(), &found)).into_response());
    }
    match found.inode.kind {
        Kind::Directory => list(&job, found.ino, &target).await.map(|list| Json(list).into_response()),
        Kind::File => reading::send(job, found, &headers).await,
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            Err(job.failed("read")(Errno::INVAL))
        }
    }
}

async fn list(job: &Job, directory: Ino, target: &Target) -> Result<FileList> {
    let after = target.query.parsed("after")?.unwrap_or(0);
    let limit = target.query.parsed("limit")?.unwrap_or(LIST_DEFAULT).clamp(1, LIST_MAX);
    job.step("list", move |job| list_entries(job.opened.engine(), directory, after, limit)).await
}

fn list_entries(engine: &Engine, directory: Ino, after: u64, limit: usize) -> Result<FileList, Errno> {
    let (mut entries, mut cookie) = (Vec::new(), after);
    loop {
        let listed = engine.list(directory, cookie, limit - entries.len())?;
        let Some(last) = listed.last() else { return Ok(FileList { entries, next: None }) };
        cookie = last.cookie;
        for entry in listed.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
            match engine.attributes(entry.ino) {
                Ok(found) => entries.push(info(&entry.name, &found)),
                // Removed since.
                Err(Errno::STALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        if entries.len() >= limit {
            return Ok(FileList { entries, next: Some(cookie) });
        }
    }
}

pub(super) async fn put(State(table): Shared, target: Target, body: Body) -> Result<Json<FileInfo>> {
    target.is_volume()?;
    let (mode, sync) = (target.query.mode()?, target.query.flag("sync")?);
    let job = Job::begin(table, &target).await?;
    writing::receive(job, mode, sync, body).await.map(Json)
}

pub(super) async fn remove(State(table): Shared, target: Target) -> Result<Json<()>> {
    target.is_volume()?;
    let recursive = target.query.flag("recursive")?;
    let job = Job::begin(table, &target).await?;
    job.change("remove", move |job| remove_entry(job, recursive)).await.map(Json)
}

fn remove_entry(job: &Job, recursive: bool) -> Result<(), Errno> {
    let engine = job.opened.engine();
    let (directory, name) = engine.resolve_parent(&job.path)?;
    let Attributes { ino, inode } = engine.lookup(directory, &name)?;
    let gone = match inode.kind {
        Kind::Directory if recursive => {
            // What is gone before it fails is anywhere below.
            remove_all(engine, directory, &name, ino).inspect_err(|_| job.opened.forget_all())?
        }
        Kind::Directory => engine.remove_directory(directory, &name).map(|()| vec![ino])?,
        _ => engine.unlink(directory, &name).map(|()| vec![ino])?,
    };
    job.changed(&[(directory, &name)], &gone)
}

pub(super) async fn change(State(table): Shared, target: Target) -> Result<Json<FileInfo>> {
    target.is_volume()?;
    let change = Change::parse(&target)?;
    let job = Job::begin(table, &target).await?;
    job.change("change", move |job| change.apply(job)).await.map(Json)
}

/// What `POST` does.
enum Change {
    Mkdir { mode: u16 },
    Rename { to: Vec<u8> },
    Symlink { target: Vec<u8> },
    Chmod { mode: u16 },
}

impl Change {
    fn parse(target: &Target) -> Result<Self> {
        let query = &target.query;
        match query.operation()? {
            Some("mkdir") => Ok(Self::Mkdir { mode: query.mode()?.unwrap_or(0o755) }),
            Some("rename") => Ok(Self::Rename { to: query.required("to")?.to_vec() }),
            Some("symlink") => Ok(Self::Symlink { target: query.required("target")?.to_vec() }),
            Some("chmod") => {
                let mode = query.mode()?.ok_or_else(|| Failure::invalid("the parameter mode= is missing"))?;
                Ok(Self::Chmod { mode })
            }
            Some(_) | None => Err(Failure::invalid("POST takes op=mkdir, rename, symlink or chmod")),
        }
    }

    fn apply(self, job: &Job) -> Result<FileInfo, Errno> {
        match self {
            Self::Mkdir { mode } => make(job, job.to_make(Kind::Directory, mode)?),
            Self::Symlink { target } => make(job, New { target: &target, ..job.to_make(Kind::Symlink, 0o777)? }),
            Self::Rename { to } => rename(job, &to),
            Self::Chmod { mode } => {
                let engine = job.opened.engine();
                let ino = engine.resolve(&job.path, Links::Follow)?.ino;
                let changed = engine.change(ino, Changes { mode: Some(mode), ..Changes::default() })?;
                job.changed(&[], &[ino])?;
                Ok(info(job.name(), &changed))
            }
        }
    }
}

/// Permissions of directories that are made on the way.
pub(super) const DIRECTORY_MODE: u16 = 0o755;

fn make(job: &Job, new: New<'_>) -> Result<FileInfo, Errno> {
    let engine = job.opened.engine();
    let (directory, name) = job.make_parents(&job.path)?;
    let made = engine.make(directory, &name, new)?;
    job.changed(&[(directory, &name)], &[])?;
    Ok(info(&name, &made))
}

fn rename(job: &Job, to: &[u8]) -> Result<FileInfo, Errno> {
    let engine = job.opened.engine();
    let (from, name) = engine.resolve_parent(&job.path)?;
    let moved = engine.lookup(from, &name)?.ino;
    let (to, new_name) = job.make_parents(to)?;
    let replaced = job.entry(to, &new_name)?.map(|replaced| replaced.ino);
    engine.rename(from, &name, to, &new_name, Rename::Replace)?;
    let inodes: Vec<Ino> = replaced.into_iter().chain([moved]).collect();
    job.changed(&[(from, &name), (to, &new_name)], &inodes)?;
    Ok(info(&new_name, &engine.attributes(moved)?))
}
