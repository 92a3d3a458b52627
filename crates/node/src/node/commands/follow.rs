//! What the node does about commands in the background: time limits, groups of commands that have ended, and what an
//! earlier node left.
//!
//! ```text
//! a node begins   foreground commands of the earlier one end; groups that nothing holds end; time limits go on
//! a command ends  what it left behind joins the sandbox's group; its own group goes
//! both processes
//! of the holder
//! die             the groups of their commands end: nothing reads their output any more
//! ```

use std::{collections::HashSet, fs, path::PathBuf, sync::Arc, time::Duration};

use base::id::SandboxId;
use holder::{Entry, Reason};
use sandbox::monotonic_ns;

use super::{group, is_absent};
use crate::node::Node;

/// Pause before a holder that gives no answer is asked again.
const RETRY: Duration = Duration::from_millis(100);

/// Commands at the begin of a node.
pub(in crate::node) struct Earlier {
    entries: Vec<Entry>,
    unheld: Vec<PathBuf>,
}

impl Node {
    /// What an earlier node left. Before this node starts anything.
    pub(in crate::node) async fn earlier_commands(&self) -> Earlier {
        let entries = self.all_entries().await;
        let unheld = self.unheld_groups(&entries);
        Earlier { entries, unheld }
    }

    /// Never returns.
    pub(in crate::node) async fn follow_commands(self: Arc<Self>, earlier: Earlier) {
        let Earlier { entries, unheld } = earlier;
        for group in unheld {
            tokio::spawn(async move { group::end(&group).await });
        }
        for entry in entries {
            self.take_up(entry).await;
        }
        loop {
            let mut was_there = false;
            if let Ok(mut unsettled) = self.holder.client().watch().await {
                was_there = true;
                while let Some((key, sandbox)) = unsettled.next().await {
                    let (node, Ok(id)) = (Arc::clone(&self), sandbox.parse::<SandboxId>()) else { continue };
                    tokio::spawn(async move { node.settle_command(&id, &key).await });
                }
            }
            // It died. Its spare has all, or both died. The answer of a dying one is lost: it is asked for again before
            // anything is watched, or the commands that died with it would run on.
            let entries = self.all_entries().await;
            let unheld = if was_there { self.unheld_groups(&entries) } else { Vec::new() };
            for group in unheld {
                tracing::warn!(group = %group.display(), "nothing holds a command any more; it is ended");
                tokio::spawn(async move { group::end(&group).await });
            }
            if !self.holder.client().is_there().await {
                self.holder.started.notified().await;
            }
        }
    }

    /// Sees to a command of an earlier node.
    async fn take_up(self: &Arc<Self>, entry: Entry) {
        let here = entry.meta.sandbox.parse::<SandboxId>().ok().filter(|id| self.state().sandbox(id).is_ok());
        let Some(id) = here else {
            // Its sandbox was being removed.
            let _ = self.holder.client().forget_sandbox(&entry.meta.sandbox).await;
            return;
        };
        if entry.end.is_some() {
            // The watch names it, if there is anything to do.
        } else if entry.meta.foreground {
            let (node, key) = (Arc::clone(self), entry.meta.key);
            tokio::spawn(async move { node.end_command(&id, &key, Reason::ClientLeft).await });
        } else if let Some(deadline_ns) = entry.meta.deadline_ns {
            self.end_at(&id, &entry.meta.key, deadline_ns);
        }
    }

    async fn all_entries(&self) -> Vec<Entry> {
        loop {
            match self.holder.client().list(None).await {
                Ok(entries) => return entries,
                Err(error) if is_absent(&error) => return Vec::new(),
                Err(error) => {
                    tracing::warn!(error = crate::chain(&error), "the holder of commands gives no answer");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Groups of commands that neither the holder has nor this node is about to start.
    fn unheld_groups(&self, entries: &[Entry]) -> Vec<PathBuf> {
        let held: HashSet<&str> = entries.iter().map(|entry| entry.meta.key.as_str()).collect();
        let is_held = |name: &str| held.contains(name) || self.holder.is_starting(name);
        let below = |group: PathBuf| fs::read_dir(group).into_iter().flatten().flatten();
        let groups = self.ids_here().into_iter().flat_map(|id| below(self.group(&id)));
        let groups = groups.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.filter(|entry| !is_held(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
    }

    /// Ends a command when its time is up.
    pub(super) fn end_at(self: &Arc<Self>, id: &SandboxId, key: &str, deadline_ns: u64) {
        let (node, id, of) = (Arc::clone(self), id.clone(), key.to_owned());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns()))).await;
            // Of its own: the end of the command ends the timer, not what is done at its time.
            tokio::spawn(async move { node.end_command(&id, &of, Reason::TimedOut).await });
        });
        self.holder.set_timer(key, timer.abort_handle());
    }

    /// Ends a command that runs, with all that it has started.
    pub(in crate::node) async fn end_command(&self, id: &SandboxId, key: &str, reason: Reason) {
        let turn = self.holder.turn(key);
        let _turn = turn.lock().await;
        let group = self.group(id).join(key);
        if group.exists() {
            // One that is not held any more ends without a reason.
            let _ = self.holder.client().mark(key, reason).await;
            group::end(&group).await;
        }
    }

    /// The command has ended: see [`Self::leave_group`]. The holder names it no more.
    async fn settle_command(&self, id: &SandboxId, key: &str) {
        self.leave_group(id, key).await;
        // One that was forgotten needs none of it.
        let _ = self.holder.client().settle(key).await;
    }

    /// The command has ended: what it has left behind goes on in the sandbox, and its group goes.
    pub(super) async fn leave_group(&self, id: &SandboxId, key: &str) {
        self.holder.drop_timer(key);
        let turn = self.holder.turn(key);
        let _turn = turn.lock().await;
        let group = self.group(id).join(key);
        if group.exists() {
            group::remove(&group).await;
        }
    }

    /// Ends the commands that run in the foreground of clients.
    pub(in crate::node) async fn end_foreground(self: &Arc<Self>) {
        let entries = self.all_entries().await.into_iter();
        let mut ends = tokio::task::JoinSet::new();
        for entry in entries.filter(|entry| entry.meta.foreground && entry.end.is_none()) {
            let Ok(id) = entry.meta.sandbox.parse::<SandboxId>() else { continue };
            let node = Arc::clone(self);
            ends.spawn(async move { node.end_command(&id, &entry.meta.key, Reason::ClientLeft).await });
        }
        while ends.join_next().await.is_some() {}
    }
}
