//! Phrases that are hard to read: riddles for agents, old forms, and sentences whose subject is a clause.
//!
//! Documents and comments of Rust sources are looked at, without what is in code marks. Counts are by document and by crate, so that a text that
//! is only moved or wrapped again changes nothing.

use std::collections::BTreeMap;

use crate::{Measure, scan, tree::File};

/// What is not written.
const PHRASES: &[&str] = &["whoever", "nobody", "somebody", "shall", "is to have", "of which", "who has it in hand"];

/// Documents that are not looked at: the changelog is history, and the command line has the words of its own help, which are counted there.
const FREE: &[&str] = &["CHANGELOG.md", "docs/cli.md"];

/// As many places are named of those that are too many.
const SHOWN: usize = 8;

/// A phrase at a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    path: String,
    line: usize,
    phrase: String,
}

/// Counts phrases by document and by crate.
pub fn measure(documents: &[File], sources: &[File]) -> Vec<Measure> {
    let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for file in documents.iter().filter(|file| !FREE.contains(&file.path.as_str())) {
        places.entry(file.path.clone()).or_default().extend(found(&file.path, &prose(&file.text)));
    }
    for file in sources {
        let comments = scan::source(&file.text).comments;
        places.entry(crate_of(&file.path)).or_default().extend(found(&file.path, &paragraphs(&comments)));
    }
    places.into_iter().map(|(subject, places)| as_measure(subject, &places)).collect()
}

fn as_measure(subject: String, places: &[Place]) -> Measure {
    let shown = places.iter().take(SHOWN).map(|place| format!("\n    {}:{}: {}", place.path, place.line, place.phrase));
    let more = if places.len() > SHOWN { "\n    ..." } else { "" };
    let advice = format!(
        "say it with an actor and a verb (the words are in crates/tidy/src/phrases.rs):{}{more}",
        shown.collect::<String>()
    );
    let path = subject.clone();
    Measure { rule: "phrases", subject, path, line: None, size: places.len(), limit: 0, advice }
}

/// The folder of the crate that a source is in.
fn crate_of(path: &str) -> String {
    let parts = match path.split('/').next() {
        Some("crates" | "tests") => 2,
        _ => 1,
    };
    path.split('/').take(parts).collect::<Vec<_>>().join("/")
}

/// Text that runs over lines.
type Paragraph = Vec<(usize, String)>;

/// The paragraphs of a Markdown document, without code.
fn prose(text: &str) -> Vec<Paragraph> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            // The cells of a table are paragraphs.
            let cells = line.split('|').filter(|cell| !cell.trim().is_empty());
            let is_table = line.trim_start().starts_with('|');
            let before = lines.len();
            lines.extend(cells.map(|cell| (number + 1, cell.trim().to_owned())).flat_map(|cell| match is_table {
                true => vec![cell, (number + 1, String::new())],
                false => vec![cell],
            }));
            if lines.len() == before {
                lines.push((number + 1, String::new()));
            }
        }
    }
    paragraphs(&lines)
}

/// Lines that follow one another. An empty one, or one that begins a list, ends a paragraph.
fn paragraphs(lines: &[(usize, String)]) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut expected = 0;
    for (number, line) in lines {
        let begins = ["- ", "* ", "#", "|"].iter().any(|mark| line.starts_with(mark));
        if *number > expected || line.is_empty() || begins || found.is_empty() {
            found.push(Vec::new());
        }
        if let (Some(paragraph), false) = (found.last_mut(), line.is_empty()) {
            paragraph.push((*number, without_code(line)));
        }
        expected = number + 1;
    }
    found
}

/// A line without what is between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

fn found(path: &str, paragraphs: &[Paragraph]) -> Vec<Place> {
    let mut places = Vec::new();
    for paragraph in paragraphs {
        let mut words: Vec<(usize, &str)> = Vec::new();
        for (line, text) in paragraph {
            words.extend(text.split_whitespace().map(|word| (*line, word)));
        }
        for at in 0..words.len() {
            if let Some(phrase) = phrase_at(&words[at..], at == 0 || ends_sentence(words[at - 1].1)) {
                places.push(Place { path: path.to_owned(), line: words[at].0, phrase });
            }
        }
    }
    places
}

