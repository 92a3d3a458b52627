//! Leftovers of a killed server: rows without a volume, volumes of copies without a row. They are swept before requests are taken.

use std::{collections::BTreeSet, sync::Arc};

use base::{id::VolumeName, limits::RESERVATION_MAX};
use control::Volume;

use super::is_absent;
use crate::e2b::{failed::Result, platform::Platform};

/// Before the random part of the names that the server gives volumes.
const PREFIX: &str = "vol-";
/// Digits of that part.
const DIGITS: usize = 12;

impl Platform {
    /// Brings rows and volumes in line. A store or database that does not answer changes nothing.
    pub(crate) async fn sweep_volumes(self: &Arc<Self>) {
        if let Err(failed) = self.try_to_sweep_volumes().await {
            tracing::warn!(error = failed.body().message, "leftovers of volumes stay until the server starts again");
        }
    }

    async fn try_to_sweep_volumes(self: &Arc<Self>) -> Result<()> {
        // In this order: a row is there before its volume, and goes after it.
        let stored = self.node.volumes_named(PREFIX).await?;
        let rows = self.control.volumes().all().await?;
        let known: BTreeSet<&VolumeName> = rows.iter().map(|row| &row.node_volume).collect();
        for (name, volume) in stored.iter().filter(|(name, _)| !known.contains(name)) {
            if self.is_left(name, &known) {
                tracing::info!(volume = %name, "a copy's volume that no team has is removed");
                self.sweep_volume(name, volume.present).await?;
            } else if Owner::of(name) != Owner::Other {
                tracing::warn!(volume = %name, "no team has this volume; `pando volume rm` removes it");
            }
        }
        let is_there = |row: &&Volume| stored.get(&row.node_volume).is_some_and(|volume| volume.present);
        for row in rows.iter().filter(|row| !is_there(row)) {
            // Another server may be making it.
            if self.shares() && self.control.now().since(row.created) < RESERVATION_MAX {
                continue;
            }
            tracing::info!(volume = %row.node_volume, name = row.name, "the row of a volume that is gone is removed");
            self.sweep_volume(&row.node_volume, false).await?;
            self.control.volumes().delete(&row.team, &row.id).await?;
        }
        Ok(())
    }

    /// Whether a volume that no team has was left by a start that broke off. Only copies have a volume before its row. Of
    /// others, rather the database is lost or older than the store: their content must stay.
    fn is_left(&self, name: &VolumeName, known: &BTreeSet<&VolumeName>) -> bool {
        let Owner::Copy { original, sandbox } = Owner::of(name) else { return false };
        let has_row = known.iter().any(|known| known.as_str() == original);
        // The copy's server notes it after the copy runs.
        has_row && !self.shares() && self.node.sandboxes().iter().all(|found| found.id.as_str() != sandbox)
    }

    async fn sweep_volume(&self, name: &VolumeName, present: bool) -> Result<()> {
        if present {
            match self.node.volumes().remove(name).await {
                Err(error) if !is_absent(&error) => {
                    // It is in use: then it is not ours.
                    tracing::warn!(volume = %name, error = node::chain(&error), "a volume that no team has stays");
                    return Ok(());
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(self.remove_snapshots(name).await?)
    }
}

/// Who gave a volume its name.
#[derive(Debug, PartialEq, Eq)]
enum Owner<'a> {
    /// This server, for a team.
    Server,
    /// The node, for a copy of a sandbox with such a volume.
    Copy { original: &'a str, sandbox: &'a str },
    /// A user of the node.
    Other,
}

impl<'a> Owner<'a> {
    fn of(name: &'a VolumeName) -> Self {
        let Some(rest) = name.as_str().strip_prefix(PREFIX) else { return Self::Other };
        let digits = rest.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).count();
        match (digits, rest.get(DIGITS..)) {
            (DIGITS, Some("")) => Self::Server,
            (DIGITS, Some(copy)) if copy.starts_with("-s") => match name.as_str().rsplit_once('-') {
                Some((original, sandbox)) => Self::Copy { original, sandbox },
                None => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_server_are_its_own() {
        let of = |name: &str| -> String { format!("{:?}", Owner::of(&name.parse().unwrap())) };
        let copy = |original, sandbox| format!("{:?}", Owner::Copy { original, sandbox });
        assert_eq!(of("vol-0123456789ab"), "Server");
        assert_eq!(of("vol-0123456789ab-sba9876543210"), copy("vol-0123456789ab", "sba9876543210"));
        assert_eq!(
            of("vol-0123456789ab-sba9876543210-s000000000000"),
            copy("vol-0123456789ab-sba9876543210", "s000000000000")
        );
        for other in ["ws", "vol-ws", "vol-0123456789", "vol-0123456789abc", "vol-0123456789ab-mine", "volume-1"] {
            assert_eq!(of(other), "Other", "{other}");
        }
    }
}
