//! What is printed, and logs.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::OnceLock,
};

use api::{CheckpointProgress, MemoryProgress};
use base::text;
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// Logs go to standard error.
pub(crate) fn start_logging(level: &str) {
    // Statements come at debug, one for each step of the store: whoever wants them says `debug,sqlx::query=debug`. Slow ones warn as ever.
    let filter = EnvFilter::try_new(format!("sqlx::query=info,{level}")).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).init();
}

/// Why nothing more can be written to standard output.
static CLOSED: OnceLock<io::Error> = OnceLock::new();

/// See `outln!`. What would command a terminal is shown escaped: names, errors and output of programs are in what is printed.
pub(crate) fn line(line: fmt::Arguments<'_>) {
    note_failure(writeln!(io::stdout(), "{}", text::harmless(&line.to_string())));
}

/// See `errln!`. Nobody is told where nobody can be.
pub(crate) fn error_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", text::harmless(&line.to_string()));
}

/// Asks on standard error: the answer comes on the same line.
pub(crate) fn ask(question: fmt::Arguments<'_>) -> io::Result<()> {
    write!(io::stderr(), "{}", text::harmless(&question.to_string()))
}

/// Remembers that standard output cannot be written to.
pub(crate) fn note_failure(result: io::Result<()>) {
    if let Err(error) = result {
        let _ = CLOSED.set(error);
    }
}

/// The exit code of a command that would have ended with `code`. A reader that has seen enough is no failure, as it is none of other tools in a pipe.
pub(crate) fn exit_code(code: ExitCode) -> ExitCode {
    match CLOSED.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe && code == ExitCode::SUCCESS => {
            crate::exit::report(&anyhow::anyhow!("cannot write to standard output: {error}"))
        }
        _ => code,
    }
}

/// Prints a document for programs.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    note_failure(writeln!(io::stdout(), "{}", text::harmless_json(&serde_json::to_string_pretty(value)?)));
    Ok(())
}

/// Prints a document for programs on one line.
pub(crate) fn json_line<T: Serialize>(value: &T) {
    let text = serde_json::to_string(value).map_err(io::Error::from);
    note_failure(text.and_then(|text| writeln!(io::stdout(), "{}", text::harmless_json(&text))));
}

/// Prints a table.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
    for row in text::table(head, rows) {
        line(format_args!("{row}"));
    }
}

/// How far a checkpoint or a pause is, as a line.
pub(crate) fn stage(CheckpointProgress { stage, elapsed_ms, memory }: &CheckpointProgress) -> String {
    let memory = memory.map(|MemoryProgress { done_bytes, total_bytes }| {
        format!(", {} of about {}", text::bytes(done_bytes), text::bytes(total_bytes))
    });
    format!("{:>7.1} s  {stage}{}", *elapsed_ms as f64 / 1e3, memory.unwrap_or_default())
}

/// One line that is overwritten, on a terminal only.
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    pub(crate) fn show(&mut self, text: &str) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K{}", text::one_line(text));
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Milliseconds since a moment given in milliseconds since 1970.
pub(crate) fn since_ms(moment_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| (now.as_millis() as u64).saturating_sub(moment_ms))
}
