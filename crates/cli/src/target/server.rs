//! A server as the target, by its REST API.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use api::{ErrorCode, ErrorDetail, HeaderRule, NetworkPolicy, SandboxState, Usage, VolumeMount, e2b};
use async_trait::async_trait;
use base::id::SandboxId;
use client::{Client, Download, Inside, Server};
use control::Time;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::signal::unix::Signal;

use super::{AtEnd, Door, Fork, Forked, Kept, NAME_LABEL, Paused, Resume, Shown, Started, Target, Wanted, needs_node};
use crate::{output::Progress, sandbox_id::Among};

/// How many sandboxes are started or removed at a time.
const SIDE_BY_SIDE: usize = 8;
/// How long forks live if nothing else is said, as sandboxes do that are created.
const FORK_TIMEOUT_S: u64 = base::limits::SANDBOX_TIMEOUT_S_DEFAULT;

fn id_of(text: &str) -> Result<SandboxId> {
    text.parse().with_context(|| format!("the server has a sandbox with the id {text:?}"))
}

fn time(text: &str) -> Option<u64> {
    text.parse::<Time>().ok().map(Time::ms)
}

fn state(state: e2b::State) -> SandboxState {
    match state {
        e2b::State::Running => SandboxState::Running,
        e2b::State::Paused => SandboxState::Paused,
    }
}

fn mounts(mounts: Option<Vec<e2b::VolumeMount>>) -> Vec<VolumeMount> {
    let mount = |mount: e2b::VolumeMount| {
        let volume = mount.name.parse().ok()?;
        Some(VolumeMount { volume, path: mount.path, read_only: false, snapshot: None })
    };
    mounts.into_iter().flatten().filter_map(mount).collect()
}

fn listed(sandbox: e2b::ListedSandbox) -> Result<Shown> {
    let labels = sandbox.metadata.unwrap_or_default();
    Ok(Shown {
        id: id_of(&sandbox.sandbox_id)?,
        name: labels.get(NAME_LABEL).cloned(),
        labels,
        template: sandbox.alias.unwrap_or(sandbox.template_id),
        parent: None,
        state: state(sandbox.state),
        reason: None,
        created_ms: time(&sandbox.started_at).unwrap_or_default(),
        ends_ms: time(&sandbox.end_at).filter(|_| sandbox.state == e2b::State::Running),
        start_us: None,
        main_pid: None,
        volumes: mounts(sandbox.volume_mounts),
    })
}

fn detailed(sandbox: e2b::SandboxDetail) -> Result<Shown> {
    let labels = sandbox.metadata.unwrap_or_default();
    Ok(Shown {
        id: id_of(&sandbox.sandbox_id)?,
        name: labels.get(NAME_LABEL).cloned(),
        labels,
        template: sandbox.alias.unwrap_or(sandbox.template_id),
        parent: None,
        state: state(sandbox.state),
        reason: None,
        created_ms: time(&sandbox.started_at).unwrap_or_default(),
        ends_ms: time(&sandbox.end_at).filter(|_| sandbox.state == e2b::State::Running),
        start_us: None,
        main_pid: None,
        volumes: mounts(sandbox.volume_mounts),
    })
}

/// The body of a request to create a sandbox.
fn creation(wanted: &Wanted) -> Result<Value> {
    if wanted.stepping {
        return Err(needs_node("--stepping"));
    }
    if wanted.volumes.iter().any(|mount| mount.read_only || mount.snapshot.is_some()) {
        return Err(needs_node("a mount of a snapshot, or one that is read-only,"));
    }
    check_network(&wanted.network)?;
    let mut body = json!({
        "templateID": wanted.template,
        "metadata": wanted.labels,
        "envVars": wanted.env,
        "autoPause": wanted.at_end == Some(AtEnd::Pause),
        "autoResume": { "enabled": wanted.auto_resume },
    });
    if let Some(timeout) = wanted.timeout {
        body["timeout"] = seconds(timeout).into();
    }
    if !wanted.network.is_default() {
        body["network"] = ways_out(&wanted.network);
        body["allow_internet_access"] = (!wanted.network.closed).into();
    }
    if !wanted.volumes.is_empty() {
        let mount = |mount: &VolumeMount| json!({ "name": mount.volume.to_string(), "path": mount.path });
        body["volumeMounts"] = wanted.volumes.iter().map(mount).collect();
    }
    Ok(body)
}

