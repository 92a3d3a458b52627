//! Sandboxes as people name them: by their identifier, or by its beginning.

use std::{collections::BTreeSet, str::FromStr};

use anyhow::Result;
use api::{ErrorCode, ErrorDetail};
use base::id::{InvalidId, SandboxId};
use client::Client;

use crate::exit::Failure;

/// Digits of an identifier behind its first letter.
const DIGITS: usize = 12;

/// An identifier, or the beginning of one: its letter and at least one digit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxName(String);

impl FromStr for SandboxName {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text.strip_prefix('s') {
            Some(digits) if (1..DIGITS).contains(&digits.len()) && digits.bytes().all(is_digit) => {
                Ok(Self(text.to_owned()))
            }
            Some(_) | None => text.parse::<SandboxId>().map(|id| Self(id.to_string())),
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
    /// The only sandbox that is meant. A whole identifier is taken as it is: whether it is there the node says.
    pub(crate) async fn find(&self, among: Among, client: &Client) -> Result<SandboxId> {
        if let Ok(id) = self.0.parse() {
            return Ok(id);
        }
        let sandboxes = client.sandboxes().await?;
        let mut ids: BTreeSet<SandboxId> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        if among == Among::Store {
            let paused = client.paused().await?;
            ids.extend(paused.into_iter().map(|sandbox| sandbox.id));
        }
        ids.retain(|id| id.as_str().starts_with(&self.0));
        match (ids.len(), ids.pop_first()) {
            (1, Some(id)) => Ok(id),
            (_, None) => Err(self.missing()),
            (count, Some(first)) => {
                let all: Vec<_> = std::iter::once(first).chain(ids).map(|id| id.to_string()).collect();
                let message = format!("{} is the beginning of {count} sandboxes: {}", self.0, all.join(", "));
                Err(Failure::Usage(message).into())
            }
        }
    }

    fn missing(&self) -> anyhow::Error {
        let message = format!("there is no sandbox whose identifier begins with {}", self.0);
        let hint = Some("`pando ps` shows what there is".to_owned());
        client::Error::Node(ErrorDetail { code: ErrorCode::NotFound, message, hint, details: Vec::new() }).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_has_a_letter_and_a_digit_at_least() {
        for right in ["s0", "sabcdef", "s0123456789a", "s0123456789ab"] {
            assert_eq!(right.parse(), Ok(SandboxName(right.to_owned())), "{right}");
        }
        for wrong in ["", "s", "0", "sg", "sA", "s0123456789abc", "s00000000000g", "../etc", "s/"] {
            assert!(wrong.parse::<SandboxName>().is_err(), "{wrong}");
        }
    }
}
