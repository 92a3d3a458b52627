//! What snapshots have in the store and on the node, and how it goes with them.
//!
//! ```text
//! taken:   note -> checkpoint -> row -> no note
//! removed: row gone -> note -> checkpoint gone, template gone -> no note
//! ```
//!
//! A note is an empty file in the state directory. A server that is killed leaves it, and the next one removes what it
//! names if no row has it. Nothing else is ever removed: a snapshot without row and note is rather of a database that
//! is lost or older than the store.

use std::{collections::BTreeSet, fs, io, path::PathBuf, time::Duration};

use base::id::TemplateName;
use control::{Build, ControlError};
use node::Error;

use crate::e2b::{
    failed::{Failed, Result},
    platform::Platform,
};

/// How the node's names for snapshots begin.
pub(crate) const PREFIX: &str = "snapshot-";
/// Random bytes of such a name, which has two digits for each.
const RANDOM: usize = 8;

/// How often it is looked for what the node has of removed snapshots.
const UNUSED_PAUSE: Duration = Duration::from_secs(60);

/// The directory of the notes, in the node's state.
const NOTES: &str = "snapshots";

/// A new name for the node.
pub(crate) fn new_name() -> Result<TemplateName> {
    let mut bytes = [0; RANDOM];
    base::id::fill_random(&mut bytes);
    let name = format!("{PREFIX}{}", base::id::hex(&bytes));
    name.parse().map_err(|_| Failed::invalid("the snapshot has no name"))
}

/// Whether the server may have given a snapshot this name.
fn is_name(name: &TemplateName) -> bool {
    let digits = name.as_str().strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 2 * RANDOM && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The notes of this server.
pub(crate) struct Notes(PathBuf);

impl Notes {
    pub(crate) fn within(state_dir: &std::path::Path) -> Self {
        Self(state_dir.join(NOTES))
    }

    fn add(&self, name: &TemplateName) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        fs::write(self.0.join(name.as_str()), "")
    }

    fn remove(&self, name: &TemplateName) {
        // One that stays names nothing any more, or something with a row.
        if let Err(error) = fs::remove_file(self.0.join(name.as_str()))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%name, %error, "the note of a snapshot stays");
        }
    }

    fn all(&self) -> io::Result<Vec<TemplateName>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_str().and_then(|name| name.parse().ok())));
        let names: Vec<Option<TemplateName>> = names.collect::<io::Result<_>>()?;
        Ok(names.into_iter().flatten().filter(is_name).collect())
    }
}

impl Platform {
    /// Notes that there may be a snapshot of this name without a row.
    pub(crate) fn note_snapshot(&self, name: &TemplateName) -> Result<()> {
        self.notes.add(name).map_err(|error| {
            tracing::error!(%name, %error, "a snapshot cannot be noted");
            Failed::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "the snapshot cannot be noted: see the log")
        })
    }

    /// Removes the note: there is a row.
    pub(crate) fn snapshot_has_row(&self, name: &TemplateName) {
        self.notes.remove(name);
    }

    /// Removes what builds were made of that are gone. Templates of the node stay: they are the operator's.
    pub(crate) async fn remove_sources(&self, builds: Vec<Build>) {
        let sources = builds.iter().filter_map(|build| build.source.parse().ok());
        let names: Vec<TemplateName> = sources.filter(is_name).collect();
        for name in &names {
            if let Err(error) = self.notes.add(name) {
                tracing::warn!(%name, %error, "a removed snapshot cannot be noted");
            }
        }
        self.remove_rowless(&names).await;
    }

    /// Removes those of these snapshots that no row has. What fails is tried again when the server starts.
    pub(crate) async fn remove_rowless(&self, names: &[TemplateName]) {
        if names.is_empty() {
            return;
        }
        let rows = match self.control.templates().sources(PREFIX).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(error = node::chain(&error), "removed snapshots stay until the server starts again");
                return;
            }
        };
        for name in names {
            if rows.contains(name.as_str()) {
                self.notes.remove(name);
                continue;
            }
            match self.node.remove_checkpoint(name).await {
                Ok(()) | Err(Error::NoCheckpoint(_)) => self.notes.remove(name),
                Err(error) => {
                    tracing::warn!(%name, error = node::chain(&error), "a snapshot stays until the next start");
                }
            }
            // Sandboxes of it run on, and then this waits for their ends: see `drop_unused`.
            let _ = self.node.remove_template(name).await;
        }
    }

    /// Removes what a killed server has left of snapshots. A store or database that does not answer changes nothing.
    pub(crate) async fn sweep_snapshots(&self) {
        if let Err(failed) = self.try_to_sweep_snapshots().await {
            tracing::warn!(error = failed.body().message, "leftovers of snapshots stay until the server starts again");
        }
    }

    async fn try_to_sweep_snapshots(&self) -> Result<()> {
        if self.shares() {
            // Rows and snapshots of other servers come and go meanwhile.
            return Ok(());
        }
        let noted = self.notes.all().map_err(|error| Failed::invalid(format!("cannot read the notes: {error}")))?;
        // In this order: a row is there after its snapshot, and goes before it.
        let stored = self.node.checkpoints_named(PREFIX).await?;
        let rows = self.control.templates().sources(PREFIX).await?;
        let rowless = |name: &&TemplateName| is_name(name) && !rows.contains(name.as_str());
        for name in stored.iter().filter(rowless) {
            if noted.contains(name) {
                tracing::info!(%name, "a snapshot that no team has is removed");
            } else {
                tracing::warn!(%name, "no team has this snapshot; `pando checkpoint rm` removes it");
            }
        }
        self.remove_rowless(&noted).await;
        Ok(())
    }

    /// Removes what the node has restored of snapshots that no team has any more, once their sandboxes are gone. Never
    /// ends.
    pub(crate) async fn drop_unused(&self) {
        loop {
            if let Err(error) = self.drop_unused_now().await {
                tracing::warn!(error = node::chain(&error), "templates of removed snapshots stay for now");
            }
            tokio::time::sleep(UNUSED_PAUSE).await;
        }
    }

    async fn drop_unused_now(&self) -> std::result::Result<(), ControlError> {
        let unused = self.node.restored_templates().into_iter().filter(|template| template.sandboxes == 0);
        let unused: Vec<TemplateName> = unused.map(|template| template.name).filter(is_name).collect();
        if unused.is_empty() {
            return Ok(());
        }
        // A build has made what has a note, and its row comes.
        let Ok(noted) = self.notes.all() else { return Ok(()) };
        // After the lists: a snapshot has its row before anything is started from it.
        let named: BTreeSet<String> = self.control.templates().sources(PREFIX).await?;
        let is_unused = |name: &&TemplateName| !named.contains(name.as_str()) && !noted.contains(name);
        for name in unused.iter().filter(is_unused) {
            if let Err(error) = self.node.remove_template(name).await {
                tracing::debug!(%name, error = node::chain(&error), "it is in use again");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_server_are_its_own() {
        let is_own = |name: &str| is_name(&name.parse().unwrap());
        assert!(is_name(&new_name().unwrap()) && is_own("snapshot-0123456789abcdef"));
        for other in ["snapshot", "snapshot-mine", "snapshot-0123456789abcde", "snapshot-0123456789abcdef0", "base"] {
            assert!(!is_own(other), "{other}");
        }
    }
}
