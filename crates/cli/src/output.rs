//! Tables, units and logs.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::OnceLock,
    time::Duration,
};

use api::{CheckpointProgress, MemoryProgress};
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
    note_failure(writeln!(io::stdout(), "{}", tame(&line.to_string())));
}

/// See `errln!`. Nobody is told where nobody can be.
pub(crate) fn error_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", tame(&line.to_string()));
}

/// Asks on standard error: the answer comes on the same line.
pub(crate) fn ask(question: fmt::Arguments<'_>) -> io::Result<()> {
    write!(io::stderr(), "{}", tame(&question.to_string()))
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
    note_failure(writeln!(io::stdout(), "{}", tame_json(&serde_json::to_string_pretty(value)?)));
    Ok(())
}

/// Prints columns, each as wide as its widest cell. Line ends and what would command a terminal are shown escaped.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
    let mut widths = head.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    print_row(&widths, head.iter().copied());
    for row in &rows {
        print_row(&widths, row.iter().map(String::as_str));
    }
}

/// A text for one line: with line ends and what would command a terminal escaped.
pub(crate) fn printable(text: &str) -> String {
    tame(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// A text of any number of lines, with what would command a terminal escaped: programs choose their names and what they print, and a terminal
/// takes orders from either (titles, keys, the clipboard).
fn tame(text: &str) -> String {
    let shown = |c: char| if is_order(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// The same for JSON, which stays JSON of the same value. Only strings hold such characters.
fn tame_json(text: &str) -> String {
    let shown = |c: char| if is_order(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Whether a terminal may do something else than show it: the control characters, of which terminals know 32 more behind ASCII, and what turns
/// the direction of writing, so that a text reads otherwise than it is.
fn is_order(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && !matches!(c, '\n' | '\t')) || turns
}

fn print_row<'a>(widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let line: Vec<String> = widths.iter().zip(cells).map(|(width, cell)| format!("{cell:<width$}")).collect();
    outln!("{}", line.join("  ").trim_end());
}

/// How far a checkpoint or a pause is, as a line.
pub(crate) fn stage(CheckpointProgress { stage, elapsed_ms, memory }: &CheckpointProgress) -> String {
    let memory = memory.map(|MemoryProgress { done_bytes, total_bytes }| {
        format!(", {} of about {}", bytes(done_bytes), bytes(total_bytes))
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
            let _ = write!(io::stderr(), "\r\x1b[K{}", printable(text));
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Microseconds for people.
pub(crate) fn micros(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} us"),
        1_000..1_000_000 => format!("{:.2} ms", count as f64 / 1e3),
        _ => format!("{:.2} s", count as f64 / 1e6),
    }
}

/// A span of time for people, to the second.
pub(crate) fn age(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Milliseconds since a moment given in milliseconds since 1970.
pub(crate) fn since_ms(moment_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| (now.as_millis() as u64).saturating_sub(moment_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(3 << 30)], ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
        assert_eq!(printable("a\n\u{1b}[1mü"), "a\\n\\u{1b}[1mü");
        let hostile = "\u{1b}]0;title\u{7}\u{9b}31m\r\u{7f}\u{202e}";
        let harmless = "\\u{1b}]0;title\\u{7}\\u{9b}31m\\r\\u{7f}\\u{202e}";
        assert_eq!(tame(&format!("first\n\t{hostile}")), format!("first\n\t{harmless}"));
        // As often as it is done.
        assert_eq!(tame(&printable(hostile)), harmless);
        let document = tame_json(&serde_json::to_string_pretty(&[hostile]).unwrap());
        assert!(!document.chars().any(is_order), "{document}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&document).unwrap(), [hostile]);
        assert_eq!([micros(999), micros(1_500), micros(2_000_000)], ["999 us", "1.50 ms", "2.00 s"]);
        assert_eq!([age(59_999), age(61_000), age(3_660_000), age(90_000_000)], ["59s", "1m01s", "1h01m", "1d01h"]);
    }
}
