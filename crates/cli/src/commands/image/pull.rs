//! `pando image pull`.

use std::{io::Read, process::ExitCode};

use anyhow::{Context, Result};
use api::{KeptImage, PullEvent, PullRequest, RegistryCredentials};
use base::text;
use client::Client;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use registry::{Host, REGISTRY_DEFAULT, Reference};
use tokio::signal::unix::Signal;

use super::super::{interrupted, interrupts};
use crate::{
    exit::Failure,
    output::{self, Progress},
};

const EXAMPLES: &str = "\
Examples:
    pando image pull python:3.12-slim
    pando image pull ghcr.io/owner/app@sha256:DIGEST
    pando image pull registry.example.com:5000/app:1.0 --username me --password-stdin < token";

/// Under that name, Docker's clients keep the credentials of docker.io.
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// Longest password.
const PASSWORD_BYTES_MAX: u64 = 64 << 10;

/// Fetch an image from its registry.
///
/// Layers that the node has are not fetched again. An interrupted pull goes on where it ended. Credentials are those of `docker login`
/// (~/.docker/config.json and its helpers), unless --username is given. The node keeps none.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// `[REGISTRY/]REPOSITORY[:TAG][@sha256:DIGEST]`: what it is called on the node, too. Without a registry: the node's (--registry).
    name: String,
    /// User at the registry.
    #[arg(long, value_name = "USER", requires = "password_stdin")]
    username: Option<String>,
    /// Read the password or token from standard input.
    #[arg(long, requires = "username")]
    password_stdin: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    let mut interrupts = interrupts()?;
    let credentials = match args.username {
        Some(user) => Some(RegistryCredentials::Password { user, password: password()? }),
        None => of_docker(&args.name, &client.node().await?.registry)?,
    };
    let image = pull(PullRequest { name: args.name, credentials }, client, &mut interrupts).await?;
    if args.json {
        output::json(&image)?;
    } else {
        outln!("{}: {} in {} layers", image.name, text::bytes(image.bytes), image.layers);
    }
    Ok(ExitCode::SUCCESS)
}

/// Fetches an image, with the credentials that Docker's clients have.
pub(in crate::commands) async fn pull_as_docker(
    name: &str,
    client: &Client,
    interrupts: &mut Signal,
) -> Result<KeptImage> {
    let credentials = of_docker(name, &client.node().await?.registry)?;
    pull(PullRequest { name: name.to_owned(), credentials }, client, interrupts).await
}

async fn pull(request: PullRequest, client: &Client, interrupts: &mut Signal) -> Result<KeptImage> {
    let mut progress = Progress::new();
    let show = |event: &PullEvent| match event {
        PullEvent::Bytes { done, all } => {
            progress.show(&format!("{} of {}", text::bytes(*done), text::bytes(*all)));
        }
        PullEvent::Layers { done, all } => progress.show(&format!("{done} of {all} layers")),
        PullEvent::Done(_) | PullEvent::Failed(_) => {}
    };
    let pulled = client.pull_image_until(interrupts, &request, show).await;
    progress.clear();
    pulled?.ok_or_else(|| interrupted("the next pull goes on with what is downloaded"))
}

/// Without the line end that `echo` adds.
fn password() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().take(PASSWORD_BYTES_MAX).read_to_string(&mut text).context("cannot read the password")?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// What `docker login` has left for the registry of this image, if anything.
fn of_docker(name: &str, registry: &str) -> Result<Option<RegistryCredentials>> {
    let default = Host::parse(registry).map_err(Failure::Usage)?;
    let reference = Reference::parse(name, &default).map_err(|error| Failure::Usage(base::error::chain(&error)))?;
    let registry = reference.registry().name();
    let key = if registry == REGISTRY_DEFAULT { HUB_KEY } else { registry };
    match docker_credential::get_credential(key) {
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            Ok(Some(RegistryCredentials::Password { user, password }))
        }
        Ok(DockerCredential::IdentityToken(token)) => Ok(Some(RegistryCredentials::IdentityToken(token))),
        Err(error) if has_none(&error) => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the credentials of {registry} from Docker's configuration"))
        }
    }
}

/// A helper fails if it has none; an unreadable file is mostly none.
fn has_none(error: &CredentialRetrievalError) -> bool {
    use CredentialRetrievalError as E;
    matches!(error, E::NoCredentialConfigured | E::ConfigNotFound | E::ConfigReadError | E::HelperFailure { .. })
}
