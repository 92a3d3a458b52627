//! Volumes in sandboxes. All that is done with volumes is done by processes of their own, which outlive this node; from them come
//! detached mounts, which the keeper attaches in sandboxes.
//!
//! ```text
//! start:   volumed: attach (holder = sandbox) -> a mount -> keeper: attached in the sandbox's mount namespace -> its program goes on
//! removal: the sandbox's processes are gone, and the mount with them -> volumed: detach
//! ```
//!
//! Who is a holder without being a sandbox or a mount of the host, because this node or an earlier one was killed, is let go when the
//! leftovers are swept.

use std::{path::PathBuf, sync::Arc};

use base::{
    id::{SandboxId, VolumeName},
    limits::{MOUNT_POINT_BYTES_MAX, MOUNT_POINTS_MAX},
};
use keeper::protocol::{AttachMounts, MakeMountPoints};
use model::{CheckpointVolume, Mount, MountPoints, RunSpec, SandboxState};
use sandbox::Hides;
use tokio::sync::Semaphore;
use volumed::{Access, Attach};

use super::{Node, write_back};
use crate::error::{Error, Result, chain};

/// What the sandbox itself needs: nothing may be mounted there, below, or above.
const RESERVED: [&str; 7] = ["/proc", "/sys", "/dev", "/run/pando", "/etc/hostname", "/etc/hosts", "/etc/machine-id"];

/// Whether a template can have these mount points.
pub(crate) fn check_mount_points(paths: &[String]) -> Result<()> {
    let refuse = |message: String| Err(Error::Invalid { message, hint: None });
    if paths.len() > MOUNT_POINTS_MAX {
        return refuse(format!(
            "{} mount points are more than the {MOUNT_POINTS_MAX} that a template can have",
            paths.len()
        ));
    }
    for (at, path) in paths.iter().enumerate() {
        if path.len() > MOUNT_POINT_BYTES_MAX {
            return refuse(format!("a mount point of {} bytes is longer than {MOUNT_POINT_BYTES_MAX}", path.len()));
        }
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(char::is_control);
        if !path.strip_prefix('/').is_some_and(|below| below.split('/').all(is_name)) {
            return refuse(format!(
                "{path:?} is no mount point: give an absolute path without `.`, `..` and doubled slashes"
            ));
        }
        if let Some(reserved) = RESERVED.into_iter().find(|reserved| overlap(path, reserved)) {
            return refuse(format!("{path} cannot be a mount point: {reserved} is the sandbox's own"));
        }
        if let Some(other) = paths[..at].iter().find(|other| overlap(path, other)) {
            return refuse(format!("{path} and {other} cannot both be mount points: one would cover the other"));
        }
    }
    Ok(())
}

fn overlap(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(std::path::Path::new);
    one.starts_with(other) || other.starts_with(one)
}

/// Whether a sandbox of a template with these mount points can have these volumes. `own`: those that it has of its checkpoint.
pub(super) fn check(declared: &[String], own: &[CheckpointVolume], request: &RunSpec) -> Result<()> {
    let mounts = &request.volumes;
    check_each_other(mounts)?;
    match request.mount_points {
        MountPoints::Declared => mounts.iter().try_for_each(|mount| check_declared(declared, mount)),
        MountPoints::Anywhere => {
            let own = own.iter().map(|volume| &volume.path);
            let own = own.filter(|path| mounts.iter().all(|mount| mount.path != **path));
            let paths: Vec<_> = mounts.iter().map(|mount| &mount.path).chain(own).cloned().collect();
            check_mount_points(&paths)
        }
    }
}

/// The directories that the node makes for these volumes: the template does not declare them.
pub(super) fn undeclared(declared: &[String], mounts: &[Mount]) -> Vec<String> {
    mounts.iter().map(|mount| &mount.path).filter(|path| !declared.contains(path)).cloned().collect()
}

fn check_declared(mount_points: &[String], mount: &Mount) -> Result<()> {
    if mount_points.contains(&mount.path) {
        return Ok(());
    }
    let hint = match mount_points {
        [] => format!("it has none: build it with `--mount-point {}`", mount.path),
        declared => format!("its mount points are {}", declared.join(", ")),
    };
    let message = format!("the template has no mount point {}", mount.path);
    Err(Error::Invalid { message, hint: Some(hint) })
}

/// Whether one sandbox can have all of them.
fn check_each_other(mounts: &[Mount]) -> Result<()> {
    for (at, mount) in mounts.iter().enumerate() {
        if mounts[..at].iter().any(|other| other.path == mount.path) {
            return Err(Error::Invalid {
                message: format!("two volumes cannot both be mounted on {}", mount.path),
                hint: None,
            });
        }
        if let Some(other) = mounts[..at].iter().find(|other| follows(other, mount) || follows(mount, other)) {
            let message = format!(
                "a sandbox that writes to {} cannot have it read-only as well: it is to be mounted on {} and {}",
                mount.volume, other.path, mount.path
            );
            // Its copies would have another volume in the place of the one, and this one's files in the place of the other.
            return Err(Error::Invalid { message, hint: Some("mount a snapshot of it".to_owned()) });
        }
    }
    Ok(())
}

