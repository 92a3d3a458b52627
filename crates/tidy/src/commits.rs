//! Subjects of commits: `component: imperative summary`, in at most 72 characters.

use std::{path::Path, process::Command};

use crate::Finding;

const RULE: &str = "commits";

/// The last commit without the rule.
const BASE: &str = "5f03719ddc90828647bf99b99794ee6e4ca0bef7";

const SUBJECT_CHARACTERS: usize = 72;

/// Subjects of the commits since the rule, each with the commit's hash.
///
/// # Errors
///
/// Why they cannot be had: there is no git, no repository (a tarball), or not enough history (a shallow clone).
pub fn subjects(root: &Path) -> Result<Vec<(String, String)>, String> {
    // Ancestors only: in a history that was cut off the range would be wrong.
    git(root, &["merge-base", "--is-ancestor", BASE, "HEAD"])?;
    let log = git(root, &["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")])?;
    Ok(log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(hash, text)| (hash.to_owned(), text.to_owned()))
        .collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    // The user who runs the tests may not be the one who owns the folder.
    command.args(["-c", "safe.directory=*", "-C"]).arg(root).args(arguments);
    let output = command.output().map_err(|error| format!("git cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("git {}: {} {}", arguments.join(" "), output.status, said.trim()))
}

/// Checks subjects.
pub fn check(subjects: &[(String, String)]) -> Vec<Finding> {
    let wrong = |(hash, subject): &(String, String)| {
        wrong(subject).map(|why| Finding::of(format!("commit {hash}"), RULE, format!("{subject:?} {why}; reword it")))
    };
    subjects.iter().filter_map(wrong).collect()
}

fn wrong(subject: &str) -> Option<String> {
    let characters = subject.chars().count();
    if characters > SUBJECT_CHARACTERS {
        return Some(format!("has {characters} characters where {SUBJECT_CHARACTERS} are allowed"));
    }
    let is_component = |text: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/., ".contains(c);
        text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(plain)
    };
    let Some((_, summary)) = subject.split_once(": ").filter(|(component, _)| is_component(component)) else {
        return Some("is not `component: imperative summary`".to_owned());
    };
    if summary.trim() != summary || summary.is_empty() {
        return Some("has no summary, or spaces around it".to_owned());
    }
    summary.ends_with('.').then(|| "ends with a full stop".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_name_a_component_and_what_to_do() {
        for right in ["bench: move to a crate of its own", "docs, cli: name the socket", "self-test: try twice"] {
            assert_eq!(wrong(right), None, "{right}");
        }
        for bad in ["Move it", "bench move", "Bench: move", "bench:move", "bench: ", "bench: move it."] {
            assert!(wrong(bad).is_some(), "{bad}");
        }
        let long = format!("bench: {}", "x".repeat(66));
        assert_eq!(wrong(&long).as_deref(), Some("has 73 characters where 72 are allowed"));
    }

    #[test]
    fn a_finding_names_the_commit() {
        let findings = check(&[("abc".to_owned(), "bench: fine".to_owned()), ("def".to_owned(), "Bad".to_owned())]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().starts_with("commit def: commits: \"Bad\" is not"), "{}", findings[0]);
    }

    #[test]
    fn a_place_without_a_history_says_so() {
        assert!(subjects(Path::new("/proc")).is_err());
    }
}
