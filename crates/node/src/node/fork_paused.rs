//! Forking a paused sandbox: copies start from what the store has of it, and it stays paused.
//!
//! ```text
//! head leased -> volumes cut -> layers, zygote restored (as for a resume) -> copies started -> all memory there -> no lease
//! ```

use std::{sync::Arc, time::Instant};

use base::id::SandboxId;
use checkpoint::Paused;
use model::{BuildTimings, ForkSpec, Forks, Interpreter};
use store::heads::{Head, Lease};

use super::{
    Node, cut,
    lifecycle::Operation,
    resume::{Ready, kept, mount},
    start::{CopyOf, InFlight, Source},
    store::LEASE,
};
use crate::error::{Error, Result, chain};

impl Node {
    /// Forks copies of a paused sandbox, whichever node has paused it.
    pub(super) async fn fork_paused(self: &Arc<Self>, id: &SandboxId, spec: &ForkSpec) -> Result<Forks> {
        let (node, of, began, spec) = (Arc::clone(self), id.clone(), Instant::now(), spec.clone());
        // Alone with it: its volumes do not change before they are cut.
        let fork = async move { node.fork_leased(&of, &spec, began).await };
        self.drive(id, Operation::ForkPaused, fork).await
    }

    async fn fork_leased(self: &Arc<Self>, id: &SandboxId, spec: &ForkSpec, began: Instant) -> Result<Forks> {
        let found = Paused::find_leased(&self.durable, id, &format!("fork {id}"), LEASE).await?;
        let Some((head, paused, lease)) = found else {
            let is_known = self.state().sandbox(id).is_ok();
            return Err(if is_known { Error::GoneFromStore(id.clone()) } else { Error::NoSandbox(id.clone()) });
        };
        let forked = match &paused.holder {
            Some(node) if *node != self.host.id => Err(Error::HeldElsewhere { id: id.clone(), node: node.clone() }),
            Some(_) | None => self.fork_stored(kept(paused, spec.keep), &head, spec, began).await,
        };
        let (forks, pages) = match forked {
            Ok((forks, pages)) => (Ok(forks), pages),
            Err(error) => (Err(error), None),
        };
        self.let_go_filled(lease, pages);
        forks
    }

    /// Starts the copies. Also: under which the pager knows their memory, if it arrives by fault.
    async fn fork_stored(
        self: &Arc<Self>,
        paused: Paused,
        head: &Head,
        spec: &ForkSpec,
        began: Instant,
    ) -> Result<(Forks, Option<String>)> {
        let mounts: Vec<_> = paused.volumes.iter().map(mount).collect();
        let cut = self.cut_at_rest(&paused.id, &mounts).await?;
        let in_flight = InFlight::new(self);
        let ready = self.restore_pinned(&paused, head, began).await;
        drop(in_flight);
        let forked = match ready {
            Ok((Ready { template, zygote }, pinned)) => {
                let build_us = zygote.as_ref().map_or(0, |zygote| zygote.facts.timings.build_us);
                let timings = BuildTimings { build_us, ..BuildTimings::default() };
                let number = zygote.as_ref().map(|zygote| zygote.number);
                let interpreter = Interpreter::InProcess;
                let copies = zygote.map(|zygote| CopyOf::new(zygote, interpreter));
                let source = Source {
                    template: paused.template().clone(),
                    spec: paused.spec().clone(),
                    parent: Some(paused.id.clone()),
                    layers: template.layers(),
                    pages: template.pages.clone(),
                    limits: paused.spec().limits.clone(),
                    copies,
                    volumes: cut::shared(&mounts),
                    // They are in its layers.
                    made: Vec::new(),
                    cut: cut.clone(),
                    reservation: spec.reservation.clone(),
                    network: paused.network.clone(),
                };
                let (sandboxes, failures) = self.start_many(&source, spec.count, Vec::new()).await;
                if let Some(number) = number {
                    self.drop_zygote(number).await;
                }
                pinned.unpin().await;
                let failures = failures.iter().map(Error::failure).collect();
                let total_us = began.elapsed().as_micros() as u64;
                let BuildTimings { pause_us, capture_us, build_us, .. } = timings;
                Ok((Forks { sandboxes, pause_us, capture_us, build_us, total_us, failures }, template.pages))
            }
            Err(error) => Err(error),
        };
        self.forget_cut(&cut).await;
        forked
    }

    /// In the background: what the copies lack of their memory is kept in the store until they have it.
    fn let_go_filled(self: &Arc<Self>, mut lease: Lease, pages: Option<String>) {
        let node = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(pages) = pages {
                while tokio::time::timeout(LEASE / 2, node.pager.wait_filled(&pages)).await.is_err() {
                    if let Err(error) = node.durable.heads.renew(&mut lease, LEASE).await {
                        tracing::warn!(pages, error = chain(&error), "memory of forks may be collected");
                    }
                }
            }
            node.let_go(lease).await;
        });
    }
}
