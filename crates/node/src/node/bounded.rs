//! Processes of the node's own whose memory is bounded: the pager's and those of volumes.

use std::fs::File;

use sandbox::{Cgroups, Service};

use crate::error::chain;

/// The `cgroup.procs` of a service's group. Where its memory cannot be bounded it works all the same: sandboxes depend on it.
pub(super) fn group(cgroups: &Cgroups, service: Service, bytes: u64) -> Option<File> {
    match cgroups.service_group(service, bytes) {
        Ok(group) => group,
        Err(error) => {
            tracing::warn!(error = chain(&error), ?service, "its memory is not bounded");
            None
        }
    }
}
