//! The layers that a capture adds to: what cannot be stacked any more is refused before anything is captured, not when it is to be started.

use base::id::SandboxId;
use sandbox::LAYERS_MAX;

use crate::{
    error::{Error, Forked, Result},
    records::SandboxRecord,
};

/// Whether copies of a sandbox, which have one layer more, can have a root filesystem.
pub(super) fn check(record: &SandboxRecord) -> Result<()> {
    check_count(&record.id, record.layers.len())
}

fn check_count(id: &SandboxId, layers: usize) -> Result<()> {
    if layers < LAYERS_MAX {
        return Ok(());
    }
    let reason = format!(
        "its files lie in {layers} layers, one for each fork, checkpoint or pause that it came through, and a root filesystem has {LAYERS_MAX} at most: \
         copy what it has to a new sandbox, or keep its files in a volume"
    );
    Err(Error::CannotFork { what: Forked::Sandbox(id.clone()), refusals: vec![reason] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_layer_that_can_be_stacked_is_no_reason_and_one_more_is() {
        let id = "s0123456789ab".parse().unwrap();
        check_count(&id, LAYERS_MAX - 1).unwrap();
        assert!(matches!(check_count(&id, LAYERS_MAX), Err(Error::CannotFork { .. })));
    }
}
