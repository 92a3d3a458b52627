//! `pando template`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use api::{BuildEvent, Image, Limits, Ready, Template, TemplateSpec, TemplateState};
use base::{
    id::TemplateName,
    limits::{PIDS_DEFAULT, READY_TIMEOUT_MS_DEFAULT},
};

use crate::{
    client::{Client, Flow},
    exit::Failure,
    output::{self, Progress},
};

/// `base::limits::MEMORY_BYTES_DEFAULT` for people.
const MEMORY_DEFAULT: &str = "4G";

const BUILD_EXAMPLES: &str = "\
Examples:
    pando template build geo -- /usr/bin/python3 /opt/geo/geo.py --port 8080
    pando template build api --port 3000 --env NODE_ENV=production --cwd /opt/api -- node server.js
    pando template build agent --mount-point /workspace --cwd /workspace -- /usr/bin/agent
    pando template build calc --image /srv/images/calc.tar.gz --ready 'test -e /run/ready' -- /usr/bin/calc
Then: pando run geo -n 5";

/// What can be done with templates.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Build(Box<BuildArgs>),
    /// List templates.
    Ls(ListArgs),
    /// Show everything about a template.
    Inspect(NameArgs),
    /// Have the zygote of a template, or of a checkpoint, ready on this node, so that the next run need not wait for it.
    Warm(NameArgs),
    /// Remove a template that no sandbox runs from.
    Rm(NameArgs),
}

/// Start a program, wait until it is ready, and keep it parked for forking.
///
/// The program runs in a sandbox as uid 1000, without network but loopback. It should listen on a port, or say otherwise
/// when it is ready; once it is, a copy of it is parked (the zygote) and the program itself is removed. A template of the
/// same name is replaced; its sandboxes run on.
#[derive(Debug, clap::Args)]
#[command(after_help = BUILD_EXAMPLES)]
pub(crate) struct BuildArgs {
    /// Name of the template: small letters, digits, '-', '_' and '.'.
    name: TemplateName,
    /// Root filesystem: `host` (the node's own, read-only, private places hidden), or the path of a directory or tarball.
    #[arg(long, value_name = "host|PATH", default_value = "host", value_parser = parse_image)]
    image: Image,
    /// Ready when it listens on this TCP port. Without any --port, --ready-file or --ready: on any port.
    #[arg(long, value_name = "N", group = "readiness")]
    port: Option<u16>,
    /// Ready when this file exists inside the sandbox.
    #[arg(long, value_name = "PATH", group = "readiness")]
    ready_file: Option<String>,
    /// Ready when this shell command succeeds inside the sandbox.
    #[arg(long, value_name = "CMD", group = "readiness")]
    ready: Option<String>,
    /// How long to wait for that: 500ms, 30s, 2m. Without it: one minute.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    ready_timeout: Option<Duration>,
    /// Environment variable of the program; may be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Working directory inside the sandbox.
    #[arg(long, value_name = "DIR", default_value = "/")]
    cwd: String,
    /// Memory limit of each sandbox: 512M, 4G.
    #[arg(long, value_name = "BYTES", default_value = MEMORY_DEFAULT, value_parser = parse_bytes)]
    memory: u64,
    /// Limit of processes and threads of each sandbox.
    #[arg(long, value_name = "N", default_value_t = PIDS_DEFAULT)]
    pids: u64,
    /// Processors that each sandbox may use, for example 0.5. Without it: no limit.
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<u32>,
    /// Directory, inside the sandbox, on which sandboxes of it can have a volume; may be repeated. It is made if it is missing.
    #[arg(long = "mount-point", value_name = "DIR")]
    mount_points: Vec<String>,
    /// Print the template as JSON.
    #[arg(long)]
    json: bool,
    /// Program and arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
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
        Command::Build(args) => build(*args, client).await?,
        Command::Ls(args) => list(&args, client).await?,
        Command::Inspect(args) => output::json(&client.get::<Template>(&format!("/templates/{}", args.name)).await?)?,
        Command::Warm(args) => {
            describe(&client.post::<_, Template>(&format!("/templates/{}/warm", args.name), &()).await?)
        }
        Command::Rm(args) => client.delete::<()>(&format!("/templates/{}", args.name)).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn build(args: BuildArgs, client: &Client) -> Result<()> {
    let json = args.json;
    let spec = spec(args);
    let mut progress = Progress::new();
    let built = client.post_lines("/templates", &spec, |event| {
        Ok(match event {
            BuildEvent::Stage { stage, elapsed_ms } => {
                progress.show(&format!("{:>7.1} s  {stage}", elapsed_ms as f64 / 1e3));
                Flow::Continue
            }
            BuildEvent::Failed(detail) => {
                progress.clear();
                return Err(Failure::Node(detail).into());
            }
            BuildEvent::Done(template) => {
                progress.clear();
                Flow::Done(template)
            }
        })
    });
    let template = built.await?;
    if json {
        return output::json(&template);
    }
    describe(&template);
    Ok(())
}

fn spec(args: BuildArgs) -> TemplateSpec {
    let shell = |command: String| Ready::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), command]);
    let ready = match (args.port, args.ready_file, args.ready) {
        (Some(port), _, _) => Ready::Port(port),
        (None, Some(path), _) => Ready::File(path),
        (None, None, Some(command)) => shell(command),
        (None, None, None) => Ready::Listening,
    };
    TemplateSpec {
        name: args.name,
        image: args.image,
        command: args.command,
        env: args.env,
        cwd: args.cwd,
        ready,
        ready_timeout_ms: args.ready_timeout.map_or(READY_TIMEOUT_MS_DEFAULT, |timeout| timeout.as_millis() as u64),
        limits: Limits { memory_bytes: args.memory, pids: args.pids, cpu_millis: args.cpus },
        mount_points: args.mount_points,
    }
}

