//! Sandboxes as people name them: by their identifier, by its beginning, or by their name, which is a label.

use std::str::FromStr;

use anyhow::Result;
use base::id::SandboxId;

use crate::{
    exit::{self, Failure},
    target::{Shown, Target},
};

/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 64;

/// An identifier, the beginning of one, or a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxName(String);

/// A text names no sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a sandbox id and not a name: letters, digits, '-', '_' and '.', at most {NAME_BYTES_MAX} of them"
)]
pub(crate) struct InvalidName(String);

impl FromStr for SandboxName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        match begins && text.len() <= NAME_BYTES_MAX && text.bytes().all(fits) {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidName(text.to_owned())),
        }
    }
}

/// Where a sandbox may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Among {
    /// Known to the node.
    Node,
    /// Also paused, by whichever node.
    Store,
}

impl SandboxName {
    /// The name itself.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The only sandbox that is meant. A whole identifier is taken as it is: whether it is there the node or the server
    /// says.
    pub(crate) async fn find(&self, among: Among, target: &dyn Target) -> Result<SandboxId> {
        match self.0.parse() {
            Ok(id) => Ok(id),
            Err(_) => self.choose(&target.list(among).await?),
        }
    }

    /// A name counts more than the beginning of an identifier.
    fn choose(&self, all: &[Shown]) -> Result<SandboxId> {
        let named: Vec<&Shown> = all.iter().filter(|shown| shown.name.as_deref() == Some(&self.0)).collect();
        let (found, what) = if named.is_empty() {
            (all.iter().filter(|shown| shown.id.as_str().starts_with(&self.0)).collect(), "the beginning")
        } else {
            (named, "the name")
        };
        match found.as_slice() {
            [one] => Ok(one.id.clone()),
            [] => Err(self.missing()),
            several => {
                let ids: Vec<_> = several.iter().map(|shown| shown.id.to_string()).collect();
                let message = format!("{} is {what} of {} sandboxes: {}", self.0, ids.len(), ids.join(", "));
                Err(Failure::Usage(message).into())
            }
        }
    }

    fn missing(&self) -> anyhow::Error {
        let message = format!("there is no sandbox {0}, and none whose id begins with {0}", self.0);
        exit::missing(message, Some("`pando ls` shows what there is"))
    }
}

#[cfg(test)]
mod tests {
    use api::SandboxState;

    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for right in ["s0", "sabcdef", "s0123456789ab", "web", "Web-1.2_3", "0"] {
            assert_eq!(right.parse(), Ok(SandboxName(right.to_owned())), "{right}");
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for wrong in ["", "../etc", "s/", "-a", ".", "a b", "ä", &long] {
            assert!(wrong.parse::<SandboxName>().is_err(), "{wrong}");
        }
    }

    fn shown(id: &str, name: Option<&str>) -> Shown {
        Shown {
            id: id.parse().unwrap(),
            name: name.map(str::to_owned),
            labels: Default::default(),
            template: "t".to_owned(),
            parent: None,
            state: SandboxState::Running,
            reason: None,
            created_ms: 0,
            ends_ms: None,
            start_us: None,
            main_pid: None,
            volumes: Vec::new(),
        }
    }

    #[test]
    fn a_name_counts_more_than_a_beginning() {
        let all = [shown("s00000000000a", None), shown("s00000000000b", Some("s0")), shown("s11111111111a", None)];
        let chosen = |text: &str| text.parse::<SandboxName>().unwrap().choose(&all).map(|id| id.to_string());
        assert_eq!(chosen("s0").unwrap(), "s00000000000b");
        assert_eq!(chosen("s1").unwrap(), "s11111111111a");
        let twice = chosen("s00").unwrap_err().to_string();
        assert!(twice.contains("beginning of 2") && twice.contains("s00000000000a, s00000000000b"), "{twice}");
        assert!(chosen("web").unwrap_err().to_string().contains("no sandbox web"));
    }

    #[test]
    fn two_of_one_name_are_an_error_with_both() {
        let all = [shown("s00000000000a", Some("web")), shown("s00000000000b", Some("web"))];
        let error = "web".parse::<SandboxName>().unwrap().choose(&all).unwrap_err().to_string();
        assert!(error.contains("the name of 2 sandboxes: s00000000000a, s00000000000b"), "{error}");
    }
}
