//! How nouns are written: in records of the node, in manifests and in checkpoint files. Each type here describes one noun for serde's `remote`,
//! so that a change of the noun does not compile until somebody has decided what becomes of what was written before. Names of fields and
//! variants are those of the formats and never change.

#![allow(missing_docs, reason = "fields and variants are those of the nouns, which document them")]

use base::id::{SnapshotName, TemplateName, VolumeName};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// See [`model::Ready`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::Ready", rename_all = "snake_case")]
pub enum Ready {
    Listening,
    Port(u16),
    File(String),
    Command(Vec<String>),
}

/// See [`model::Limits`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::Limits")]
pub struct Limits {
    pub memory_bytes: u64,
    pub pids: u64,
    pub cpu_millis: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

/// See [`model::NetworkPolicy`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::NetworkPolicy")]
pub struct NetworkPolicy {
    pub closed: bool,
    #[serde(with = "base::texts")]
    pub allow: Vec<model::Addresses>,
    #[serde(with = "base::texts")]
    pub deny: Vec<model::Addresses>,
    pub dns: Vec<std::net::IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "base::texts")]
    pub domains: Vec<model::Domain>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "rules")]
    pub rules: Vec<model::HeaderRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

/// See [`model::TemplateSpec`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::TemplateSpec")]
pub struct TemplateSpec {
    pub name: TemplateName,
    #[serde(with = "image")]
    pub image: model::Image,
    pub command: Vec<String>,
    #[serde(default)]
    pub env: Vec<(String, String)>,
    pub cwd: String,
    #[serde(with = "Ready")]
    pub ready: model::Ready,
    pub ready_timeout_ms: u64,
    #[serde(default = "model::Limits::default", with = "Limits")]
    pub limits: model::Limits,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_points: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_fork: Vec<String>,
}

/// See [`model::BuildTimings`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::BuildTimings")]
pub struct BuildTimings {
    pub ready_us: u64,
    pub pause_us: u64,
    pub capture_us: u64,
    pub build_us: u64,
    pub total_us: u64,
}

/// See [`model::ExitStatus`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::ExitStatus", rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
    Unknown,
}

/// See [`model::SandboxState`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::SandboxState", rename_all = "snake_case")]
pub enum SandboxState {
    Running,
    Pausing,
    Paused,
    Exited(#[serde(with = "ExitStatus")] model::ExitStatus),
    Lost,
}

/// See [`model::Mount`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::Mount")]
pub struct Mount {
    pub volume: VolumeName,
    pub path: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
}

/// See [`model::KeptState`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::KeptState", deny_unknown_fields)]
pub struct KeptState {
    pub by: String,
    pub manifest: String,
}

/// See [`model::CheckpointVolume`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::CheckpointVolume")]
pub struct CheckpointVolume {
    pub volume: VolumeName,
    pub path: String,
    #[serde(with = "KeptState")]
    pub state: model::KeptState,
}

/// See [`model::VolumeDurability`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::VolumeDurability", rename_all = "snake_case")]
pub enum VolumeDurability {
    Local,
    Object,
}

/// See [`model::VolumeSpec`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::VolumeSpec", deny_unknown_fields)]
pub struct VolumeSpec {
    pub name: VolumeName,
    #[serde(default)]
    pub bytes_max: Option<u64>,
    #[serde(default)]
    pub inodes_max: Option<u64>,
    #[serde(default, with = "VolumeDurability")]
    pub durability: model::VolumeDurability,
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub gid: Option<u32>,
    #[serde(default)]
    pub mode: Option<u16>,
}

/// Bytes of a spec where it is written down.
pub fn bytes_of(spec: &model::TemplateSpec) -> usize {
    let mut text = Vec::new();
    match TemplateSpec::serialize(spec, &mut serde_json::Serializer::new(&mut text)) {
        Ok(()) => text.len(),
        Err(_) => usize::MAX,
    }
}

/// An image as its text.
pub mod image {
    use serde::de::Error;

    use super::{Deserialize, Deserializer, Serializer};

    /// For serde.
    pub fn serialize<S: Serializer>(image: &model::Image, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(image)
    }

    /// For serde.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<model::Image, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Rules for requests, whose values are sealed.
mod rules {
    use model::{Header, HeaderRule, Hidden};
    use serde::{de::Error as _, ser::Error as _};

    use super::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct One {
        domain: String,
        /// Names, and sealed values.
        headers: Vec<(String, String)>,
    }

    pub(super) fn serialize<S: Serializer>(rules: &[HeaderRule], serializer: S) -> Result<S::Ok, S::Error> {
        let header = |header: &Header| match &header.value {
            Hidden::Sealed(value) => Ok((header.name.clone(), value.clone())),
            Hidden::Plain(_) => Err(S::Error::custom("the value of a header is not sealed")),
        };
        let one = |rule: &HeaderRule| {
            let headers = rule.headers.iter().map(header).collect::<Result<_, _>>()?;
            Ok(One { domain: rule.domain.to_string(), headers })
        };
        rules.iter().map(one).collect::<Result<Vec<_>, _>>()?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<HeaderRule>, D::Error> {
        let header = |(name, value)| Header { name, value: Hidden::Sealed(value) };
        let rule = |One { domain, headers }| {
            let domain = domain.parse().map_err(D::Error::custom)?;
            Ok(HeaderRule { domain, headers: headers.into_iter().map(header).collect() })
        };
        Vec::deserialize(deserializer)?.into_iter().map(rule).collect()
    }
}

/// Lists of mounts.
pub mod mounts {
    use super::{Deserialize, Deserializer, Mount, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "Mount")] model::Mount);

    /// For serde.
    pub fn serialize<S: Serializer>(mounts: &[model::Mount], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(mounts.iter().cloned().map(One))
    }

    /// For serde.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<model::Mount>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().map(|One(mount)| mount).collect())
    }
}

/// Lists of the volumes of a checkpoint.
pub mod checkpoint_volumes {
    use super::{CheckpointVolume, Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "CheckpointVolume")] model::CheckpointVolume);

    /// For serde.
    pub fn serialize<S: Serializer>(volumes: &[model::CheckpointVolume], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(volumes.iter().cloned().map(One))
    }

    /// For serde.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<model::CheckpointVolume>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().map(|One(volume)| volume).collect())
    }
}

/// A spec that may be there.
pub mod optional_spec {
    use super::{Deserialize, Deserializer, Serialize, Serializer, TemplateSpec};

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "TemplateSpec")] model::TemplateSpec);

    /// For serde.
    pub fn serialize<S: Serializer>(spec: &Option<model::TemplateSpec>, serializer: S) -> Result<S::Ok, S::Error> {
        spec.clone().map(One).serialize(serializer)
    }

    /// For serde.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<model::TemplateSpec>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(|One(spec)| spec))
    }
}
