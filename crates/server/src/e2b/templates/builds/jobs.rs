//! Builds under way, and their logs.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::e2b::BuildLogEntry;
use axum::http::StatusCode;
use base::{
    id::{BuildId, TeamId, TemplateName},
    limits::{
        BUILD_LOG_BYTES_MAX, BUILD_MAX_MS, BUILDS_AT_ONCE_MAX, BUILDS_KEPT_MAX, BUILDS_OF_TEAM_MAX, BUILDS_STARTED_MAX,
    },
};
use control::{Build, BuildUpdate, ControlError, Time};
use model::{BuildLevel, BuildLine};
use node::{BuildOptions, RecipeError, StepName, chain};
use tokio::{sync::watch, task::JoinSet};

use super::{super::snapshots, files::Files, steps::Asked, turns::Turns};
use crate::e2b::{
    failed::{Failed, Result},
    platform::Platform,
};

/// How long the log of a build stays after its end.
const LOG_LIVES: Duration = Duration::from_secs(3_600);
/// Entries before a failure that are shown with it.
const SHOWN: usize = 20;

/// Bytes of a line beside its text.
const LINE_BYTES: usize = 64;

/// A build that this server has begun.
struct Job {
    team: TeamId,
    lines: Vec<BuildLine>,
    bytes: usize,
    failed_at: Option<StepName>,
    ended: Option<Instant>,
    /// True: it is given up.
    cancel: watch::Sender<bool>,
}

/// Where a build has failed, and what was said before.
#[derive(Default)]
pub(super) struct FailedAt {
    pub(super) step: Option<String>,
    pub(super) last: Vec<BuildLogEntry>,
}

/// All of them.
pub(crate) struct Jobs {
    all: Mutex<HashMap<BuildId, Job>>,
    turns: Turns,
    pub(super) files: Files,
}

impl Jobs {
    pub(crate) fn within(state_dir: &Path) -> Self {
        let turns = Turns::new(BUILDS_OF_TEAM_MAX, BUILDS_AT_ONCE_MAX);
        Self { all: Mutex::default(), turns, files: Files::within(state_dir) }
    }

    fn with(&self, id: &BuildId, work: impl FnOnce(&mut Job)) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = all.get_mut(id) {
            work(job);
        }
    }

    /// Fails if the team has started as many as it may.
    pub(super) fn check_started(&self, team: &TeamId) -> Result<()> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.values().filter(|job| job.team == *team && job.ended.is_none()).count() < BUILDS_STARTED_MAX {
            return Ok(());
        }
        let why = format!("{BUILDS_STARTED_MAX} builds of the team are under way, or wait for their turn");
        Err(Failed::new(StatusCode::TOO_MANY_REQUESTS, why))
    }

    /// A build begins. Resolves to true when it is given up.
    fn begin(&self, team: &TeamId, id: &BuildId) -> watch::Receiver<bool> {
        let (cancel, cancelled) = watch::channel(false);
        let team = team.clone();
        let job = Job { team, lines: Vec::new(), bytes: 0, failed_at: None, ended: None, cancel };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |job: &Job| job.ended.is_some_and(|ended| ended.elapsed() > LOG_LIVES);
        all.retain(|_, job| !is_old(job));
        if all.len() >= BUILDS_KEPT_MAX {
            let ended = all.iter().filter_map(|(id, job)| Some((job.ended?, id.clone())));
            let oldest = ended.min_by_key(|(ended, _)| *ended);
            oldest.map(|(_, id)| all.remove(&id));
        }
        all.insert(id.clone(), job);
        cancelled
    }

    /// Gives builds up: their template is gone.
    pub(in crate::e2b::templates) fn cancel(&self, builds: &[Build]) {
        for build in builds {
            self.with(&build.id, |job| _ = job.cancel.send_replace(true));
        }
    }

    fn say(&self, id: &BuildId, line: BuildLine) {
        self.with(id, |job| {
            let bytes = line.text.len() + LINE_BYTES;
            if job.bytes + bytes <= BUILD_LOG_BYTES_MAX || line.level >= BuildLevel::Error {
                job.bytes += bytes;
                job.lines.push(line);
            } else if job.bytes <= BUILD_LOG_BYTES_MAX {
                job.bytes = BUILD_LOG_BYTES_MAX + 1;
                job.lines.push(BuildLine { text: "(the rest of the output is not kept)".to_owned(), ..line });
            }
        });
    }

    /// A part of a build's log; if it has failed, where, and the last entries before.
    pub(super) fn log(
        &self,
        id: &BuildId,
        offset: Option<u64>,
        limit: usize,
        level: Option<&str>,
    ) -> (Vec<BuildLogEntry>, Option<FailedAt>) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = all.get(id) else { return (Vec::new(), None) };
        let least = level.and_then(level_of).unwrap_or(BuildLevel::Debug);
        let wanted = job.lines.iter().filter(|line| line.level >= least);
        let offset = usize::try_from(offset.unwrap_or(0)).unwrap_or(usize::MAX);
        let entries = wanted.skip(offset).take(limit).map(entry).collect();
        let last = || job.lines[job.lines.len().saturating_sub(SHOWN)..].iter().map(entry).collect();
        (entries, job.failed_at.map(|step| FailedAt { step: Some(step_name(step)), last: last() }))
    }

    /// A build's log from a moment on, or back from there.
    pub(super) fn entries(
        &self,
        id: &BuildId,
        cursor: Option<u64>,
        is_backward: bool,
        limit: usize,
        level: Option<&str>,
    ) -> Vec<BuildLogEntry> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(job) = all.get(id) else { return Vec::new() };
        let least = level.and_then(level_of).unwrap_or(BuildLevel::Debug);
        let is_wanted = |line: &&BuildLine| {
            let is_there = cursor.is_none_or(|at| if is_backward { line.at_ms <= at } else { line.at_ms >= at });
            is_there && line.level >= least
        };
        let wanted = job.lines.iter().filter(is_wanted);
        if is_backward {
            wanted.rev().take(limit).map(entry).collect()
        } else {
            wanted.take(limit).map(entry).collect()
        }
    }
}

