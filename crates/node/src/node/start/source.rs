//! What starts of a request have in common, and what comes of one.

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc};

use base::id::{SandboxId, TemplateName, ZygoteId};
use keeper::{SpawnedCommand, protocol::Status};
use model::{Interpreter, Mount, NetworkPolicy, RunSpec, TemplateSpec};
use process::ZygoteFacts;
use sandbox::ProcessIdentity;
use tokio::sync::oneshot;

use crate::{
    node::{commands::CommandStreams, cut::Cut, volumes},
    state::{Startable, ZygoteRef},
};

/// What copies are forked from.
#[derive(Debug, Clone)]
pub(in crate::node) struct CopyOf {
    pub(in crate::node) zygote: ZygoteId,
    pub(in crate::node) engine: Arc<ZygoteFacts>,
    pub(in crate::node) interpreter: Interpreter,
}

impl CopyOf {
    pub(in crate::node) fn new(zygote: ZygoteRef, interpreter: Interpreter) -> Self {
        Self { zygote: zygote.number, engine: Arc::new(zygote.engine), interpreter }
    }
}

/// A copy that runs.
pub(in crate::node) struct Running {
    /// Its sandbox's program, and what resolves at its end.
    pub(in crate::node) program: Option<(ProcessIdentity, oneshot::Receiver<Status>)>,
    /// Its commands, to be held when its record is there.
    pub(in crate::node) commands: (CommandStreams, Vec<SpawnedCommand>),
    /// What holds it right before its program: it goes on when this is closed.
    pub(in crate::node) held: Option<OwnedFd>,
}

/// What all starts of one request have in common.
#[derive(Debug, Clone)]
pub(in crate::node) struct Source {
    pub(in crate::node) template: TemplateName,
    /// What they are started from, in each one's record from then on: the template may be removed or built anew.
    pub(in crate::node) spec: TemplateSpec,
    pub(in crate::node) parent: Option<SandboxId>,
    pub(in crate::node) layers: Vec<PathBuf>,
    pub(in crate::node) pages: Option<String>,
    pub(in crate::node) limits: model::Limits,
    /// What they are copies of; none: they have no program.
    pub(in crate::node) copies: Option<CopyOf>,
    /// Which all of them share.
    pub(in crate::node) volumes: Vec<Mount>,
    /// Directories that the start makes for them.
    pub(in crate::node) made: Vec<String>,
    /// What each copy has for itself, in the place of volumes that the original can write.
    pub(in crate::node) cut: Cut,
    /// The room that a control plane has reserved for them.
    pub(in crate::node) reservation: Option<String>,
    /// What they may reach.
    pub(in crate::node) network: NetworkPolicy,
}

impl Source {
    pub(in crate::node) fn of_template(startable: Startable, request: &RunSpec) -> Self {
        let Startable { record, zygote } = startable;
        let interpreter = request.interpreter;
        let copies = zygote.map(|zygote| CopyOf::new(zygote, interpreter));
        Self {
            layers: record.layers(),
            pages: record.pages,
            cut: Cut::kept(&record.volumes, &request.volumes),
            template: record.spec.name.clone(),
            made: volumes::undeclared(&record.spec.mount_points, &request.volumes),
            parent: None,
            limits: record.spec.limits.clone(),
            spec: record.spec,
            copies,
            volumes: request.volumes.clone(),
            reservation: request.reservation.clone(),
            network: request.network.clone(),
        }
    }

    /// Whether something runs in each copy before it goes on in its program.
    pub(super) fn runs_on_fork(&self) -> bool {
        self.copies.is_some() && !self.spec.on_fork.is_empty()
    }

    /// The zygote whose copies forked ahead will do.
    pub(super) fn parked(&self) -> Option<ZygoteId> {
        self.copies.as_ref().filter(|of| of.interpreter == Interpreter::InProcess).map(|of| of.zygote)
    }
}
