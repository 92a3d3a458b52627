//! A node as the target, by its socket.

use std::time::Duration;

use anyhow::Result;
use api::{
    ForkRequest, Interpreter, NetworkPolicy, PauseRequest, ResumeRequest, RunRequest, Sandbox, SandboxState, Usage,
};
use async_trait::async_trait;
use base::id::{SandboxId, TemplateName};
use client::{Client, Download, Inside};
use tokio::signal::unix::Signal;

use super::{Door, Fork, Forked, Kept, Paused, Resume, Shown, Started, Target, Wanted, needs_server};
use crate::{
    exit::Failure,
    output::{self, Progress},
    sandbox_id::Among,
};

impl From<Sandbox> for Shown {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            id: sandbox.id,
            name: None,
            labels: Default::default(),
            template: sandbox.template.to_string(),
            parent: sandbox.parent,
            state: sandbox.state,
            reason: sandbox.reason,
            created_ms: sandbox.created_ms,
            ends_ms: None,
            start_us: Some(sandbox.start_us),
            main_pid: Some(sandbox.main_pid),
            volumes: sandbox.volumes,
        }
    }
}

fn all(sandboxes: Vec<Sandbox>) -> Vec<Shown> {
    sandboxes.into_iter().map(Shown::from).collect()
}

/// What nodes do not keep.
fn check(wanted: &Wanted) -> Result<()> {
    let refused = [
        (!wanted.labels.is_empty(), "a name or a label"),
        (!wanted.env.is_empty(), "the environment of commands (-e)"),
        (wanted.timeout.is_some() || wanted.at_end.is_some(), "a lifetime"),
        (wanted.auto_resume, "--auto-resume"),
    ];
    match refused.iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(needs_server(what)),
        None => Ok(()),
    }
}

#[async_trait]
impl Target for Client {
    async fn list(&self, among: Among) -> Result<Vec<Shown>> {
        let mut listed = all(self.sandboxes().await?);
        if among == Among::Store {
            let elsewhere = self.paused().await?;
            let unknown = elsewhere.into_iter().filter(|paused| !listed.iter().any(|shown| shown.id == paused.id));
            let unknown: Vec<Shown> = unknown
                .map(|paused| Shown {
                    id: paused.id,
                    name: None,
                    labels: Default::default(),
                    template: paused.template.to_string(),
                    parent: paused.parent,
                    state: SandboxState::Paused,
                    reason: None,
                    created_ms: paused.created_ms,
                    ends_ms: None,
                    start_us: None,
                    main_pid: None,
                    volumes: Vec::new(),
                })
                .collect();
            listed.extend(unknown);
        }
        Ok(listed)
    }

    async fn create(&self, wanted: &Wanted, interrupts: &mut Signal) -> Result<Option<Started>> {
        let template: TemplateName =
            wanted.template.parse().map_err(|error: base::id::InvalidId| Failure::Usage(error.to_string()))?;
        check(wanted)?;
        let interpreter = if wanted.stepping { Interpreter::Stepping } else { Interpreter::InProcess };
        let request = RunRequest {
            count: wanted.count,
            interpreter,
            volumes: wanted.volumes.clone(),
            network: wanted.network.clone(),
        };
        let started = self.run_until(interrupts, &template, &request).await?;
        Ok(started.map(|started| Started {
            sandboxes: all(started.sandboxes),
            total_us: started.total_us,
            notices: started.notices,
            failures: started.failures,
        }))
    }

    async fn kill(&self, id: &SandboxId) -> Result<()> {
        self.remove(id).await?;
        Ok(())
    }

    async fn kill_all(&self, paused: Paused) -> Result<Vec<SandboxId>> {
        let removed = match paused {
            Paused::Killed => self.remove_all().await?,
            Paused::Kept => self.remove_all_but_paused().await?,
        };
        Ok(removed.sandboxes)
    }

    async fn set_timeout(&self, _: &SandboxId, _: Duration) -> Result<()> {
        Err(needs_server("a lifetime"))
    }

    async fn pause(&self, id: &SandboxId, files_only: bool, progress: &mut Progress) -> Result<Kept> {
        let request = PauseRequest { memory: !files_only };
        let paused = Client::pause(self, id, &request, |stage| progress.show(&output::stage(stage))).await?;
        Ok(Kept {
            sandbox: paused.sandbox.into(),
            memory_bytes: Some(paused.memory_bytes),
            stored_memory_bytes: Some(paused.stored_memory_bytes),
            layer_bytes: Some(paused.layer_bytes),
            total_us: paused.total_us,
        })
    }

    async fn resume(&self, id: &SandboxId, options: &Resume) -> Result<Shown> {
        if options.timeout.is_some() {
            return Err(needs_server("a lifetime"));
        }
        let request = ResumeRequest { force: options.force, memory: !options.files_only };
        Ok(Client::resume(self, id, &request).await?.into())
    }

    async fn fork(&self, id: &SandboxId, options: &Fork, interrupts: &mut Signal) -> Result<Option<Forked>> {
        if options.timeout.is_some() {
            return Err(needs_server("a lifetime"));
        }
        let request = ForkRequest { count: options.count, memory: !options.files_only };
        let forked = self.fork_until(interrupts, id, &request).await?;
        Ok(forked.map(|forked| Forked {
            sandboxes: all(forked.sandboxes),
            pause_us: Some(forked.pause_us),
            capture_us: Some(forked.capture_us),
            build_us: Some(forked.build_us),
            total_us: forked.total_us,
            failures: forked.failures,
        }))
    }

    async fn usage(&self, ids: &[SandboxId]) -> Result<Vec<Option<Usage>>> {
        // Each takes a while: the node looks twice at the CPU time.
        let asked = ids.iter().map(|id| Client::usage(self, id));
        let answers = futures::future::join_all(asked).await;
        let used = |answer: client::Result<Usage>| match answer {
            Ok(usage) => Ok(Some(usage)),
            Err(client::Error::Node(_)) => Ok(None),
            Err(error) => Err(error.into()),
        };
        answers.into_iter().map(used).collect()
    }

    async fn network(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        Ok(Client::network(self, id).await?)
    }

    async fn set_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<()> {
        Ok(Client::set_network(self, id, policy).await?)
    }

    async fn logs(&self, id: &SandboxId, follow: bool) -> Result<Download> {
        Ok(Client::logs(self, id, follow).await?)
    }

    async fn reason(&self, id: &SandboxId) -> Result<Option<String>> {
        Ok(self.sandbox(id).await?.sandbox.reason)
    }

    async fn inside(&self, id: &SandboxId) -> Result<Inside> {
        Ok(Client::inside(self, id))
    }

    async fn door(&self, id: &SandboxId, port: u16) -> Result<Door> {
        // A sandbox that is not there is told before anybody connects.
        self.sandbox(id).await?;
        Ok(Door::Node(self.clone(), id.clone(), port))
    }

    fn as_node(&self) -> Option<&Client> {
        Some(self)
    }
}
