//! Volumes on directories of the host, for people. They stay when the node stops, as sandboxes do, and go with it if those do.
//!
//! ```text
//! record (it holds the volume from here on) -> volumed: a detached mount -> attached          unmounted -> volumed: detach -> no record
//! ```
//!
//! What a killed node has left, or somebody else has taken off, is told by the mounts themselves: a record without one is removed.

use std::{fs, io, os::fd::AsFd, path::Path, sync::Arc, time::Duration};

use base::id::VolumeName;
use model::Mount;
use procfs::Mounts;
use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, open, statx},
    io::Errno,
    mount::{MoveMountFlags, UnmountFlags, move_mount, unmount},
};
use tokio::time::interval;

use super::{Node, images::remove_quietly, volumes::HOST};
use crate::{
    config::{Config, RECORD},
    error::{Context, Error, Result, chain},
    records::{self, Durability, HostMountRecord},
};

mod busy;

/// How often it is looked whether somebody else has taken one off.
const CHECK: Duration = Duration::from_secs(2);

impl Node {
    /// Mounts a volume on a directory.
    pub async fn mount_on_host(self: &Arc<Self>, mount: Mount) -> Result<Mount> {
        let path = self.usable_directory(&mount.path)?;
        // Somebody else may just have taken another one off.
        self.check_host_mounts().await;
        let mount = Mount { path: path.clone(), ..mount };
        self.state().begin_host_mount(&mount)?;
        let mounted = self.attach_on_host(&mount).await;
        match &mounted {
            Ok(()) => {
                self.state().set_attached(&path);
                tracing::info!(volume = %mount.volume, path, "mounted");
            }
            Err(_) => self.forget_host_mount(&path).await,
        }
        mounted.map(|()| mount)
    }

    /// A directory on which nothing of the node lies, by the path that the kernel knows it by.
    fn usable_directory(&self, path: &str) -> Result<String> {
        let unusable = |reason: &str| Error::HostPath { path: path.to_owned(), reason: reason.to_owned() };
        if !path.starts_with('/') {
            return Err(Error::Invalid { message: format!("{path:?} is not an absolute path"), hint: None });
        }
        let found = fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoHostDirectory { path: path.to_owned() },
            _ => unusable(&error.to_string()),
        })?;
        if [&self.host.config.state_dir, &self.host.config.socket]
            .into_iter()
            .any(|own| own.starts_with(&found) || found.starts_with(own))
        {
            return Err(unusable("the node's own files are there"));
        }
        found.into_os_string().into_string().map_err(|_| unusable("its path is not UTF-8"))
    }

    async fn attach_on_host(&self, mount: &Mount) -> Result<()> {
        let directory = self.host.config.host_mount_dir(&mount.path);
        fs::create_dir_all(&directory).at("create", &directory)?;
        let record = HostMountRecord { mount: mount.clone() };
        records::write(&directory.join(RECORD), &record, Durability::Process)?;
        let tree = self.detached_mount(mount, format!("{HOST}{}", mount.path)).await?;
        let path = mount.path.clone();
        let attach = move || attach(tree.as_fd(), &path);
        tokio::task::spawn_blocking(attach).await.doing("mount the volume")?
    }

    /// Takes a volume off a directory.
    pub async fn unmount_on_host(self: &Arc<Self>, volume: &VolumeName, path: &str) -> Result<()> {
        let not_mounted = || Error::NotMounted { path: path.to_owned() };
        // It may be known by another path, and the volume may not answer: then by this one.
        let found = fs::canonicalize(path).ok().and_then(|path| path.into_os_string().into_string().ok());
        let known = [found, Some(path.to_owned())]
            .into_iter()
            .flatten()
            .find_map(|path| self.state().host_mount(&path).filter(|mount| mount.volume == *volume).cloned());
        let known = known.ok_or_else(not_mounted)?;
        let known = self.state().begin_detaching(&known.path).ok_or_else(not_mounted)?;
        if let Err(error) = detach(known.path.clone(), UnmountFlags::NOFOLLOW).await {
            self.state().set_attached(&known.path);
            return Err(error);
        }
        self.forget_host_mount(&known.path).await;
        Ok(())
    }

    /// Nothing is mounted there any more.
    async fn forget_host_mount(self: &Arc<Self>, path: &str) {
        let holder = format!("{HOST}{path}");
        if let Err(error) = self.mounts.client.detach(&holder).await {
            tracing::warn!(holder, error = chain(&error), "its volume is let go later");
            self.ledger.sweep_work.notify_one();
        }
        remove_quietly(&self.host.config.host_mount_dir(path)).await;
        self.state().end_host_mount(path);
    }

    /// Forgets what is not mounted any more, of an earlier node or because somebody else has taken it off.
    pub(super) async fn check_host_mounts(self: &Arc<Self>) {
        // In this order: what comes to be in between is not looked for.
        let recorded = self.state().host_mounts();
        if recorded.is_empty() {
            return;
        }
        let Ok(mounted) = Mounts::read("self") else { return };
        for mount in recorded.into_iter().filter(|mount| !is_mounted(&mounted, &mount.path)) {
            let gone = self.state().begin_detaching(&mount.path);
            if gone.is_some() {
                tracing::warn!(volume = %mount.volume, path = mount.path, "it is not mounted any more");
                self.forget_host_mount(&mount.path).await;
            }
        }
    }

    pub(super) async fn watch_host_mounts(self: Arc<Self>) {
        let mut interval = interval(CHECK);
        loop {
            interval.tick().await;
            self.check_host_mounts().await;
        }
    }

    /// Takes all of them off, also from whoever works there.
    pub(super) async fn unmount_all(self: &Arc<Self>) {
        let recorded = self.state().host_mounts();
        for mount in recorded {
            if let Err(error) = detach(mount.path.clone(), UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).await {
                tracing::warn!(path = mount.path, error = chain(&error), "a volume stays mounted");
                continue;
            }
            self.forget_host_mount(&mount.path).await;
        }
    }
}