fn ends_sentence(word: &str) -> bool {
    word.ends_with(['.', '?', '!', ':'])
}

/// The phrase that begins with the first of the words.
fn phrase_at(words: &[(usize, &str)], begins_sentence: bool) -> Option<String> {
    let plain = |at: usize| words.get(at).map(|(_, word)| bare(word).to_lowercase()).unwrap_or_default();
    for phrase in PHRASES {
        if phrase.split(' ').enumerate().all(|(at, wanted)| plain(at) == wanted) {
            return Some((*phrase).to_owned());
        }
    }
    if plain(0) == "some" && plain(1).starts_with(|c: char| c.is_ascii_digit()) {
        return Some(format!("some {}", plain(1)));
    }
    if begins_sentence && words.first().is_some_and(|(_, word)| *word == "What") {
        return clause(words);
    }
    None
}

/// Verbs that make the subject of a sentence of a clause with `What`, and those that the sentence then goes on with.
const FIRST: &[&str] =
    &["is", "was", "are", "were", "has", "have", "had", "can", "cannot", "could", "may", "must", "does"];
const SECOND: &[&str] = &["is", "was", "are", "were", "has", "have", "goes", "stays", "becomes", "counts"];

/// "What is damaged is refused". A question is none, and so is a description of one thing: "What a copy costs".
fn clause(words: &[(usize, &str)]) -> Option<String> {
    let end =
        words.iter().position(|(_, word)| word.ends_with(['.', '?', '!', ':', ';'])).map_or(words.len(), |at| at + 1);
    let sentence: Vec<&str> = words[..end].iter().map(|(_, word)| *word).collect();
    if sentence.last().is_some_and(|word| word.ends_with('?')) || !FIRST.contains(&bare(sentence.get(1)?)) {
        return None;
    }
    // A comma ends what can be looked at simply.
    let simple = sentence[2..].iter().take_while(|word| !word.ends_with(','));
    let second = simple.map(|word| bare(word)).find(|word| SECOND.contains(word))?;
    Some(format!("What {} ... {second}", bare(sentence[1])))
}

fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrases(text: &str) -> Vec<String> {
        found("a.md", &prose(text)).into_iter().map(|place| format!("{} {}", place.line, place.phrase)).collect()
    }

    #[test]
    fn each_phrase_is_found_whatever_its_case_and_marks() {
        let text = "Whoever asks. **Nobody** does, nor (somebody) else.\nIt shall go, one of which fails, and\nit is to have who has it in hand.";
        let expected =
            ["1 whoever", "1 nobody", "1 somebody", "2 shall", "2 of which", "3 is to have", "3 who has it in hand"];
        assert_eq!(phrases(text), expected);
        assert_eq!(phrases("It takes some 40 ms, and some take more."), ["1 some 40"]);
    }

    #[test]
    fn phrases_run_over_lines_and_not_over_paragraphs() {
        assert_eq!(phrases("It is\nto have."), ["1 is to have"]);
        assert!(phrases("It is\n\nto have.").is_empty());
        assert!(phrases("- it is\n- to have").is_empty());
        assert!(phrases("| it is | to have |").is_empty());
    }

    #[test]
    fn code_is_no_prose() {
        assert!(phrases("The test `nobody_waits` and\n```\nshall\n```\n").is_empty());
    }

    #[test]
    fn subjects_that_are_clauses_are_found() {
        assert_eq!(phrases("What is damaged is refused."), ["1 What is ... is"]);
        assert_eq!(phrases("First. What cannot be read has no name."), ["1 What cannot ... has"]);
        for fine in ["What is it?", "What a copy is and has.", "What is measured.", "It says what is is."] {
            assert!(phrases(fine).is_empty(), "{fine}");
        }
    }

    #[test]
    fn comments_count_for_their_crate() {
        let files = [
            File::new("crates/a/src/lib.rs", "/// Nobody\nfn shall() {} // asks nobody\n"),
            File::new("crates/a/src/b.rs", ""),
        ];
        let measures = measure(&[], &files);
        assert_eq!(measures.len(), 1);
        assert_eq!((measures[0].subject.as_str(), measures[0].size), ("crates/a", 2));
        assert!(measures[0].advice.contains("crates/a/src/lib.rs:2: nobody"), "{}", measures[0].advice);
    }
}
