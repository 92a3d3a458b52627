//! Identifiers: each kind of thing has its own type, so that one cannot be passed for another.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::limits;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}: {rule}")]
pub struct InvalidId {
    kind: &'static str,
    text: String,
    rule: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $valid:path, $rule:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if $valid(text) {
                    return Ok(Self(text.to_owned()));
                }
                // A hostile text may be huge: an error shows its beginning only.
                let shown = text.chars().take(limits::NAME_BYTES_MAX).collect();
                Err(InvalidId { kind: $kind, text: shown, rule: $rule })
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// One sandbox on one node. Made by [`SandboxId::random`]; also the name of its cgroup and its directory.
    SandboxId,
    "sandbox id",
    is_sandbox_id,
    "it is 's' and 12 hexadecimal digits"
);

id!(
    /// The name a user gave a template.
    TemplateName,
    "template name",
    is_name,
    "use 1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit"
);

id!(
    /// The name a user gave a volume.
    VolumeName,
    "volume name",
    is_name,
    "use 1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit"
);

id!(
    /// A state of one volume that was kept; the user's name for it, or [`SnapshotName::random`].
    SnapshotName,
    "snapshot name",
    is_name,
    "use 1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit"
);

id!(
    /// One HTTP request. A client may choose it; else [`RequestId::random`].
    RequestId,
    "request id",
    is_request_id,
    "use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'"
);

macro_rules! uuid {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        id!($(#[$doc])* $name, $kind, is_uuid, "it is a UUID in lower case, such as 01234567-89ab-4def-8123-456789abcdef");

        impl $name {
            /// A new identifier from the kernel's random source.
            pub fn random() -> Self {
                Self(random_uuid())
            }
        }
    };
}

uuid!(
    /// A tenant of a server.
    TeamId,
    "team id"
);

uuid!(
    /// One API key of a team. Not the key itself, which is a secret.
    KeyId,
    "key id"
);

uuid!(
    /// One build of a template.
    BuildId,
    "build id"
);

uuid!(
    /// One volume of a team, as its API names it.
    VolumeId,
    "volume id"
);

uuid!(
    /// One secret of a team.
    SecretId,
    "secret id"
);

uuid!(
    /// One start of a sandbox that is under way.
    ReservationId,
    "reservation id"
);

id!(
    /// One template, in the form that E2B gives such identifiers.
    TemplateId,
    "template id",
    is_template_id,
    "it is 20 lower-case letters and digits"
);

impl TemplateId {
    /// A new identifier from the kernel's random source (100 bits).
    pub fn random() -> Self {
        // 32 letters: a byte's low five bits choose each of them equally often.
        const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let mut bytes = [0u8; TEMPLATE_ID_BYTES];
        fill_random(&mut bytes);
        Self(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect())
    }
}

/// Length of a template's identifier.
const TEMPLATE_ID_BYTES: usize = 20;

impl RequestId {
    /// 48 random bits.
    pub fn random() -> Self {
        Self(random_hex())
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// One zygote of a node. No two zygotes of the same run of a node have the same number.
    ZygoteId
);

number!(
    /// One start of a copy on a node. No two starts of the same run of a node have the same number.
    StartId
);

/// Where a start leaves its operations in the memory of a copy. This memory is not part of the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Arena {
    /// Its first address.
    pub start: u64,
    /// The address behind its last byte.
    pub end: u64,
}

impl From<(u64, u64)> for Arena {
    fn from((start, end): (u64, u64)) -> Self {
        Self { start, end }
    }
}

impl From<Arena> for (u64, u64) {
    fn from(arena: Arena) -> Self {
        (arena.start, arena.end)
    }
}

impl SnapshotName {
    /// A name that nobody else has chosen (48 random bits; a clash within one volume is refused by the heads).
    pub fn random() -> Self {
        Self(format!("snap-{}", random_hex()))
    }
}

impl VolumeName {
    /// A name for a volume that is there while something is done (48 random bits).
    pub fn transient(purpose: &str) -> Self {
        Self(format!("{purpose}-{}", random_hex()))
    }

    /// Of the volume that a copy has in the place of this one: it begins like this name and ends with the copy's. Where no room is left for
    /// all of this name, 8 digits of its CRC-32 stand for the rest: names are durable, so the digits must not depend on the compiler.
    pub fn of_copy(&self, copy: &SandboxId) -> Self {
        let whole = format!("{}-{copy}", self.0);
        if whole.len() <= limits::NAME_BYTES_MAX {
            return Self(whole);
        }
        let checksum = crc32fast::hash(self.0.as_bytes());
        // Names are ASCII.
        let begin = &self.0[..limits::NAME_BYTES_MAX - 10 - copy.0.len()];
        Self(format!("{begin}-{checksum:08x}-{copy}"))
    }
}

impl SandboxId {
    /// A new identifier from the kernel's random source (48 bits: a clash among a node's sandboxes is refused by `mkdir`).
    pub fn random() -> Self {
        Self(format!("s{}", random_hex()))
    }
}

/// 12 digits.
fn random_hex() -> String {
    let mut bytes = [0u8; 6];
    fill_random(&mut bytes);
    hex(&bytes)
}

/// Fills `bytes` from the kernel's random source.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let got = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += got.expect("getrandom without flags fails only for a bad address");
    }
}

