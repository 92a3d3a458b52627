//! The local certificate authority: one for each domain, made at the first start and kept.
//!
//! Its files, in a directory of the domain's name:
//!
//! - `authority.key`: the private key, mode 0600.
//! - `authority.pem`: the certificate, for clients that have the system's authorities already.
//! - `bundle.pem`: the system's authorities and this one, for clients that take one file only. Written at each start.
//!
//! The certificate says by itself what the key may sign: names of the domain and of this machine, and nothing else. A
//! stolen key cannot impersonate other sites.

use std::{
    fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType, date_time_ymd,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};

use super::{Error, bundle, provider};
use crate::domain::Domain;

/// A certificate of the server is valid for so long: clients refuse more than 397 to 825 days.
const VALID: Duration = Duration::from_secs(90 * DAY_S);
/// It is replaced so often: a machine that slept for two months still serves a valid one.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(7 * DAY_S);
/// Clocks of clients may be behind.
const BEFORE: Duration = Duration::from_secs(DAY_S);
const DAY_S: u64 = 86_400;

/// The authority itself is valid in these years: it is trusted only where its file is named, and ends with its file.
const YEARS: (i32, i32) = (2020, 2060);

const HINT: &str = "remove its directory and start the server again; clients then need the new files";

/// A local authority for one domain.
pub struct Authority {
    domain: Domain,
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority of a domain below `dir`, or makes it. Only one process may do that at a time.
    pub fn open(dir: &Path, domain: &Domain) -> Result<Self, Error> {
        let dir = dir.join(domain.name());
        fs::create_dir_all(&dir).map_err(file("create", &dir))?;
        let key_path = dir.join("authority.key");
        let key = match fs::read_to_string(&key_path) {
            Ok(text) => KeyPair::from_pem(&text).map_err(|error| content(&key_path, error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_key(&dir, &key_path)?,
            Err(error) => return Err(file("read", &key_path)(error)),
        };
        let params = authority_params(domain, &key);
        let path = dir.join("authority.pem");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            // It is made of the key alone: a crash between the two files loses nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = params.self_signed(&key)?.pem();
                write(&path, text.as_bytes(), 0o644)?;
                text
            }
            Err(error) => return Err(file("read", &path)(error)),
        };
        let certificate =
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| content(&path, error.to_string()))?;
        let authority = Self { domain: domain.clone(), issuer: Issuer::new(params, key), certificate, dir };
        authority.check().map_err(|reason| content(&path, reason))?;
        write(&authority.bundle_file(), bundle::with(&text).as_bytes(), 0o644)?;
        Ok(authority)
    }

    /// The authority's certificate alone: `NODE_EXTRA_CA_CERTS`.
    pub fn certificate_file(&self) -> PathBuf {
        self.dir.join("authority.pem")
    }

    /// The system's authorities and this one: `SSL_CERT_FILE`.
    pub fn bundle_file(&self) -> PathBuf {
        self.dir.join("bundle.pem")
    }

    /// A new certificate for the server: the domain, all names directly below it, and this machine.
    pub(super) fn certify(&self) -> Result<CertifiedKey, Error> {
        let key = KeyPair::generate()?;
        let params = server_params(&self.domain)?;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(CertifiedKey::from_der(vec![certificate], key, &provider())?)
    }

    /// A client must accept what this authority signs: the files belong together and to this domain.
    fn check(&self) -> Result<(), String> {
        let served = self.certify().map_err(|error| base::error::chain(&error))?;
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|error| error.to_string())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| error.to_string())?;
        let Some(leaf) = served.cert.first() else { return Err("there is no certificate".to_owned()) };
        let name = ServerName::try_from(format!("api.{}", self.domain.name())).map_err(|error| error.to_string())?;
        let checked = verifier.verify_server_cert(leaf, &[], &name, &[], UnixTime::now());
        checked.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// Everything that the certificate says. It depends on nothing but the domain and the key.
fn authority_params(domain: &Domain, key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    // Authorities of several machines may be trusted by one client: each has a name of its own.
    let mark = base::id::hex(&params.key_identifier(key)[..4]);
    params.distinguished_name = named(&format!("Pando local authority {mark} of {}", domain.name()));
    (params.not_before, params.not_after) = (date_time_ymd(YEARS.0, 1, 1), date_time_ymd(YEARS.1, 1, 1));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let names = [domain.name(), "localhost"].map(|name| GeneralSubtree::DnsName(name.to_owned()));
    let addresses = [
        CidrSubnet::V4(Ipv4Addr::LOCALHOST.octets(), [255; 4]),
        CidrSubnet::V6(Ipv6Addr::LOCALHOST.octets(), [255; 16]),
    ];
    let permitted_subtrees = names.into_iter().chain(addresses.map(GeneralSubtree::IpAddress)).collect();
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params
}

fn server_params(domain: &Domain) -> Result<CertificateParams, Error> {
    let names = [domain.name().to_owned(), format!("*.{}", domain.name()), "localhost".to_owned()];
    let mut params = CertificateParams::new(names)?;
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        params.subject_alt_names.push(SanType::IpAddress(address));
    }
    params.distinguished_name = named(&format!("Pando server of {}", domain.name()));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + now.saturating_sub(BEFORE), epoch + now + VALID);
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
    write(path, key.serialize_pem().as_bytes(), 0o600)?;
    Ok(key)
}

/// Replaces a file at once: a reader sees the earlier or the new one.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
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

#[cfg(test)]
mod tests;
