//! Layers of builds, by what has led to them.
//!
//! ```text
//! BUILDS/KEY/layer   a step's changes; its time is that of the last use
//! BUILDS/KEY.made    the name of the checkpoint that a whole recipe has come to
//! BUILDS/new-...     being copied
//! ```

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use base::{
    id::TemplateName,
    limits::{BUILD_LAYERS_KEPT_MAX, BUILD_RESULTS_KEPT_MAX},
};
use model::{Action, TemplateSpec};

use crate::node::{Node, images::remove_quietly};

const LAYER: &str = "layer";
const MADE: &str = "made";
const NEW: &str = "new-";

/// What has led to a layer.
#[derive(Debug, Clone)]
pub(super) struct Key(blake3::Hash);

impl Key {
    pub(super) fn of_origin(scope: &str, identity: &str) -> Self {
        Self::of(&["origin", scope, identity])
    }

    /// After one step more.
    pub(super) fn then(&self, action: &Action) -> Self {
        let before = self.0.to_hex();
        let with = |parts: &[&str]| Self::of(&[&[before.as_str()], parts].concat());
        match action {
            Action::Run { command, user, env } => {
                let flat = env.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
                let begin = ["run", command, user.as_deref().unwrap_or_default()];
                with(&begin.into_iter().chain(flat).collect::<Vec<_>>())
            }
            Action::Copy { archive: _, key, source, target, owner, mode } => {
                let mode = mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
                with(&["copy", key, source, target, owner.as_deref().unwrap_or_default(), &mode])
            }
            Action::Env(variables) => {
                let flat = variables.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
                with(&["env"].into_iter().chain(flat).collect::<Vec<_>>())
            }
            Action::Directory(path) => with(&["directory", path]),
            Action::User(user) => with(&["user", user]),
        }
    }

    /// Of all that a recipe comes to, if its sandboxes are as `spec` says.
    pub(super) fn result(&self, spec: &TemplateSpec) -> Self {
        let TemplateSpec { name: _, image, command: _, env, cwd, ready, ready_timeout_ms, limits, .. } = spec;
        let (user, startup) = (&spec.user, &spec.startup);
        let said = format!("{image:?} {env:?} {cwd:?} {ready:?} {ready_timeout_ms} {limits:?} {user:?} {startup:?}");
        Self::of(&[self.0.to_hex().as_str(), "result", &said])
    }

    /// Lengths keep parts apart.
    fn of(parts: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Self(hasher.finalize())
    }
}

impl Node {
    fn build_dir(&self, key: &Key) -> PathBuf {
        self.host.config.builds_dir().join(key.0.to_hex().as_str())
    }

    /// The layer of an earlier build.
    pub(super) fn kept_layer(&self, key: &Key) -> Option<PathBuf> {
        let directory = self.build_dir(key);
        let layer = directory.join(LAYER);
        if !layer.is_dir() {
            return None;
        }
        // Only which one goes first depends on it.
        let _ = File::open(&directory).and_then(|opened| opened.set_modified(SystemTime::now()));
        Some(layer)
    }

    /// Where a layer is copied to, before [`Self::keep_layer`].
    pub(super) fn new_layer(&self) -> std::io::Result<PathBuf> {
        let builds = self.host.config.builds_dir();
        let suffix = crate::node::images::random_suffix();
        let directory = builds.join(format!("{NEW}{suffix}"));
        fs::create_dir_all(&directory)?;
        Ok(directory.join(LAYER))
    }

    /// Gives a layer its place. Of two builds that have made the same, the first one's stays.
    pub(super) async fn keep_layer(&self, key: &Key, new: &Path) -> std::io::Result<PathBuf> {
        let directory = self.build_dir(key);
        let from = new.parent().unwrap_or(new);
        if directory.join(LAYER).is_dir() && !self.state().uses_layer(&directory.join(LAYER)) {
            // It was made once more because that was asked for.
            remove_quietly(&directory).await;
        }
        if directory.is_dir() {
            // Something stands on it.
            let aside = self.host.config.builds_dir().join(crate::node::images::random_suffix());
            fs::rename(from, &aside)?;
            return Ok(aside.join(LAYER));
        }
        fs::rename(from, &directory)?;
        Ok(directory.join(LAYER))
    }

    /// Removes copies that an earlier node was at.
    pub(super) async fn sweep_new_layers(&self) {
        let began = SystemTime::now().checked_sub(self.host.began.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        for entry in fs::read_dir(self.host.config.builds_dir()).into_iter().flatten().flatten() {
            let is_older = entry.metadata().and_then(|found| found.modified()).is_ok_and(|modified| modified < began);
            if is_older && entry.file_name().to_string_lossy().starts_with(NEW) {
                remove_quietly(&entry.path()).await;
            }
        }
    }

    fn result_file(&self, key: &Key) -> PathBuf {
        self.build_dir(key).with_extension(MADE)
    }

    /// What an earlier build of the same has come to.
    pub(super) fn kept_result(&self, key: &Key) -> Option<TemplateName> {
        fs::read_to_string(self.result_file(key)).ok()?.parse().ok()
    }

    pub(super) fn keep_result(&self, key: &Key, name: &TemplateName) {
        // Without it the next build stores the same once more.
        if let Err(error) = fs::write(self.result_file(key), name.as_str()) {
            tracing::warn!(%error, "what a build has come to is not remembered");
        }
    }

    /// Removes layers of builds that nothing stands on, but for the last used ones.
    pub(in crate::node) async fn trim_builds(self: &Arc<Self>) {
        let builds = self.host.config.builds_dir();
        let mut layers = Vec::new();
        let mut results = Vec::new();
        for entry in fs::read_dir(&builds).into_iter().flatten().flatten() {
            let modified = entry.metadata().and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                layers.push((modified, entry.path()));
            } else {
                results.push((modified, entry.path()));
            }
        }
        layers.sort();
        results.sort();
        let old = results.len().saturating_sub(BUILD_RESULTS_KEPT_MAX);
        results[..old].iter().for_each(|(_, path)| drop(fs::remove_file(path)));
        layers.retain(|(_, path)| !self.state().uses_layer(&path.join(LAYER)));
        let old = layers.len().saturating_sub(BUILD_LAYERS_KEPT_MAX);
        for (_, path) in &layers[..old] {
            remove_quietly(path).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_apart_what_leads_to_other_files() {
        let origin = Key::of_origin("team", "image");
        let run = |command: &str, user: Option<&str>| Action::Run {
            command: command.into(),
            user: user.map(Into::into),
            env: Vec::new(),
        };
        let copy = |key: &str| Action::Copy {
            archive: "/a".into(),
            key: key.into(),
            source: "s".into(),
            target: "t".into(),
            owner: None,
            mode: None,
        };
        let keys = [
            origin.clone(),
            Key::of_origin("other", "image"),
            origin.then(&run("x", None)),
            origin.then(&run("x", Some("root"))),
            origin.then(&run("y", None)),
            origin.then(&run("x", None)).then(&run("x", None)),
            origin.then(&copy("1")),
            origin.then(&copy("2")),
            origin.then(&Action::Env(vec![("a".into(), "b".into())])),
            origin.then(&Action::Env(vec![("ab".into(), String::new())])),
        ];
        let texts: std::collections::HashSet<_> = keys.iter().map(|key| key.0).collect();
        assert_eq!(texts.len(), keys.len());
        assert_eq!(origin.then(&copy("1")).0, origin.then(&copy("1")).0);
    }
}
