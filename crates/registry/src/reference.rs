//! What the name of an image means: a registry, a repository in it, and a tag or a digest.

use std::fmt;

use images::Digest;

use crate::error::Error;

/// The registry of names without one, unless the operator chooses another.
pub const REGISTRY_DEFAULT: &str = "docker.io";

/// The host that serves that registry.
const HUB_HOST: &str = "registry-1.docker.io";
/// The same registry, as clients of Docker name it.
const HUB_NAMES: [&str; 2] = ["docker.io", "index.docker.io"];
/// Images of that registry without an owner are there.
const HUB_OWNER: &str = "library";
/// Longest tag (OCI's distribution specification).
const TAG_BYTES_MAX: usize = 128;

/// An image at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// As the user wrote it, which is what the image is called from then on.
    name: String,
    registry: Host,
    repository: String,
    version: Version,
}

/// Which one of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Version {
    Tag(String),
    /// Of its manifest, or of an index.
    Digest(Digest),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => write!(f, "{digest}"),
        }
    }
}

/// A registry: `HOST` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host(String);

impl Host {
    /// Reads a name of DNS or an IPv4 address, with or without a port.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            let fits = bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
            fits && bytes.first().zip(bytes.last()).is_some_and(|(first, last)| *first != b'-' && *last != b'-')
        };
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
        if text.len() <= 255 && host.split('.').all(is_label) && is_port {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(format!("{text:?} is no registry: give HOST or HOST:PORT, such as registry.example.com:5000"))
        }
    }

    /// What its users call it, and the key of its credentials.
    pub fn name(&self) -> &str {
        if self.is_hub() { REGISTRY_DEFAULT } else { &self.0 }
    }

    /// Where requests go: `HOST` or `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        if self.is_hub() { HUB_HOST } else { &self.0 }
    }

    fn is_hub(&self) -> bool {
        HUB_NAMES.contains(&self.0.as_str())
    }
}

impl Reference {
    /// Reads `[REGISTRY/]REPOSITORY[:TAG][@sha256:DIGEST]`. Without a registry `default` is meant, without a tag `latest`.
    pub fn parse(name: &str, default: &Host) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Reference { name: base::text::one_line(name), why: why.to_owned() };
        if !model::is_image_reference(name) {
            return Err(wrong("it is no name of an image, such as python:3.12-slim or registry.example.com/app:1.0"));
        }
        let (called, digest) = name.split_once('@').map_or((name, None), |(called, digest)| (called, Some(digest)));
        // A first part that can be a host is one, as everywhere: `localhost/app`, `example.com/app`, `example:5000/app`.
        let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
        let (registry, rest) = match called.split_once('/') {
            Some((host, rest)) if is_host(host) => (Host::parse(host).map_err(|why| wrong(&why))?, rest),
            _ => (default.clone(), called),
        };
        let (repository, tag) = rest.split_once(':').map_or((rest, None), |(repository, tag)| (repository, Some(tag)));
        if !repository.split('/').all(is_part) {
            return Err(wrong("a repository has lower-case letters, digits and single . _ - between them"));
        }
        if !tag.is_none_or(is_tag) {
            return Err(wrong("a tag has up to 128 letters, digits and . _ -, and begins with none of . -"));
        }
        let repository = match registry.is_hub() && !repository.contains('/') {
            true => format!("{HUB_OWNER}/{repository}"),
            false => repository.to_owned(),
        };
        let version = match digest {
            Some(digest) => Version::Digest(digest.parse().map_err(Error::Image)?),
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self { name: name.to_owned(), registry, repository, version })
    }

    /// As the user wrote it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn registry(&self) -> &Host {
        &self.registry
    }

    pub(crate) fn repository(&self) -> &str {
        &self.repository
    }

    pub(crate) fn version(&self) -> &Version {
        &self.version
    }
}

/// Of a repository's path: words, and what may stand between them (OCI's distribution specification).
fn is_part(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let joins = |between: &str| ["", ".", "_", "__"].contains(&between) || between.bytes().all(|byte| byte == b'-');
    part.starts_with(is_word) && part.ends_with(is_word) && part.split(is_word).all(joins)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = tag.bytes().next().is_some_and(is_word);
    first && tag.len() <= TAG_BYTES_MAX && tag.bytes().all(|byte| is_word(byte) || b".-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Result<(String, String, String), String> {
        let default = Host::parse(REGISTRY_DEFAULT).unwrap();
        let found = Reference::parse(name, &default).map_err(|error| error.to_string())?;
        assert_eq!(found.name(), name);
        Ok((found.registry.authority().to_owned(), found.repository, found.version.to_string()))
    }

    #[test]
    fn a_name_says_registry_repository_and_version() {
        let digest = Digest::of(b"x").to_string();
        let pinned = format!("ghcr.io/owner/app:1.0@{digest}");
        for (name, registry, repository, version) in [
            ("python:3.12-slim", HUB_HOST, "library/python", "3.12-slim"),
            ("owner/app", HUB_HOST, "owner/app", "latest"),
            ("docker.io/python", HUB_HOST, "library/python", "latest"),
            ("index.docker.io/a/b:T_1", HUB_HOST, "a/b", "T_1"),
            ("localhost/app", "localhost", "app", "latest"),
            ("127.0.0.1:5000/a/b__c/d--e.f:1", "127.0.0.1:5000", "a/b__c/d--e.f", "1"),
            (&pinned, "ghcr.io", "owner/app", &digest),
        ] {
            let found = (registry.to_owned(), repository.to_owned(), version.to_owned());
            assert_eq!(read(name), Ok(found), "{name}");
        }
    }

    #[test]
    fn names_without_a_registry_are_of_the_one_that_is_chosen() {
        let own = Host::parse("registry.example.com:5000").unwrap();
        let found = Reference::parse("python:3.12", &own).unwrap();
        assert_eq!((found.registry.authority(), found.repository.as_str()), ("registry.example.com:5000", "python"));
    }

    #[test]
    fn what_no_registry_has_is_refused() {
        for wrong in [
            "",
            "Python",
            "a..b",
            "a._b",
            "a___b",
            ".a",
            "a-",
            "a/",
            "a:",
            "a:.x",
            "a:-x",
            "example.com:0/a",
            "example.com:99999/a",
            "-x.com/a",
            "a@sha256:12",
            "host",
            "a b",
            "http://x.com/a",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read(&format!("a:{}", "x".repeat(129))).is_err() && read(&format!("a:{}", "x".repeat(128))).is_ok());
    }
}
