//! How clients name templates: `[slug/]name[:tag]` or `id[:tag]`.

use std::{fmt, str::FromStr};

use base::{id::TemplateId, limits::TEMPLATE_NAME_BYTES_MAX};

use super::DEFAULT_TAG;
use crate::{ControlError, Slug};

/// A client's name of a template. Upper-case letters are read as lower-case ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRef {
    slug: Option<Slug>,
    name: String,
    tag: Option<String>,
}

impl TemplateRef {
    /// The team that the name is of, if it says so.
    pub fn slug(&self) -> Option<&Slug> {
        self.slug.as_ref()
    }

    /// The name, or the id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag: `default` if the name has none.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }

    /// The tag, if the name has one.
    pub fn explicit_tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The id that it may be.
    pub(super) fn id(&self) -> Option<TemplateId> {
        if self.slug.is_some() { None } else { self.name.parse().ok() }
    }
}

impl From<&TemplateId> for TemplateRef {
    fn from(id: &TemplateId) -> Self {
        Self { slug: None, name: id.to_string(), tag: None }
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slug) = &self.slug {
            write!(f, "{slug}/")?;
        }
        f.write_str(&self.name)?;
        match &self.tag {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

impl FromStr for TemplateRef {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let (rest, tag) = match text.split_once(':') {
            Some((rest, tag)) => (rest, Some(tag_of(tag)?)),
            None => (text, None),
        };
        let (slug, name) = match rest.split_once('/') {
            Some((slug, name)) => (Some(slug.to_ascii_lowercase().parse()?), name),
            None => (None, rest),
        };
        Ok(Self { slug, name: word("the template's name", name)?, tag })
    }
}

/// A tag.
pub(super) fn tag_of(text: &str) -> Result<String, ControlError> {
    word("the tag", text)
}

fn word(what: &'static str, text: &str) -> Result<String, ControlError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let good = (1..=TEMPLATE_NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(allowed)
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if good {
        return Ok(text.to_ascii_lowercase());
    }
    let rule = format!(
        "use 1 to {TEMPLATE_NAME_BYTES_MAX} letters, digits, '-', '_' and '.', beginning with a letter or digit"
    );
    Err(ControlError::invalid(what, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_clients_write_them() {
        let read = |text: &str| text.parse::<TemplateRef>().unwrap();
        assert_eq!((read("Base").name(), read("base").tag(), read("base").explicit_tag()), ("base", "default", None));
        let full = read("acme/my.app_1:v2");
        assert_eq!((full.slug().unwrap().as_str(), full.name(), full.tag()), ("acme", "my.app_1", "v2"));
        assert_eq!(full.to_string(), "acme/my.app_1:v2");
        let id = TemplateId::random();
        assert_eq!(TemplateRef::from(&id).id(), Some(id));
        for bad in ["", ":", "a:", ":a", "a/b/c", "a:b:c", "/a", "a/", "../a", "a b", "\u{e4}", "a\0", &"a".repeat(129)]
        {
            assert!(bad.parse::<TemplateRef>().is_err(), "{bad:?}");
        }
    }
}
