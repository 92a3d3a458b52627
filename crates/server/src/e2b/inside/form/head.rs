//! The texts of a form: its boundary, and what the headers of a part say.

use super::{Error, parser::Head};

/// The boundary of a form, from its content type (RFC 2046, 5.1.1).
pub(in super::super) fn boundary(content_type: &str) -> Result<&str, Error> {
    let named = parameters(content_type).find(|(name, _)| name.eq_ignore_ascii_case("boundary"));
    let text = named.map(|(_, value)| value).ok_or(Error::NoBoundary)?;
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let printable = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if (1..=70).contains(&text.len()) && printable && !text.ends_with(' ') { Ok(text) } else { Err(Error::NoBoundary) }
}

/// What the headers of a part say. The text begins with a line end, unless there are no headers.
pub(super) fn parse(text: &[u8]) -> Result<Head, Error> {
    let text = std::str::from_utf8(text).map_err(|_| Error::Damaged("the headers of a part are no UTF-8"))?;
    let disposition = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let Some(disposition) = disposition else { return Ok(Head::default()) };
    let named = |wanted: &str| {
        let found = parameters(disposition).find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| unquoted(value))
    };
    Ok(Head { name: named("name"), file_name: named("filename") })
}

/// The parameters of a header, with their quotes.
fn parameters(header: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = after(header, ';');
    std::iter::from_fn(move || {
        let (name, value) = rest?.split_once('=')?;
        let (value, next) = split(value);
        rest = next;
        Some((name.trim(), value.trim()))
    })
}

/// A value, and what is behind the semicolon after it.
fn split(text: &str) -> (&str, Option<&str>) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => return (&text[..at], Some(&text[at + 1..])),
            _ => {}
        }
    }
    (text, None)
}

fn after(text: &str, mark: char) -> Option<&str> {
    text.split_once(mark).map(|(_, rest)| rest)
}

/// As Go's `mime` package reads a quoted text: a backslash before a quote or a backslash goes.
fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut letters = inner.chars().peekable();
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('\\', Some(next @ ('"' | '\\'))) => {
                text.push(*next);
                letters.next();
            }
            _ => text.push(letter),
        }
    }
    text
}
