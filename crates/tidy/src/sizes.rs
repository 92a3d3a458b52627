//! Sizes: files, functions, documents and lines of documents stay short.
//!
//! Tables, code blocks and lines without a space cannot be broken, so their lines may be longer.

use crate::{Measure, scan, tree::File};

/// Lines of a source.
const FILE_LINES: usize = 500;
/// Lines of a source of tests.
const TEST_FILE_LINES: usize = 600;
/// Lines of a function.
const FUNCTION_LINES: usize = 80;
/// Characters of a line of Markdown.
const LINE_CHARACTERS: usize = 120;
/// Words of a document that has no budget of its own.
const DOCUMENT_WORDS: usize = 2_000;
/// Budgets of single documents.
const BUDGETS: &[(&str, usize)] = &[("README.md", 1_200), ("ARCHITECTURE.md", 2_500)];
/// Documents without a budget. The changelog grows by design; the command line is generated from its own help.
const FREE: &[&str] = &["CHANGELOG.md", "docs/cli.md"];

/// Measures a Rust file.
pub fn source(file: &File) -> Vec<Measure> {
    let lines = file.text.lines().count();
    let limit = if is_test(&file.path) { TEST_FILE_LINES } else { FILE_LINES };
    let advice = "split it into a folder of parts".to_owned();
    let whole = Measure {
        rule: "file-lines",
        subject: file.path.clone(),
        path: file.path.clone(),
        line: None,
        size: lines,
        limit,
        advice,
    };
    let functions = scan::functions(&scan::source(&file.text).code);
    let mut measures = vec![whole];
    for function in functions {
        let subject = format!("{} {}", file.path, function.name);
        // Of functions of one name the longest counts.
        if let Some(same) = measures.iter_mut().find(|measure| measure.subject == subject) {
            same.size = same.size.max(function.lines);
            continue;
        }
        measures.push(Measure {
            rule: "function-lines",
            subject,
            path: file.path.clone(),
            line: Some(function.line),
            size: function.lines,
            limit: FUNCTION_LINES,
            advice: "give its steps functions of their own".to_owned(),
        });
    }
    measures
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/")
}

/// Measures a Markdown file.
pub fn document(file: &File) -> Vec<Measure> {
    let path = &file.path;
    if FREE.contains(&path.as_str()) {
        return Vec::new();
    }
    let mut words = 0;
    let mut long = Vec::new();
    let mut in_code = false;
    for (number, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            words += line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
            let is_breakable = !line.starts_with('|') && line.trim().contains(' ');
            if is_breakable && line.chars().count() > LINE_CHARACTERS {
                long.push(number + 1);
            }
        }
    }
    let limit = BUDGETS.iter().find(|(of, _)| of == path).map_or(DOCUMENT_WORDS, |(_, words)| *words);
    let measure = |rule, line, size, limit, advice| Measure {
        rule,
        subject: path.clone(),
        path: path.clone(),
        line,
        size,
        limit,
        advice,
    };
    vec![
        measure("words", None, words, limit, "shorten it, or make it two documents".to_owned()),
        measure(
            "long-lines",
            long.first().copied(),
            long.len(),
            0,
            format!("break lines after {LINE_CHARACTERS} characters at most"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(measures: &[Measure]) -> Vec<(&str, Option<usize>, usize)> {
        let large = measures.iter().filter(|measure| measure.size > measure.limit);
        large.map(|measure| (measure.rule, measure.line, measure.size)).collect()
    }

    #[test]
    fn long_files_are_told_from_long_files_of_tests() {
        let text = "//\n".repeat(550);
        assert_eq!(over(&source(&File::new("crates/a/src/b.rs", &*text))), [("file-lines", None, 550)]);
        assert!(over(&source(&File::new("crates/a/tests/b.rs", &*text))).is_empty());
        assert!(over(&source(&File::new("tests/host/tests/host/b.rs", &*text))).is_empty());
    }

    #[test]
    fn the_longest_function_of_a_name_counts() {
        let text = format!("fn a() {{}}\nfn a() {{\n{}}}\n", "x();\n".repeat(79));
        assert_eq!(over(&source(&File::new("a.rs", text))), [("function-lines", Some(1), 81)]);
    }

    #[test]
    fn documents_have_budgets() {
        let text = "word | -- \n".repeat(1_201);
        assert_eq!(over(&document(&File::new("README.md", &*text))), [("words", None, 1_201)]);
        assert!(over(&document(&File::new("docs/any.md", &*text))).is_empty());
        assert!(over(&document(&File::new("CHANGELOG.md", "word ".repeat(9_000)))).is_empty());
    }

    #[test]
    fn only_lines_that_can_be_broken_are_too_long() {
        let long = "ab ".repeat(41);
        let url = "x".repeat(130);
        let text = format!("short\n{long}\n| {long} |\n{url}\n```\n{long}\n```\n");
        assert_eq!(over(&document(&File::new("docs/a.md", text))), [("long-lines", Some(2), 1)]);
    }
}
