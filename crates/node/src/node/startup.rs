//! Programs that sandboxes begin as commands, where their template has no program of its own.

use std::{sync::Arc, time::Duration};

use base::{id::SandboxId, text::harmless};
use model::{CommandEvent, CommandSpec, ExitStatus, RunSpec, Sandbox, TemplateSpec};

use super::{Node, commands::CommandStream, start::Source};
use crate::error::{Error, Result};

/// The name that clients can attach to it by.
const TAG: &str = "startup";

/// How much of its output is shown with a failure.
const OUTPUT_BYTES: usize = 8 << 10;
const OUTPUT_LINES: usize = 20;

impl Node {
    /// Starts one sandbox of a template that is there.
    pub(super) async fn run_one(self: &Arc<Self>, name: &base::id::TemplateName, request: &RunSpec) -> Result<Sandbox> {
        let source = Source::of_template(self.startable(name).await?.0, request);
        let (sandboxes, failures) = self.start_many(&source, 1, Vec::new()).await;
        let failure = failures.into_iter().next().unwrap_or_else(|| Error::NoTemplate(name.clone()));
        sandboxes.into_iter().next().ok_or(failure)
    }

    /// Begins it in a new sandbox, and waits until it is ready. A failure leaves no sandbox.
    pub(super) async fn begin_startup(self: &Arc<Self>, sandbox: &Sandbox, spec: &TemplateSpec) -> Result<()> {
        if !spec.command.is_empty() {
            return Ok(());
        }
        let begun = self.start_up(&sandbox.id, spec).await;
        if begun.is_err() {
            self.remove(&sandbox.id).await?;
        }
        begun
    }

    async fn start_up(self: &Arc<Self>, id: &SandboxId, spec: &TemplateSpec) -> Result<()> {
        let request = CommandSpec {
            command: spec.startup.clone(),
            env: Vec::new(),
            cwd: None,
            terminal: None,
            timeout_ms: None,
            user: None,
            tag: Some(TAG.to_owned()),
            stdin: false,
        };
        let init = self.state().sandbox(id)?.init;
        let account = self.account(id, None).await?;
        let (_, mut stream) = self.start_command(id, request).await?;
        let mut output = Vec::new();
        let timeout = Duration::from_millis(spec.ready_timeout_ms);
        let waited = tokio::select! {
            biased;
            ready = tokio::time::timeout(timeout, self.poll_ready(spec, id, &account, init.pid)) => ready,
            status = failure(&mut stream, &mut output) => {
                let reason = self.killed_at_limit(id);
                return Err(Error::ProgramEnded { status, reason, output: lines(&output) });
            }
        };
        match waited {
            Ok(ready) => ready,
            Err(_) => {
                let (ready, timeout_ms) = (spec.ready.to_string(), spec.ready_timeout_ms);
                Err(Error::NotReadyInTime { ready, timeout_ms, output: lines(&output) })
            }
        }
    }
}

/// Resolves if the command fails. One that has done what it should, and ended, may have left something that gets ready.
async fn failure(stream: &mut CommandStream, output: &mut Vec<u8>) -> ExitStatus {
    while let Some(event) = stream.next().await {
        match event {
            CommandEvent::Stdout(bytes) | CommandEvent::Stderr(bytes) | CommandEvent::Terminal(bytes) => {
                keep(output, &bytes);
            }
            CommandEvent::Ended(end) if end.status != ExitStatus::Code(0) => return end.status,
            CommandEvent::Ended(_) | CommandEvent::Started(_) | CommandEvent::Missed(_) => {}
        }
    }
    std::future::pending().await
}

/// Adds to an output whose end is kept.
pub(super) fn keep(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend(bytes);
    let excess = output.len().saturating_sub(OUTPUT_BYTES);
    output.drain(..excess);
}

/// Its last lines.
pub(super) fn lines(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(OUTPUT_LINES)..].iter().map(|line| harmless(line)).collect()
}
