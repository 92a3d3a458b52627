//! Layers of builds, by what has led to them.
//!
//! ```text
//! BUILDS/ID/layer    the changes of a step
//! BUILDS/ID/bytes    how many bytes were copied
//! BUILDS/KEY.step    the ID that a step has come to; its time is that of the last use
//! BUILDS/KEY.made    the name of the checkpoint that a whole recipe has come to
//! ```
//!
//! The key of a step is made of the ID of the layer below it and of what the step does. So a layer is only ever found above the layer that it was
//! made on. An ID is random, and its layer never changes.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use base::{
    id::TemplateName,
    limits::{BUILD_LAYERS_BYTES_KEPT_MAX, BUILD_LAYERS_KEPT_MAX, BUILD_RESULTS_KEPT_MAX, BUILD_ROOM_MIN},
};
use model::{Action, TemplateSpec};

use crate::{
    error::{Context as _, Error, Result},
    node::{
        Node,
        images::{random_suffix, remove_quietly},
        layers::Pinned,
    },
};

const LAYER: &str = "layer";
const BYTES: &str = "bytes";
const STEP: &str = "step";
const MADE: &str = "made";

/// What has led to a layer.
#[derive(Debug, Clone)]
pub(super) struct Key(blake3::Hash);

impl Key {
    /// Of what a recipe begins with. Users, directories and variables change what a step does.
    pub(super) fn of_origin(scope: &str, identity: &str, spec: &TemplateSpec) -> Self {
        let said = format!("{:?} {:?} {:?}", spec.user, spec.cwd, spec.env);
        Self::of(&["origin", scope, identity, &said])
    }

