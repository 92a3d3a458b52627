//! What an operator chooses.

use std::path::PathBuf;

use crate::reference::{Host, REGISTRY_DEFAULT};

/// Of one node.
#[derive(Clone)]
pub struct Settings {
    /// The registry of names without one.
    pub default: Host,
    /// Registries that are spoken to without TLS.
    pub insecure: Vec<Host>,
    /// A file of certificates (PEM) of authorities that are trusted beside the system's.
    pub authorities: Option<PathBuf>,
    /// The proxy that all requests by TLS go through, as a URL.
    pub proxy: Option<String>,
    /// Hosts that are reached without it, separated by commas.
    pub no_proxy: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let default = Host::parse(REGISTRY_DEFAULT).expect("it is the name of a host");
        Self { default, insecure: Vec::new(), authorities: None, proxy: None, no_proxy: None }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The proxy's URL may have a password.
        f.debug_struct("Settings")
            .field("default", &self.default)
            .field("insecure", &self.insecure)
            .finish_non_exhaustive()
    }
}
