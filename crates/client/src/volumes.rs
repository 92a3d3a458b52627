//! Volumes.

use std::{fmt, str::FromStr};

use api::{
    MountRequest, UnmountRequest, VolumeChange, VolumeMount, VolumeVerification,
    volume::{
        ForkVolumeRequest, RemovedVolume, RestoreRequest, Restored, Snapshot, SnapshotRequest, Volume, VolumeMeter,
        VolumeSpec,
    },
};
use base::id::{InvalidId, SnapshotName, VolumeName};
use hyper::header;

use crate::{
    Client, Download, Error, Result, Upload,
    events::{self, Step},
};

/// A volume as it is, or as it was at a snapshot: `ws`, `ws@before`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeState {
    /// Which volume.
    pub volume: VolumeName,
    /// Which snapshot of it. `None` is the present state.
    pub snapshot: Option<SnapshotName>,
}

impl VolumeState {
    /// As a part of an address.
    fn query(&self) -> String {
        self.snapshot.as_ref().map(|snapshot| format!("?snapshot={snapshot}")).unwrap_or_default()
    }

    /// The address of what differs between this state and another one.
    fn diff_path(&self, to: Option<&Self>) -> String {
        let from = self.snapshot.as_ref().map(|from| format!("from={from}"));
        let with = to.map(|to| format!("with={}", to.volume));
        let to = to.and_then(|to| Some(format!("to={}", to.snapshot.as_ref()?)));
        let query: Vec<String> = [from, with, to].into_iter().flatten().collect();
        format!("/volumes/{}/diff?{}", self.volume, query.join("&"))
    }
}

impl FromStr for VolumeState {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let (volume, snapshot) = match text.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot)),
            None => (text, None),
        };
        let snapshot = snapshot.map(str::parse).transpose()?;
        Ok(Self { volume: volume.parse()?, snapshot })
    }
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.volume.as_str())?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

impl From<&VolumeMount> for VolumeState {
    fn from(mount: &VolumeMount) -> Self {
        Self { volume: mount.volume.clone(), snapshot: mount.snapshot.clone() }
    }
}

/// Calls about volumes.
///
/// # Errors
///
/// Each fails with the node's own error, or if the node cannot be reached or its answer cannot be read.
impl Client {
    /// Makes an empty volume.
    pub async fn create_volume(&self, spec: &VolumeSpec) -> Result<Volume> {
        self.post("/volumes", spec).await
    }

    /// All volumes of the realm.
    pub async fn volumes(&self) -> Result<Vec<Volume>> {
        self.get("/volumes").await
    }

    /// Volumes that were removed and can still be had back.
    pub async fn removed_volumes(&self) -> Result<Vec<RemovedVolume>> {
        self.get("/volumes?removed=true").await
    }

    /// One volume.
    pub async fn volume(&self, name: &VolumeName) -> Result<Volume> {
        self.get(&format!("/volumes/{name}")).await
    }

    /// What volumes hold, and what was done in them.
    pub async fn volume_usage(&self) -> Result<Vec<VolumeMeter>> {
        self.get("/volumes/usage").await
    }

    /// Removes a volume, or a snapshot of one.
    pub async fn remove_volume(&self, state: &VolumeState) -> Result<()> {
        let VolumeState { volume, snapshot } = state;
        let snapshot = snapshot.as_ref().map(|snapshot| format!("/snapshots/{snapshot}")).unwrap_or_default();
        self.delete(&format!("/volumes/{volume}{snapshot}")).await
    }

    /// Reads all of a state and names what is damaged.
    pub async fn verify_volume(&self, state: &VolumeState) -> Result<VolumeVerification> {
        self.post(&format!("/volumes/{}/verify{}", state.volume, state.query()), &()).await
    }

    /// Keeps the present state under a name.
    pub async fn snapshot(&self, name: &VolumeName, request: &SnapshotRequest) -> Result<Snapshot> {
        self.post(&format!("/volumes/{name}/snapshots"), request).await
    }

