//! Changes of names and attributes.

use api::volume::FileInfo;
use axum::{Json, extract::State};
use rustix::io::Errno;
use volume::{Changes, Ino, Kind, Links, New, Rename};

use super::{
    Shared,
    answer::info,
    files::{DIRECTORY_MODE, Job},
    query::{Owner, Query, Target},
};
use crate::failure::{Failure, Result};

/// How a change treats missing directories on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parents {
    /// The change makes them.
    Made,
    /// The change is refused.
    Needed,
}

impl Parents {
    pub(super) fn parse(query: &Query) -> Result<Self> {
        Ok(if query.parsed("parents")?.unwrap_or(true) { Self::Made } else { Self::Needed })
    }
}

pub(super) async fn change(State(table): Shared, target: Target) -> Result<Json<FileInfo>> {
    target.is_volume()?;
    let change = Change::parse(&target)?;
    let job = Job::begin(table, &target).await?;
    job.change("change", move |job| change.apply(job)).await.map(Json)
}

/// What `POST` does.
enum Change {
    /// `existing`: an existing directory is taken as it is.
    Mkdir {
        owner: Owner,
        parents: Parents,
        existing: bool,
    },
    Rename {
        to: Vec<u8>,
    },
    Symlink {
        target: Vec<u8>,
    },
    Set(Owner),
}

impl Change {
    fn parse(target: &Target) -> Result<Self> {
        let query = &target.query;
        match query.operation()? {
            Some("mkdir") => Ok(Self::Mkdir {
                owner: query.owner()?,
                parents: Parents::parse(query)?,
                existing: query.flag("existing")?,
            }),
            Some("rename") => Ok(Self::Rename { to: query.required("to")?.to_vec() }),
            Some("symlink") => Ok(Self::Symlink { target: query.required("target")?.to_vec() }),
            Some("chmod") => {
                let mode = query.mode()?.ok_or_else(|| Failure::invalid("the parameter mode= is missing"))?;
                Ok(Self::Set(Owner { mode: Some(mode), ..Owner::default() }))
            }
            Some("set") => query.owner().map(Self::Set),
            Some(_) | None => Err(Failure::invalid("POST takes op=mkdir, rename, symlink, chmod or set")),
        }
    }

    fn apply(self, job: &Job) -> Result<FileInfo, Errno> {
        match self {
            Self::Mkdir { owner, parents, existing } => {
                let new = owner.of(job.to_make(Kind::Directory, DIRECTORY_MODE)?);
                match make(job, parents, new) {
                    Err(Errno::EXIST) if existing => there(job),
                    made => made,
                }
            }
            Self::Symlink { target } => {
                make(job, Parents::Made, New { target: &target, ..job.to_make(Kind::Symlink, 0o777)? })
            }
            Self::Rename { to } => rename(job, &to),
            Self::Set(Owner { mode, uid, gid }) => {
                let engine = job.opened.engine();
                let ino = engine.resolve(&job.path, Links::Follow)?.ino;
                let changed = engine.change(ino, Changes { mode, uid, gid, ..Changes::default() })?;
                job.changed(&[], &[ino])?;
                Ok(info(job.name(), &changed))
            }
        }
    }
}

fn make(job: &Job, parents: Parents, new: New<'_>) -> Result<FileInfo, Errno> {
    let engine = job.opened.engine();
    let (directory, name) = job.parent(parents)?;
    let made = engine.make(directory, &name, new)?;
    job.changed(&[(directory, &name)], &[])?;
    Ok(info(&name, &made))
}

/// The directory that is there already.
fn there(job: &Job) -> Result<FileInfo, Errno> {
    let found = job.opened.engine().resolve(&job.path, Links::Follow)?;
    if found.inode.is_directory() { Ok(info(job.name(), &found)) } else { Err(Errno::EXIST) }
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
