//! `pando template`.

pub(super) mod build;
mod context;
mod dockerfile;
mod recipe;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use api::{Template, TemplateFacts, TemplateSpec, TemplateState};
use base::id::TemplateName;
use base::text;
use client::Client;

use super::interruptible;
use crate::output;

/// What can be done with templates.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Build(Box<build::Args>),
    /// List templates.
    Ls(ListArgs),
    /// Show everything about a template.
    Inspect(InspectArgs),
    /// Make a template, or a checkpoint, ready on this node, so that the next run need not wait.
    Warm(NameArgs),
    /// Remove a template that no sandbox uses.
    Rm(NameArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Name of the template.
    name: TemplateName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    /// Name of the template.
    name: TemplateName,
}

pub(crate) async fn run(command: Command, client: &Client) -> Result<ExitCode> {
    match command {
        Command::Build(args) => build::run(*args, client).await,
        Command::Ls(args) => interruptible("", list(&args, client)).await,
        Command::Inspect(args) => interruptible("", inspect(&args, client)).await,
        Command::Warm(args) => interruptible("a restore that was begun is completed", warm(&args, client)).await,
        Command::Rm(args) => interruptible("a removal that was begun is completed", remove(&args, client)).await,
    }
}

async fn inspect(args: &InspectArgs, client: &Client) -> Result<ExitCode> {
    let template = client.template(&args.name).await?;
    if args.json {
        output::json(&template)?;
    } else {
        print(&template);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(template: &Template) {
    let TemplateSpec { image, env, cwd, ready, ready_timeout_ms, limits, mount_points, user, .. } = &template.spec;
    outln!("name       {}", template.name);
    outln!("state      {}", state(template.state));
    outln!("made       {} ago", text::age(output::since_ms(template.created_ms)));
    outln!("command    {}", text::one_line(&program(&template.spec)));
    outln!("image      {}", text::one_line(&image.to_string()));
    outln!("directory  {}", text::one_line(cwd));
    if let Some(user) = user {
        outln!("user       {}", text::one_line(user));
    }
    for (name, value) in env {
        outln!("env        {}", text::one_line(&format!("{name}={value}")));
    }
    let ready = text::one_line(&ready.to_string());
    outln!("ready      when {ready}, within {}", text::micros(ready_timeout_ms * 1000));
    let cpu = limits.cpu_millis.map_or_else(String::new, |millis| format!(", {} processors", f64::from(millis) / 1e3));
    let disk = limits.disk_bytes.map_or_else(String::new, |bytes| format!(", {} of disk", text::bytes(bytes)));
    outln!(
        "limits     {} of memory, {} processes and threads{cpu}{disk}",
        text::bytes(limits.memory_bytes),
        limits.pids
    );
    for path in mount_points {
        outln!("mount at   {path}");
    }
    if !template.spec.on_fork.is_empty() {
        outln!("in copies  {}", text::one_line(&template.spec.on_fork.join(" ")));
    }
    outln!("sandboxes  {}", template.sandboxes);
    if let Some(facts) = &template.facts {
        outln!("parked     pid {}", facts.zygote_pid);
        describe_facts(facts, "           ");
    }
}

/// What its sandboxes begin with.
fn program(spec: &TemplateSpec) -> String {
    match spec.startup.is_empty() {
        true => spec.command.join(" "),
        false => format!("{} (begun in each sandbox)", spec.startup.join(" ")),
    }
}

fn state(state: TemplateState) -> &'static str {
    match state {
        TemplateState::Building => "building",
        TemplateState::Ready => "ready",
        TemplateState::Lost => "lost (built again at the next run)",
    }
}

async fn warm(args: &NameArgs, client: &Client) -> Result<ExitCode> {
    describe(&client.warm(&args.name).await?);
    Ok(ExitCode::SUCCESS)
}

async fn remove(args: &NameArgs, client: &Client) -> Result<ExitCode> {
    client.remove_template(&args.name).await?;
    Ok(ExitCode::SUCCESS)
}

fn describe(template: &Template) {
    outln!("template {} is ready", template.name);
    if let Some(facts) = &template.facts {
        describe_facts(facts, "  ");
    }
}

fn describe_facts(facts: &TemplateFacts, indent: &str) {
    let timings = &facts.timings;
    outln!("{indent}memory    {} ({} in huge pages)", text::bytes(facts.memory_bytes), text::bytes(facts.huge_bytes));
    outln!("{indent}threads   {}, mappings {}, descriptors {}", facts.threads, facts.mappings, facts.descriptors);
    if timings.ready_us == 0 {
        // Restored, or taken over with its record only.
        return;
    }
    outln!("{indent}warmed in {}", text::micros(timings.ready_us));
    outln!(
        "{indent}paused    {}, parked in {}",
        text::micros(timings.pause_us),
        text::micros(timings.capture_us + timings.build_us)
    );
}

async fn list(args: &ListArgs, client: &Client) -> Result<ExitCode> {
    let templates = client.templates().await?;
    if args.json {
        output::json(&templates)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |template: &Template| {
        let memory = template.facts.as_ref().map_or_else(|| "-".to_owned(), |facts| text::bytes(facts.memory_bytes));
        let threads = template.facts.as_ref().map_or_else(|| "-".to_owned(), |facts| facts.threads.to_string());
        let command = program(&template.spec);
        [
            template.name.to_string(),
            state(template.state).to_owned(),
            memory,
            threads,
            template.sandboxes.to_string(),
            command,
        ]
    };
    let rows: Vec<_> = templates.iter().map(row).collect();
    output::table(["NAME", "STATE", "MEMORY", "THREADS", "SANDBOXES", "COMMAND"], &rows);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("give it as NAME=VALUE".to_owned()),
    }
}

pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit_ms) = match text {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 1.0),
        _ if text.ends_with('s') => (&text[..text.len() - 1], 1e3),
        _ if text.ends_with('m') => (&text[..text.len() - 1], 60e3),
        _ if text.ends_with('h') => (&text[..text.len() - 1], 3_600e3),
        _ if text.ends_with('d') => (&text[..text.len() - 1], 86_400e3),
        _ => (text, 1e3),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * unit_ms < 1e10 => {
            Ok(Duration::from_millis((number * unit_ms).ceil() as u64))
        }
        Ok(_) | Err(_) => Err("give it as 500ms, 30s, 2m, 8h or 7d".to_owned()),
    }
}

pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "give it as a whole number of bytes, or as 512K, 512M, 4G or 1T; less than 16777216T".to_owned();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("8h"), Ok(Duration::from_secs(28_800)));
        assert_eq!(parse_time("30d"), Ok(Duration::from_secs(2_592_000)));
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes("16777215T"), Ok(16777215 << 40));
        for wrong in ["", "0s", "-1s", "x"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "0", "5X", "99999999999G"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
