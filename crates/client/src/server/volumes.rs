//! Volumes of a team.

use api::e2b;
use base::id::SnapshotName;
use hyper::{Method, Request, header};
use serde_json::json;

use super::{Server, encoded, parse};
use crate::{Download, Error, Result};

const MIB: u64 = 1 << 20;

/// Calls about the volumes of the team. Each takes the id of a volume.
///
/// # Errors
///
/// As of the other calls of [`Server`].
impl Server {
    /// All volumes, by name.
    pub async fn volumes(&self) -> Result<Vec<e2b::Volume>> {
        parse(self.ask(Method::GET, "/volumes", None).await?).await
    }

    /// Makes an empty volume. `bytes_max` is rounded up to whole MiB; none: the server's default.
    pub async fn create_volume(&self, name: &str, bytes_max: Option<u64>) -> Result<e2b::Volume> {
        let mut body = json!({ "name": name });
        if let Some(bytes) = bytes_max {
            body["sizeMB"] = bytes.div_ceil(MIB).into();
        }
        parse(self.ask(Method::POST, "/volumes", Some(&body)).await?).await
    }

    /// Removes a volume with its snapshots.
    pub async fn remove_volume(&self, id: &str) -> Result<()> {
        self.ask(Method::DELETE, &path(id, ""), None).await.map(drop)
    }

    /// Keeps the present state under a name. None: the server chooses one.
    pub async fn snapshot_volume(
        &self,
        id: &str,
        name: Option<&SnapshotName>,
        note: Option<&str>,
    ) -> Result<e2b::VolumeSnapshot> {
        let body = json!({ "name": name, "note": note });
        parse(self.ask(Method::POST, &path(id, "/snapshots"), Some(&body)).await?).await
    }

    /// All snapshots of a volume, the newest first.
    pub async fn volume_snapshots(&self, id: &str) -> Result<Vec<e2b::VolumeSnapshot>> {
        parse(self.ask(Method::GET, &path(id, "/snapshots"), None).await?).await
    }

    /// Removes a snapshot.
    pub async fn remove_volume_snapshot(&self, id: &str, name: &SnapshotName) -> Result<()> {
        self.ask(Method::DELETE, &path(id, &format!("/snapshots/{name}")), None).await.map(drop)
    }

    /// Makes a volume what it was at a snapshot.
    pub async fn restore_volume(&self, id: &str, snapshot: &SnapshotName) -> Result<e2b::VolumeRestored> {
        let body = json!({ "snapshot": snapshot });
        parse(self.ask(Method::POST, &path(id, "/restore"), Some(&body)).await?).await
    }

    /// Makes a volume that begins with what another one has, or had at a snapshot.
    pub async fn fork_volume(&self, id: &str, name: &str, snapshot: Option<&SnapshotName>) -> Result<e2b::Volume> {
        let body = json!({ "name": name, "snapshot": snapshot });
        parse(self.ask(Method::POST, &path(id, "/fork"), Some(&body)).await?).await
    }

    /// Compares two states of a volume path by path. None is the present state: of one of them at most.
    pub async fn volume_changes(
        &self,
        id: &str,
        from: Option<&SnapshotName>,
        to: Option<&SnapshotName>,
    ) -> Result<Vec<e2b::VolumePathChange>> {
        let part = |name: &str, state: Option<&SnapshotName>| state.map(|state| format!("{name}={state}"));
        let query: Vec<String> = [part("from", from), part("to", to)].into_iter().flatten().collect();
        let path = path(id, &format!("/changes?{}", query.join("&")));
        parse(self.ask(Method::GET, &path, None).await?).await
    }

    /// A file of a volume, or of a snapshot of it.
    pub async fn read_volume_file(&self, id: &str, snapshot: Option<&SnapshotName>, file: &str) -> Result<Download> {
        let volume: e2b::VolumeAndToken = parse(self.ask(Method::GET, &path(id, ""), None).await?).await?;
        let snapshot = snapshot.map(|snapshot| format!("&snapshot={snapshot}")).unwrap_or_default();
        let path = format!("/volumecontent/{}/file?path={}{snapshot}", encoded(id), encoded(file));
        let request = Request::get(path)
            .header(header::HOST, &self.url.authority)
            .header(header::AUTHORIZATION, format!("Bearer {}", volume.token))
            .body(http_body_util::Empty::new());
        let answer = self.line.send(request.map_err(|error| Error::Request(error.into()))?).await?;
        if answer.status().is_success() { Ok(Download::new(answer)) } else { Err(super::refused(answer).await) }
    }
}

/// The path of a volume, and what is below it.
fn path(id: &str, below: &str) -> String {
    format!("/volumes/{}{below}", encoded(id))
}
