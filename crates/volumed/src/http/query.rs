//! Paths and parameters, which are bytes: a file's name need not be UTF-8.

use axum::{extract::FromRequestParts, http::request::Parts};
use base::id::SnapshotName;
use volume::New;

use crate::{
    failure::{Failure, Result},
    message::Source,
    percent,
};

/// What a request on a volume, or on a file in it, names.
pub(super) struct Target {
    pub(super) source: Source,
    pub(super) path: Vec<u8>,
    pub(super) query: Query,
}

/// Parameters behind the path.
pub(super) struct Query {
    pairs: Vec<(String, Vec<u8>)>,
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl<S: Sync> FromRequestParts<S> for Target {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        // The router has seen to it that it looks so.
        let rest = parts.uri.path().split_once("/volumes/").map_or("", |(_, rest)| rest);
        let (name, behind) = rest.split_once('/').unwrap_or((rest, ""));
        let path = behind.strip_prefix("files").unwrap_or_default();
        let source = Source::new(parse(name)?, query.parsed::<SnapshotName>("snapshot")?);
        Ok(Self { source, path: percent::decode(path), query })
    }
}

impl Target {
    /// For a change.
    pub(super) fn is_volume(&self) -> Result<()> {
        if self.source.is_current() {
            return Ok(());
        }
        Err(Failure::invalid("a snapshot cannot be changed; fork it"))
    }
}

impl Query {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.to_owned(), percent::decode(value))
        };
        Self { pairs: pairs.map(pair).collect() }
    }

    pub(super) fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.pairs.iter().find(|(known, _)| known == key).map(|(_, value)| &value[..])
    }

    pub(super) fn required(&self, key: &str) -> Result<&[u8]> {
        self.bytes(key).ok_or_else(|| Failure::invalid(format!("the parameter {key}= is missing")))
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        let text = self.bytes(key).map(str::from_utf8).transpose();
        text.map_err(|_| Failure::invalid(format!("the parameter {key}= is no text")))
    }

    pub(super) fn operation(&self) -> Result<Option<&str>> {
        self.text("op")
    }

    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Result<Option<T>> {
        let parse = |text: &str| text.parse().map_err(|error| Failure::invalid(format!("{key}={text}: {error}")));
        self.text(key)?.map(parse).transpose()
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.parsed(key)?.unwrap_or(false))
    }

    /// Permissions, owner and group.
    pub(super) fn owner(&self) -> Result<Owner> {
        Ok(Owner { mode: self.mode()?, uid: self.id("uid")?, gid: self.id("gid")? })
    }

    /// A uid or gid. The largest number means none to the kernel.
    fn id(&self, key: &str) -> Result<Option<u32>> {
        match self.parsed(key)? {
            Some(u32::MAX) => Err(Failure::invalid(format!("{key}={}: this is no id", u32::MAX))),
            id => Ok(id),
        }
    }

    /// Permissions, as `chmod` takes them.
    pub(super) fn mode(&self) -> Result<Option<u16>> {
        let parse = |text: &str| match u16::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o7777 => Ok(mode),
            _ => Err(Failure::invalid(format!("mode={text}: it is up to four octal digits"))),
        };
        self.text("mode")?.map(parse).transpose()
    }
}

/// Permissions, owner and group that a request names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) mode: Option<u16>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

impl Owner {
    /// `new` with these values instead.
    pub(super) fn of(self, new: New<'_>) -> New<'_> {
        let Self { mode, uid, gid } = self;
        New { mode: mode.unwrap_or(new.mode), uid: uid.unwrap_or(new.uid), gid: gid.unwrap_or(new.gid), ..new }
    }
}

/// A name or an identifier.
pub(super) fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T> {
    text.parse::<T>().map_err(|error| Failure::invalid(error.to_string()))
}