/// Whether all that is written in `writer` comes to be seen in `reader`.
fn follows(reader: &Mount, writer: &Mount) -> bool {
    writer.is_writable() && !reader.is_writable() && reader.snapshot.is_none() && reader.volume == writer.volume
}

/// Where they are mounted.
pub(super) fn directories(mounts: &[Mount]) -> Vec<PathBuf> {
    mounts.iter().map(|mount| PathBuf::from(&mount.path)).collect()
}

/// The processes that have the volumes, and who may have the kernel write mappings back.
pub(super) struct Mounts {
    pub(super) client: volumed::Client,
    pub(super) writing_back: Arc<Semaphore>,
}

impl Mounts {
    pub(super) fn new(client: volumed::Client) -> Self {
        Self { client, writing_back: Arc::new(Semaphore::new(write_back::AT_ONCE)) }
    }
}

/// For `map_err`.
pub fn failed(action: &'static str) -> impl FnOnce(volumed::Error) -> Error {
    move |error| match error {
        volumed::Error::Refused(failure) => Error::VolumeRefused(failure),
        source => Error::Volumes { action, source },
    }
}

impl Node {
    /// The processes that have the volumes.
    pub fn volumes(&self) -> &volumed::Client {
        &self.mounts.client
    }

    /// Refuses to have a volume removed that a paused sandbox needs when it is resumed.
    pub fn check_removable(&self, volume: &VolumeName) -> Result<()> {
        let sandboxes = self.state().paused_with(volume);
        match sandboxes.is_empty() {
            true => Ok(()),
            false => Err(Error::OfPaused { volume: volume.clone(), sandboxes }),
        }
    }

    /// Makes the mount points of a sandbox that a template is built from.
    pub(super) async fn make_mount_points(&self, id: &SandboxId, paths: &[String]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        let hides = Hides::Anything;
        self.keepers.call(MakeMountPoints { sandbox: id.clone(), paths: paths.to_vec(), hides }, []).await
    }

    /// Makes directories for volumes outside the template's mount points. `hides`: the content that an existing directory may have.
    pub(super) async fn make_room(&self, id: &SandboxId, paths: Vec<String>, hides: Hides) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        match self.keepers.call(MakeMountPoints { sandbox: id.clone(), paths, hides }, []).await {
            // The image has something there: the client can name another directory.
            Err(Error::Keeper { message, .. }) => {
                Err(Error::Invalid { message: format!("a volume cannot be mounted: {message}"), hint: None })
            }
            made => made,
        }
    }

    /// Mounts volumes in a sandbox whose program does not run yet. After a failure some may be: it has to be removed.
    pub(super) async fn attach_volumes(&self, id: &SandboxId, mounts: &[Mount]) -> Result<()> {
        if mounts.is_empty() {
            return Ok(());
        }
        // Before the first is asked for: whoever removes the sandbox knows then that it may hold some.
        self.state().begin_holding(id, mounts);
        let mut attached = Vec::new();
        for mount in mounts {
            attached.push(self.detached_mount(mount, id.to_string()).await?);
        }
        let paths = mounts.iter().map(|mount| mount.path.clone()).collect();
        self.keepers.call(AttachMounts { sandbox: id.clone(), paths }, attached.iter().collect()).await
    }

    /// A mount of a volume that is attached nowhere.
    pub(super) async fn detached_mount(&self, mount: &Mount, holder: String) -> Result<std::os::fd::OwnedFd> {
        let access = if mount.is_writable() { Access::ReadWrite } else { Access::ReadOnly };
        let attach = Attach { volume: mount.volume.clone(), snapshot: mount.snapshot.clone(), holder, access };
        self.mounts.client.attach(attach).await.map_err(failed("mount the volume"))
    }

    /// The sandbox is gone, and its mounts with it.
    pub(super) async fn detach_volumes(&self, id: &SandboxId) {
        let held = self.state().end_holding(id);
        if held && let Err(error) = self.mounts.client.detach(id.as_str()).await {
            tracing::warn!(sandbox = %id, error = chain(&error), "its volumes are let go later");
            self.ledger.sweep_work.notify_one();
        }
    }

    /// Lets go of what nobody holds any more.
    pub(super) async fn detach_strangers(self: &Arc<Self>) -> Result<()> {
        let holders = self.mounts.client.holders().await.map_err(failed("list who holds volumes"))?;
        for holder in holders {
            if !self.state().holds(&holder) {
                tracing::info!(holder, "nobody of this name holds a volume any more");
                self.mounts.client.detach(&holder).await.map_err(failed("let go of a volume"))?;
            }
        }
        Ok(())
    }

    /// Commits and ends the processes of volumes, unless somebody holds one.
    pub(super) async fn stop_volumes(&self) {
        // What requests are still in the middle of does not bring them back.
        self.mounts.client.close().await;
        if let Err(error) = self.mounts.client.shutdown().await {
            tracing::info!(reason = chain(&error), "the processes of volumes stay");
        }
    }
}

