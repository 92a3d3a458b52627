//! Promises: each names a test that exists.
//!
//! `SPECIFICATION.md` has at most 30 numbered promises of one sentence each. The documents below `docs/promises/` have all of them, as items of
//! lists. `docs/promises.md` explains the form: `Shown by:` begins the names of tests, which are between backticks.
//!
//! | form | what it names |
//! |---|---|
//! | `GROUP::NAME` | a case of the host tests |
//! | `CRATE: NAME` | a test in `crates/CRATE/src` |
//! | `CRATE/TEST: NAME` | a test in `crates/CRATE/tests/TEST` |
//! | `make TARGET`, `pando bench NAME` | a program that runs long or measures |
//!
//! Tests are found by reading sources, not by running them. A case of the host tests is a text in them; a name that is put together from a
//! text and a name of the same file, or of a file in its folder, is found, too.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Finding, scan, tree::File};

const RULE: &str = "promises";

/// Numbered promises of the specification.
const PROMISES_MAX: usize = 30;

/// Where the cases of the host tests are.
const HOST: &str = "tests/host/tests/host/";

/// Where the measurements are.
const BENCH: &str = "crates/bench/src/lib.rs";

/// What begins the names of tests.
const SHOWN_BY: &str = "Shown by:";

/// The heading of what has no test.
const NOT_PROMISED: &str = "Not promised";

/// All names that a promise may give.
#[derive(Debug, Default)]
pub struct Names {
    /// Cases of the host tests, as the runner prints them.
    host: BTreeSet<String>,
    /// Tests with their modules, by `CRATE` and by `CRATE/TEST`.
    tests: BTreeMap<String, BTreeSet<String>>,
    /// `make TARGET` and `pando bench NAME`.
    programs: BTreeSet<String>,
}

impl Names {
    /// Reads the names from sources.
    pub fn read(sources: &[File], makefile: &str) -> Self {
        let mut names = Self::default();
        let host: Vec<&File> = sources.iter().filter(|file| file.path.starts_with(HOST)).collect();
        names.host = host_cases(&host);
        sources.iter().for_each(|file| names.add_tests(file));
        let targets = makefile.lines().filter_map(|line| line.split_once(':')).map(|(targets, _)| targets);
        names.programs.extend(targets.flat_map(str::split_whitespace).map(|target| format!("make {target}")));
        if let Some(bench) = sources.iter().find(|file| file.path == BENCH) {
            let code = scan::source(&bench.text).code;
            let modules = code.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
            names.programs.extend(modules.map(|name| format!("pando bench {name}")));
        }
        names
    }

    fn add_tests(&mut self, file: &File) {
        let Some(place) = Place::of(&file.path) else { return };
        let source = scan::source(&file.text);
        let mut found = scan::tests(&source.code);
        if place.key.contains('/') {
            // Some are registered by a macro, or as a text.
            found.extend(scan::functions(&source.code).into_iter().map(|function| function.name));
            found.extend(source.strings.into_iter().map(|(_, text)| text).filter(|text| is_name(text)));
        }
        let inline = source.code.lines().any(|line| line.ends_with("mod tests {"));
        let modules = if inline { format!("{}tests::", place.modules) } else { place.modules };
        let names = found.into_iter().map(|name| format!("{modules}{name}"));
        self.tests.entry(place.key).or_default().extend(names);
    }

    /// Why `token` names no test.
    fn check(&self, token: &str) -> Result<(), String> {
        let token = token.split_whitespace().collect::<Vec<_>>().join(" ");
        let colons = token.find("::").unwrap_or(usize::MAX);
        let found = match token.split_once(": ") {
            Some((form, name)) if form.len() < colons => {
                let Some(tests) = self.tests.get(form) else {
                    return Err(format!("`{token}`: there is no {form} with tests; correct it"));
                };
                tests.iter().any(|test| has_tail(test, name))
            }
            _ if token.ends_with("::") => self.host.iter().any(|case| case.starts_with(&*token)),
            _ => self.host.contains(&token) || self.programs.contains(&token),
        };
        if found { Ok(()) } else { Err(format!("`{token}` names no test; correct it, or write the test")) }
    }
}

/// Where tests of a file belong.
struct Place {
    /// `CRATE` or `CRATE/TEST`.
    key: String,
    /// The modules of the file, each followed by `::`.
    modules: String,
}

impl Place {
    /// `crates/CRATE/src/MODULES.rs`, `crates/CRATE/tests/TEST.rs`, or `crates/CRATE/tests/TEST/MODULES.rs`.
    fn of(path: &str) -> Option<Self> {
        let (name, rest) = path.strip_prefix("crates/")?.split_once('/')?;
        let (kind, rest) = rest.strip_suffix(".rs")?.split_once('/')?;
        let (key, modules) = match (kind, rest.split_once('/')) {
            ("src", _) => (name.to_owned(), rest),
            ("tests", Some((test, modules))) => (format!("{name}/{test}"), modules),
            ("tests", None) => (format!("{name}/{rest}"), ""),
            _ => return None,
        };
        let modules = if matches!(modules, "lib" | "main") { "" } else { modules };
        let modules = modules.split('/').filter(|module| !module.is_empty()).map(|module| format!("{module}::"));
        Some(Self { key, modules: modules.collect() })
    }
}

