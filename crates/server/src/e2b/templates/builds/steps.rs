//! From the steps of a client to those of a recipe.

use std::{
    collections::{HashMap, hash_map::Entry},
    os::fd::AsRawFd,
};

use api::e2b::{BuildStep, RegistryLogin, StartBuild};
use base::{id::TeamId, limits::BUILD_STEPS_MAX};
use control::Build;
use model::{Action, Origin, Ready, Recipe, Step};
use node::Credentials;

use super::{
    super::limits,
    files::{Found, Hash},
};
use crate::e2b::{
    failed::{Failed, Result},
    platform::Platform,
};

/// The image that E2B's SDKs begin with if they are told none, and what it is here.
const BASE_IMAGE: &str = "e2bdev/base";
const BASE: &str = "base";

/// The user and the directory of builds from an image, as in E2B.
const USER: &str = "user";
const HOME: &str = "/home/user";

/// How long a start command may take to be ready, in milliseconds.
const READY_TIMEOUT_MS: u64 = 300_000;

/// A build as its client wants it.
pub(super) struct Asked {
    pub(super) recipe: Recipe,
    pub(super) credentials: Option<Credentials>,
    /// Archives of its `COPY` steps, which are open until it is over.
    pub(super) files: Vec<Found>,
}

impl Platform {
    pub(super) async fn recipe(
        self: &std::sync::Arc<Self>,
        team: &TeamId,
        build: &Build,
        request: StartBuild,
    ) -> Result<Asked> {
        let (image, template) = (text(request.from_image), text(request.from_template));
        let credentials = request.from_image_registry.map(credentials).transpose()?;
        let steps = request.steps.unwrap_or_default();
        let is_image = image.is_some();
        let from = match (image, template) {
            (Some(image), None) => self.image(team, &image).await?,
            (None, Some(template)) => Origin::Template(self.resolve(team, &template).await?.1),
            (None, None) | (Some(_), Some(_)) => {
                return Err(Failed::invalid("give one of fromImage and fromTemplate"));
            }
        };
        if steps.len() > BUILD_STEPS_MAX {
            return Err(Failed::invalid(format!("the build has {} steps, more than {BUILD_STEPS_MAX}", steps.len())));
        }
        let mut files = HashMap::new();
        let steps = steps.into_iter().enumerate();
        let steps = steps.map(|(index, step)| self.step(team, index + 1, step, &mut files)).collect::<Result<_>>()?;
        let (start, ready) = (text(request.start_cmd), text(request.ready_cmd));
        let startup = match (start, &ready) {
            (Some(start), _) => Some(start),
            // A step has left what gets ready.
            (None, Some(_)) => Some(":".to_owned()),
            (None, None) => None,
        };
        let ready = ready.unwrap_or_else(|| ":".to_owned());
        let recipe = Recipe {
            from,
            user: is_image.then(|| USER.to_owned()),
            cwd: is_image.then(|| HOME.to_owned()),
            steps,
            startup,
            on_fork: None,
            ready: Ready::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), ready]),
            ready_timeout_ms: READY_TIMEOUT_MS,
            limits: limits(&build.size),
            scope: team.to_string(),
            force: request.force == Some(true),
        };
        let files = files.into_values().collect();
        Ok(Asked { recipe, credentials, files })
    }

    async fn image(self: &std::sync::Arc<Self>, team: &TeamId, name: &str) -> Result<Origin> {
        let is_base = name == BASE_IMAGE || name.strip_prefix(BASE_IMAGE).is_some_and(|rest| rest.starts_with(':'));
        if is_base && self.node.kept_image(name).is_err() {
            return Ok(Origin::Template(self.resolve(team, BASE).await?.1));
        }
        if !model::is_image_name(name) {
            return Err(Failed::invalid(format!("{name:?} is no name of an image")));
        }
        Ok(Origin::Image(name.to_owned()))
    }

    fn step(&self, team: &TeamId, number: usize, step: BuildStep, files: &mut HashMap<String, Found>) -> Result<Step> {
        let BuildStep { kind, args, files_hash, force } = step;
        let wrong = |what: &str| Failed::invalid(format!("step {number} ({kind}): {what}"));
        let arg = |index: usize| args.get(index).filter(|arg| !arg.is_empty()).cloned();
        let needed = |index: usize, what: &str| arg(index).ok_or_else(|| wrong(&format!("it needs {what}")));
        let action = match kind.to_ascii_uppercase().as_str() {
            "RUN" => Action::Run { command: needed(0, "a command")?, user: arg(1), env: Vec::new() },
            "WORKDIR" => Action::Directory(needed(0, "a directory")?),
            "USER" => Action::User(needed(0, "a user")?),
            "ENV" => {
                if args.is_empty() || args.len() % 2 != 0 {
                    return Err(wrong("it needs names, each with a value"));
                }
                Action::Env(args.as_chunks().0.iter().map(|[name, value]| (name.clone(), value.clone())).collect())
            }
            "COPY" => {
                let hash = files_hash.ok_or_else(|| wrong("it needs filesHash"))?;
                let hash = Hash::parse(&hash).map_err(|_| wrong("its filesHash is no SHA-256 in hexadecimal"))?;
                let found = match files.entry(hash.to_string()) {
                    Entry::Occupied(found) => found.into_mut(),
                    Entry::Vacant(new) => {
                        let found = self.jobs.files.find(team, &hash);
                        new.insert(found.ok_or_else(|| wrong("its files were not uploaded"))?)
                    }
                };
                let octal = |text: String| u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
                let mode = match arg(3) {
                    Some(text) => Some(octal(text).ok_or_else(|| wrong("its mode is no octal number"))?),
                    None => None,
                };
                // By its descriptor: the build may begin in an hour, and the file may have lost its name by then.
                let archive = format!("/proc/self/fd/{}", found.file.as_raw_fd()).into();
                Action::Copy {
                    archive,
                    key: found.digest.clone(),
                    source: needed(0, "a source")?,
                    target: needed(1, "a target")?,
                    owner: arg(2),
                    mode,
                }
            }
            _ => return Err(wrong("it is none of RUN, COPY, ENV, WORKDIR and USER")),
        };
        Ok(Step { action, force: force == Some(true) })
    }
}

fn credentials(login: RegistryLogin) -> Result<Credentials> {
    match login {
        RegistryLogin::Registry { username, password } => Ok(Credentials::password(username, password)),
        // As its registries want it.
        RegistryLogin::Gcp { service_account_json } => {
            Ok(Credentials::password("_json_key".to_owned(), service_account_json))
        }
        RegistryLogin::Aws {} => Err(Failed::invalid(
            "keys of AWS are not supported: use the user `AWS` and the password that `aws ecr get-login-password` prints",
        )),
    }
}

fn text(given: Option<String>) -> Option<String> {
    given.filter(|text| !text.trim().is_empty())
}
