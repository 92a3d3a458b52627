//! Sandboxes and what runs in them.

use api::{
    CheckpointProgress, DIAL_PROTOCOL, Differences, EXEC_PROTOCOL, ExecRequest, ForkRequest, ForkResponse, Merge,
    MergeRequest, NetworkPolicy, NodeInfo, PauseEvent, PauseRequest, PauseResponse, PausedSandbox, Refusal, Relative,
    Removed, ResumeRequest, Sandbox, SandboxDetail, Usage, VERSION_PREFIX,
};
use base::id::SandboxId;
use bytes::Bytes;
use hyper::{HeaderMap, Method, header, header::HeaderValue};
use tokio::signal::unix::Signal;

use crate::{
    Client, Connection, Download, Inside, Result,
    events::{self, Step},
    exchange::encode,
    line::Line,
};

/// Calls about sandboxes.
///
/// # Errors
///
/// Each fails with the node's own error, or if the node cannot be reached or its answer cannot be read.
impl Client {
    /// The node itself.
    pub async fn node(&self) -> Result<NodeInfo> {
        self.get("/node").await
    }

    /// All sandboxes of the node.
    pub async fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        self.get("/sandboxes").await
    }

    /// All paused sandboxes of the store, of every node.
    pub async fn paused(&self) -> Result<Vec<PausedSandbox>> {
        self.get("/paused").await
    }

    /// Everything about one sandbox.
    pub async fn sandbox(&self, id: &SandboxId) -> Result<SandboxDetail> {
        self.get(&format!("/sandboxes/{id}")).await
    }

    /// Removes one sandbox, running, paused or ended.
    pub async fn remove(&self, id: &SandboxId) -> Result<Removed> {
        self.delete(&format!("/sandboxes/{id}")).await
    }

    /// Removes all sandboxes, the paused ones included.
    pub async fn remove_all(&self) -> Result<Removed> {
        self.delete("/sandboxes").await
    }

    /// Removes all sandboxes that are not paused.
    pub async fn remove_all_but_paused(&self) -> Result<Removed> {
        self.delete("/sandboxes?keep_paused=true").await
    }

    /// Forks a running sandbox.
    pub async fn fork(&self, id: &SandboxId, request: &ForkRequest) -> Result<ForkResponse> {
        self.post(&format!("/sandboxes/{id}/fork"), request).await
    }

    /// As [`Self::fork`], until an interrupt.
    pub async fn fork_until(
        &self,
        interrupts: &mut Signal,
        id: &SandboxId,
        request: &ForkRequest,
    ) -> Result<Option<ForkResponse>> {
        self.post_until(interrupts, &format!("/sandboxes/{id}/fork"), request).await
    }

    /// Pauses a sandbox. `progress` gets each stage.
    pub async fn pause(
        &self,
        id: &SandboxId,
        request: &PauseRequest,
        mut progress: impl FnMut(&CheckpointProgress),
    ) -> Result<PauseResponse> {
        let answer = self.post_stream(&format!("/sandboxes/{id}/pause"), request).await?;
        let paused = events::finish(answer, |event| match event {
            PauseEvent::Stage(stage) => {
                progress(&stage);
                Step::Continue
            }
            PauseEvent::Done(paused) => Step::Done(*paused),
            PauseEvent::Failed(detail) => Step::Failed(detail),
        });
        paused.await
    }

    /// Resumes a paused sandbox.
    pub async fn resume(&self, id: &SandboxId, request: &ResumeRequest) -> Result<Sandbox> {
        self.post(&format!("/sandboxes/{id}/resume"), request).await
    }

    /// What the program has printed. With `follow` it ends with the program.
    pub async fn logs(&self, id: &SandboxId, follow: bool) -> Result<Download> {
        self.stream(&format!("/sandboxes/{id}/logs?follow={follow}")).await.map(Download::new)
    }

    /// Runs a command. The connection carries frames of [`api::frame`].
    pub async fn exec(&self, id: &SandboxId, request: &ExecRequest) -> Result<Connection> {
        let path = format!("/sandboxes/{id}/exec");
        self.upgrade(Method::POST, &path, encode(request)?, EXEC_PROTOCOL).await
    }

    /// Connects to a TCP port inside a sandbox.
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<Connection> {
        self.upgrade(Method::GET, &format!("/sandboxes/{id}/dial/{port}"), Bytes::new(), DIAL_PROTOCOL).await
    }

    /// Commands and files of a sandbox.
    pub fn inside(&self, id: &SandboxId) -> Inside {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("node"))]);
        Inside::new(Line::Socket(self.socket.clone()), format!("{VERSION_PREFIX}/sandboxes/{id}/inside"), headers)
    }

    /// What a running sandbox uses now.
    pub async fn usage(&self, id: &SandboxId) -> Result<Usage> {
        self.get(&format!("/sandboxes/{id}/usage")).await
    }

    /// All sandboxes, the oldest first, and those that are gone from which they descend.
    pub async fn tree(&self) -> Result<Vec<Relative>> {
        self.get("/tree").await
    }

    /// How two sandboxes differ, as seen from the first.
    pub async fn differences(&self, first: &SandboxId, second: &SandboxId) -> Result<Differences> {
        self.get(&format!("/sandboxes/{first}/diff/{second}")).await
    }

    /// Brings what another sandbox has changed in its files since a common fork into this one.
    pub async fn merge(&self, into: &SandboxId, request: &MergeRequest) -> Result<Merge> {
        self.post(&format!("/sandboxes/{into}/merge"), request).await
    }

    /// Why a running sandbox could not be forked or paused; empty if it could.
    pub async fn refusals(&self, id: &SandboxId) -> Result<Vec<Refusal>> {
        self.get(&format!("/sandboxes/{id}/refusals")).await
    }

    /// What a sandbox may reach.
    pub async fn network(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        self.get(&format!("/sandboxes/{id}/network")).await
    }

    /// Replaces that, while it runs.
    pub async fn set_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<()> {
        self.put(&format!("/sandboxes/{id}/network"), policy).await
    }
}
