//! Errors as text.

use std::error::Error;

/// An error with all its causes, in one line. A cause whose words are in the text before it already is left out: HTTP clients repeat
/// theirs at every level.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    for cause in std::iter::successors(error.source(), |&cause| cause.source()).map(|cause| cause.to_string()) {
        if !last.contains(&cause) {
            text = format!("{text}: {cause}");
            last = cause;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Level(&'static [&'static str], Option<Box<Level>>);

    impl std::fmt::Display for Level {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0[0])
        }
    }

    impl Error for Level {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn levels(texts: &'static [&'static str]) -> Level {
        Level(texts, (texts.len() > 1).then(|| Box::new(levels(&texts[1..]))))
    }

    #[test]
    fn each_cause_is_told_once() {
        let told = |texts| chain(&levels(texts));
        assert_eq!(told(&["cannot read"]), "cannot read");
        assert_eq!(told(&["cannot read", "it is away", "no route"]), "cannot read: it is away: no route");
        assert_eq!(
            told(&["cannot read", "S3: sending: no route", "sending: no route", "no route"]),
            "cannot read: S3: sending: no route"
        );
        assert_eq!(told(&["no route", "gate 1", "no route"]), "no route: gate 1: no route");
    }
}