impl crate::state::State {
    /// Whether a name is that of a sandbox that may have mounts, or of a directory of the host.
    fn holds(&self, holder: &str) -> bool {
        match (holder.parse::<SandboxId>(), holder.strip_prefix(HOST)) {
            (Ok(id), _) => self.keeps(&id) && !self.sandbox(&id).is_ok_and(|record| record.state == SandboxState::Lost),
            (Err(_), Some(path)) => self.host_mount(path).is_some(),
            (Err(_), None) => false,
        }
    }
}

/// Before the path of a directory of the host that is a holder.
pub(super) const HOST: &str = "host:";

#[cfg(test)]
mod tests {
    use super::*;

    fn are_fine(paths: &[&str]) -> bool {
        check_mount_points(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn mount_points_leave_the_sandbox_what_is_its_own() {
        for fine in ["/workspace", "/srv/a b/c", "/run/data", "/etc/app", "/process", "/tmp/x"] {
            assert!(are_fine(&[fine]), "{fine}");
        }
        let wrong =
            ["", "/", "a", "/a/", "/a//b", "/a/../b", "/./a", "/a\n", "/proc", "/proc/1", "/dev/shm", "/run", "/etc"];
        for wrong in wrong {
            assert!(!are_fine(&[wrong]), "{wrong}");
        }
        assert!(!are_fine(&["/a", "/a/b"]) && !are_fine(&["/a/b", "/a"]) && !are_fine(&["/a", "/a"]));
        assert!(are_fine(&["/a/b", "/a/bc"]));
        let many: Vec<String> = (0..=MOUNT_POINTS_MAX).map(|number| format!("/{number}")).collect();
        assert!(check_mount_points(&many).is_err() && check_mount_points(&many[1..]).is_ok());
        assert!(!are_fine(&[&format!("/{}", "a".repeat(MOUNT_POINT_BYTES_MAX))]));
    }

    fn mount(path: &str) -> Mount {
        Mount { volume: "ws".parse().unwrap(), path: path.to_owned(), read_only: false, snapshot: None }
    }

    fn request(volumes: &[Mount], mount_points: MountPoints) -> RunSpec {
        let interpreter = model::Interpreter::InProcess;
        RunSpec {
            count: 1,
            interpreter,
            volumes: volumes.to_vec(),
            mount_points,
            reservation: None,
            network: model::NetworkPolicy::default(),
        }
    }

    #[test]
    fn a_volume_goes_on_a_declared_mount_point_and_alone() {
        let declared = ["/a".to_owned(), "/b".to_owned()];
        let check = |declared: &[String], volumes: &[Mount]| {
            super::check(declared, &[], &request(volumes, MountPoints::Declared))
        };
        assert!(check(&declared, &[mount("/a"), mount("/b")]).is_ok());
        assert!(check(&declared, &[mount("/a"), mount("/a")]).is_err());
        let Err(Error::Invalid { hint: Some(hint), .. }) = check(&declared, &[mount("/c")]) else { panic!() };
        assert!(hint.contains("/a, /b"), "{hint}");
        assert!(check(&[], &[mount("/a")]).is_err());
        let reader = Mount { read_only: true, ..mount("/b") };
        let still = Mount { snapshot: Some("then".parse().unwrap()), ..reader.clone() };
        for (other, is_fine) in [(mount("/b"), true), (reader, false), (still, true)] {
            assert_eq!(check(&declared, &[mount("/a"), other.clone()]).is_ok(), is_fine, "{other:?}");
            assert_eq!(check(&declared, &[other.clone(), mount("/a")]).is_ok(), is_fine, "{other:?}");
        }
    }

    #[test]
    fn a_volume_goes_anywhere_but_on_other_mounts() {
        let state = model::KeptState { by: String::new(), manifest: String::new() };
        let kept = CheckpointVolume { volume: "kept".parse().unwrap(), path: "/k/in".to_owned(), state };
        let is_fine = |paths: &[&str]| {
            let mounts: Vec<Mount> = paths.iter().map(|path| mount(path)).collect();
            super::check(&[], std::slice::from_ref(&kept), &request(&mounts, MountPoints::Anywhere)).is_ok()
        };
        assert!(is_fine(&["/a", "/b/c"]) && is_fine(&["/k/in"]) && is_fine(&["/k/other"]));
        for wrong in ["/", "/proc", "/k", "/k/in/side", "a", "/a/../b", "/a/"] {
            assert!(!is_fine(&[wrong]), "{wrong}");
        }
        assert!(!is_fine(&["/a", "/a"]) && !is_fine(&["/a", "/a/b"]));
        assert_eq!(undeclared(&["/a".to_owned()], &[mount("/a"), mount("/b")]), ["/b"]);
    }
}