/// Whether the name of a test is `name` behind some modules. One that ends with `::` stands for all tests in these modules.
fn has_tail(test: &str, name: &str) -> bool {
    let begins = |at: usize| at == 0 || test[..at].ends_with("::");
    if name.ends_with("::") {
        return test.match_indices(name).any(|(at, _)| begins(at));
    }
    test.strip_suffix(name).is_some_and(|before| begins(before.len()))
}

/// A text that may be the name of a case.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "_:-.,' {}".contains(c);
    text.len() > 1 && text.starts_with(|c: char| c.is_alphanumeric()) && text.chars().all(plain)
}

/// The cases that sources register. Each is a text such as `pause::a_name`. Some are put together from `pause::{name}` and a text of the same
/// file, or of a file in the folder of that file's name.
fn host_cases(files: &[&File]) -> BTreeSet<String> {
    let texts: Vec<(&str, Vec<String>)> = files
        .iter()
        .map(|file| {
            let strings = scan::source(&file.text).strings.into_iter().map(|(_, text)| text);
            (file.path.trim_end_matches(".rs"), strings.filter(|text| is_name(text)).collect())
        })
        .collect();
    let mut cases = BTreeSet::new();
    for (path, own) in &texts {
        let folder = format!("{path}/");
        for text in own.iter().filter(|text| text.contains("::")) {
            let Some((before, rest)) = text.split_once('{') else {
                cases.insert(text.clone());
                continue;
            };
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            let near = texts.iter().filter(|(other, _)| other == path || other.starts_with(&folder));
            cases.extend(near.flat_map(|(_, texts)| texts).map(|name| format!("{before}{name}{after}")));
        }
    }
    cases
}

/// A promise.
#[derive(Debug)]
struct Promise {
    line: usize,
    /// Before the names of tests, and before how it is held.
    text: String,
    /// Behind `Shown by:`, if there is such a line.
    shown_by: Option<String>,
}

/// Items of lists (`- `) or numbered ones (`1. `), but for those that are not promised.
fn promises(document: &File, is_item: fn(&str) -> Option<&str>) -> Vec<Promise> {
    let mut found: Vec<Promise> = Vec::new();
    let (mut goes_on, mut is_promised, mut is_text) = (false, true, true);
    for (number, line) in document.text.lines().enumerate() {
        if let Some(heading) = line.strip_prefix('#') {
            is_promised = heading.trim_start_matches('#').trim() != NOT_PROMISED;
        }
        if let Some(text) = is_item(line).filter(|_| is_promised) {
            found.push(Promise { line: number + 1, text: text.to_owned(), shown_by: None });
            (goes_on, is_text) = (true, true);
        } else if let (true, Some(promise)) = (goes_on && line.starts_with("  "), found.last_mut()) {
            let line = line.trim();
            is_text &= !line.starts_with("Held by:");
            match (&mut promise.shown_by, line.strip_prefix(SHOWN_BY)) {
                (None, Some(names)) => promise.shown_by = Some(names.to_owned()),
                (Some(names), _) => *names = format!("{names} {line}"),
                (None, None) if is_text => promise.text = format!("{} {line}", promise.text),
                (None, None) => {}
            }
        } else {
            goes_on = false;
        }
    }
    found
}

fn listed(line: &str) -> Option<&str> {
    line.strip_prefix("- ")
}

fn numbered(line: &str) -> Option<&str> {
    let (number, text) = line.split_once(". ")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

/// Checks a document below `docs/promises/`.
pub fn document(document: &File, names: &Names) -> Vec<Finding> {
    promises(document, listed).iter().flat_map(|promise| shown(document, promise, names)).collect()
}

/// Checks the specification.
pub fn specification(document: &File, names: &Names) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, promise) in promises(document, numbered).iter().enumerate() {
        let mut fail = |message: String| findings.push(Finding::at(&*document.path, promise.line, RULE, message));
        if at >= PROMISES_MAX {
            fail(format!("is promise {} where {PROMISES_MAX} are allowed; put two into one, or leave one out", at + 1));
        }
        if sentences(&promise.text) > 1 {
            fail("has more than one sentence; say one thing, or make it two promises".to_owned());
        }
        if promise.shown_by.as_ref().is_some_and(|shown_by| !shown_by.contains('`')) {
            fail("is in the specification without a test; write one".to_owned());
        }
        findings.extend(shown(document, promise, names));
    }
    findings
}

