//! Master keys from a file or the environment.

use std::{
    fs,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use async_trait::async_trait;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::{KeyError, KeyProvider};
use crate::{id::Realm, id::unhex, limits};

/// Master keys held in memory. As text: `NAME:64 HEXADECIMAL DIGITS`, one or more, separated by line ends or commas; the first is the
/// current one, the others open what they have wrapped.
pub struct MasterKeys {
    keys: Vec<(String, LessSafeKey)>,
}

impl MasterKeys {
    /// The keys in `text`; `place` is where it comes from, for messages.
    pub fn parse(text: &str, place: &str) -> Result<Self, KeyError> {
        let refuse = |rule: &str| KeyError::MasterKeys { place: place.to_owned(), rule: rule.to_owned() };
        let mut keys: Vec<(String, LessSafeKey)> = Vec::new();
        for entry in text.split(['\n', ',']).map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, digits) = entry.split_once(':').ok_or_else(|| refuse("an entry is NAME:DIGITS"))?;
            if name.parse::<Realm>().is_err() {
                return Err(refuse("a name has 1 to 63 of a-z, 0-9, '-', '_' and '.'"));
            }
            if keys.iter().any(|(known, _)| known == name) {
                return Err(refuse("a name is there twice"));
            }
            let mut secret = Zeroizing::new([0; 32]);
            if !unhex(digits, &mut secret[..]) {
                return Err(refuse("a key is 64 lower-case hexadecimal digits"));
            }
            let key = UnboundKey::new(&AES_256_GCM, &secret[..]).expect("32 bytes are the length of such a key");
            keys.push((name.to_owned(), LessSafeKey::new(key)));
        }
        if keys.is_empty() {
            return Err(refuse("there is none"));
        }
        Ok(Self { keys })
    }

    /// The keys in the variable `name` of the environment.
    pub fn from_environment(name: &str) -> Result<Self, KeyError> {
        let text = std::env::var(name).map(Zeroizing::new).map_err(|_| KeyError::MasterKeys {
            place: format!("the environment variable {name}"),
            rule: "it is not set".to_owned(),
        })?;
        Self::parse(&text, &format!("the environment variable {name}"))
    }

    /// The keys in the file `path`, which only its owner may read. If it is missing, it is made with one new key, named `first`.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let refuse = |rule: String| KeyError::MasterKeys { place: path.display().to_string(), rule };
        if !path.exists() {
            make_file(path).map_err(|error| refuse(format!("it could not be made: {error}")))?;
        }
        let about = fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
        if !about.is_file() {
            return Err(refuse("it is not a file".to_owned()));
        }
        if about.permissions().mode() & 0o077 != 0 {
            return Err(refuse("others may read it; chmod 600 it".to_owned()));
        }
        if about.len() > limits::KEY_FILE_BYTES_MAX {
            return Err(refuse("it is too long".to_owned()));
        }
        let text = fs::read_to_string(path).map(Zeroizing::new).map_err(|error| refuse(error.to_string()))?;
        Self::parse(&text, &path.display().to_string())
    }

    fn find(&self, master: &str) -> Result<&LessSafeKey, KeyError> {
        let found = self.keys.iter().find(|(name, _)| name == master).map(|(_, key)| key);
        found.ok_or_else(|| KeyError::UnknownMaster {
            master: master.to_owned(),
            known: self.keys.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Durable before it is used: what is sealed under a lost key is lost.
fn make_file(path: &Path) -> std::io::Result<()> {
    let mut secret = Zeroizing::new([0; 32]);
    base::id::fill_random(&mut secret[..]);
    // Of two files that were made each names its own key: of a store that was sealed with the other one it can be told that the key is missing, not the store damaged.
    let mut name = [0; 4];
    base::id::fill_random(&mut name);
    let line = Zeroizing::new(format!("k{}:{}\n", base::id::hex(&name), base::id::hex(&secret[..])));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let draft = folder.join(format!(".{}.new", base::id::random_uuid()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let made =
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match made {
        // Another process was faster.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other.and_then(|()| fs::File::open(folder)?.sync_all()),
    }
}

#[async_trait]
impl KeyProvider for MasterKeys {
    fn current(&self) -> &str {
        &self.keys[0].0
    }

    async fn wrap(&self, context: &[u8], secret: &[u8; 32]) -> Result<Vec<u8>, KeyError> {
        // Random nonces are safe for 2^32 wrappings by one master key; a realm needs a few.
        let mut nonce = [0; NONCE_LEN];
        base::id::fill_random(&mut nonce);
        let mut sealed = secret.to_vec();
        let bound = Aad::from(context);
        let key = &self.keys[0].1;
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), bound, &mut sealed)
            .expect("32 bytes are shorter than GCM's longest message");
        Ok([&nonce[..], &sealed].concat())
    }

    async fn unwrap(&self, master: &str, context: &[u8], wrapped: &[u8]) -> Result<Zeroizing<[u8; 32]>, KeyError> {
        let key = self.find(master)?;
        let refused = || KeyError::Unwrap { master: master.to_owned() };
        let (nonce, sealed) = wrapped.split_first_chunk().ok_or_else(refused)?;
        let mut opened = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = key.open_in_place(nonce, Aad::from(context), &mut opened).map_err(|_| refused())?;
        let secret: &[u8; 32] = (&*plain).try_into().map_err(|_| refused())?;
        Ok(Zeroizing::new(*secret))
    }
}
