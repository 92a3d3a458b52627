//! Whether names below the domain resolve, as clients of the system's resolver see it, such as Node.

use std::{io, time::Duration};

use crate::domain::Domain;

/// What to install where they do not.
pub const HINT: &str = "install libnss-myhostname (`apt-get install libnss-myhostname`)";

/// A name server may be away.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// A name does not resolve, or to another machine.
#[derive(Debug, thiserror::Error)]
#[error("{name} does not resolve to this machine: {reason}")]
pub struct Unresolved {
    /// The name.
    pub name: String,
    /// What the resolver said.
    pub reason: String,
}

/// Asks the system's resolver (glibc's `getaddrinfo`) for a name of the API and one of a sandbox. Names below
/// `localhost` must be of this machine. Others may belong to a machine in front of it.
pub async fn resolve(domain: &Domain) -> Result<(), Unresolved> {
    for label in ["api", "49983-s0123456789ab"] {
        let name = format!("{label}.{}", domain.name());
        let unresolved = |reason: String| Unresolved { name: name.clone(), reason };
        let lookup = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((name.as_str(), 443)));
        let found: io::Result<Vec<_>> = match lookup.await {
            Ok(found) => found.map(Iterator::collect),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let found = found.map_err(|error| unresolved(error.to_string()))?;
        if let Some(other) = found.iter().find(|found| domain.is_local() && !found.ip().is_loopback()) {
            return Err(unresolved(format!("it is {}", other.ip())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.invalid` never resolves (RFC 6761, 6.4).
    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_told() {
        let error = resolve(&"pando.invalid".parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.starts_with("api.pando.invalid does not resolve to this machine: "), "{error}");
    }
}
