//! `pando create`.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Result;
use api::{ErrorDetail, VolumeMount};
use base::text;

use super::{interrupts, removed_again};
use crate::{
    exit::{Failure, code_of},
    output,
    sandbox_id::{Among, SandboxName},
    target::{AtEnd, NAME_LABEL, Shown, Target, Wanted},
};

const EXAMPLES: &str = "\
Examples:
    pando create geo -n 5
    pando create agent --volume ws:/workspace
    pando create base --name web --label job=42 --timeout 30m      from a server
    ID=$(pando create geo -q)";

/// Start sandboxes from a template or a checkpoint. Prints the identifier of each and how long its start took.
///
/// The first `create` of a checkpoint on a node restores it there. It is a template of that node afterwards. After a
/// restart of the node, the first `create` of a template starts its program again, which takes as long as the program
/// takes to get ready. Ctrl-C removes what was started.
///
/// Names, labels, lifetimes and environments are kept by a server. A node has none.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the template or checkpoint.
    #[arg(default_value = "base")]
    template: String,
    /// Number of sandboxes to start, side by side.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// Name of the sandbox, for other commands: its label `name`.
    #[arg(long, value_name = "NAME")]
    name: Option<SandboxName>,
    /// Label, for lists. May be repeated.
    #[arg(short, long = "label", value_name = "K=V", value_parser = super::template::parse_variable)]
    labels: Vec<(String, String)>,
    /// Environment variable of every command in the sandbox. May be repeated.
    #[arg(short, long, value_name = "K=V", value_parser = super::template::parse_variable)]
    env: Vec<(String, String)>,
    /// How long it lives: 30s, 2m, 8h, 7d; 30 days at most. Default: 5 minutes from a server, for ever on a node.
    #[arg(long, value_name = "TIME", value_parser = super::template::parse_time)]
    timeout: Option<Duration>,
    /// What happens when its time is up. Default: kill.
    #[arg(long, value_name = "WHAT", value_enum)]
    at_end: Option<AtEnd>,
    /// If it is paused, commands and requests to its ports continue it.
    #[arg(long)]
    auto_resume: bool,
    /// Start in a second, slower way, which tests compare with the usual one.
    #[arg(long)]
    stepping: bool,
    /// Mount a volume, or a snapshot of one, on a mount point of the template. May be repeated. With `:ro` the mount is read-only; if another
    /// node writes the volume, it stays the writer, and its commits show here some seconds later.
    #[arg(long = "volume", value_name = "VOLUME[@SNAPSHOT]:DIR[:ro]", value_parser = super::volume::parse_mount)]
    volumes: Vec<VolumeMount>,
    #[command(flatten)]
    network: super::network::Policy,
    /// Print identifiers only, one per line.
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn wanted(self) -> Result<Wanted> {
        let mut labels: BTreeMap<String, String> = self.labels.into_iter().collect();
        if let Some(name) = self.name {
            if self.count != 1 {
                let message = "--name is for one sandbox: names must tell sandboxes apart".to_owned();
                return Err(Failure::Usage(message).into());
            }
            labels.insert(NAME_LABEL.to_owned(), name.as_str().to_owned());
        }
        Ok(Wanted {
            template: self.template,
            count: self.count,
            stepping: self.stepping,
            volumes: self.volumes,
            labels,
            env: self.env.into_iter().collect(),
            timeout: self.timeout,
            at_end: self.at_end,
            auto_resume: self.auto_resume,
            network: self.network.into(),
        })
    }
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let (json, quiet) = (args.json, args.quiet);
    let wanted = args.wanted()?;
    if let Some(name) = wanted.labels.get(NAME_LABEL) {
        check_free(name, target).await?;
    }
    let started = target.create(&wanted, &mut interrupts()?).await?;
    let response = started.ok_or_else(removed_again)?;
    response.notices.iter().for_each(|notice| errln!("pando: note: {notice}"));
    if json {
        output::json(&response)?;
    } else if quiet {
        response.sandboxes.iter().for_each(|sandbox| outln!("{}", sandbox.id));
    } else {
        print_started(&response.sandboxes);
        if response.sandboxes.len() > 1 {
            errln!("{} sandboxes in {}", response.sandboxes.len(), text::micros(response.total_us));
        }
    }
    Ok(report_failures(&response.failures))
}

/// Fails if a sandbox has this name: commands would not know which one is meant. Two that are made in the same moment can still get it.
async fn check_free(name: &str, target: &dyn Target) -> Result<()> {
    let sandboxes = target.list(Among::Node).await?;
    match sandboxes.iter().find(|shown| shown.name.as_deref() == Some(name)) {
        None => Ok(()),
        Some(taken) => {
            let message = format!("{} has the name {name}: `pando kill {name}` removes it", taken.id);
            Err(Failure::Usage(message).into())
        }
    }
}

/// Ids and start times, and which volumes each has if any has one.
pub(super) fn print_started(sandboxes: &[Shown]) {
    if sandboxes.is_empty() {
        return;
    }
    let volumes = |sandbox: &Shown| {
        let mounts = sandbox.volumes.iter().map(super::volume::describe_mount);
        mounts.collect::<Vec<_>>().join(", ")
    };
    let columns = [
        output::Column::always("ID", sandboxes.iter().map(|sandbox| sandbox.id.to_string()).collect()),
        output::Column::always("START", sandboxes.iter().map(start).collect()),
        output::Column::if_any("NAME", sandboxes.iter().map(|sandbox| sandbox.name.clone()).collect()),
        output::Column::if_any(
            "VOLUMES",
            sandboxes.iter().map(|sandbox| Some(volumes(sandbox)).filter(|shown| !shown.is_empty())).collect(),
        ),
    ];
    output::columns(&columns);
}

/// How long the start of a sandbox took.
pub(super) fn start(sandbox: &Shown) -> String {
    sandbox.start_us.map_or_else(|| "-".to_owned(), text::micros)
}

/// Prints each failure once, with how often it happened; the exit code is that of the first.
pub(super) fn report_failures(failures: &[ErrorDetail]) -> ExitCode {
    let Some(first) = failures.first() else { return ExitCode::SUCCESS };
    let mut seen: Vec<(&ErrorDetail, usize)> = Vec::new();
    for failure in failures {
        match seen.iter_mut().find(|(other, _)| other.message == failure.message) {
            Some((_, count)) => *count += 1,
            None => seen.push((failure, 1)),
        }
    }
    for (failure, count) in seen {
        errln!("pando: {count} not started: {}", failure.message);
        failure.details.iter().for_each(|line| errln!("    {line}"));
        if let Some(hint) = &failure.hint {
            errln!("hint: {hint}");
        }
    }
    ExitCode::from(code_of(first.code))
}