/// Fails if a server cannot be told of a policy.
fn check_network(policy: &NetworkPolicy) -> Result<()> {
    match policy.bandwidth {
        Some(_) => Err(needs_node("--bandwidth")),
        None => Ok(()),
    }
}

/// A policy as a server takes it, but for whether it is closed.
fn ways_out(NetworkPolicy { closed: _, allow, deny, dns, rules, bandwidth: _ }: &NetworkPolicy) -> Value {
    let allow: Vec<String> = allow.iter().map(ToString::to_string).collect();
    let deny: Vec<String> = deny.iter().map(ToString::to_string).collect();
    let rule = |rule: &HeaderRule| (rule.domain.to_string(), json!([{ "transform": { "headers": rule.headers } }]));
    let rules: serde_json::Map<String, Value> = rules.iter().map(rule).collect();
    json!({ "allowOut": allow, "denyOut": deny, "dnsServers": dns, "rules": rules })
}

/// Whole seconds, which is what servers count in.
fn seconds(timeout: Duration) -> u64 {
    timeout.as_millis().div_ceil(1000) as u64
}

/// The error of one sandbox among several. Others end the whole command.
fn detail(error: client::Error) -> Result<ErrorDetail> {
    match error {
        client::Error::Node(detail) => Ok(detail),
        other => Err(other.into()),
    }
}

/// Takes what there is. When an interrupt comes, waits for the rest and gives true.
async fn settled<T>(work: impl Future<Output = T>, interrupts: &mut Signal) -> (T, bool) {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => (done, false),
        _ = interrupts.recv() => (work.await, true),
    }
}

/// Removes what was started: an interrupt came.
async fn undo(server: &Server, ids: &[SandboxId]) -> Result<()> {
    for id in ids {
        match server.kill(id).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// What became of starts: what runs, and why the others do not.
struct Gathered {
    sandboxes: Vec<Shown>,
    failures: Vec<ErrorDetail>,
}

/// Gathers what became of starts, in their order. None: an interrupt came. Then, and after a failure of the connection, what was
/// started is removed again: nothing runs that was not told.
async fn gather(
    server: &Server,
    answers: Vec<client::Result<e2b::Sandbox>>,
    interrupted: bool,
) -> Result<Option<Gathered>> {
    let (mut ids, mut failed) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(sandbox) => ids.push(id_of(&sandbox.sandbox_id)?),
            Err(error) => failed.push(error),
        }
    }
    let gathered = match interrupted {
        true => Ok(None),
        false => tell(server, &ids, failed).await.map(Some),
    };
    if !matches!(gathered, Ok(Some(_))) {
        let undone = undo(server, &ids).await;
        // The first failure says more.
        return gathered.and_then(|none| undone.map(|()| none));
    }
    gathered
}

async fn tell(server: &Server, ids: &[SandboxId], failed: Vec<client::Error>) -> Result<Gathered> {
    let failures = failed.into_iter().map(detail).collect::<Result<_>>()?;
    let mut sandboxes = Vec::new();
    for id in ids {
        sandboxes.push(detailed(server.sandbox(id).await?)?);
    }
    Ok(Gathered { sandboxes, failures })
}

#[async_trait]
impl Target for Server {
    async fn list(&self, _: Among) -> Result<Vec<Shown>> {
        Server::list(self).await?.into_iter().map(listed).collect()
    }

