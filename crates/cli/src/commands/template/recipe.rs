//! `pando template build -f Dockerfile`.

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use api::{Image, Limits, Origin, Ready, Recipe};
use base::limits::READY_TIMEOUT_MS_DEFAULT;
use client::Client;
use tokio::signal::unix::Signal;

use super::{
    build::Args,
    context::Context,
    describe,
    dockerfile::{Dockerfile, quoted},
};
use crate::{
    commands::{image::pull::pull_as_docker, interrupted, interrupts},
    output,
};

pub(super) async fn run(args: Args, file: &Path, client: &Client) -> Result<ExitCode> {
    let mut interrupts = interrupts()?;
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let arguments: BTreeMap<String, String> = args.build_arg.iter().cloned().collect();
    let dockerfile = Dockerfile::parse(&text, &arguments).with_context(|| file.display().to_string())?;
    let context = Context::of(&args.context).context("the context of the build")?;
    let archive = tempfile::NamedTempFile::new().context("cannot make a file for the context")?;
    let origin = origin(dockerfile.origin()?, client, &mut interrupts).await?;
    let read = dockerfile.read(&origin.env, &context, archive.path()).with_context(|| file.display().to_string())?;
    for ignored in &read.ignored {
        output::error_line(format_args!("{ignored} changes nothing here"));
    }
    context.pack(archive.reopen()?)?;
    let (startup, ready) = startup(&args, &read.entrypoint, &read.command, &read.ports);
    let (name, json) = (args.name.clone(), args.json);
    let recipe = Recipe {
        name,
        from: origin.from,
        steps: read.steps,
        startup,
        on_fork: args.on_fork,
        ready,
        ready_timeout_ms: args.ready_timeout.map_or(READY_TIMEOUT_MS_DEFAULT, |timeout| timeout.as_millis() as u64),
        limits: Limits { memory_bytes: args.memory, pids: args.pids, cpu_millis: args.cpus, disk_bytes: args.disk },
        force: args.no_cache,
    };
    let steps = recipe.steps.len();
    let line = |step: Option<usize>, text: &str| match step {
        Some(step) => output::error_line(format_args!("[{step}/{steps}] {text}")),
        None => output::error_line(format_args!("{text}")),
    };
    let Some(template) = client.build_recipe_until(&mut interrupts, &recipe, line).await? else {
        return Err(interrupted("the build is being cancelled; its layers so far are kept"));
    };
    if json {
        output::json(&template)?;
    } else {
        describe(&template);
    }
    Ok(ExitCode::SUCCESS)
}

/// What a build begins with.
struct Found {
    from: Origin,
    env: Vec<(String, String)>,
}

/// An image that the node has, or else a template, or else an image of a registry.
async fn origin(name: String, client: &Client, interrupts: &mut Signal) -> Result<Found> {
    match client.image(&name).await {
        Ok(image) => return Ok(Found { from: Origin::Image(name), env: image.env }),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    if let Ok(template) = name.parse() {
        match client.template(&template).await {
            Ok(found) => return Ok(Found { from: Origin::Template(template), env: found.spec.env }),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    output::error_line(format_args!("PULL {name}"));
    let image = pull_as_docker(&name, client, interrupts).await.with_context(|| {
        format!("FROM {name}: the node has neither an image nor a template of that name, and it cannot be fetched")
    })?;
    Ok(Found { from: Origin::Image(name), env: image.env })
}

/// What sandboxes begin with, if there is a way to tell when that is ready.
fn startup(args: &Args, entrypoint: &[String], command: &[String], ports: &[u16]) -> (Option<String>, Ready) {
    let shell = |command: &str| Ready::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()]);
    let ready = match (args.port, &args.ready_file, &args.ready) {
        (Some(port), _, _) => Some(Ready::Port(port)),
        (None, Some(path), _) => Some(Ready::File(path.clone())),
        (None, None, Some(command)) => Some(shell(command)),
        (None, None, None) => ports.first().map(|port| Ready::Port(*port)),
    };
    let words = if args.command.is_empty() { [entrypoint, command].concat() } else { args.command.clone() };
    match ready {
        Some(ready) if !words.is_empty() => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            (Some(format!("exec {}", words.join(" "))), ready)
        }
        Some(_) | None => (None, Ready::Listening),
    }
}

/// A recipe says itself what it begins with, and where.
pub(super) fn conflicts(args: &Args) -> Option<&'static str> {
    if args.image != Image::Host {
        return Some("--image");
    }
    if !args.env.is_empty() {
        return Some("--env");
    }
    if args.cwd.is_some() {
        return Some("--cwd");
    }
    (!args.mount_points.is_empty()).then_some("--mount-point")
}
