//! The rules, applied to this repository. `PANDO_BLESS=1` lowers the entries of `known.txt` instead.

use std::{
    fs,
    io::{self, Write},
    process::Command,
};

use tidy::{Finding, Measure, arrows, commits, known, openapi, phrases, promises, sizes, tree};

/// Fails with one line for each finding.
fn report(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} findings\n{}\n", lines.len(), lines.join("\n"));
}

fn read(path: &str) -> tree::File {
    tree::File::new(path, fs::read_to_string(tree::root().join(path)).expect(path))
}

fn measures() -> Vec<Measure> {
    let sources = tree::files(&tree::root(), "rs").expect("sources can be read");
    let documents = tree::files(&tree::root(), "md").expect("documents can be read");
    let mut measures: Vec<Measure> = sources.iter().flat_map(sizes::source).collect();
    measures.extend(documents.iter().flat_map(sizes::document));
    measures.extend(phrases::measure(&documents, &sources));
    measures
}

#[test]
fn crates_depend_on_those_to_their_left() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(tree::root()).output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    report(&arrows::check(&serde_json::from_slice(&output.stdout).unwrap()));
}

#[test]
fn sizes_and_phrases_are_within_their_limits() {
    let list = fs::read_to_string(tree::root().join(known::PATH)).unwrap();
    let measures = measures();
    if std::env::var_os("PANDO_BLESS").is_some() {
        fs::write(tree::root().join(known::PATH), known::lowered(&measures, &list)).unwrap();
        return;
    }
    report(&known::judge(&measures, &list));
}

#[test]
fn promises_name_tests_that_exist() {
    let sources = tree::files(&tree::root(), "rs").unwrap();
    let names = promises::Names::read(&sources, &read("Makefile").text);
    let documents = tree::files(&tree::root().join("docs/promises"), "md").expect("there are documents of promises");
    let documents =
        documents.into_iter().map(|file| tree::File::new(format!("docs/promises/{}", file.path), file.text));
    let mut findings: Vec<Finding> = documents.flat_map(|file| promises::document(&file, &names)).collect();
    findings.extend(promises::specification(&read("SPECIFICATION.md"), &names));
    report(&findings);
}

#[test]
fn subjects_of_commits_have_one_form() {
    match commits::subjects(&tree::root()) {
        Ok(subjects) => report(&commits::check(&subjects)),
        // Past the harness, which hides what a passing test prints.
        Err(reason) => writeln!(io::stderr(), "skipped: the history cannot be looked at: {reason}").unwrap(),
    }
}

/// `make openapi-release` says that the present document is what clients rely on.
#[test]
fn the_api_stays_good_for_clients_of_the_released_one() {
    let document = |path: &str| serde_json::from_str(&read(path).text).expect(path);
    report(&openapi::check(&document(openapi::RELEASED), &document(openapi::DOCUMENT)));
}
