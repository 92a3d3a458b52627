//! Which members of an archive are copied.

use std::path::{Path, PathBuf};

/// A path in an archive, whose parts may be patterns with `*`, `?` and `[]`.
#[derive(Debug, Clone)]
pub struct CopySource {
    /// Each part of a path has to match one of these.
    parts: Vec<glob::Pattern>,
    is_pattern: bool,
}

impl CopySource {
    /// None if it leads out of the archive, a pattern is malformed, or `**` is not its end.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut parts, mut is_pattern) = (Vec::new(), false);
        let mut all_below = false;
        for part in text.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." || all_below {
                return None;
            }
            is_pattern |= part.contains(['*', '?', '[']);
            // At the end: all that is below, as the directory above it.
            all_below = part == "**";
            if all_below {
                continue;
            }
            parts.push(glob::Pattern::new(part).ok()?);
        }
        Some(Self { parts, is_pattern })
    }

    /// Whether more than one thing may match.
    pub fn is_pattern(&self) -> bool {
        self.is_pattern
    }

    /// What remains of a member's path below the part that matches; `None`: it is not copied.
    pub fn below(&self, path: &Path) -> Option<PathBuf> {
        let mut components = path.components();
        for pattern in &self.parts {
            let name = components.next()?.as_os_str().to_str()?;
            if !pattern.matches(name) {
                return None;
            }
        }
        Some(components.as_path().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_path_or_a_pattern_of_each_part() {
        let below = |source: &str, path: &str| CopySource::parse(source).unwrap().below(Path::new(path));
        let found = |path: &str| Some(PathBuf::from(path));
        assert_eq!(below(".", "a/b"), found("a/b"));
        assert_eq!(below("./src/", "src"), found(""));
        assert_eq!(below("src", "src/main.py"), found("main.py"));
        assert_eq!(below("src", "srcs/main.py"), None);
        assert_eq!(below("*.txt", "a.txt"), found(""));
        assert_eq!(below("*.txt", "d/a.txt"), None);
        assert_eq!(below("d?/*", "d1/a/b"), found("b"));
        assert_eq!(below("src/**", "src/a/b"), found("a/b"));
        assert!(CopySource::parse("../x").is_none() && CopySource::parse("a/[").is_none());
        assert!(CopySource::parse("src/**/*.py").is_none());
    }
}
