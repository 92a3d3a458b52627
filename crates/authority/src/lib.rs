//! Certificate authorities of a node's own: each made at its first use, and kept in a directory.
//!
//! - `authority.key`: the private key, mode 0600.
//! - `authority.pem`: the certificate, for clients.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    sign::CertifiedKey,
};

/// Certificates of servers are valid from a day before they are made: clocks of clients may be behind.
const BEFORE: Duration = Duration::from_secs(86_400);

/// An authority is valid in these years: it is trusted only where its file is named, and ends with its file.
const YEARS: (i32, i32) = (2020, 2060);

const HINT: &str = "remove its directory and start the server again; clients then need the new files";

/// Certificates cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} is not usable: {reason}; {hint}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What to do next.
        hint: &'static str,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// The TLS library refuses what it was given.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// An authority.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    text: String,
    certificate: CertificateDer<'static>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in `dir`, or makes it. Only one process may do that at a time. `params` gives all that its certificate says, and must depend
    /// on nothing but the key.
    pub fn open(dir: &Path, params: impl FnOnce(&KeyPair) -> CertificateParams) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(file("create", dir))?;
        let key_path = dir.join("authority.key");
        let key = match fs::read_to_string(&key_path) {
            Ok(text) => KeyPair::from_pem(&text).map_err(|error| content(&key_path, error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_key(dir, &key_path)?,
            Err(error) => return Err(file("read", &key_path)(error)),
        };
        let params = params(&key);
        let path = dir.join("authority.pem");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            // It is made of the key alone: a crash between the two files loses nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = params.self_signed(&key)?.pem();
                write_file(&path, text.as_bytes(), 0o644)?;
                text
            }
            Err(error) => return Err(file("read", &path)(error)),
        };
        let certificate =
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| content(&path, error.to_string()))?;
        Ok(Self { dir: dir.to_owned(), issuer: Issuer::new(params, key), text, certificate })
    }

    /// The file of the certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.join("authority.pem")
    }

    /// The certificate, as PEM.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A certificate for a server, with its key.
    pub fn certify(&self, params: &CertificateParams, key: &KeyPair) -> Result<CertifiedKey, Error> {
        let certificate = params.signed_by(key, &self.issuer)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(CertifiedKey::from_der(vec![certificate], key, &ring::default_provider())?)
    }

    /// Its files do not belong together.
    pub fn unusable(&self, reason: String) -> Error {
        content(&self.file(), reason)
    }
}

/// What the certificate of an authority says.
pub fn of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    (params.not_before, params.not_after) = (date_time_ymd(YEARS.0, 1, 1), date_time_ymd(YEARS.1, 1, 1));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// What the certificate of a server says, which is valid for so long from now.
pub fn of_server(name: &str, names: Vec<String>, valid: Duration) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = named(name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + now.saturating_sub(BEFORE), epoch + now + valid);
    Ok(params)
}

/// A common name has at most 64 characters (RFC 5280, upper bounds).
fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::OrganizationName, "Pando");
    distinguished.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    distinguished
}

/// A new key. The certificate of an earlier one is worth nothing without it.
fn make_key(dir: &Path, path: &Path) -> Result<KeyPair, Error> {
    let key = KeyPair::generate()?;
    let old = dir.join("authority.pem");
    match fs::remove_file(&old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file("remove", &old)(error)),
        Ok(()) | Err(_) => {}
    }
    write_file(path, key.serialize_pem().as_bytes(), 0o600)?;
    Ok(key)
}

/// Replaces a file at once: a reader sees the earlier or the new one.
pub fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = || {
        // Left by a crash; it may have another owner's mode.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        // Past the umask.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(file("write", path))
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { action, path, source }
}

fn content(path: &Path, reason: String) -> Error {
    Error::Content { path: path.to_owned(), reason, hint: HINT }
}
