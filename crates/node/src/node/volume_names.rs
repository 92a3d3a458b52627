//! Which volumes there are, from the heads alone: no process of volumes is started for the answer.

use std::collections::BTreeMap;

use base::id::{SnapshotName, VolumeName};

use super::Node;
use crate::error::{Result, Storing};

/// What the heads have of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredVolume {
    /// It is there. If not, only snapshots of it are left.
    pub present: bool,
    /// Its snapshots.
    pub snapshots: Vec<SnapshotName>,
}

/// Where the heads of volumes are.
const HEADS: &str = "volumes/";

impl Node {
    /// All volumes whose names begin with `prefix`, on any node. Removed volumes that have snapshots are among them.
    pub async fn volumes_named(&self, prefix: &str) -> Result<BTreeMap<VolumeName, StoredVolume>> {
        let (prefix, realm) = (format!("{HEADS}{prefix}"), self.durable.store.realm());
        let (mut volumes, mut after) = (BTreeMap::<_, StoredVolume>::new(), None);
        loop {
            let heads = self.durable.heads.list(realm, &prefix, after.as_ref()).await.storing("list the volumes")?;
            let Some(last) = heads.last() else { return Ok(volumes) };
            after = Some(last.name.clone());
            for (name, part) in heads.iter().filter_map(|head| parse(head.name.as_str())) {
                let volume = volumes.entry(name).or_default();
                match part {
                    Part::Volume => volume.present = true,
                    Part::Snapshot(snapshot) => volume.snapshots.push(snapshot),
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Volume,
    Snapshot(SnapshotName),
}

/// What the name of a head says, if it is one of a volume.
fn parse(head: &str) -> Option<(VolumeName, Part)> {
    let (volume, part) = head.strip_prefix(HEADS)?.split_once('/')?;
    let part = match part.split_once('/') {
        None if part == "head" => Part::Volume,
        Some(("snapshots", snapshot)) => Part::Snapshot(snapshot.parse().ok()?),
        _ => return None,
    };
    Some((volume.parse().ok()?, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_volumes_and_snapshots_are_told_apart() {
        assert_eq!(parse("volumes/ws/head"), Some(("ws".parse().unwrap(), Part::Volume)));
        let snapshot = Part::Snapshot("then".parse().unwrap());
        assert_eq!(parse("volumes/ws/snapshots/then"), Some(("ws".parse().unwrap(), snapshot)));
        for other in ["checkpoint/ws/head", "volumes/ws", "volumes/ws/other", "volumes/ws/x/then", "volumes//head"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
