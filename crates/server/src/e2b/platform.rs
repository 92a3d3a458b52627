//! What all requests share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base::id::SandboxId;
use node::Node;

/// A node, and what is known of its sandboxes beyond it.
pub(crate) struct Platform {
    pub(crate) node: Arc<Node>,
    pub(crate) envd: envd::Service,
    known: Mutex<HashMap<SandboxId, Arc<Known>>>,
}

/// What is known of one sandbox.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) template: String,
    pub(crate) env: Vec<(String, String)>,
}

impl Platform {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node, envd: envd::service(Arc::default()), known: Mutex::default() }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
