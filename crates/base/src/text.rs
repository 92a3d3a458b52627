//! Text for people and their terminals: units, tables, and texts that cannot command a terminal.
//!
//! Programs choose their names and what they print. A terminal takes orders from either (titles, keys, the clipboard).

use std::time::Duration;

/// A text for one line: with line ends and every order to a terminal escaped.
pub fn one_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// A text of any number of lines, with every order to a terminal escaped.
pub fn harmless(text: &str) -> String {
    let shown = |c: char| if is_order(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// The same for JSON, which stays JSON of the same value. Only strings hold such characters.
pub fn harmless_json(text: &str) -> String {
    let shown = |c: char| if is_order(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Whether a terminal may do something else than show the character: the control characters, which include 32 more behind ASCII, and those that
/// turn the direction of writing, which make a text read otherwise than it is.
fn is_order(c: char) -> bool {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && !matches!(c, '\n' | '\t')) || turns
}

/// The lines of a table. Each column is as wide as its widest cell. Line ends and orders to a terminal are shown escaped.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    rows_of(&head, rows.iter().map(<[String; N]>::as_slice))
}

/// As [`table`], of rows that are as long as the head.
pub fn rows(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    rows_of(head, rows.iter().map(Vec::as_slice))
}

fn rows_of<'a>(head: &[&str], rows: impl Iterator<Item = &'a [String]>) -> Vec<String> {
    let rows: Vec<Vec<String>> = rows.map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = widths.iter().zip(cells).map(|(width, cell)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    std::iter::once(line(&mut head.iter().copied()))
        .chain(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))))
        .collect()
}

/// A number of bytes.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A number of microseconds.
pub fn micros(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} us"),
        1_000..1_000_000 => format!("{:.2} ms", count as f64 / 1e3),
        _ => format!("{:.2} s", count as f64 / 1e6),
    }
}

/// A span of milliseconds, to the second.
pub fn age(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\u{1b}]0;title\u{7}\u{9b}31m\r\u{7f}\u{202e}";
    const ESCAPED: &str = "\\u{1b}]0;title\\u{7}\\u{9b}31m\\r\\u{7f}\\u{202e}";

    #[test]
    fn numbers_read_well() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536), bytes(3 << 30)], ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
        assert_eq!([micros(999), micros(1_500), micros(2_000_000)], ["999 us", "1.50 ms", "2.00 s"]);
        assert_eq!([age(59_999), age(61_000), age(3_660_000), age(90_000_000)], ["59s", "1m01s", "1h01m", "1d01h"]);
    }

    #[test]
    fn no_text_commands_a_terminal() {
        assert_eq!(one_line("a\n\u{1b}[1mü"), "a\\n\\u{1b}[1mü");
        assert_eq!(harmless(&format!("first\n\t{HOSTILE}")), format!("first\n\t{ESCAPED}"));
        assert_eq!(harmless(&one_line(HOSTILE)), ESCAPED, "once more changes nothing");
    }

    #[test]
    fn json_stays_the_same_value() {
        let document = harmless_json(&serde_json::to_string_pretty(&[HOSTILE]).unwrap());
        assert!(!document.chars().any(is_order), "{document}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&document).unwrap(), [HOSTILE]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["long\n".to_owned(), String::new()]];
        assert_eq!(table(["N", "X"], &rows), ["N       X", "a       1", "long\\n"]);
    }
}