    /// Above a layer: that of this step, and no other of the same text.
    pub(super) fn above(&self, id: &str) -> Self {
        Self::of(&[self.0.to_hex().as_str(), "above", id])
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
        let (user, startup, on_fork) = (&spec.user, &spec.startup, &spec.on_fork);
        let said = format!(
            "{image:?} {env:?} {cwd:?} {ready:?} {ready_timeout_ms} {limits:?} {user:?} {startup:?} {on_fork:?}"
        );
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

/// A layer that stays as long as this lives.
pub(super) struct KeptLayer {
    pub(super) path: PathBuf,
    pub(super) id: String,
    pub(super) pinned: Pinned,
}

impl Node {
    fn build_file(&self, key: &Key, kind: &str) -> PathBuf {
        self.host.config.builds_dir().join(key.0.to_hex().as_str()).with_extension(kind)
    }

    /// Keeps the layer of this ID, if there is one.
    fn pin_build_layer(self: &Arc<Self>, id: &str) -> Option<KeptLayer> {
        let path = self.host.config.builds_dir().join(id).join(LAYER);
        // First: what is pinned is not removed from then on.
        let pinned = self.pin(vec![path.clone()]);
        path.is_dir().then(|| KeptLayer { path, id: id.to_owned(), pinned })
    }

    /// The layer of an earlier build.
    pub(super) fn kept_layer(self: &Arc<Self>, key: &Key) -> Option<KeptLayer> {
        let file = self.build_file(key, STEP);
        let kept = self.pin_build_layer(fs::read_to_string(&file).ok()?.trim())?;
        touch(&file);
        Some(kept)
    }

    /// Where a layer is copied to, and its ID. Whole, or not there: see [`Self::keep_layer`].
    pub(super) fn new_layer(&self) -> io::Result<(sys::tree::Partial, String)> {
        let id = format!("{}{}", random_suffix(), random_suffix());
        fs::create_dir_all(self.host.config.builds_dir())?;
        Ok((sys::tree::Partial::create(&self.host.config.builds_dir().join(&id))?, id))
    }

    /// Where in that directory.
    pub(super) fn within_new(new: &sys::tree::Partial) -> PathBuf {
        new.path().join(LAYER)
    }

    /// A layer of so many bytes is copied. It has its name from here on, also after a crash of the host. Blocks.
    pub(super) fn keep_layer(
        self: &Arc<Self>,
        key: &Key,
        (new, id): (sys::tree::Partial, &str),
        bytes: u64,
    ) -> io::Result<KeptLayer> {
        fs::write(new.path().join(BYTES), bytes.to_string())?;
        // Before it has its name: after that it could be removed.
        let pinned = self.pin(vec![self.host.config.builds_dir().join(id).join(LAYER)]);
        new.complete_durably()?;
        let kept = KeptLayer { path: self.host.config.builds_dir().join(id).join(LAYER), id: id.to_owned(), pinned };
        replace(&self.build_file(key, STEP), id)?;
        Ok(kept)
    }

    /// Fails if others need the room that is left on the disk.
    pub(super) fn check_build_room(&self) -> Result<()> {
        let path = self.host.config.state_dir.clone();
        let free = sys::file::room_at(&path).at("look at the room in", &path)?;
        if free >= BUILD_ROOM_MIN { Ok(()) } else { Err(Error::NoRoom { path, free }) }
    }

    /// What an earlier build of the same has come to.
    pub(super) fn kept_result(&self, key: &Key) -> Option<TemplateName> {
        let file = self.build_file(key, MADE);
        let name = fs::read_to_string(&file).ok()?.parse().ok()?;
        touch(&file);
        Some(name)
    }

    pub(super) fn keep_result(&self, key: &Key, name: &TemplateName) {
        // Without it the next build stores the same once more.
        if let Err(error) = replace(&self.build_file(key, MADE), name.as_str()) {
            tracing::warn!(%error, "what a build has come to is not remembered");
        }
    }

    /// Removes layers of builds that nothing stands on, but for the last used ones; and what a killed node was copying, if `is_begin`.
    pub(in crate::node) async fn trim_builds(self: &Arc<Self>, is_begin: bool) {
        let builds = self.host.config.builds_dir();
        let (mut used, mut layers, mut partial) = (Vec::new(), Vec::new(), Vec::new());
        for entry in fs::read_dir(&builds).into_iter().flatten().flatten() {
            let path = entry.path();
            let modified = entry.metadata().and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension() {
                None => layers.push((modified, path)),
                Some(kind) if kind == STEP || kind == MADE => used.push((modified, path)),
                Some(_) => partial.push((modified, path)),
            }
        }
        used.sort();
        let old = used.len().saturating_sub(BUILD_RESULTS_KEPT_MAX);
        used.drain(..old).for_each(|(_, path)| drop(fs::remove_file(path)));
        // A layer is as new as its last use.
        for (modified, file) in &used {
            let id = fs::read_to_string(file).unwrap_or_default();
            if let Some(layer) = layers.iter_mut().find(|(_, path)| path.ends_with(id.trim())) {
                layer.0 = layer.0.max(*modified);
            }
        }
        layers.sort();
        let (mut count, mut bytes) = (0, 0);
        for (_, path) in layers.iter().rev() {
            if self.state().uses_layer(&path.join(LAYER)) {
                continue;
            }
            let size = fs::read_to_string(path.join(BYTES)).ok().and_then(|text| text.trim().parse::<u64>().ok());
            (count, bytes) = (count + 1, bytes + size.unwrap_or(0));
            if count > BUILD_LAYERS_KEPT_MAX || bytes > BUILD_LAYERS_BYTES_KEPT_MAX {
                self.remove_build_layer(path).await;
            }
        }
        let began = SystemTime::now().checked_sub(self.host.began.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        for (_, path) in partial.iter().filter(|(modified, _)| is_begin && *modified < began) {
            match path.is_dir() {
                true => remove_quietly(path).await,
                false => drop(fs::remove_file(path)),
            }
        }
    }

    /// Unless something stands on it. It loses its name while nothing can begin to.
    async fn remove_build_layer(&self, directory: &Path) {
        let aside = directory.with_extension("partial");
        {
            let state = self.state();
            if state.uses_layer(&directory.join(LAYER)) || fs::rename(directory, &aside).is_err() {
                return;
            }
        }
        remove_quietly(&aside).await;
    }
}

/// Only which one goes first depends on it.
fn touch(file: &Path) {
    let _ = File::open(file).and_then(|opened| opened.set_modified(SystemTime::now()));
}

/// Writes a small file, whole or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension(random_suffix());
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use model::{Image, Limits, Ready};

    use super::*;

    fn spec() -> TemplateSpec {
        TemplateSpec {
            name: "a".parse().unwrap(),
            image: Image::Host,
            command: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            ready: Ready::Listening,
            ready_timeout_ms: 1,
            limits: Limits::default(),
            mount_points: Vec::new(),
            user: None,
            startup: Vec::new(),
            on_fork: Vec::new(),
        }
    }

    #[test]
    fn keys_tell_apart_what_leads_to_other_files() {
        let spec = TemplateSpec { user: None, ..spec() };
        let origin = Key::of_origin("team", "image", &spec);
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
            Key::of_origin("other", "image", &spec),
            Key::of_origin("team", "image", &TemplateSpec { user: Some("root".into()), ..spec.clone() }),
            origin.above("1"),
            origin.above("2"),
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