/// What earlier nodes have recorded.
pub(super) fn load(config: &Config) -> Vec<Mount> {
    super::load_records::<HostMountRecord>(&config.host_mounts_dir()).into_iter().map(|record| record.mount).collect()
}

fn attach(tree: std::os::fd::BorrowedFd<'_>, path: &str) -> Result<()> {
    let unusable = |reason: &str| Error::HostPath { path: path.to_owned(), reason: reason.to_owned() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match open(path, flags, Mode::empty()) {
        Err(Errno::NOTDIR) => return Err(unusable("it is not a directory")),
        directory => directory.at("open", Path::new(path))?,
    };
    let found = statx(&directory, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).at("look at", Path::new(path))?;
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(unusable("another filesystem is mounted there"));
    }
    let here = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", &directory, "", here).at("mount the volume on", Path::new(path))
}

async fn detach(path: String, flags: UnmountFlags) -> Result<()> {
    let unmount = move || match unmount(&path, flags) {
        // Somebody else has taken it off.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(Error::HostBusy { users: busy::users(&path), path }),
        Err(errno) => Err(errno).at("unmount", Path::new(&path)),
    };
    tokio::task::spawn_blocking(unmount).await.doing("unmount the volume")?
}

/// Whether one of the mounts is of FUSE and at `path`.
fn is_mounted(mounts: &Mounts, path: &str) -> bool {
    mounts.iter().any(|mount| mount.kind.starts_with("fuse") && mount.at().as_os_str() == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_paths() {
        let mounts = Mounts::of(
            "36 35 98:0 / /mnt/a\\040b rw,noatime - fuse.pando ws rw\n37 35 98:0 / /mnt/c rw shared:1 - ext4 /dev/a rw\n",
        );
        assert!(is_mounted(&mounts, "/mnt/a b"));
        assert!(!is_mounted(&mounts, "/mnt/a") && !is_mounted(&mounts, "/mnt/c") && !is_mounted(&Mounts::of(""), "/"));
    }
}
