//! Keeps a keeper running, and takes over the sandboxes that outlived the last one.
//!
//! ```text
//! sweep -> start keeper -> adopt every recorded sandbox -> publish it -> events ... keeper dies
//!   ^                                                                                   |
//!   +--------------- zygotes lost, blanks given up, unpublish <-------------------------+
//! ```

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::{SandboxId, ZygoteId};
use keeper::{
    KeeperClient,
    protocol::{Adopt, Adopted, Call, DropZygote, Event, Thaw},
};
use model::{ExitStatus, SandboxState};
use tokio::{
    process::{Child, Command},
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{Node, orphans, pager_link, unseen::Unseen};
use crate::{
    config::AtExit,
    error::{Context, Result, chain},
    records::SandboxRecord,
    state::State,
};

/// A keeper that ends sooner than this has a reason that will not go away by itself.
const SHORT_LIFE: Duration = Duration::from_secs(2);

/// How long to rest before the next try then.
const RETRY_REST: Duration = Duration::from_secs(1);

/// How long a keeper may take to leave when its server says so, and what volumes have left to go.
pub(super) const LEAVE_MAX: Duration = Duration::from_secs(5);

/// How often it is seen to that there is room for what sandboxes change.
const ROOM_CHECK: Duration = Duration::from_millis(250);

/// How often output files are looked at.
const OUTPUT_CHECK: Duration = Duration::from_secs(2);

impl Node {
    /// Runs until `stop` becomes true, then shuts down orderly.
    pub async fn supervise(self: Arc<Self>, mut stop: watch::Receiver<bool>) -> Result<()> {
        let (mut running, unseen) = match self.begin().await {
            Ok(begun) => begun,
            Err(error) => {
                // What an earlier node left running goes on: this one never had it.
                self.leave(AtExit::Keep).await;
                return Err(error);
            }
        };
        self.ledger.pool_work.notify_one();
        let pool = tokio::spawn(Arc::clone(&self).fill_pool(stop.clone()));
        self.take_up_pauses();
        // Somebody may hold volumes of whom no record is left.
        self.ledger.sweep_work.notify_one();
        let mut background = JoinSet::new();
        background.spawn(Arc::clone(&self).bind_limits());
        background.spawn(Arc::clone(&self).sweep_leftovers());
        background.spawn(Arc::clone(&self).sweep_builds());
        background.spawn(Arc::clone(&self).remove_all_unseen(unseen));
        let node = Arc::clone(&self);
        background.spawn(async move { node.pager.keep().await });
        background.spawn(Arc::clone(&self).watch_host_mounts());
        background.spawn(Arc::clone(&self).bound_outputs(OUTPUT_CHECK));
        background.spawn(Arc::clone(&self).keep_room());
        background.spawn(Arc::clone(&self).show_memory());
        background.spawn(Arc::clone(&self).serve_networks());
        // To the very end: what is removed at the shutdown has to be reaped as well.
        tokio::spawn(orphans::reap());
        loop {
            let began = Instant::now();
            tokio::select! {
                () = self.follow(&mut running.events) => {}
                () = stopped(&mut stop) => break,
            }
            self.lose_keeper(&mut running).await;
            if began.elapsed() < SHORT_LIFE {
                tokio::time::sleep(RETRY_REST).await;
            }
            running = tokio::select! {
                running = self.restart_keeper() => running,
                () = stopped(&mut stop) => {
                    background.shutdown().await;
                    self.leave(self.host.config.at_exit).await;
                    return Ok(());
                }
            };
        }
        // What it was making is then in the pool, and goes with that.
        let _ = pool.await;
        // Only when they have ended does nothing come after them.
        background.shutdown().await;
        self.shut_down(running).await;
        Ok(())
    }

    /// The first keeper has to come up, so that a host that cannot run one is named at once.
    async fn begin(self: &Arc<Self>) -> Result<(Running, Vec<Unseen>)> {
        self.sweep().await?;
        // Before anything new is noted.
        let unseen = self.noted_unseen()?;
        let earlier = self.earlier_commands().await;
        tokio::spawn(Arc::clone(self).follow_commands(earlier));
        // Before anything new is connected.
        self.take_over_networks().await;
        Ok((self.start_keeper().await?, unseen))
    }

    /// Handles events until the keeper is gone.
    async fn follow(self: &Arc<Self>, events: &mut mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            match event {
                Event::ZygoteLost { zygote, status } => self.zygote_lost(zygote, &status.to_string()),
                // The monitor of the sandbox has it.
                Event::Exited { .. } => {}
            }
        }
    }

    pub(super) fn zygote_lost(&self, zygote: ZygoteId, how: &str) {
        let template = self.state().zygote_lost(zygote);
        if let Some(name) = template {
            tracing::warn!(template = %name, how, "its zygote is gone; the next run builds it again");
            self.ledger.changed();
        }
    }

    async fn lose_keeper(self: &Arc<Self>, running: &mut Running) {
        tracing::warn!("the keeper is gone: its zygotes are lost, sandboxes run on");
        self.keepers.withdraw();
        // Its socket may have ended before its process: zygotes go only with the last descriptor.
        let _ = running.child.start_kill();
        let _ = running.child.wait().await;
        self.state().keeper_lost();
        self.keepers.count_restart();
        self.ledger.changed();
    }

    /// Tries until it works: without a keeper the node can do nothing, but what runs goes on running.
    async fn restart_keeper(self: &Arc<Self>) -> Running {
        loop {
            let started = match self.sweep().await {
                Ok(()) => self.start_keeper().await,
                Err(error) => Err(error),
            };
            match started {
                Ok(running) => return running,
                Err(error) => tracing::error!(error = chain(&error), "no keeper can be started"),
            }
            tokio::time::sleep(RETRY_REST).await;
        }
    }

    async fn start_keeper(self: &Arc<Self>) -> Result<Running> {
        let running = self.spawn_keeper()?;
        let recorded = self.state().sandboxes_here();
        for record in recorded {
            self.adopt(&running.client, record).await;
        }
        let pid = running.child.id();
        self.keepers.publish(Arc::clone(&running.client), pid);
        tracing::info!(pid, "the keeper runs");
        self.ledger.limits_work.notify_one();
        self.ledger.changed();
        Ok(running)
    }

    fn spawn_keeper(&self) -> Result<Running> {
        let (ours, theirs) = sys::seqpacket::pair().doing("make the keeper's socket")?;
        let (program, arguments) = self
            .host
            .config
            .keeper_command
            .split_first()
            .ok_or(std::io::ErrorKind::InvalidInput)
            .doing("start a keeper")?;
        let child = Command::new(program)
            .args(arguments)
            .args(["--node", &self.host.id])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C at the terminal is for the server, which decides what becomes of the keeper.
            .process_group(0)
            .spawn()
            .doing("start a keeper")?;
        let (client, events) = KeeperClient::start(ours).doing("watch the keeper's socket")?;
        Ok(Running { child, client, events })
    }

    /// Hands a recorded sandbox to a new keeper.
    async fn adopt(self: &Arc<Self>, keeper: &Arc<KeeperClient>, record: SandboxRecord) {
        let id = record.id.clone();
        let spec = sandbox::Spec {
            id: id.clone(),
            dir: self.host.config.sandbox_dir(&id),
            changes: self.host.changes.of(&id),
            from: None,
            layers: record.layers.clone(),
            limits: self.host.changes.limits(&record.limits, &self.host.changes.of(&id)),
            users: sandbox::Users::of(&record.layers),
            // Of what is there already.
            dns: None,
        };
        let has_program = matches!(record.state, SandboxState::Running | SandboxState::Pausing);
        let main = record.program().filter(|_| has_program);
        // Before it is asked: the end may follow right behind the answer.
        let ended = main.map(|main| keeper.ended(main.pid));
        let adopted = keeper.call(Adopt { spec, init: record.init, main }, []).await;
        let alive = matches!(adopted, Ok(Adopted::WithProgram | Adopted::WithoutProgram));
        // A capture that was cut off may have left it frozen, with commands that outlive its program. Only a pause decides for itself.
        if alive && record.state != SandboxState::Pausing {
            thaw(keeper, id.clone()).await;
        }
        match (adopted, ended) {
            (Ok(Adopted::WithProgram), Some(ended)) => self.monitor(id.clone(), ended),
            (Ok(Adopted::WithoutProgram), Some(_)) => {
                self.set_sandbox_state(&id, SandboxState::Exited(ExitStatus::Unknown));
                self.explain_end(&id).await;
            }
            (Ok(Adopted::Gone), Some(_)) => {
                self.set_sandbox_state(&id, SandboxState::Lost);
                self.explain_end(&id).await;
            }
            // It never had one, or its program had ended before.
            (Ok(Adopted::WithProgram | Adopted::WithoutProgram), None) => self.watch_idle(&id),
            (Ok(Adopted::Gone), None) => self.set_sandbox_state(&id, SandboxState::Lost),
            (Err(error), _) => tracing::error!(sandbox = %id, error = chain(&error), "not adopted"),
        }
    }

    async fn shut_down(self: &Arc<Self>, mut running: Running) {
        let blanks = self.state().take_pool();
        self.discard_blanks(blanks).await;
        self.end_foreground().await;
        if self.host.config.at_exit == AtExit::Remove {
            self.discard_all(self.ids_here()).await;
        }
        self.keepers.withdraw();
        running.client.close();
        if tokio::time::timeout(LEAVE_MAX, running.child.wait()).await.is_err() {
            tracing::warn!("the keeper does not leave: killing it");
            let _ = running.child.kill().await;
        }
        self.leave(self.host.config.at_exit).await;
    }

    /// Removes what has to go, once there is no keeper any more.
    async fn leave(self: &Arc<Self>, at_exit: AtExit) {
        if at_exit == AtExit::Remove {
            self.ids_here().iter().for_each(|id| drop(self.state().forget(id)));
        }
        // Also what requests were in the middle of when the keeper left.
        if let Err(error) = self.sweep_unless(State::records).await {
            tracing::warn!(error = chain(&error), "leftovers stay for the next node");
        }
        let patience = if self.ids_here().is_empty() { pager_link::STOP_MAX } else { Duration::ZERO };
        self.pager.stop(patience).await;
        self.holder.stop().await;
        if at_exit == AtExit::Remove {
            self.unmount_all().await;
        }
        self.remove_noted_unseen().await;
        self.stop_volumes().await;
        let mounted = !self.state().host_mounts().is_empty();
        if self.ids_here().is_empty()
            && !mounted
            && let Err(error) = self.host.cgroups.remove_all()
        {
            tracing::warn!(error = chain(&error), "the control groups could not be removed");
        }
        let is_kept = self.state().sandboxes().iter().any(|record| record.kept.is_some());
        self.host.changes.close(is_kept || !self.ids_here().is_empty());
        if let Some(network) = &self.host.network {
            network.close(!self.ids_here().is_empty());
        }
    }

    /// Has the room grow for what sandboxes change. Never returns.
    async fn keep_room(self: Arc<Self>) {
        loop {
            tokio::time::sleep(ROOM_CHECK).await;
            let node = Arc::clone(&self);
            let grown = tokio::task::spawn_blocking(move || node.host.changes.grow()).await;
            if grown.is_ok_and(|is_enough| !is_enough) {
                // If that does not suffice, starts fail by name.
                self.give_up_kept(0);
            }
        }
    }

    /// Fails if there is too little room for one more sandbox, template or fork.
    pub(super) async fn check_room(self: &Arc<Self>) -> Result<()> {
        if self.host.changes.has_room() {
            return Ok(());
        }
        let node = Arc::clone(self);
        tokio::task::spawn_blocking(move || node.host.changes.make_room()).await.doing("look for room")?
    }

    /// Ends a zygote.
    pub(super) async fn drop_zygote(&self, zygote: ZygoteId) {
        let Ok(keeper) = self.keepers.get(DropZygote::ACTION).await else { return };
        if let Err(error) = keeper.call(DropZygote { zygote }, []).await {
            tracing::warn!(%zygote, error = chain(&error), "it could not be dropped");
        }
    }
}

/// A pause, fork or checkpoint that was cut off has left it frozen.
async fn thaw(keeper: &KeeperClient, id: SandboxId) {
    if let Err(error) = keeper.call(Thaw { sandbox: id.clone() }, []).await {
        tracing::error!(sandbox = %id, error = chain(&error), "it may stand still");
    }
}

/// Resolves when the node is to stop; also when nobody is left who could say so.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// A keeper process.
struct Running {
    child: Child,
    client: Arc<KeeperClient>,
    events: mpsc::UnboundedReceiver<Event>,
}
