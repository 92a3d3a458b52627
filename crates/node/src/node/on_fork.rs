//! What a template has run in each copy before the copy goes on in its program: programs that have random numbers in memory are told to draw others.

use std::sync::Arc;

use base::{id::SandboxId, limits::ON_FORK_MS_MAX};
use model::{CommandEvent, CommandSpec, ExitStatus, Image, TemplateSpec};

use super::{
    Node,
    startup::{keep, lines},
};
use crate::error::{Error, Result};

impl Node {
    /// Runs it as root, or as the only user that there is, and waits for its end. The copy's processes are there and stand still.
    pub(super) async fn run_on_fork(self: &Arc<Self>, id: &SandboxId, spec: &TemplateSpec) -> Result<()> {
        let (command, user) = (&spec.on_fork, (spec.image != Image::Host).then(|| "root".to_owned()));
        let request = CommandSpec {
            command: command.clone(),
            env: Vec::new(),
            cwd: None,
            terminal: None,
            timeout_ms: Some(ON_FORK_MS_MAX),
            user,
            tag: None,
            stdin: false,
        };
        let (_, mut stream) = self.start_command(id, request).await?;
        let (mut output, mut status) = (Vec::new(), ExitStatus::Unknown);
        while let Some(event) = stream.next().await {
            match event {
                CommandEvent::Stdout(bytes) | CommandEvent::Stderr(bytes) | CommandEvent::Terminal(bytes) => {
                    keep(&mut output, &bytes);
                }
                CommandEvent::Ended(end) => status = end.status,
                CommandEvent::Started(_) | CommandEvent::Missed(_) => {}
            }
        }
        if status == ExitStatus::Code(0) {
            return Ok(());
        }
        Err(Error::OnFork { command: command.join(" "), status, output: lines(&output) })
    }
}
