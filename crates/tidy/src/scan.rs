//! Rust source taken apart: code, comments and strings. Enough for counting, not a parser.

/// A source, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The code. Comments and the insides of strings and character literals are spaces; lines are where they were.
    pub code: String,
    /// The text of comments without their marks, a line each, with the number of the line.
    pub comments: Vec<(usize, String)>,
    /// The insides of strings that have no escapes, with the number of the line where they begin.
    pub strings: Vec<(usize, String)>,
}

/// A function.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`, counted from 1.
    pub line: usize,
    /// Lines from its `fn` to its last brace.
    pub lines: usize,
}

/// Takes a source apart.
pub fn source(text: &str) -> Source {
    Scanner { rest: text, line: 1, found: Source::default() }.scan()
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    found: Source,
}

impl Scanner<'_> {
    fn scan(mut self) -> Source {
        let mut before = ' ';
        while let Some(c) = self.rest.chars().next() {
            let in_word = before.is_alphanumeric() || before == '_';
            if self.rest.starts_with("//") {
                self.line_comment();
            } else if self.rest.starts_with("/*") {
                self.block_comment();
            } else if c == '"' {
                self.string(0, false);
            } else if let Some((skip, hashes)) = raw_string(self.rest).filter(|_| !in_word) {
                self.keep(skip);
                self.string(hashes, true);
            } else if let Some(bytes) = character(self.rest) {
                self.blank(bytes);
            } else {
                self.keep(c.len_utf8());
            }
            before = c;
        }
        self.found
    }

    /// Goes on behind code.
    fn keep(&mut self, bytes: usize) {
        let (kept, rest) = self.rest.split_at(bytes);
        self.line += kept.matches('\n').count();
        self.found.code.push_str(kept);
        self.rest = rest;
    }

    /// Goes on behind what is no code.
    fn blank(&mut self, bytes: usize) {
        let (gone, rest) = self.rest.split_at(bytes);
        self.line += gone.matches('\n').count();
        self.found.code.extend(gone.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }

    fn line_comment(&mut self) {
        let bytes = self.rest.find('\n').unwrap_or(self.rest.len());
        let text = self.rest[..bytes].trim_start_matches('/').trim_start_matches('!').trim();
        self.found.comments.push((self.line, text.to_owned()));
        self.blank(bytes);
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        let mut bytes = 0;
        while bytes < self.rest.len() {
            let rest = &self.rest[bytes..];
            if rest.starts_with("/*") {
                (depth, bytes) = (depth + 1, bytes + 2);
            } else if rest.starts_with("*/") {
                (depth, bytes) = (depth - 1, bytes + 2);
                if depth == 0 {
                    break;
                }
            } else {
                bytes += rest.chars().next().map_or(1, char::len_utf8);
            }
        }
        for (number, line) in self.rest[..bytes].lines().enumerate() {
            let text = line.trim().trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']).trim();
            self.found.comments.push((self.line + number, text.to_owned()));
        }
        self.blank(bytes);
    }

    /// From a quote to its end, which has as many `#` behind it as its beginning has before it.
    fn string(&mut self, hashes: usize, raw: bool) {
        self.keep(1);
        let end = format!("\"{}", "#".repeat(hashes));
        let mut bytes = 0;
        while bytes < self.rest.len() && !self.rest[bytes..].starts_with(&end) {
            let mut rest = self.rest[bytes..].chars();
            let first = rest.next().map_or(1, char::len_utf8);
            let escaped = if !raw && self.rest[bytes..].starts_with('\\') { rest.next() } else { None };
            bytes += first + escaped.map_or(0, char::len_utf8);
        }
        let bytes = bytes.min(self.rest.len());
        if raw || !self.rest[..bytes].contains('\\') {
            self.found.strings.push((self.line, self.rest[..bytes].to_owned()));
        }
        self.blank(bytes);
        self.keep(end.len().min(self.rest.len()));
    }
}

/// The bytes before the quote of a raw string, and its number of `#`.
fn raw_string(text: &str) -> Option<(usize, usize)> {
    let behind = ["r", "br", "cr"].iter().find_map(|mark| text.strip_prefix(mark))?;
    let hashes = behind.bytes().take_while(|byte| *byte == b'#').count();
    behind[hashes..].starts_with('"').then(|| (text.len() - behind.len() + hashes, hashes))
}

/// The length of a character literal at the beginning. A lifetime is none.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        let escaped = inside[1..].chars().next().map_or(0, char::len_utf8);
        return Some(1 + 1 + escaped + inside[1 + escaped..].find('\'')? + 1);
    }
    inside[first.len_utf8()..].starts_with('\'').then(|| first.len_utf8() + 2)
}

/// The functions with a body in `code`, which has no comments and strings.
pub fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let is_word = |at: usize| bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && is_word(at - 1) {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if let (false, Some(end)) = (name.is_empty(), body_end(&code[at..])) {
            let line = code[..at].matches('\n').count() + 1;
            found.push(Function { name, line, lines: code[at..at + end].matches('\n').count() + 1 });
        }
    }
    found
}

/// Where the body of a function ends, from its `fn`. One without a body has no end.
fn body_end(code: &str) -> Option<usize> {
    let (mut brackets, mut braces) = (0_usize, 0_usize);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if brackets == 0 && braces == 0 => return None,
            '{' if braces > 0 || brackets == 0 => braces += 1,
            '}' if braces == 1 => return Some(at + 1),
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The names of tests: functions below an attribute that ends in `test]` or `test(...)]`.
pub fn tests(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut wanted = false;
    for line in code.lines().map(str::trim) {
        let attribute = line.strip_prefix("#[").and_then(|line| line.split([']', '(']).next());
        if attribute.is_some_and(|name| name == "test" || name.ends_with("::test")) {
            wanted = true;
        }
        let name = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next());
        if let (true, Some(name)) = (wanted, name) {
            names.push(name.to_owned());
            wanted = false;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_comments_and_characters_are_no_code() {
        let text = r##"let a = "fn {"; // fn { one
/* two
 * three */ let b = '{'; let c: &'static str = r#"fn " {"#; let d = '\''; let e = b"}\"{";"##;
        let Source { code, comments, strings } = source(text);
        assert!(!code.contains(['{', '}']), "{code}");
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(code.contains("let b =") && code.contains("&'static str") && code.contains("let e ="), "{code}");
        let comments: Vec<_> = comments.iter().map(|(line, text)| (*line, text.as_str())).collect();
        assert_eq!(comments, [(1, "fn { one"), (2, "two"), (3, "three")]);
        assert_eq!(strings, [(1, "fn {".to_owned()), (3, "fn \" {".to_owned())]);
    }

    #[test]
    fn functions_end_with_their_brace() {
        let code = "trait T { fn none(&self) -> [u8; 4]; }\nfn outer(a: [u8; 2]) {\n    if x { y }\n    fn inner() {\n    }\n}\ntype F = fn(u8);\n";
        let found: Vec<_> = functions(code).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("outer".to_owned(), 2, 5), ("inner".to_owned(), 4, 2)]);
    }

    #[test]
    fn tests_are_functions_below_their_attribute() {
        let code = "#[test]\nfn one() {}\nfn none() {}\n#[tokio::test(flavor)]\n#[ignore]\nasync fn two() {}\n#[cfg(test)]\nfn no() {}";
        assert_eq!(tests(code), ["one", "two"]);
    }
}