/// Lower-case hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A random identifier in the form of a version 4 UUID, as in `/proc/sys/kernel/random/boot_id`.
pub fn random_uuid() -> String {
    let mut bytes = [0u8; 16];
    fill_random(&mut bytes);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let digits = hex(&bytes);
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

fn is_request_id(text: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=limits::REQUEST_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(valid)
}

fn is_sandbox_id(text: &str) -> bool {
    let Some(digits) = text.strip_prefix('s') else { return false };
    digits.len() == 12 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_uuid(text: &str) -> bool {
    let dash = |index| matches!(index, 8 | 13 | 18 | 23);
    let good = |(index, byte)| match dash(index) {
        true => byte == b'-',
        false => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 36 && text.bytes().enumerate().all(good)
}

fn is_template_id(text: &str) -> bool {
    text.len() == TEMPLATE_ID_BYTES && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'))
}

fn is_name(text: &str) -> bool {
    let ordinary = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    let allowed = |byte: u8| ordinary(byte) || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= limits::NAME_BYTES_MAX && text.bytes().next().is_some_and(ordinary) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_hold_nothing_that_a_log_would_garble() {
        for good in ["a", "Z-9._", &"x".repeat(64)] {
            assert_eq!(good.parse::<RequestId>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a\nb", "\u{1b}[31m", "\"", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<RequestId>().is_err(), "{bad:?}");
        }
        assert!(RequestId::random().as_str().parse::<RequestId>().is_ok());
    }

    #[test]
    fn numbers_and_arenas_are_written_as_their_contents() {
        assert_eq!(serde_json::to_string(&(ZygoteId(7), StartId(8))).unwrap(), "[7,8]");
        let arena = Arena { start: 4096, end: 8192 };
        assert_eq!(serde_json::to_string(&arena).unwrap(), "[4096,8192]");
        assert_eq!(serde_json::from_str::<Arena>("[4096,8192]").unwrap(), arena);
    }

    #[test]
    fn the_volume_of_a_copy_has_a_name_of_its_own_whatever_the_first_is_called() {
        let copy = SandboxId::random();
        let long = "v".repeat(limits::NAME_BYTES_MAX - 1);
        let names = ["v", &format!("{long}a"), &format!("{long}b")].map(|name| name.parse::<VolumeName>().unwrap());
        let own = names.map(|name| name.of_copy(&copy).to_string());
        assert_eq!(own[0], format!("v-{copy}"));
        assert_ne!(own[1], own[2]);
        for own in own {
            assert!(own.ends_with(copy.as_str()) && own.parse::<VolumeName>().is_ok(), "{own}");
        }
    }

    #[test]
    fn a_shortened_name_is_the_same_in_every_build() {
        let name: VolumeName = format!("{}a", "v".repeat(limits::NAME_BYTES_MAX - 1)).parse().unwrap();
        let copy: SandboxId = "s0123456789ab".parse().unwrap();
        assert_eq!(name.of_copy(&copy).as_str(), "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv-4784c277-s0123456789ab");
    }

    #[test]
    fn random_sandbox_ids_parse_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        assert_eq!(a.as_str().parse::<SandboxId>().unwrap(), a);
    }

    #[test]
    fn ids_of_the_control_plane_parse_and_differ() {
        assert_eq!(TeamId::random().as_str().parse::<TeamId>().unwrap().as_str().len(), 36);
        assert_ne!(TemplateId::random(), TemplateId::random());
        assert!(TemplateId::random().as_str().parse::<TemplateId>().is_ok());
        for bad in ["", "0123456789abcdef01234567-0000-0000-0", "01234567-89AB-4def-8123-456789abcdef"] {
            assert!(bad.parse::<BuildId>().is_err(), "{bad:?}");
        }
        assert!("../4567890123456789".parse::<TemplateId>().is_err());
    }

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for bad in ["", ".", "..", "a/b", "-x", "A", "a b", "a\0", &"a".repeat(64)] {
            assert!(bad.parse::<TemplateName>().is_err(), "{bad:?}");
        }
        for good in ["geo", "geo-2.1_b", "0"] {
            assert!(good.parse::<TemplateName>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn json_cannot_smuggle_an_invalid_id_in() {
        assert!(serde_json::from_str::<SandboxId>("\"../../etc\"").is_err());
    }

    #[test]
    fn uuid_has_the_form_of_version_four() {
        let uuid = random_uuid();
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
    }
}
