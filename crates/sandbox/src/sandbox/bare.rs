//! Sandboxes that lack a root filesystem, and with it all that depends on what shall run in them.
//!
//! ```text
//! directory, group, pid 1 with its namespaces and mounts --> Bare --layers, limits--> Sandbox
//! ```
//!
//! This takes most of the time that a sandbox takes, and can be done before anybody knows what the sandbox is for.

use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
};

use base::id::SandboxId;
use procfs::ProcessIdentity;
use rustix::{
    fs::fchown,
    process::{Gid, Uid},
};

use super::Sandbox;
use crate::{
    cgroup::{Cgroups, Group},
    changes,
    error::{Context, Error},
    ids::{self, First, Ids},
    init::{self, Output},
    launcher::LauncherSlot,
    machine::{self, Machine},
    namespaces::Inside,
    processors::Processors,
    rootfs,
    spec::{PROGRAM_ID, Spec, Users},
};

/// A sandbox without a root filesystem. All of it is removed when it is dropped.
pub struct Bare {
    id: SandboxId,
    dir: PathBuf,
    channel: OwnedFd,
    // Undone in this order, the reverse of their making.
    process: OwnProcess,
    group: OwnGroup,
    directory: OwnDirectory,
}

impl Bare {
    /// Makes directory, cgroup, namespaces and pid 1. A failure leaves nothing behind.
    ///
    /// `dir` may exist already. The caller must be single-threaded.
    pub fn create(id: &SandboxId, dir: &Path, cgroups: &Cgroups) -> Result<Self, Error> {
        let directory = OwnDirectory::make(dir)?;
        let group = OwnGroup(Some(Group::create(cgroups, id)?));
        let (first, channel) = init::start(group.get())?;
        let process = OwnProcess(Some(first));
        Ok(Self { id: id.clone(), dir: dir.to_owned(), channel, process, group, directory })
    }

    /// Its pid 1.
    pub fn init(&self) -> ProcessIdentity {
        self.process.get().identity
    }

    /// Gives it the root filesystem and the limits of `spec`, and the output to carry: it is a sandbox then. A failure leaves nothing of it.
    pub fn furnish(
        mut self,
        spec: &Spec,
        machine: &Machine,
        cgroups: &Cgroups,
        output: Option<Output<'_>>,
    ) -> Result<Sandbox, Error> {
        self.directory.make_changes(spec, machine)?;
        let first = self.process.get();
        let processors = Processors::of(&spec.id, &spec.limits);
        let inside = Inside { init: first.forked.pidfd.as_fd(), ids: first.ids, users: spec.users, processors };
        let rootfs = rootfs::writable(&spec.layers, &spec.changes, inside)?;
        if let Some(output) = output {
            hand_over(output.pipe, first.ids).doing("give the output's pipe to the program's user")?;
        }
        self.group.get_mut().limit(cgroups, &self.id, &spec.limits)?;
        init::furnish(self.channel, &self.id, &rootfs, output)?;
        let places = (self.dir, spec.changes.clone());
        Ok(keep(places, self.process, self.group, self.directory, (spec.users, processors)))
    }

    /// As a sandbox that is good for nothing but [`Sandbox::destroy`].
    pub fn give_up(self) -> Sandbox {
        keep((self.dir.clone(), self.dir), self.process, self.group, self.directory, (Users::ProgramOnly, None))
    }
}

/// `places`: its directory, and where its changes lie.
fn keep(
    places: (PathBuf, PathBuf),
    process: OwnProcess,
    group: OwnGroup,
    mut directory: OwnDirectory,
    (users, processors): (Users, Option<Processors>),
) -> Sandbox {
    directory.made.clear();
    let ((dir, changes), First { forked, identity, ids }, group) = (places, process.keep(), group.keep());
    let launcher = LauncherSlot::default();
    Sandbox { dir, changes, init: identity, init_pidfd: forked.pidfd, ids, users, processors, group, launcher }
}

/// So that the program can open it again as /dev/stdout.
fn hand_over(pipe: BorrowedFd<'_>, ids: Ids) -> rustix::io::Result<()> {
    let id = ids.outside(PROGRAM_ID);
    fchown(pipe, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)))
}

/// What a creation has made of the sandbox's directories, removed when dropped.
struct OwnDirectory {
    made: Vec<PathBuf>,
}

impl OwnDirectory {
    fn make(dir: &Path) -> Result<Self, Error> {
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self { made: Vec::new() }),
            made => made.at("create", dir).map(|()| Self { made: vec![dir.to_owned()] }),
        }
    }

    fn make_changes(&mut self, spec: &Spec, machine: &Machine) -> Result<(), Error> {
        let parts = [changes::UPPER, changes::WORK].map(|name| spec.changes.join(name));
        let made = if spec.changes == spec.dir { parts.to_vec() } else { vec![spec.changes.clone()] };
        // Those of another sandbox stay.
        if let Some(there) = made.iter().find(|path| path.symlink_metadata().is_ok()) {
            return Err(Error::Exists(there.clone()));
        }
        self.made.extend(made);
        changes::make(&spec.changes, spec.from.as_deref(), spec.limits.disk_bytes)?;
        machine::write(&spec.changes.join(changes::UPPER), spec, machine)
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            // Already on the way out with an error; a later sweep removes what cannot be removed now.
            let _ = sys::tree::remove(path);
        }
    }
}

/// A new group that is emptied and removed when dropped, unless it is kept.
struct OwnGroup(Option<Group>);

impl OwnGroup {
    fn get(&self) -> &Group {
        self.0.as_ref().expect("only keep() takes it, and it consumes this")
    }

    fn get_mut(&mut self) -> &mut Group {
        self.0.as_mut().expect("only keep() takes it, and it consumes this")
    }

    fn keep(mut self) -> Group {
        self.0.take().expect("only keep() takes it, and it consumes this")
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let Some(group) = self.0.take() else { return };
        let cleared = group.kill().and_then(|()| group.wait_empty()).and_then(|()| group.remove());
        if let Err(error) = cleared {
            tracing::warn!(%error, group = %group.path().display(), "a sandbox's group could not be removed");
        }
    }
}

/// A new pid 1 that is killed and reaped when dropped, unless it is kept.
struct OwnProcess(Option<First>);

impl OwnProcess {
    fn get(&self) -> &First {
        self.0.as_ref().expect("only keep() takes it, and it consumes this")
    }

    fn keep(mut self) -> First {
        self.0.take().expect("only this takes it, and it consumes this")
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        if let Some(First { forked, identity, ids }) = self.0.take() {
            init::discard(&forked);
            ids::release(ids, identity);
        }
    }
}