fn level_of(text: &str) -> Option<BuildLevel> {
    let levels = [BuildLevel::Debug, BuildLevel::Info, BuildLevel::Warn, BuildLevel::Error];
    levels.into_iter().find(|level| word(*level) == text)
}

fn word(level: BuildLevel) -> &'static str {
    match level {
        BuildLevel::Debug => "debug",
        BuildLevel::Info => "info",
        BuildLevel::Warn => "warn",
        BuildLevel::Error => "error",
    }
}

fn entry(line: &BuildLine) -> BuildLogEntry {
    BuildLogEntry {
        timestamp: Time::from_ms(line.at_ms).to_string(),
        message: line.text.clone(),
        level: word(line.level).to_owned(),
        step: line.step.map(|step| step.to_string()),
    }
}

/// As SDKs look for it among the calls that made the template.
fn step_name(step: StepName) -> String {
    match step {
        StepName::Base => "base".to_owned(),
        StepName::Step(number) => number.to_string(),
        StepName::Finalize => "finalize".to_owned(),
    }
}

impl Platform {
    /// Begins a build, which goes on without its client.
    pub(super) async fn begin_build(self: &Arc<Self>, team: TeamId, build: Build, asked: Asked) -> Result<()> {
        self.control.templates().update_build(&team, &build, &BuildUpdate::Building).await?;
        let cancelled = self.jobs.begin(&team, &build.id);
        let platform = Arc::clone(self);
        tokio::spawn(async move {
            let _turn = platform.jobs.turns.take(&team).await;
            let late = Arc::clone(&platform);
            let late_build = build.clone();
            let mut timer = JoinSet::new();
            timer.spawn(async move {
                tokio::time::sleep(Duration::from_millis(BUILD_MAX_MS)).await;
                late.jobs.cancel(&[late_build]);
            });
            platform.carry_out(&team, &build, asked, cancelled).await;
        });
        Ok(())
    }

    async fn carry_out(self: &Arc<Self>, team: &TeamId, build: &Build, asked: Asked, cancelled: watch::Receiver<bool>) {
        let made = self.make(build, asked, cancelled).await;
        let update = match &made {
            Ok(source) => BuildUpdate::Ready { source: source.to_string() },
            Err(failed) => BuildUpdate::Failed { reason: failed.body().message },
        };
        let noted = self.control.templates().update_build(team, build, &update).await;
        self.jobs.with(&build.id, |job| job.ended = Some(Instant::now()));
        let Ok(source) = made else { return };
        match noted {
            Ok(noted) if noted.source == source.as_str() => self.snapshot_has_row(&source),
            // The template was deleted meanwhile.
            Ok(_) | Err(ControlError::NotFound { .. }) => self.remove_rowless(&[source]).await,
            Err(error) => {
                tracing::error!(build = %build.id, error = chain(&error), "a build is ready, and cannot be noted")
            }
        }
    }

    async fn make(
        self: &Arc<Self>,
        build: &Build,
        asked: Asked,
        cancelled: watch::Receiver<bool>,
    ) -> Result<TemplateName> {
        let Asked { recipe, credentials, files: _open } = asked;
        let name = snapshots::new_name()?;
        self.note_snapshot(&name)?;
        let (platform, id) = (Arc::clone(self), build.id.clone());
        let log = move |line: BuildLine| platform.jobs.say(&id, line);
        let options = BuildOptions { may_reuse: true, credentials, log: &log, cancelled };
        let made = Box::pin(self.node.build_recipe(&name, &recipe, &options)).await;
        if !matches!(&made, Ok(made) if *made == name) {
            self.remove_rowless(std::slice::from_ref(&name)).await;
        }
        made.map_err(|RecipeError { step, source }| {
            let message = Failed::from(*source).body().message;
            let at = if let StepName::Step(number) = step { Some(number) } else { None };
            self.jobs.with(&build.id, |job| job.failed_at = Some(step));
            let text = format!("{step}: {message}");
            let at_ms = self.control.now().ms();
            self.jobs.say(&build.id, BuildLine { at_ms, level: BuildLevel::Error, step: at, text: text.clone() });
            Failed::invalid(text)
        })
    }

    /// A build that was asked for cannot be started as its client wants it.
    pub(super) async fn fail_build(&self, team: &TeamId, build: &Build, failed: &Failed) {
        let update = BuildUpdate::Failed { reason: failed.body().message };
        if let Err(error) = self.control.templates().update_build(team, build, &update).await {
            tracing::warn!(build = %build.id, error = chain(&error), "a build that is refused still waits");
        }
    }

    /// Fails builds that an earlier server was at, or that its clients have not started.
    pub(crate) async fn fail_unfinished_builds(&self) {
        if self.shares() {
            // They may be another server's.
            return;
        }
        let unfinished = match self.control.templates().unfinished_builds().await {
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::warn!(error = chain(&error), "builds of an earlier server stay unfinished");
                return;
            }
        };
        let reason = "the server was restarted during the build: build it again".to_owned();
        let update = BuildUpdate::Failed { reason };
        for (team, build) in unfinished {
            if let Err(error) = self.control.templates().update_build(&team, &build, &update).await {
                tracing::warn!(build = %build.id, error = chain(&error), "a build of an earlier server stays unfinished");
            }
        }
    }
}