    async fn create(&self, wanted: &Wanted, interrupts: &mut Signal) -> Result<Option<Started>> {
        let body = creation(wanted)?;
        let began = Instant::now();
        let starts = (0..wanted.count).map(|_| Server::create(self, &body));
        let starts = stream::iter(starts).buffered(SIDE_BY_SIDE).collect::<Vec<_>>();
        let (answers, interrupted) = settled(starts, interrupts).await;
        let total_us = began.elapsed().as_micros() as u64;
        let Some(gathered) = gather(self, answers, interrupted).await? else { return Ok(None) };
        let Gathered { sandboxes, mut failures } = gathered;
        if wanted.count == 1
            && let Some(failure) = failures.pop()
        {
            return Err(client::Error::Node(failure).into());
        }
        Ok(Some(Started { sandboxes, total_us, notices: Vec::new(), failures }))
    }

    async fn kill(&self, id: &SandboxId) -> Result<()> {
        Ok(Server::kill(self, id).await?)
    }

    async fn kill_all(&self, paused: Paused) -> Result<Vec<SandboxId>> {
        let all = Target::list(self, Among::Store).await?;
        let meant = all.into_iter().filter(|shown| paused == Paused::Killed || shown.state != SandboxState::Paused);
        let kills = meant.map(|shown| async move { Server::kill(self, &shown.id).await.map(|()| shown.id) });
        let killed = stream::iter(kills).buffered(SIDE_BY_SIDE).collect::<Vec<_>>().await;
        // One that ended in between is gone as well.
        let gone = killed.into_iter().filter(|killed| !killed.as_ref().is_err_and(client::Error::is_not_found));
        Ok(gone.collect::<client::Result<_>>()?)
    }

    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<()> {
        Ok(Server::set_timeout(self, id, seconds(timeout)).await?)
    }

    async fn pause(&self, id: &SandboxId, files_only: bool, progress: &mut Progress) -> Result<Kept> {
        let began = Instant::now();
        progress.show("pausing");
        Server::pause(self, id, !files_only).await?;
        let total_us = began.elapsed().as_micros() as u64;
        let sandbox = detailed(self.sandbox(id).await?)?;
        Ok(Kept { sandbox, memory_bytes: None, stored_memory_bytes: None, layer_bytes: None, total_us })
    }

    async fn resume(&self, id: &SandboxId, options: &Resume) -> Result<Shown> {
        if options.force {
            return Err(needs_node("--force"));
        }
        let sandbox = self.sandbox(id).await?;
        if sandbox.state == e2b::State::Running {
            let message = format!("sandbox {id} is not paused: it runs");
            let hint = Some("`pando timeout` sets how long it lives".to_owned());
            let detail = ErrorDetail { code: ErrorCode::Conflict, message, hint, details: Vec::new() };
            return Err(client::Error::Node(detail).into());
        }
        self.connect(id, options.timeout.map(seconds), !options.files_only).await?;
        detailed(self.sandbox(id).await?)
    }

    async fn fork(&self, id: &SandboxId, options: &Fork, interrupts: &mut Signal) -> Result<Option<Forked>> {
        let began = Instant::now();
        let timeout = options.timeout.map_or(FORK_TIMEOUT_S, seconds);
        let fork = Server::fork(self, id, options.count, timeout, !options.files_only);
        let (results, interrupted) = settled(fork, interrupts).await;
        let total_us = began.elapsed().as_micros() as u64;
        let answer = |result: e2b::ForkResult| match (result.sandbox, result.error) {
            (Some(sandbox), _) => Ok(sandbox),
            (None, error) => {
                let message = error.map_or_else(|| "the copy did not start".to_owned(), |error| error.message);
                let detail = ErrorDetail { code: ErrorCode::StartFailed, message, hint: None, details: Vec::new() };
                Err(client::Error::Node(detail))
            }
        };
        let answers = results?.into_iter().map(answer).collect();
        let Some(gathered) = gather(self, answers, interrupted).await? else { return Ok(None) };
        let Gathered { mut sandboxes, failures } = gathered;
        sandboxes.iter_mut().for_each(|shown| shown.parent = Some(id.clone()));
        Ok(Some(Forked { sandboxes, pause_us: None, capture_us: None, build_us: None, total_us, failures }))
    }

