//! Words of a Dockerfile: quotes, escapes and variables, as its reference has them under "Environment replacement".

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// Variables that are replaced.
#[derive(Debug, Default)]
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }
}

/// One text, whatever spaces it has.
pub(super) fn expand(text: &str, variables: &Variables) -> Result<String> {
    Ok(words(text.trim(), variables, false)?.concat())
}

/// The words of a text.
pub(super) fn split(text: &str, variables: &Variables) -> Result<Vec<String>> {
    words(text, variables, true)
}

fn words(text: &str, variables: &Variables, split: bool) -> Result<Vec<String>> {
    let (mut words, mut word, mut begun) = (Vec::new(), String::new(), false);
    let mut quote = None;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, quote) {
            ('\'' | '"', None) => (quote, begun) = (Some(c), true),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => {
                let next = rest.chars().next();
                match next {
                    // The end of a line that goes on.
                    Some('\n') | None => {}
                    Some(next) if quote.is_none() || matches!(next, '"' | '\\' | '$') => word.push(next),
                    Some(next) => word.extend(['\\', next]),
                }
                rest = &rest[next.map_or(0, char::len_utf8)..];
                begun = true;
            }
            ('$', None | Some('"')) => {
                let (value, after) = variable(rest, variables)?;
                word.push_str(&value);
                (rest, begun) = (after, true);
            }
            (c, None) if split && c.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (c, _) => {
                word.push(c);
                begun = true;
            }
        }
    }
    if let Some(open) = quote {
        bail!("a quote is not closed: {open}");
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

/// What stands behind a `$`: `NAME`, `{NAME}`, `{NAME:-otherwise}`, `{NAME:+then}`. Gives the value and what follows.
fn variable<'a>(text: &'a str, variables: &Variables) -> Result<(String, &'a str)> {
    let name_of = |text: &'a str| {
        let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
        text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
    };
    let Some(inner) = text.strip_prefix('{') else {
        let (name, rest) = name_of(text);
        // A `$` alone is one.
        let value = if name.is_empty() { "$" } else { variables.get(name).unwrap_or_default() };
        return Ok((value.to_owned(), rest));
    };
    let Some(end) = inner.find('}') else { bail!("${{ is not closed") };
    let (inside, rest) = (&inner[..end], &inner[end + 1..]);
    let (name, modifier) = name_of(inside);
    let found = variables.get(name).filter(|value| !value.is_empty());
    let value = match modifier {
        "" => variables.get(name).unwrap_or_default().to_owned(),
        _ => match (modifier.strip_prefix(":-"), modifier.strip_prefix(":+")) {
            (Some(otherwise), _) => found.map_or_else(|| expand(otherwise, variables), |value| Ok(value.to_owned()))?,
            (_, Some(then)) if found.is_some() => expand(then, variables)?,
            (_, Some(_)) => String::new(),
            (None, None) => bail!("${{{inside}}} is not supported: use ${{NAME}}, ${{NAME:-x}} or ${{NAME:+x}}"),
        },
    };
    Ok((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_unquoted_and_replaced() {
        let mut variables = Variables::default();
        variables.set("A", "one");
        variables.set("EMPTY", "");
        let split = |text: &str| split(text, &variables).unwrap();
        assert_eq!(split("a  'b c' \"d e\""), ["a", "b c", "d e"]);
        assert_eq!(split("x=$A ${A}y '$A' \\$A"), ["x=one", "oney", "$A", "$A"]);
        assert_eq!(split("${NONE:-dflt} ${A:-x} ${A:+set} k=${EMPTY:+set}"), ["dflt", "one", "set", "k="]);
        assert_eq!(split("a\\ b \"q\\\"q\" $"), ["a b", "q\"q", "$"]);
        assert_eq!(expand(" a b $A ", &variables).unwrap(), "a b one");
        for wrong in ["'a", "${A", "${A?x}"] {
            assert!(super::split(wrong, &variables).is_err(), "{wrong}");
        }
    }
}
