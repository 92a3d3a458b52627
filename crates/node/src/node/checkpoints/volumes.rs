//! The volumes of what is captured: a sandbox that goes on is cut from the volumes that it writes, one that is paused leaves all in them.

use std::sync::Arc;

use checkpoint::{Included, Writing};
use keeper::protocol::Capture;
use volumed::Origin;

use super::super::{
    Node,
    build::Built,
    cut::{Cut, VolumeState},
    lifecycle::Operation,
};
use crate::{
    error::{Error, Forked, Result, Storing},
    records::SandboxRecord,
};

impl Node {
    /// Captures a sandbox that does not go on; who pauses it is alone with it to the end.
    pub(super) async fn capture_to_pause(
        self: &Arc<Self>,
        job: Capture,
        record: &SandboxRecord,
    ) -> Result<(Built, Cut)> {
        let built = self.request_zygote(job, Forked::Sandbox(record.id.clone()), None).await?;
        // It stands still, and what it has written has to be where it is resumed.
        self.commit_written(&record.id, &record.volumes).await?;
        Ok((built, Cut::default()))
    }

    /// Captures a sandbox that goes on, with the volumes that it writes.
    pub(super) async fn capture_and_cut(
        self: &Arc<Self>,
        mut job: Capture,
        record: &SandboxRecord,
    ) -> Result<(Built, Cut)> {
        let (node, original) = (Arc::clone(self), record.clone());
        let capture = async move {
            // It may have been paused and resumed meanwhile, and is another process.
            if node.state().running(&original.id)?.main != original.main {
                return Err(Error::BeingResumed(original.id));
            }
            node.take_along(&mut job.source, &original).await?;
            // Nobody waits for sandboxes.
            let (built, _) = node.build_beside_blanks(job, &[], &original, 0).await;
            built
        };
        self.drive(&record.id, Operation::Capture, capture).await
    }
}

/// The states of the volumes, which are kept from now on. Blocks.
pub(super) fn keep_states(writing: &Writing, cut: &Cut) -> Result<Vec<Included>> {
    let mut included = Vec::new();
    for VolumeState { volume, paths, origin } in &cut.states {
        let Origin::Snapshot(snapshot) = origin else { continue };
        let name = volumed::snapshot_head(volume, snapshot).storing("name the snapshot of a volume")?;
        let Some(head) = writing.keep(&name)? else {
            return Err(format!("{name} was removed meanwhile")).storing("keep what is in the volumes");
        };
        let state = head.manifest.0;
        included.extend(paths.iter().map(|path| Included { volume: volume.clone(), path: path.clone(), state }));
    }
    Ok(included)
}
