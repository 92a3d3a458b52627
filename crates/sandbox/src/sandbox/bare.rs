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
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use base::id::SandboxId;
use rustix::{
    fs::fchown,
    process::{Gid, Uid},
};

use super::{IDENTITY_DIRECTORIES, IDENTITY_FILES, Machine, Sandbox};
use crate::{
    cgroup::{Cgroups, Group},
    error::{Context, Error},
    identity::ProcessIdentity,
    ids::{self, First, Ids},
    init::{self, Output},
    launcher::LauncherSlot,
    namespaces::Inside,
    rootfs,
    spec::{PROGRAM_ID, Spec, Users},
    tree,
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
    /// `dir` may exist already; `upper` and `work` in it must not. The caller must be single-threaded.
    pub fn create(id: &SandboxId, dir: &Path, machine: &Machine, cgroups: &Cgroups) -> Result<Self, Error> {
        let directory = OwnDirectory::make(id, dir, machine)?;
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
    pub fn furnish(mut self, spec: &Spec, cgroups: &Cgroups, output: Option<Output<'_>>) -> Result<Sandbox, Error> {
        let first = self.process.get();
        let inside = Inside { init: first.forked.pidfd.as_fd(), ids: first.ids, users: spec.users };
        let rootfs = rootfs::writable(&spec.layers, &self.dir, inside)?;
        if let Some(output) = output {
            hand_over(output.pipe, first.ids).doing("give the output's pipe to the program's user")?;
        }
        self.group.get_mut().limit(cgroups, &self.id, &spec.limits)?;
        init::furnish(self.channel, &self.id, &rootfs, output)?;
        Ok(keep(self.dir, self.process, self.group, self.directory, spec.users))
    }

    /// As a sandbox that is good for nothing but [`Sandbox::destroy`].
    pub fn give_up(self) -> Sandbox {
        keep(self.dir, self.process, self.group, self.directory, Users::ProgramOnly)
    }
}

fn keep(dir: PathBuf, process: OwnProcess, group: OwnGroup, mut directory: OwnDirectory, users: Users) -> Sandbox {
    directory.made.clear();
    let (First { forked, identity, ids }, group) = (process.keep(), group.keep());
    Sandbox { dir, init: identity, init_pidfd: forked.pidfd, ids, users, group, launcher: LauncherSlot::default() }
}

/// So that the program can open it again as /dev/stdout.
fn hand_over(pipe: BorrowedFd<'_>, ids: Ids) -> rustix::io::Result<()> {
    let id = ids.outside(PROGRAM_ID);
    fchown(pipe, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)))
}

/// What a creation has made below the sandbox's directory, removed when dropped.
struct OwnDirectory {
    made: Vec<PathBuf>,
}

impl OwnDirectory {
    fn make(id: &SandboxId, dir: &Path, machine: &Machine) -> Result<Self, Error> {
        let mut own = Self { made: Vec::new() };
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => {
                result.at("create", dir)?;
                own.made.push(dir.to_owned());
            }
        }
        for (name, mode) in [("upper", 0o755), ("work", 0o700)] {
            own.directory(&dir.join(name), mode)?;
        }
        own.write_identity(id, dir, machine)?;
        Ok(own)
    }

    /// What makes this sandbox a machine of its own, also after the fork of a program that has read another's.
    fn write_identity(&mut self, id: &SandboxId, dir: &Path, machine: &Machine) -> Result<(), Error> {
        let upper = dir.join("upper");
        for directory in IDENTITY_DIRECTORIES {
            self.directory(&upper.join(directory), 0o755)?;
        }
        let hosts = format!("127.0.0.1 localhost {id}\n::1 localhost ip6-localhost ip6-loopback\n");
        let contents =
            [format!("{id}\n"), machine.machine_id.clone(), hosts, machine.boot_id.clone(), machine.generation.clone()];
        for (file, content) in IDENTITY_FILES.into_iter().zip(contents) {
            self.file(&upper.join(file), &content, 0o444)?;
        }
        Ok(())
    }

    fn directory(&mut self, path: &Path, mode: u32) -> Result<(), Error> {
        fs::create_dir(path).at("create", path)?;
        self.made.push(path.to_owned());
        // Not by mkdir's mode: the caller's umask must not decide what a sandbox can read.
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("set the mode of", path)
    }

    fn file(&mut self, path: &Path, content: &str, mode: u32) -> Result<(), Error> {
        fs::write(path, content).at("write", path)?;
        self.made.push(path.to_owned());
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).at("set the mode of", path)
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            // Already on the way out with an error; a later sweep removes what cannot be removed now.
            let _ = if path.is_dir() { tree::remove(path) } else { fs::remove_file(path).at("remove", path) };
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