    async fn usage(&self, ids: &[SandboxId]) -> Result<Vec<Option<Usage>>> {
        let mut found: BTreeMap<String, e2b::Metric> = self.metrics(ids).await?.sandboxes;
        let bytes = |value: i64| u64::try_from(value).unwrap_or_default();
        let usage = |metric: e2b::Metric| Usage {
            cpu_percent: metric.cpu_used_pct,
            memory_bytes: bytes(metric.mem_used),
            memory_limit_bytes: Some(bytes(metric.mem_total)).filter(|limit| *limit > 0),
            disk_used_bytes: bytes(metric.disk_used),
            disk_total_bytes: bytes(metric.disk_total),
        };
        Ok(ids.iter().map(|id| found.remove(id.as_str()).map(usage)).collect())
    }

    async fn network(&self, id: &SandboxId) -> Result<NetworkPolicy> {
        let detail = self.sandbox(id).await?;
        let closed = detail.allow_internet_access == Some(false);
        let network = detail.network.unwrap_or_default();
        let dns = network.dns_servers.into_iter().flatten().filter_map(|server| server.parse().ok());
        let headers = |rules: Vec<e2b::Rule>| rules.into_iter().filter_map(|rule| rule.transform?.headers).flatten();
        let rule = |(domain, rules): (String, Vec<e2b::Rule>)| {
            Some(HeaderRule { domain: domain.parse().ok()?, headers: headers(rules).collect() })
        };
        Ok(NetworkPolicy {
            closed,
            bandwidth: None,
            rules: network.rules.into_iter().flatten().filter_map(rule).collect(),
            allow: network.allow_out.into_iter().flatten().filter_map(|text| text.parse().ok()).collect(),
            deny: network.deny_out.into_iter().flatten().filter_map(|text| text.parse().ok()).collect(),
            dns: dns.collect(),
        })
    }

    async fn set_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<()> {
        check_network(policy)?;
        let mut body = ways_out(policy);
        body["allow_internet_access"] = (!policy.closed).into();
        Ok(Server::set_network(self, id, &body).await?)
    }

    async fn logs(&self, id: &SandboxId, follow: bool) -> Result<Download> {
        Ok(Target::inside(self, id).await?.output(follow).await?)
    }

    async fn reason(&self, _: &SandboxId) -> Result<Option<String>> {
        Ok(None)
    }

    async fn inside(&self, id: &SandboxId) -> Result<Inside> {
        Ok(Server::inside(self, &awake(self, id).await?)?)
    }

    async fn door(&self, id: &SandboxId, port: u16) -> Result<Door> {
        let sandbox = awake(self, id).await?;
        let is_closed = sandbox.network.as_ref().is_some_and(|network| network.allow_public_traffic == Some(false));
        // Only this answer has the token. It continues a sandbox that is paused meanwhile, which then needs time to live.
        let token = match is_closed {
            true => self.connect(id, None, true).await?.traffic_access_token,
            false => None,
        };
        Ok(Door::Server(self.port(&sandbox, token.as_deref(), port)?))
    }

    fn as_node(&self) -> Option<&Client> {
        None
    }
}

/// A sandbox that can be worked in: it runs, or traffic continues it.
async fn awake(server: &Server, id: &SandboxId) -> Result<e2b::SandboxDetail> {
    let sandbox = server.sandbox(id).await?;
    let wakes = sandbox.lifecycle.is_some_and(|lifecycle| lifecycle.auto_resume);
    if sandbox.state == e2b::State::Paused && !wakes {
        let detail = ErrorDetail {
            code: ErrorCode::Conflict,
            message: format!("sandbox {id} is paused"),
            hint: Some(format!("`pando resume {id}` continues it")),
            details: Vec::new(),
        };
        return Err(client::Error::Node(detail).into());
    }
    Ok(sandbox)
}
