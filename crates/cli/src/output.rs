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

use crate::commands::GLOBAL;

/// What is logged, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Log {
    /// What to log to standard error: error, warn, info, debug, trace, or a filter such as `pando_node=debug`.
    #[arg(long = "log", global = true, value_name = "LEVEL", default_value = "info", help_heading = GLOBAL)]
    level: String,
    /// How log lines look: text for people, or one JSON object per line.
    #[arg(long = "log-format", global = true, value_name = "FORMAT", default_value = "text", help_heading = GLOBAL)]
    format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[clap(rename_all = "lower")]
enum LogFormat {
    Text,
    Json,
}

impl Log {
    /// The arguments with which another process of this program logs the same way.
    pub(crate) fn arguments(&self) -> [String; 4] {
        let format = match self.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        ["--log", &self.level, "--log-format", format].map(str::to_owned)
    }
}

/// Logs go to standard error.
pub(crate) fn start_logging(Log { level, format }: &Log) {
    // Statements come at debug, one for each step of the store: whoever wants them says `debug,sqlx::query=debug`. Slow ones warn as ever.
    // What agents ask for is no news either.
    let filter =
        EnvFilter::try_new(format!("sqlx::query=info,rmcp=warn,{level}")).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(terminal).init(),
        LogFormat::Json => lines.json().with_current_span(false).with_span_list(true).init(),
    }
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

/// A column of a table whose columns depend on what is known.
pub(crate) struct Column {
    head: &'static str,
    cells: Vec<Option<String>>,
    always: bool,
}

impl Column {
    /// It is there in any case.
    pub(crate) fn always(head: &'static str, cells: Vec<String>) -> Self {
        Self { head, cells: cells.into_iter().map(Some).collect(), always: true }
    }

    /// It is there if any row has a value.
    pub(crate) fn if_any(head: &'static str, cells: Vec<Option<String>>) -> Self {
        Self { head, cells, always: false }
    }
}

/// Prints a table of columns that are all as long.
pub(crate) fn columns(columns: &[Column]) {
    let shown: Vec<&Column> =
        columns.iter().filter(|column| column.always || column.cells.iter().any(Option::is_some)).collect();
    let heads: Vec<&str> = shown.iter().map(|column| column.head).collect();
    let count = shown.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let cell = |column: &&Column, row: usize| column.cells.get(row).cloned().flatten().unwrap_or("-".to_owned());
    let rows: Vec<Vec<String>> = (0..count).map(|row| shown.iter().map(|column| cell(column, row)).collect()).collect();
    for row in text::rows(&heads, &rows) {
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

/// Milliseconds until a moment given in milliseconds since 1970.
pub(crate) fn until_ms(moment_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| moment_ms.saturating_sub(now.as_millis() as u64))
}
