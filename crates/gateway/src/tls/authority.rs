//! The local certificate authority: one for each domain, made at the first start and kept.
//!
//! Its files, in a directory of the domain's name, are those of every authority (`pando-authority`), and `bundle.pem`: the system's authorities and
//! this one, for clients that take one file only. Written at each start.
//!
//! The certificate says by itself what the key may sign: names of the domain and of this machine, and nothing else. A
//! stolen key cannot impersonate other sites.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ::authority::{of_authority, of_server, write_file};
use rcgen::{CertificateParams, CidrSubnet, GeneralSubtree, KeyPair, NameConstraints, SanType};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    sign::CertifiedKey,
};

use super::{Error, bundle, provider};
use crate::domain::Domain;

/// A certificate of the server is valid for so long: clients refuse more than 397 to 825 days.
const VALID: Duration = Duration::from_secs(90 * DAY_S);
/// It is replaced so often: a machine that slept for two months still serves a valid one.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(7 * DAY_S);
const DAY_S: u64 = 86_400;

/// A local authority for one domain.
#[derive(Debug)]
pub struct Authority {
    domain: Domain,
    dir: PathBuf,
    authority: ::authority::Authority,
}

impl Authority {
    /// Opens the authority of a domain below `dir`, or makes it. Only one process may do that at a time.
    pub fn open(dir: &Path, domain: &Domain) -> Result<Self, Error> {
        let dir = dir.join(domain.name());
        let authority = ::authority::Authority::open(&dir, |key| authority_params(domain, key))?;
        let authority = Self { domain: domain.clone(), dir, authority };
        authority.check().map_err(|reason| authority.authority.unusable(reason))?;
        write_file(&authority.bundle_file(), bundle::with(authority.authority.text()).as_bytes(), 0o644)?;
        Ok(authority)
    }

    /// The authority's certificate alone: `NODE_EXTRA_CA_CERTS`.
    pub fn certificate_file(&self) -> PathBuf {
        self.authority.file()
    }

    /// The system's authorities and this one: `SSL_CERT_FILE`.
    pub fn bundle_file(&self) -> PathBuf {
        self.dir.join("bundle.pem")
    }

    /// A new certificate for the server: the domain, all names directly below it, and this machine.
    pub(super) fn certify(&self) -> Result<CertifiedKey, Error> {
        self.authority.certify(&server_params(&self.domain)?, &KeyPair::generate()?)
    }

    /// A client must accept what this authority signs: the files belong together and to this domain.
    fn check(&self) -> Result<(), String> {
        self.check_by(self.authority.certificate())
    }

    fn check_by(&self, root: &CertificateDer<'_>) -> Result<(), String> {
        let served = self.certify().map_err(|error| base::error::chain(&error))?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned()).map_err(|error| error.to_string())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| error.to_string())?;
        let Some(leaf) = served.cert.first() else { return Err("there is no certificate".to_owned()) };
        let name = ServerName::try_from(format!("api.{}", self.domain.name())).map_err(|error| error.to_string())?;
        let checked = verifier.verify_server_cert(leaf, &[], &name, &[], UnixTime::now());
        checked.map(|_| ()).map_err(|error| error.to_string())
    }
}

fn authority_params(domain: &Domain, key: &KeyPair) -> CertificateParams {
    // Authorities of several machines may be trusted by one client: each has a name of its own.
    let mark = base::id::hex(&CertificateParams::default().key_identifier(key)[..4]);
    let mut params = of_authority(&format!("Pando local authority {mark} of {}", domain.name()));
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
    let names = vec![domain.name().to_owned(), format!("*.{}", domain.name()), "localhost".to_owned()];
    let mut params = of_server(&format!("Pando server of {}", domain.name()), names, VALID)?;
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        params.subject_alt_names.push(SanType::IpAddress(address));
    }
    Ok(params)
}

#[cfg(test)]
mod tests;
