//! The `pando` command: a client of nodes and servers, and the node and the server themselves.

// What is printed may hold names and output of programs: all of it goes through `output`, which lets nothing command a terminal.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// A line on standard output: as `println!`, but for a reader that has gone or a full disk, which end no command half-way. [`output::exit_code`] tells in the end.
macro_rules! outln {
    ($($line:tt)*) => {
        $crate::output::line(format_args!($($line)*))
    };
}

/// A line on standard error, likewise.
macro_rules! errln {
    ($($line:tt)*) => {
        $crate::output::error_line(format_args!($($line)*))
    };
}

mod address;
mod commands;
mod database;
mod exit;
mod mount_helper;
mod output;
#[cfg(test)]
mod reference;
mod sandbox_id;
mod target;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

use commands::Cli;

fn main() -> ExitCode {
    let cli = match mount_helper::wanted(std::env::args_os()) {
        None => Cli::parse(),
        Some(Ok(mount_helper::Wanted::Command(words))) => Cli::parse_from(words),
        Some(Ok(mount_helper::Wanted::Nothing)) => return ExitCode::SUCCESS,
        Some(Err(failure)) => return exit::report(&failure.into()),
    };
    // Before any thread exists: these fork.
    if let commands::Command::Keeper(keeper) = &cli.command {
        return commands::keeper::run(keeper, &cli.log);
    }
    if let commands::Command::Guardian(guardian) = &cli.command {
        return commands::guardian::run(guardian, &cli.log);
    }
    if let commands::Command::Holder(holder) = &cli.command {
        return commands::holder::run(holder, &cli.log);
    }
    if let commands::Command::Volumed(volumed) = &cli.command {
        return commands::volumed::run(volumed, &cli.log);
    }
    if let commands::Command::SelfTest(self_test) = &cli.command {
        return commands::self_test::run(self_test, &cli.log);
    }
    output::start_logging(&cli.log);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&anyhow::Error::new(error).context("cannot start the async runtime")),
    };
    let code = runtime.block_on(commands::run(cli));
    // A thread may still sit in a read of standard input; nothing waits for it.
    runtime.shutdown_background();
    code
}
