//! Pages of lists, by what comes after the last item of the page before: others may come and go without a gap or a
//! repetition.

use std::{fmt, str::FromStr};

use base::{id::hex, limits::PAGE_MAX};

use crate::{ControlError, Time};

/// Longest token that is looked at: twice the longest one that is made.
const TOKEN_BYTES_MAX: usize = 256;

/// The order of a list by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The oldest first.
    Asc,
    /// The newest first.
    #[default]
    Desc,
}

impl Order {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Asc => "asc",
            Self::Desc => "desc",
        }
    }

    /// The condition of what comes after the pair of parameters `at` and `at + 1`, in columns.
    pub(crate) fn after(self, columns: (&str, &str), at: usize) -> String {
        let sign = match self {
            Self::Asc => '>',
            Self::Desc => '<',
        };
        let ((time, id), next) = (columns, at + 1);
        format!("({time} {sign} ${at} OR ({time} = ${at} AND {id} {sign} ${next}))")
    }
}

impl FromStr for Order {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let found = [Self::Asc, Self::Desc].into_iter().find(|order| order.as_str() == text);
        found.ok_or_else(|| ControlError::invalid("the order", "use `asc` or `desc`"))
    }
}

/// Where the next page of a list begins. Its text means nothing to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken {
    pub(crate) order: Order,
    pub(crate) time: Time,
    pub(crate) id: String,
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{}.{}", self.order.as_str(), self.time.ms(), self.id);
        f.write_str(&hex(text.as_bytes()))
    }
}

impl FromStr for PageToken {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        parse(text).ok_or_else(|| ControlError::invalid("the next token", "use the one that came with the last page"))
    }
}

fn parse(text: &str) -> Option<PageToken> {
    let good = text.is_ascii() && text.len() <= TOKEN_BYTES_MAX && text.len().is_multiple_of(2);
    let pairs = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    let bytes = if good { pairs.collect::<Option<Vec<u8>>>()? } else { return None };
    let text = String::from_utf8(bytes).ok()?;
    let (order, rest) = text.split_once('.')?;
    let (time, id) = rest.split_once('.')?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let id = id.bytes().all(allowed).then(|| id.to_owned())?;
    Some(PageToken { order: order.parse().ok()?, time: Time::from_ms(time.parse().ok()?), id })
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Items, from 1 to [`PAGE_MAX`].
    pub limit: usize,
    /// The token of the page before. The first page has none.
    pub after: Option<PageToken>,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: PAGE_MAX, after: None }
    }
}

impl Page {
    pub(crate) fn check(&self, order: Order) -> Result<(), ControlError> {
        if !(1..=PAGE_MAX).contains(&self.limit) {
            return Err(ControlError::invalid("the limit", format!("use 1 to {PAGE_MAX}")));
        }
        if self.after.as_ref().is_some_and(|after| after.order != order) {
            return Err(ControlError::invalid("the next token", "it is of a list in another order"));
        }
        Ok(())
    }

    /// Cuts what was read beyond the page, and says where the next one begins.
    pub(crate) fn cut<T>(
        &self,
        items: &mut Vec<T>,
        order: Order,
        key: impl Fn(&T) -> (Time, String),
    ) -> Option<PageToken> {
        if items.len() <= self.limit {
            return None;
        }
        items.truncate(self.limit);
        let (time, id) = key(items.last()?);
        Some(PageToken { order, time, id })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_is_read_back_as_it_was_written() {
        let token = PageToken { order: Order::Asc, time: Time::from_ms(77), id: "s0123456789ab".to_owned() };
        assert_eq!(token.to_string().parse::<PageToken>().unwrap(), token);
    }

    proptest! {
        #[test]
        fn any_token_is_read_or_refused(text in "\\PC*") {
            let _ = text.parse::<PageToken>();
        }

        #[test]
        fn any_content_of_a_token_is_read_or_refused(text in "\\PC*") {
            if let Ok(token) = hex(text.as_bytes()).parse::<PageToken>() {
                prop_assert!(token.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
            }
        }
    }
}