    /// All snapshots of a volume.
    pub async fn snapshots(&self, name: &VolumeName) -> Result<Vec<Snapshot>> {
        self.get(&format!("/volumes/{name}/snapshots")).await
    }

    /// Makes a volume what it was at a snapshot.
    pub async fn restore_volume(&self, name: &VolumeName, request: &RestoreRequest) -> Result<Restored> {
        self.post(&format!("/volumes/{name}/restore"), request).await
    }

    /// Makes a volume that begins with a state of another.
    pub async fn fork_volume(&self, name: &VolumeName, request: &ForkVolumeRequest) -> Result<Volume> {
        self.post(&format!("/volumes/{name}/fork"), request).await
    }

    /// Compares two states path by path. Without `to` it is the present state of the same volume. `take` gets each change.
    pub async fn diff_volume(
        &self,
        from: &VolumeState,
        to: Option<&VolumeState>,
        mut take: impl FnMut(VolumeChange),
    ) -> Result<()> {
        let answer = self.stream(&from.diff_path(to)).await?;
        let seen = events::read(answer, |change| {
            take(change);
            Step::<()>::Continue
        });
        seen.await.map(drop)
    }

    /// All of a state as a tar archive.
    pub async fn export_volume(&self, state: &VolumeState) -> Result<Download> {
        self.stream(&format!("/volumes/{}/export{}", state.volume, state.query())).await.map(Download::new)
    }

    /// Unpacks a tar archive into the directory `to` of a volume.
    pub async fn import_volume(&self, name: &VolumeName, to: &str, archive: Upload) -> Result<()> {
        self.post_body(&format!("/volumes/{name}/import?path={}", encoded(to)), archive).await
    }

    /// A file of a state.
    pub async fn read_file(&self, state: &VolumeState, path: &str) -> Result<Download> {
        let file = encoded(path.trim_start_matches('/'));
        let answer = self.stream(&format!("/volumes/{}/files/{file}{}", state.volume, state.query())).await?;
        // A directory is answered by its entries, in JSON. The answer with a file has no content type.
        match answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json") {
            true => Err(Error::IsDirectory(path.to_owned())),
            false => Ok(Download::new(answer)),
        }
    }

    /// Mounts a volume on a directory of the node's machine.
    pub async fn mount(&self, name: &VolumeName, request: &MountRequest) -> Result<VolumeMount> {
        self.post(&format!("/volumes/{name}/mount"), request).await
    }

    /// Takes a volume off a directory of the node's machine.
    pub async fn unmount(&self, name: &VolumeName, request: &UnmountRequest) -> Result<()> {
        self.post(&format!("/volumes/{name}/unmount"), request).await
    }
}

/// Percent-encoded but for slashes, as a part of an address (RFC 3986, 2.3).
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_addresses() {
        assert_eq!(encoded("a b/ü?.txt"), "a%20b/%C3%BC%3F.txt");
        assert_eq!(encoded("plain-1.0/_~"), "plain-1.0/_~");
    }

    #[test]
    fn a_state_is_a_volume_or_one_of_its_snapshots() {
        for text in ["ws", "ws@before"] {
            assert_eq!(text.parse::<VolumeState>().unwrap().to_string(), text);
        }
        assert_eq!("ws@a".parse::<VolumeState>().unwrap().query(), "?snapshot=a");
        assert_eq!("ws".parse::<VolumeState>().unwrap().query(), "");
        for wrong in ["", "@a", "ws@", "ws@a@b", "a/b"] {
            assert!(wrong.parse::<VolumeState>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn two_states_are_compared_by_one_address() {
        let [now, before, other]: [VolumeState; 3] = ["ws", "ws@a", "w2@b"].map(|text| text.parse().unwrap());
        assert_eq!(now.diff_path(None), "/volumes/ws/diff?");
        assert_eq!(before.diff_path(Some(&other)), "/volumes/ws/diff?from=a&with=w2&to=b");
    }
}
