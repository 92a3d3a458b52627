//! Where the node pulls images from.

use std::path::PathBuf;

use registry::{Host, REGISTRY_DEFAULT, Settings};

/// Where images are pulled from.
#[derive(Debug, clap::Args)]
pub(crate) struct RegistryArgs {
    /// The registry of images whose names have none: registry.example.com, or HOST:PORT.
    #[arg(long, value_name = "HOST", default_value = REGISTRY_DEFAULT, value_parser = Host::parse)]
    registry: Host,
    /// A registry that is spoken to without TLS: HOST or HOST:PORT. What it sends can be changed on the way, except by digest. May be
    /// repeated.
    #[arg(long, value_name = "HOST", value_parser = Host::parse)]
    registry_insecure: Vec<Host>,
    /// Certificates (PEM) of authorities that are trusted for registries, beside those of the system.
    #[arg(long, value_name = "FILE")]
    registry_ca: Option<PathBuf>,
}

impl RegistryArgs {
    /// The proxy is that of the environment.
    pub(crate) fn settings(self) -> Settings {
        let variable = |name: &str| {
            let value = std::env::var(name).or_else(|_| std::env::var(name.to_ascii_lowercase()));
            value.ok().filter(|value| !value.is_empty())
        };
        Settings {
            default: self.registry,
            insecure: self.registry_insecure,
            authorities: self.registry_ca,
            proxy: variable("HTTPS_PROXY"),
            no_proxy: variable("NO_PROXY"),
        }
    }
}
