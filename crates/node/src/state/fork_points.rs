//! What is remembered of forks: how the files were then, as long as two sandboxes are there that have gone different ways since.

use std::{collections::HashMap, path::PathBuf};

use base::id::SandboxId;

use super::State;
use crate::records::ForkPoint;

impl State {
    /// Forgets forks of sandboxes from which only one is there that descends, or that is it: nothing can be merged over them. Gives their layers, which
    /// others may use. Records on disk still name them: a node that starts comes to the same result.
    pub(super) fn drop_useless_fork_points(&mut self) -> Vec<PathBuf> {
        let mut lines: HashMap<SandboxId, usize> = HashMap::new();
        for point in self.sandboxes.values().flat_map(|record| &record.fork_points) {
            *lines.entry(point.of.clone()).or_default() += 1;
        }
        if lines.is_empty() {
            return Vec::new();
        }
        for id in self.sandboxes.keys() {
            lines.entry(id.clone()).and_modify(|lines| *lines += 1);
        }
        let is_useless = |point: &mut ForkPoint| lines[&point.of] < 2;
        let useless = self.sandboxes.values_mut().flat_map(|record| record.fork_points.extract_if(.., is_useless));
        useless.flat_map(|point| point.layers).collect()
    }
}