fn describe(template: &Template) {
    println!("template {} is ready", template.name);
    let Some(facts) = &template.facts else { return };
    let timings = &facts.timings;
    println!("  memory    {} ({} in huge pages)", output::bytes(facts.memory_bytes), output::bytes(facts.huge_bytes));
    println!("  threads   {}, mappings {}, descriptors {}", facts.threads, facts.mappings, facts.descriptors);
    println!("  warmed in {}", output::micros(timings.ready_us));
    println!(
        "  paused    {}, zygote built in {}",
        output::micros(timings.pause_us),
        output::micros(timings.capture_us + timings.build_us)
    );
}

async fn list(args: &ListArgs, client: &Client) -> Result<()> {
    let templates: Vec<Template> = client.get("/templates").await?;
    if args.json {
        return output::json(&templates);
    }
    let row = |template: &Template| {
        let memory = template.facts.as_ref().map_or_else(|| "-".to_owned(), |facts| output::bytes(facts.memory_bytes));
        let threads = template.facts.as_ref().map_or_else(|| "-".to_owned(), |facts| facts.threads.to_string());
        let state = match template.state {
            TemplateState::Building => "building",
            TemplateState::Ready => "ready",
            TemplateState::Lost => "lost (built again at the next run)",
        };
        let command = template.spec.command.join(" ");
        [template.name.to_string(), state.to_owned(), memory, threads, template.sandboxes.to_string(), command]
    };
    let rows: Vec<_> = templates.iter().map(row).collect();
    output::table(["NAME", "STATE", "MEMORY", "THREADS", "SANDBOXES", "COMMAND"], &rows);
    Ok(())
}

fn parse_image(text: &str) -> Result<Image, String> {
    if text == "host" {
        return Ok(Image::Host);
    }
    // The node may have another working directory.
    std::path::absolute(PathBuf::from(text)).map(Image::Path).map_err(|error| error.to_string())
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
        _ => (text, 1e3),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * unit_ms < 1e10 => {
            Ok(Duration::from_millis((number * unit_ms).ceil() as u64))
        }
        Ok(_) | Err(_) => Err("give it as 500ms, 30s or 2m".to_owned()),
    }
}

pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "give it as a number of bytes, or as 512K, 512M or 4G".to_owned();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

fn parse_cpus(text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(cpus) if (0.001..=100_000.0).contains(&cpus) => Ok((cpus * 1000.0).round() as u32),
        Ok(_) | Err(_) => Err("give a number of processors, for example 2 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood() {
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes(MEMORY_DEFAULT), Ok(base::limits::MEMORY_BYTES_DEFAULT));
        assert_eq!(parse_cpus("0.5"), Ok(500));
        for wrong in ["", "0s", "-1s", "x"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "0", "5X", "99999999999G"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
