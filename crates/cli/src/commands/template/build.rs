//! `pando template build`.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use api::{Image, KeptImage, Limits, Ready, Template, TemplateSpec, TemplateState};
use base::{
    id::TemplateName,
    limits::{PIDS_DEFAULT, READY_TIMEOUT_MS_DEFAULT},
};
use client::Client;
use tokio::signal::unix::Signal;

use super::{
    super::{interrupted, interrupts},
    describe, parse_bytes, parse_time, parse_variable,
};
use crate::output::{self, Progress};

/// `base::limits::MEMORY_BYTES_DEFAULT` for people.
const MEMORY_DEFAULT: &str = "4G";

/// How long an interrupted build may take to be undone before this ends all the same.
const UNDONE_MAX: Duration = Duration::from_secs(10);

/// How often to ask for that.
const UNDONE_CHECK: Duration = Duration::from_millis(20);

const UNDER_WAY: &str = "the build is being cancelled";

const EXAMPLES: &str = "\
Examples:
    pando template build geo -- /usr/bin/python3 /opt/geo/geo.py --port 8080
    pando template build api --port 3000 --env NODE_ENV=production --cwd /opt/api -- node server.js
    pando template build agent --mount-point /workspace --cwd /workspace -- /usr/bin/agent
    pando template build calc --image /srv/images/calc.tar.gz --ready 'test -e /run/ready' -- /usr/bin/calc
    pando template build web -f Dockerfile --context . --build-arg VERSION=2
Then: pando create geo -n 5";

/// Start a program, wait until it is ready, and keep a parked copy of it for `pando create`.
///
/// The program runs in a sandbox as uid 1000, or as --user says. Once it is ready, a copy of it is parked and the program itself
/// is removed. Its child processes are part of it. A template of the same name is replaced; its sandboxes run on.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the template: small letters, digits, '-', '_' and '.'.
    pub(super) name: TemplateName,
    /// Build it by the steps of this Dockerfile, from the image or template that it names. Its program is begun in each sandbox if it exposes a port,
    /// or an option says when it is ready.
    #[arg(short = 'f', long = "file", value_name = "DOCKERFILE")]
    pub(super) file: Option<PathBuf>,
    /// With -f: the directory whose files it can copy, but for those in its `.dockerignore`.
    #[arg(long, value_name = "DIR", default_value = ".", requires = "file")]
    pub(super) context: PathBuf,
    /// With -f: the value of an `ARG`. May be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_variable, requires = "file")]
    pub(super) build_arg: Vec<(String, String)>,
    /// With -f: do all steps again.
    #[arg(long, requires = "file")]
    pub(super) no_cache: bool,
    /// Root filesystem: `host` (the node's own, read-only, private places hidden), the path of a directory or tarball (with a slash in front, or
    /// `./`), or the name of an image that the node has (`pando image ls`). Variables, directory and program of such an image hold where no other
    /// is given; its program runs if the image names a port, or an option says when it is ready.
    #[arg(long, value_name = "host|PATH|NAME", default_value = "host", value_parser = parse_image)]
    pub(super) image: Image,
    /// Ready when the program listens on this TCP port. Default, without --ready-file and --ready: any port.
    #[arg(long, value_name = "N", group = "readiness")]
    pub(super) port: Option<u16>,
    /// Ready when this file exists inside the sandbox.
    #[arg(long, value_name = "PATH", group = "readiness")]
    pub(super) ready_file: Option<String>,
    /// Ready when this shell command succeeds inside the sandbox.
    #[arg(long, value_name = "CMD", group = "readiness")]
    pub(super) ready: Option<String>,
    /// How long to wait until it is ready: 500ms, 30s, 2m. Default: one minute.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) ready_timeout: Option<Duration>,
    /// Environment variable of the program. May be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    pub(super) env: Vec<(String, String)>,
    /// Working directory inside the sandbox. Default: that of the image, or `/`.
    #[arg(long, value_name = "DIR")]
    pub(super) cwd: Option<String>,
    /// The user of the program, and of commands that name none: USER or UID, either with :GROUP. Default: that of a named image, which is root if it
    /// names none; else `user` (uid 1000).
    #[arg(long, value_name = "USER", conflicts_with = "file")]
    pub(super) user: Option<String>,
    /// Memory limit of each sandbox: 512M, 4G.
    #[arg(long, value_name = "BYTES", default_value = MEMORY_DEFAULT, value_parser = parse_bytes)]
    pub(super) memory: u64,
    /// Limit of processes and threads of each sandbox.
    #[arg(long, value_name = "N", default_value_t = PIDS_DEFAULT)]
    pub(super) pids: u64,
    /// CPUs that each sandbox may use, for example 0.5. Default: no limit.
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    pub(super) cpus: Option<u32>,
    /// Disk limit of each sandbox: 512M, 40G. It counts what the sandbox writes to its root filesystem, metadata included, not what it was forked
    /// with. Default: 20G. Needs a node with --layers btrfs.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(super) disk: Option<u64>,
    /// Directory inside the sandbox on which its sandboxes can have a volume. Made if it is missing. May be repeated.
    #[arg(long = "mount-point", value_name = "DIR")]
    pub(super) mount_points: Vec<String>,
    /// Shell command that runs in each copy that has memory, before the copy goes on, as root if the image has that user: it makes programs draw new
    /// random numbers. If it fails, or takes longer than 10 s, the start fails.
    #[arg(long, value_name = "CMD")]
    pub(super) on_fork: Option<String>,
    /// Print the template as JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Program and arguments, after `--`. Without one, sandboxes of the template have only what commands start in them.
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

