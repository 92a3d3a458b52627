//! The system's certificate authorities: `SSL_CERT_FILE` replaces them, so the file that it names must have them.

use std::{ffi::OsString, fs, path::PathBuf};

/// Where distributions keep them: Debian and Alpine, Fedora, RHEL, openSUSE, others.
const FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's authorities and one more. Only that one where the system has none.
pub(super) fn with(own: &str) -> String {
    let files = chosen(std::env::var_os("SSL_CERT_FILE"));
    let system = files.iter().find_map(|path| fs::read_to_string(path).ok().filter(|text| has_certificates(text)));
    if system.is_none() {
        tracing::warn!("this machine has no certificate authorities; install ca-certificates to reach other sites");
    }
    joined(&system.unwrap_or_default(), own)
}

/// The server's own environment counts first. A bundle of an earlier start may be named there: what it has more does
/// no harm.
fn chosen(named: Option<OsString>) -> Vec<PathBuf> {
    named.into_iter().map(PathBuf::from).chain(FILES.map(PathBuf::from)).collect()
}

fn has_certificates(text: &str) -> bool {
    text.contains("-----BEGIN CERTIFICATE-----")
}

fn joined(system: &str, own: &str) -> String {
    if system.contains(own.trim()) {
        return system.to_owned();
    }
    let between = if system.is_empty() || system.ends_with('\n') { "" } else { "\n" };
    format!("{system}{between}{own}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_do_not_grow_from_start_to_start() {
        let bundle = joined("A", "OWN\n");
        assert_eq!(bundle, "A\nOWN\n");
        assert_eq!(joined(&bundle, "OWN\n"), bundle);
        assert_eq!(joined("", "OWN\n"), "OWN\n");
    }

    #[test]
    fn the_file_that_the_environment_names_comes_first() {
        assert_eq!(chosen(Some("/x".into()))[0], PathBuf::from("/x"));
        assert_eq!(chosen(None).len(), FILES.len());
    }
}