/// Checks the tests of a promise.
fn shown(document: &File, promise: &Promise, names: &Names) -> Vec<Finding> {
    let fail = |message: String| Finding::at(&*document.path, promise.line, RULE, message);
    match &promise.shown_by {
        None => vec![fail(format!("has no line `{SHOWN_BY}`; name its tests, or write `{SHOWN_BY} no test.`"))],
        Some(names) if !names.contains('`') && names.trim() != "no test." => {
            vec![fail(format!("`{SHOWN_BY}{names}` names no test between backticks"))]
        }
        Some(shown_by) => {
            let tokens = shown_by.split('`').skip(1).step_by(2);
            tokens.filter_map(|token| names.check(token).err()).map(fail).collect()
        }
    }
}

/// Sentences outside code marks and brackets.
fn sentences(text: &str) -> usize {
    let prose: String = text.split('`').step_by(2).collect();
    let mut depth = 0_usize;
    let outside = prose.chars().filter(|c| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        depth == 0
    });
    let outside: String = outside.collect();
    let ends =
        outside.match_indices(". ").filter(|(at, _)| outside[at + 2..].trim_start().starts_with(char::is_uppercase));
    ends.count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let files = [
            File::new("tests/host/tests/host/node/pause.rs", r#"Case::new("pause::goes_on", x);"#),
            File::new("tests/host/tests/host/fuse.rs", r#"Case::new(format!("fuse::{name}"), x);"#),
            File::new("tests/host/tests/host/fuse/cases.rs", r#"&[("files: holes are found, made and filled", f)]"#),
            File::new("crates/volume/src/state/freeze.rs", "mod tests {\n#[test]\nfn numbers_are_used_once() {}\n}"),
            File::new("crates/pager/tests/served.rs", r#"let cases = [("forks_are_followed", f)];"#),
            File::new("crates/store/tests/chunks/cache.rs", "#[test]\nfn it_is_bounded() {}"),
            File::new(BENCH, "mod start;\n"),
        ];
        Names::read(&files, "test: setup\nsoak-node: x\n")
    }

    fn wrong(shown_by: &str) -> Vec<String> {
        let text =
            format!("# Head\n\n- It holds.\n  More. `not a name`\n  Held by: `nor this`.\n{shown_by}\n\nText.\n");
        document(&File::new("docs/promises/a.md", text), &names()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_form_of_a_name_is_understood() {
        for right in [
            "`pause::goes_on` (2 rounds; more: `make soak-node`)",
            "`pause::`, `pando bench start`",
            "`fuse::files: holes are found,\n  made and filled`",
            "`volume: numbers_are_used_once`, `volume: freeze::tests::numbers_are_used_once`, `volume: state::freeze::`",
            "`pager/served: forks_are_followed`,\n  `store/chunks: cache::`, `store/chunks: it_is_bounded`",
            "no test.",
        ] {
            let line = format!("  Shown by: {right}");
            assert!(wrong(&line).is_empty(), "{right}: {:?}", wrong(&line));
        }
    }

    #[test]
    fn names_of_no_test_fail() {
        for bad in [
            "`pause::gone`",
            "`gone::`",
            "`fuse::files: gone`",
            "`volume: gone`",
            "`volume: once`",
            "`volume: thaw::numbers_are_used_once`",
            "`store/chunks: gone::`",
            "`pager: forks_are_followed`",
            "`make gone`",
            "`pando bench gone`",
            "a test",
        ] {
            assert_eq!(wrong(&format!("  Shown by: {bad}")).len(), 1, "{bad}");
        }
        let expected = "docs/promises/a.md:3: promises: `pause::gone` names no test; correct it, or write the test";
        assert_eq!(wrong("  Shown by: `pause::gone`"), [expected]);
    }

    #[test]
    fn only_what_is_not_promised_needs_no_test() {
        assert_eq!(wrong("").len(), 1);
        let text = "# A\n\n## Not promised\n\n- It flies.\n\n## B\n\n- It walks.\n";
        assert_eq!(document(&File::new("docs/promises/a.md", text), &names()).len(), 1);
    }

    #[test]
    fn a_specification_has_few_promises_of_one_sentence_with_a_test() {
        let check = |text: &str| specification(&File::new("SPECIFICATION.md", text), &names()).len();
        assert_eq!(
            check("Text.\n\n1. It goes on,\n   as before (v. 2. Too).\n   Shown by: `pause::goes_on`\n\nMore. Text.\n"),
            0
        );
        assert_eq!(check("1. It goes on. It ends.\n   Shown by: `pause::goes_on`\n"), 1);
        assert_eq!(check("1. It goes on.\n"), 1);
        assert_eq!(check("1. It goes on.\n   Shown by: no test.\n"), 1);
        assert_eq!(check("1. It goes on.\n   Shown by: `pause::gone`\n"), 1);
        assert_eq!(check(&"1. It goes on.\n   Shown by: `pause::goes_on`\n".repeat(31)), 1);
    }
}