pub(crate) async fn run(args: Args, client: &Client) -> Result<ExitCode> {
    if let Some(file) = args.file.clone() {
        if let Some(option) = super::recipe::conflicts(&args) {
            anyhow::bail!("{option} does not go with -f: the Dockerfile says it");
        }
        return super::recipe::run(args, &file, client).await;
    }
    let mut interrupts = interrupts()?;
    let json = args.json;
    let kept = match &args.image {
        Image::Named(name) => Some(client.image(name).await?),
        Image::Host | Image::Path(_) => None,
    };
    let spec = spec(args, kept.as_ref());
    let earlier = tokio::select! {
        biased;
        found = find(&spec.name, client) => found?,
        _ = interrupts.recv() => return Err(interrupted("nothing was begun")),
    };
    let mut progress = Progress::new();
    let show = |stage, elapsed_ms| progress.show(&format!("{:>7.1} s  {stage}", elapsed_ms as f64 / 1e3));
    let built = client.build_until(&mut interrupts, &spec, show).await;
    progress.clear();
    let template = match built? {
        Some(template) => template,
        None => finished(&spec, earlier.as_ref(), client, &mut interrupts).await?,
    };
    if json {
        output::json(&template)?;
    } else {
        describe(&template);
    }
    Ok(ExitCode::SUCCESS)
}

async fn find(name: &TemplateName, client: &Client) -> Result<Option<Template>> {
    match client.template(name).await {
        Ok(template) => Ok(Some(template)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What an interrupted build has come to all the same, if it was past being cancelled.
async fn finished(
    spec: &TemplateSpec,
    earlier: Option<&Template>,
    client: &Client,
    interrupts: &mut Signal,
) -> Result<Template> {
    let deadline = Instant::now() + UNDONE_MAX;
    loop {
        let found = tokio::select! {
            biased;
            found = find(&spec.name, client) => found?,
            _ = interrupts.recv() => return Err(interrupted(UNDER_WAY)),
        };
        match found {
            Some(Template { state: TemplateState::Building, .. }) => {}
            // No two builds take the same time.
            Some(template) if is_new(&template, spec, earlier) => return Ok(template),
            _ => return Err(interrupted("the build was cancelled")),
        }
        let rest = tokio::time::timeout(UNDONE_CHECK, interrupts.recv()).await;
        if rest.is_ok() || Instant::now() > deadline {
            return Err(interrupted(UNDER_WAY));
        }
    }
}

fn is_new(template: &Template, spec: &TemplateSpec, earlier: Option<&Template>) -> bool {
    let earlier = earlier.and_then(|earlier| earlier.facts.as_ref());
    template.spec == *spec && template.facts.is_some() && template.facts.as_ref() != earlier
}

/// `image`: what the node's image says of its programs.
fn spec(mut args: Args, image: Option<&KeptImage>) -> TemplateSpec {
    if let Some(image) = image {
        let is_given = |key: &String| args.env.iter().any(|(given, _)| given == key);
        let own: Vec<_> = image.env.iter().filter(|(key, _)| !is_given(key)).cloned().collect();
        args.env.splice(0..0, own);
        let is_ready_told = args.port.is_some() || args.ready_file.is_some() || args.ready.is_some();
        if args.command.is_empty() && (is_ready_told || !image.ports.is_empty()) {
            args.command = [&image.entrypoint[..], &image.command].concat();
            args.port = args.port.or(image.ports.first().copied().filter(|_| !is_ready_told));
        } else if !args.command.is_empty() {
            // As with `docker run`: what is given are arguments of the image's program, if it has one.
            args.command.splice(0..0, image.entrypoint.iter().cloned());
        }
        args.cwd = args.cwd.or_else(|| Some(image.working_dir.clone()).filter(|directory| !directory.is_empty()));
        let own = || if image.user.is_empty() { "root".to_owned() } else { image.user.clone() };
        args.user = args.user.or_else(|| Some(own()));
    }

    let shell = |command: String| SHELL.map(str::to_owned).into_iter().chain([command]).collect::<Vec<_>>();
    let ready = match (args.port, args.ready_file, args.ready) {
        (Some(port), _, _) => Ready::Port(port),
        (None, Some(path), _) => Ready::File(path),
        (None, None, Some(command)) => Ready::Command(shell(command)),
        (None, None, None) => Ready::Listening,
    };
    TemplateSpec {
        name: args.name,
        image: args.image,
        command: args.command,
        env: args.env,
        cwd: args.cwd.unwrap_or_else(|| "/".to_owned()),
        ready,
        ready_timeout_ms: args.ready_timeout.map_or(READY_TIMEOUT_MS_DEFAULT, |timeout| timeout.as_millis() as u64),
        limits: Limits { memory_bytes: args.memory, pids: args.pids, cpu_millis: args.cpus, disk_bytes: args.disk },
        mount_points: args.mount_points,
        user: args.user,
        startup: Vec::new(),
        on_fork: args.on_fork.map(shell).unwrap_or_default(),
    }
}

/// Runs the shell command that follows.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];

fn parse_image(text: &str) -> Result<Image, String> {
    if !text.starts_with(['/', '.']) {
        return text.parse();
    }
    // The node may have another working directory.
    std::path::absolute(PathBuf::from(text)).map(Image::Path).map_err(|error| error.to_string())
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
        assert_eq!(parse_bytes(MEMORY_DEFAULT), Ok(base::limits::MEMORY_BYTES_DEFAULT));
        assert_eq!(parse_cpus("0.5"), Ok(500));
        for wrong in ["", "0", "x", "-1"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong}");
        }
    }
}
