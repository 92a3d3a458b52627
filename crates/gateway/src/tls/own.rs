//! A certificate of the user's own, in two files.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    sign::CertifiedKey,
};

use super::{Error, provider};

const HINT: &str = "--tls-cert needs the chain and --tls-key its private key, both as PEM";

/// The files of a certificate chain and its private key.
#[derive(Debug, Clone)]
pub struct Own {
    /// The chain as PEM, the server's certificate first.
    pub certificate: PathBuf,
    /// The private key as PEM.
    pub key: PathBuf,
}

/// What changes when a file is replaced or written: device, inode, seconds, nanoseconds, size.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

impl Own {
    /// Reads both files. They must belong together.
    pub(super) fn load(&self) -> Result<CertifiedKey, Error> {
        let chain: Vec<_> = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect)
            .map_err(|error| unreadable(&self.certificate, error))?;
        if chain.is_empty() {
            return Err(content(&self.certificate, "it has no certificate".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unreadable(&self.key, error))?;
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| content(&self.key, error.to_string()))
    }

    pub(super) fn stamp(&self) -> [Stamp; 2] {
        [&self.certificate, &self.key].map(|path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
        })
    }
}

fn unreadable(path: &Path, error: pem::Error) -> Error {
    match error {
        pem::Error::Io(source) => Error::File { action: "read", path: path.to_owned(), source },
        other => content(path, other.to_string()),
    }
}

fn content(path: &Path, reason: String) -> Error {
    Error::Content { path: path.to_owned(), reason, hint: HINT }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::tls::Tls;

    fn made(dir: &Path, name: &str) -> Own {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["box.example.com".to_owned()]).unwrap().self_signed(&key).unwrap();
        let own = Own { certificate: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) };
        fs::write(&own.certificate, certificate.pem()).unwrap();
        fs::write(&own.key, key.serialize_pem()).unwrap();
        own
    }

    #[test]
    fn the_earlier_certificate_stays_until_a_usable_one_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (made(dir.path(), "a"), made(dir.path(), "b"));
        let tls = Tls::own(a.clone()).unwrap();
        let served = |tls: &Tls| tls.current.0.read().unwrap().cert[0].clone();
        let (first, before) = (served(&tls), a.stamp());
        fs::copy(&b.certificate, &a.certificate).unwrap();
        assert_ne!(a.stamp(), before);
        let error = base::error::chain(&tls.reload().unwrap_err());
        assert!(error.contains("a.key is not usable") && error.contains("--tls-key"), "{error}");
        assert_eq!(served(&tls), first);
        fs::copy(&b.key, &a.key).unwrap();
        tls.reload().unwrap();
        assert_ne!(served(&tls), first);
    }

    #[test]
    fn files_without_a_certificate_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut own = made(dir.path(), "a");
        fs::write(&own.certificate, "none").unwrap();
        assert!(own.load().unwrap_err().to_string().contains("a.pem is not usable"));
        own.certificate = dir.path().join("missing.pem");
        assert!(own.load().unwrap_err().to_string().contains("cannot read"));
    }
}
