//! The key of this machine: what `pando env` hands out.

use std::{collections::BTreeSet, fs, io, path::Path};

use base::error::chain;
use control::{Control, ControlError, Scope, Team};
use node::{Context, Error, Result};

/// The file of the key, below the state directory. Only root reads it, as everything there.
const FILE: &str = "serve.key";
/// The team of those who use the server on its own machine.
const TEAM: &str = "default";

fn failed(error: &ControlError) -> Error {
    Error::Invalid { message: chain(error), hint: None }
}

/// The key of this machine; made at the first start, and again if it was revoked.
pub(crate) async fn local_key(control: &Control, state_dir: &Path) -> Result<String> {
    let path = state_dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => match control.keys().authenticate(text.trim()).await {
            Ok(_) => return Ok(text.trim().to_owned()),
            Err(ControlError::Unauthorised) => tracing::info!("the key of this machine was revoked: it gets a new one"),
            Err(error) => return Err(failed(&error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).at("read", &path),
    }
    let team = local_team(control).await?;
    let scopes = BTreeSet::from([Scope::All]);
    let (_, key) = control.keys().create(&team.id, "this machine", &scopes).await.map_err(|error| failed(&error))?;
    gateway::tls::write_file(&path, key.as_bytes(), 0o600)
        .map_err(|error| Error::Invalid { message: chain(&error), hint: None })?;
    Ok(key)
}

/// The team of those who use the server on its own machine.
pub(crate) async fn local_team(control: &Control) -> Result<Team> {
    let slug = TEAM.parse().map_err(|error| failed(&error))?;
    control.teams().ensure(&slug, "Default team").await.map_err(|error| failed(&error))
}
