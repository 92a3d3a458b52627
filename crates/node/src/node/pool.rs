//! In the background: filling the pool of blank sandboxes, and binding the limits of started ones. Never in the way of a start.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::id::{TemplateName, ZygoteId};
use keeper::protocol::{BindLimits, Call};
use tokio::sync::watch;

use super::{Node, supervisor::stopped};
use crate::{error::chain, state::Blank};

/// How long all starts must have ended before limits are bound: on cgroup v1 that stalls every fork for milliseconds.
const LIMITS_DELAY: Duration = Duration::from_millis(50);

/// How long a node that never rests may put off binding limits.
const LIMITS_DELAY_MAX: Duration = Duration::from_secs(1);

/// How long the pool waits after a start, unless it is low: first the new sandboxes have the processors for themselves.
const POOL_DELAY: Duration = Duration::from_millis(20);

/// How long the pool rests after a failure, so that a host in trouble is not asked again and again.
const FAILURE_REST: Duration = Duration::from_secs(5);

impl Node {
    /// Keeps the pool full. Returns when the node is to stop, but finishes what it has begun: nobody else knows of it.
    pub(super) async fn fill_pool(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.ledger.pool_work.notified() => {}
                () = stopped(&mut stop) => return,
            }
            let low = self.state().pool_is_low();
            if !low {
                tokio::time::sleep(POOL_DELAY).await;
            }
            while !*stop.borrow() {
                // Statements of their own: the lock must not live across the awaits.
                let surplus = self.state().take_surplus();
                if let Some(blank) = surplus {
                    self.discard(blank.id).await;
                    continue;
                }
                let wanted = self.state().wants_blank();
                let Some(record) = wanted else {
                    let unparked = self.state().take_unparked();
                    if let Some((name, blank, zygote)) = unparked {
                        self.fork_ahead(name, blank, zygote, &mut stop).await;
                    } else if self.state().wants_bare() {
                        self.fill_bare(&mut stop).await;
                    } else {
                        break;
                    }
                    continue;
                };
                let layers = record.layers();
                let pinned = self.pin(layers.clone());
                let created = self.create_blank(&layers, &record.spec.limits).await;
                let unwanted = match created {
                    Ok(blank) => self.state().put_blank(&record.spec.name, blank),
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "the pool cannot be filled");
                        rest(&mut stop).await;
                        None
                    }
                };
                if let Some(blank) = unwanted {
                    self.discard(blank.id).await;
                }
                pinned.unpin().await;
            }
        }
    }

    async fn fill_bare(self: &Arc<Self>, stop: &mut watch::Receiver<bool>) {
        match self.create_bare().await {
            Ok(bare) => self.state().put_bare(bare),
            Err(error) => {
                tracing::warn!(error = chain(&error), "the pool cannot be filled");
                rest(stop).await;
            }
        }
    }

    async fn fork_ahead(
        self: &Arc<Self>,
        name: TemplateName,
        mut blank: Blank,
        zygote: ZygoteId,
        stop: &mut watch::Receiver<bool>,
    ) {
        let engine = self.state().engine_of(&name, zygote);
        let parked = match &engine {
            Some(engine) => self.park(&mut blank, zygote, engine).await,
            // It was replaced or lost in this moment.
            None => Ok(()),
        };
        if let Err(error) = parked {
            // Something of it may be left in the sandbox.
            tracing::warn!(template = %name, error = chain(&error), "no copy could be forked ahead");
            self.discard(blank.id).await;
            rest(stop).await;
            return;
        }
        let unwanted = self.state().put_blank(&name, blank);
        if let Some(blank) = unwanted {
            self.discard(blank.id).await;
        }
    }

    /// Binds limits some time after the last start, or exec. Never returns.
    pub(super) async fn bind_limits(self: Arc<Self>) {
        loop {
            self.ledger.limits_work.notified().await;
            let due = Instant::now();
            loop {
                tokio::time::sleep(LIMITS_DELAY).await;
                let quiet = self.state().is_quiet();
                if quiet || due.elapsed() > LIMITS_DELAY_MAX {
                    break;
                }
            }
            let ids = self.state().take_unbound();
            for id in ids {
                self.bind_limits_of(id).await;
            }
        }
    }

    /// One at a time: a start that comes meanwhile waits for one sandbox at most.
    pub(super) async fn bind_limits_of(&self, id: base::id::SandboxId) {
        let Ok(keeper) = self.keepers.get(BindLimits::ACTION).await else { return };
        if let Err(error) = keeper.call(BindLimits { sandboxes: vec![id.clone()] }, []).await {
            tracing::warn!(sandbox = %id, error = chain(&error), "limits could not be bound");
        }
    }
}

/// After a failure.
async fn rest(stop: &mut watch::Receiver<bool>) {
    // In vain: the node stops.
    let _ = tokio::time::timeout(FAILURE_REST, stopped(stop)).await;
}
