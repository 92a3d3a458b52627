//! `pando attach`.

use std::process::ExitCode;

use anyhow::Result;
use client::{Inside, Running, Selector};

use super::exec::{
    kept::{Following, Input, Leave, Sandbox},
    stdin::StandardInput,
};
use crate::{
    exit::{self, Failure},
    sandbox_id::{Among, SandboxName},
    target::Target,
};

const EXAMPLES: &str = "\
Examples:
    pando attach web 42
    pando attach -t web shell           a command with the tag `shell` that has a terminal";

/// Follow a command that runs in a sandbox, from the start of its output that is kept: at most 1 MiB of each stream.
///
/// Exits as the command does. Ctrl-C leaves, and the command runs on. With -t every key goes to the command, and
/// Ctrl-P Ctrl-Q leaves.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    id: SandboxName,
    /// Process id of the command inside the sandbox, or its tag. Default: the only command that runs.
    #[arg(value_name = "PID|TAG")]
    command: Option<String>,
    /// Send standard input to the command, and its end.
    #[arg(short, long)]
    interactive: bool,
    /// The command has a terminal: send every key and the size of this terminal.
    #[arg(short, long)]
    tty: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, target).await?;
    let inside = target.inside(&id).await?;
    let which = match &args.command {
        Some(text) => text.parse().map_or_else(|_| Selector::Tag(text.clone()), Selector::Pid),
        None => only(&inside).await?,
    };
    let interrupts = super::interrupts()?;
    let events = inside.follow(&which).await?;
    let input = match (args.tty, args.interactive) {
        (true, _) => Input::Terminal,
        (false, true) => Input::Bytes,
        (false, false) => Input::Nothing,
    };
    let of = Sandbox { target, id: &id };
    let stdin = StandardInput::default();
    Following { of, inside, which, events, interrupts, stdin }.run(input, Leave::RunOn).await
}

/// The only command that runs.
async fn only(inside: &Inside) -> Result<Selector> {
    let running = inside.commands().await?;
    match running.as_slice() {
        [one] => Ok(Selector::Pid(one.pid)),
        [] => {
            let message = "no command runs in the sandbox".to_owned();
            Err(exit::missing(message, Some("`pando exec -d` starts one")))
        }
        several => {
            let shown: Vec<String> = several.iter().map(describe).collect();
            let message = format!("{} commands run: name one of {}", shown.len(), shown.join(", "));
            Err(Failure::Usage(message).into())
        }
    }
}

fn describe(Running { pid, tag, command }: &Running) -> String {
    let tag = tag.as_ref().map(|tag| format!(", tag {tag}")).unwrap_or_default();
    format!("{pid} ({}{tag})", base::text::one_line(&command.join(" ")))
}
