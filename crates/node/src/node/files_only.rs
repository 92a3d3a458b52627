//! Captures of files alone: of a sandbox without a program, and of any other one if its memory is not wanted.
//!
//! ```text
//! prepared -> frozen -> layer taken -> volumes cut -> thawed          the sandbox goes on
//!                                 -> volumes committed              a pause: it stays frozen
//! ```
//!
//! The server copies on a thread of its own: the keeper has only one, and a copy takes as long as the files are large. If the server ends in
//! between, the next one finds the sandbox recorded and thaws it, and sweeps the copy.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::SandboxId;
use model::{Keep, Ready, TemplateSpec};
use sandbox::Capture;

use super::{Node, cut::Cut, inspect::pids, lifecycle::Operation};
use crate::{
    error::{Context, Error, Result},
    records::SandboxRecord,
};

/// What a capture does, for messages.
const ACTION: &str = "capture the files";

/// What a capture has left beside its layer.
pub(super) struct Files {
    /// How long the sandbox stood still.
    pub(super) pause: Duration,
    /// What it could write in volumes.
    pub(super) cut: Cut,
}

/// The spec of what goes on from files alone.
pub(super) fn without_program(spec: TemplateSpec) -> TemplateSpec {
    TemplateSpec { command: Vec::new(), ready: Ready::Listening, ..spec }
}

impl Node {
    /// Whether a capture has files alone: what runs nothing has no memory either.
    pub(super) async fn has_files_only(&self, record: &SandboxRecord, keep: Keep) -> Result<bool> {
        Ok(keep == Keep::Files || record.program().is_none() && self.along(record, 0).await?.is_none())
    }

    /// Captures the files of a sandbox that goes on, alone with it, into the new directory `layer`.
    pub(super) async fn capture_files(
        self: &Arc<Self>,
        record: &SandboxRecord,
        keep: Keep,
        layer: &Path,
    ) -> Result<Files> {
        let (node, original, layer) = (Arc::clone(self), record.clone(), layer.to_owned());
        let capture = async move {
            let now = node.state().running(&original.id)?.init;
            // It may have been paused and resumed meanwhile, and is another machine.
            if now != original.init {
                return Err(Error::BeingResumed(original.id));
            }
            node.take_and_cut(&original, keep, &layer).await
        };
        self.drive(&record.id, Operation::Capture, capture).await
    }

    /// As [`Node::capture_files`], for whom has the sandbox alone.
    pub(super) async fn take_and_cut(
        self: &Arc<Self>,
        record: &SandboxRecord,
        keep: Keep,
        layer: &Path,
    ) -> Result<Files> {
        if keep == Keep::Memory {
            self.refuse_others(record, None)?;
        }
        let capture = self.prepare_capture(&record.id, layer).await?;
        // The next keeper thaws what it adopts: then this is of no one instant.
        let keeper = self.keepers.get(ACTION).await?;
        // Before it stands still, and until all of its files are of one instant.
        let held = self.hold_changes(&record.id).await;
        let began = Instant::now();
        if let Err(error) = self.take_frozen(record, keep, capture).await {
            self.thaw(&record.id).await;
            return Err(error);
        }
        let copied = began.elapsed();
        let (cut, stood) = self.cut(&record.id, &record.volumes, held).await;
        let cut = cut?;
        if keeper.is_gone() {
            self.forget_cut(&cut).await;
            return Err(Error::KeeperLost { action: ACTION });
        }
        Ok(Files { pause: copied + stood, cut })
    }

    /// Captures the files of a sandbox that is being paused. It stays frozen, whatever comes of it.
    pub(super) async fn take_to_pause(
        self: &Arc<Self>,
        record: &SandboxRecord,
        keep: Keep,
        layer: &Path,
    ) -> Result<Files> {
        let capture = self.prepare_capture(&record.id, layer).await?;
        let began = Instant::now();
        self.take_frozen(record, keep, capture).await?;
        let pause = began.elapsed();
        // What it has written has to be where it is resumed.
        self.commit_written(&record.id, &record.volumes).await?;
        Ok(Files { pause, cut: Cut::default() })
    }

    /// What can be done of a capture while the sandbox runs.
    async fn prepare_capture(&self, id: &SandboxId, layer: &Path) -> Result<Capture> {
        let (changes, layer, group) = (self.host.changes.of(id), layer.to_owned(), self.group(id));
        let prepare = move || Ok(Capture::prepare(&changes, &layer, &|| pids(&group).unwrap_or_default())?);
        tokio::task::spawn_blocking(prepare).await.doing("prepare to take the files").flatten()
    }

    /// Freezes the sandbox and takes its files. It is left frozen.
    async fn take_frozen(self: &Arc<Self>, record: &SandboxRecord, keep: Keep, mut capture: Capture) -> Result<()> {
        self.freeze(&record.id).await?;
        // Of what stands still: no process comes any more.
        if keep == Keep::Memory {
            self.refuse_others(record, None)?;
        }
        let group = self.group(&record.id);
        let take = move || Ok(capture.finish(&pids(&group)?)?);
        tokio::task::spawn_blocking(take).await.doing("take the files").flatten()
    }

    /// Stops all processes of a sandbox. Who calls it thaws it.
    pub(super) async fn freeze(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let (node, id) = (Arc::clone(self), id.clone());
        let freeze = move || Ok(node.host.cgroups.freeze(&id)?);
        tokio::task::spawn_blocking(freeze).await.doing("freeze the sandbox").flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_from_files_has_the_template_without_its_program() {
        let spec = TemplateSpec {
            name: "geo".parse().unwrap(),
            image: model::Image::Host,
            command: vec!["x".into()],
            env: vec![("A".into(), "1".into())],
            cwd: "/work".into(),
            ready: Ready::Port(80),
            ready_timeout_ms: 1,
            limits: model::Limits::default(),
            mount_points: vec!["/ws".into()],
            user: Some("root".into()),
            startup: Vec::new(),
            on_fork: Vec::new(),
        };
        let without = without_program(spec.clone());
        assert_eq!(without, TemplateSpec { command: Vec::new(), ready: Ready::Listening, ..spec });
        super::super::spec::check_spec(&without).unwrap();
    }
}
