//! `pando completion`.

use std::{io::Write, process::ExitCode};

use clap::{CommandFactory, ValueEnum};
use clap_complete::generate;

use super::Cli;
use crate::output;

const EXAMPLES: &str = "\
Examples:
    pando completion bash > /etc/bash_completion.d/pando
    pando completion zsh > ~/.zfunc/_pando              with ~/.zfunc in fpath
    pando completion fish > ~/.config/fish/completions/pando.fish";

/// Print a script that completes commands and options in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

/// Shells that are known to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    output::note_failure(std::io::stdout().write_all(&script(args.shell)));
    ExitCode::SUCCESS
}

fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "pando", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_the_commands() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            assert!(script.contains("checkpoint") && script.contains("mount-point"), "{shell:?}");
        }
    }
}
