//! Documents of images (OCI's image specification, and Docker's forms of the same).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    error::{Error, refused},
};

/// A blob that another document names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) media_type: String,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
}

/// An index, or a manifest: what names manifests, or what names a configuration and layers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Manifest {
    #[serde(default)]
    pub(crate) manifests: Option<Vec<Descriptor>>,
    pub(crate) config: Option<Descriptor>,
    #[serde(default)]
    pub(crate) layers: Vec<Descriptor>,
}

/// An image of `docker save`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Saved {
    pub(crate) config: String,
    #[serde(default)]
    pub(crate) repo_tags: Option<Vec<String>>,
    pub(crate) layers: Vec<String>,
}

/// The configuration, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Document {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    config: Option<Said>,
    pub(crate) rootfs: RootFs,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct RootFs {
    pub(crate) diff_ids: Vec<Digest>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Said {
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
}

/// What an image says of its programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Environment.
    pub env: Vec<(String, String)>,
    /// User, and group behind a colon, as names or numbers; empty: root.
    pub user: String,
    /// Working directory; empty: `/`.
    pub working_dir: String,
    /// Program.
    pub entrypoint: Vec<String>,
    /// Its arguments, or the program if there is no entrypoint.
    pub command: Vec<String>,
    /// TCP ports that it listens on.
    pub ports: Vec<u16>,
}

impl Document {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let document: Self = parse(bytes, "configuration")?;
        if !document.os.is_empty() && document.os != "linux" {
            return refused(format!("it is an image for {}", document.os));
        }
        if !document.architecture.is_empty() && document.architecture != architecture() {
            return refused(format!(
                "it is an image for {}, and this machine is {}",
                document.architecture,
                architecture()
            ));
        }
        Ok(document)
    }

    pub(crate) fn config(&self) -> Config {
        let said = self.config.clone().unwrap_or_default();
        let variable = |line: String| {
            let (key, value) = line.split_once('=').unwrap_or((&line, ""));
            (key.to_owned(), value.to_owned())
        };
        let port = |port: String| port.strip_suffix("/tcp").unwrap_or(&port).parse().ok();
        Config {
            env: said.env.into_iter().flatten().map(variable).collect(),
            user: said.user.unwrap_or_default(),
            working_dir: said.working_dir.unwrap_or_default(),
            entrypoint: said.entrypoint.unwrap_or_default(),
            command: said.cmd.unwrap_or_default(),
            ports: said.exposed_ports.into_iter().flatten().filter_map(|(name, _)| port(name)).collect(),
        }
    }
}

/// As Go names it, which images do.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, Error> {
    serde_json::from_slice(bytes).or_else(|error| refused(format!("its {what} is not understood: {error}")))
}
