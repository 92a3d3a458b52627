//! `known.txt`: what was too large before there was a limit. Each line is a rule, a size and a subject.

use std::collections::BTreeMap;

use crate::{Finding, Measure};

/// Where the list is.
pub const PATH: &str = "crates/tidy/known.txt";

/// How the tool that lowers entries is called.
const LOWER: &str = "`make tidy-lower` does it";

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    line: usize,
    size: usize,
}

type Key<'a> = (&'a str, &'a str);

/// Reads the list. Empty lines, and lines that begin with `#`, are no entries.
fn parse(text: &str) -> (BTreeMap<Key<'_>, Entry>, Vec<Finding>) {
    let (mut entries, mut findings) = (BTreeMap::new(), Vec::new());
    for (number, line) in text.lines().enumerate().map(|(number, line)| (number + 1, line)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts: Vec<&str> = line.splitn(3, ' ').collect();
        let entry = match parts[..] {
            [rule, size, subject] => size.parse().ok().map(|size| ((rule, subject), Entry { line: number, size })),
            _ => None,
        };
        match entry {
            Some((key, entry)) if entries.insert(key, entry).is_none() => {}
            Some(_) => findings.push(Finding::at(PATH, number, "known", "there are two such entries; remove one")),
            None => findings.push(Finding::at(PATH, number, "known", "is no entry; write `RULE SIZE SUBJECT`")),
        }
    }
    (entries, findings)
}

/// Compares what was measured with its limits and with the list.
pub fn judge(measures: &[Measure], known: &str) -> Vec<Finding> {
    let (mut entries, mut findings) = parse(known);
    for measure in measures {
        let Measure { rule, subject, size, limit, .. } = measure;
        let entry = entries.remove(&(*rule, subject.as_str()));
        match entry {
            None if size <= limit => {}
            None => findings.push(too_large(measure, &format!("{size} where {limit} are allowed"))),
            Some(Entry { line, .. }) if size <= limit => {
                let message = format!("{rule} of {subject} is within its limit; remove this entry ({LOWER})");
                findings.push(Finding::at(PATH, line, "known", message));
            }
            Some(entry) if *size > entry.size => {
                let message = format!("{size}, but {PATH}:{} allows {} and may only shrink", entry.line, entry.size);
                findings.push(too_large(measure, &message));
            }
            Some(entry) if *size < entry.size => {
                let message = format!("{rule} of {subject} is {size} by now; lower it to that ({LOWER})");
                findings.push(Finding::at(PATH, entry.line, "known", message));
            }
            Some(_) => {}
        }
    }
    for ((rule, subject), entry) in entries {
        let message = format!("there is no {rule} of {subject} any more; remove this entry ({LOWER})");
        findings.push(Finding::at(PATH, entry.line, "known", message));
    }
    findings
}

fn too_large(measure: &Measure, what: &str) -> Finding {
    let message = format!("{} has {what}; {}", measure.subject, measure.advice);
    Finding { path: measure.path.clone(), line: measure.line, rule: measure.rule, message }
}

/// The list with each entry lowered to what was measured, and without those that are not needed. Nothing is raised or added.
pub fn lowered(measures: &[Measure], known: &str) -> String {
    let sizes: BTreeMap<Key<'_>, &Measure> =
        measures.iter().map(|measure| ((measure.rule, measure.subject.as_str()), measure)).collect();
    let mut text = String::new();
    for line in known.lines() {
        let (entries, _) = parse(line);
        let line = match entries.into_iter().next() {
            None => line.to_owned(),
            Some(((rule, subject), entry)) => match sizes.get(&(rule, subject)) {
                Some(measure) if measure.size > measure.limit => {
                    format!("{rule} {} {subject}", measure.size.min(entry.size))
                }
                _ => continue,
            },
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(subject: &str, size: usize) -> Measure {
        let (path, advice) = (subject.to_owned(), "split it".to_owned());
        Measure { rule: "words", subject: subject.to_owned(), path, line: None, size, limit: 10, advice }
    }

    fn judged(size: usize, known: &str) -> Vec<String> {
        judge(&[measure("a.md", size)], known).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_within_its_limit_needs_no_entry() {
        assert!(judged(10, "").is_empty());
        assert_eq!(judged(11, ""), ["a.md: words: a.md has 11 where 10 are allowed; split it"]);
    }

    #[test]
    fn what_is_known_may_stay_and_not_grow() {
        assert!(judged(20, "# why\n\nwords 20 a.md\n").is_empty());
        let grown = judged(21, "words 20 a.md\n");
        assert_eq!(
            grown,
            ["a.md: words: a.md has 21, but crates/tidy/known.txt:1 allows 20 and may only shrink; split it"]
        );
    }

    #[test]
    fn entries_that_are_too_large_or_not_needed_fail() {
        assert!(judged(15, "words 20 a.md\n")[0].contains("is 15 by now; lower it"));
        assert!(judged(9, "words 20 a.md\n")[0].contains("remove this entry"));
        assert!(judged(9, "words 20 gone.md\n")[0].contains("there is no words of gone.md any more"));
    }

    #[test]
    fn a_list_that_cannot_be_read_fails() {
        assert!(judged(1, "words many a.md\n")[0].contains("is no entry"));
        assert!(judged(20, "words 20 a.md\nwords 20 a.md\n")[0].contains("two such entries"));
    }

    #[test]
    fn entries_are_lowered_and_removed_but_never_raised() {
        let measures = [measure("low", 12), measure("gone", 3), measure("grown", 30)];
        let known = "# head\nwords 20 low\nwords 20 gone\nwords 20 grown\nwords 20 missing\n";
        assert_eq!(lowered(&measures, known), "# head\nwords 12 low\nwords 20 grown\n");
    }
}
