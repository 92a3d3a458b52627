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
use base::limits::VOLUME_LIST_DEPTH_MAX;
use rustix::io::Errno;
use volume::{Attributes, Engine, Ino, Kind, Links, New, ROOT};

use super::{
    Shared,
    answer::info,
    changes::Parents,
    finish,
    query::Target,
    reading, tree,
    writing::{self, Upload},
};
use crate::{
    failure::{Failure, Result},
    limits::{LIST_DEFAULT, LIST_MAX},
    percent,
    removal::remove_all,
    worker::{opened::Opened, table::Table, work::Kind as Work},
};

/// Permissions of directories that are made on the way.
pub(super) const DIRECTORY_MODE: u16 = 0o755;

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
    pub(super) async fn change<T: Send + 'static>(
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

    /// As [`Job::make_parents`], of the job's own path. `parents` says whether missing directories are made.
    pub(super) fn parent(&self, parents: Parents) -> Result<(Ino, Vec<u8>), Errno> {
        match parents {
            Parents::Made => self.make_parents(&self.path),
            Parents::Needed => self.opened.engine().resolve_parent(&self.path),
        }
    }

    /// The last component of the path.
    pub(super) fn name(&self) -> &[u8] {
        let parts = self.path.split(|byte| *byte == b'/');
        parts.rev().find(|part| !part.is_empty()).unwrap_or(b".")
    }

    /// After a change: what was done survives this process, and the kernel asks again for these names and inodes.
    pub(super) fn changed(&self, names: &[(Ino, &[u8])], inodes: &[Ino]) -> Result<(), Errno> {
        self.opened.forget(names, inodes);
        self.opened.engine().write_log()
    }
}

/// How a request looks at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The bytes of a file, or the entries of a directory.
    Content,
    /// The bytes of a file.
    Bytes,
    /// What `stat` shows.
    Stat,
    /// All that is below a directory, so many levels deep.
    Tree(u32),
}

impl Look {
    fn parse(target: &Target) -> Result<Self> {
        match target.query.operation()? {
            None => Ok(Self::Content),
            Some("read") => Ok(Self::Bytes),
            Some("stat") => Ok(Self::Stat),
            Some("tree") => match target.query.parsed("depth")?.unwrap_or(1) {
                depth @ 1..=VOLUME_LIST_DEPTH_MAX => Ok(Self::Tree(depth)),
                depth => Err(Failure::invalid(format!("depth={depth}: use 1 to {VOLUME_LIST_DEPTH_MAX}"))),
            },
            Some(other) => Err(Failure::invalid(format!("op={other}: GET takes op=read, stat or tree"))),
        }
    }

    fn links(self) -> Links {
        if self == Self::Stat { Links::Keep } else { Links::Follow }
    }
}

pub(super) async fn get(State(table): Shared, target: Target, headers: HeaderMap) -> Result<Response> {
    let look = Look::parse(&target)?;
    let job = Job::begin_to_read(table, &target).await?;
    let found = job.step("find", move |job| job.opened.engine().resolve(&job.path, look.links())).await?;
    match (look, found.inode.kind) {
        (Look::Stat, _) => Ok(Json(info(job.name(), &found)).into_response()),
        (Look::Tree(depth), Kind::Directory) => Ok(tree::send(job, found.ino, depth)),
        (Look::Tree(_), _) => Err(job.failed("list")(Errno::NOTDIR)),
        (Look::Bytes, Kind::Directory) => Err(job.failed("read")(Errno::ISDIR)),
        (Look::Content | Look::Bytes, kind) => content(job, found, kind, &target, &headers).await,
    }
}

async fn content(job: Job, found: Attributes, kind: Kind, target: &Target, headers: &HeaderMap) -> Result<Response> {
    match kind {
        Kind::Directory => list(&job, found.ino, target).await.map(|list| Json(list).into_response()),
        Kind::File => reading::send(job, found, headers).await,
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
    let query = &target.query;
    let upload = Upload {
        owner: query.owner()?,
        parents: Parents::parse(query)?,
        replace: query.parsed("replace")?.unwrap_or(true),
        sync: query.flag("sync")?,
    };
    let job = Job::begin(table, &target).await?;
    writing::receive(job, upload, body).await.map(Json)
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
