//! What programs in sandboxes need where requests get headers on their way: the egress proxy speaks for hosts there, by an authority of the node's own.
//!
//! Its certificate is added to the system's bundle in the sandbox, and commands get variables that name it. Of sandboxes that have one user, who cannot
//! change that bundle, it is in files of the user's own.

use std::{path::Path, sync::Arc, time::Duration};

use base::id::SandboxId;
use hands::{Hand, Problem};
use sandbox::{User, Users};
use tokio::time::timeout;

use super::Node;
use crate::{
    chain,
    error::{Context, Result},
};

/// Where Debian and many others have the authorities that programs trust.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Longest bundle that is read, in bytes: those of systems have about 250 KiB.
const BUNDLE_BYTES_MAX: u64 = 4 << 20;
/// A node that has just begun opens its authority in less.
const AUTHORITY_MAX: Duration = Duration::from_secs(5);

/// Files in a sandbox.
struct Files {
    user: User,
    /// What the system trusts, and the authority.
    bundle: &'static str,
    /// The authority alone.
    own: &'static str,
}

impl Files {
    fn of(users: &Users) -> Self {
        match users {
            Users::ProgramOnly => Self {
                user: User::PROGRAM,
                bundle: "/home/user/.pando/ca-certificates.crt",
                own: "/home/user/.pando/egress.crt",
            },
            Users::All => {
                Self { user: User::ROOT, bundle: BUNDLE, own: "/usr/local/share/ca-certificates/pando-egress.crt" }
            }
        }
    }
}

impl Node {
    /// Variables of commands in a sandbox whose policy sets headers: of OpenSSL, curl, Python's requests, git and Node.js.
    pub(super) fn trust_variables(&self, id: &SandboxId) -> Result<Vec<(String, String)>> {
        let state = self.state();
        let record = state.sandbox(id)?;
        if record.network.rules.is_empty() {
            return Ok(Vec::new());
        }
        let Files { bundle, own, .. } = Files::of(&Users::of(&record.layers));
        let all =
            ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO"].map(|name| (name, bundle));
        let all = all.into_iter().chain([("NODE_EXTRA_CA_CERTS", own)]);
        Ok(all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Has programs in a sandbox trust the egress proxy if its policy sets headers. One whose image has no place for that goes on without.
    pub(super) async fn trust(self: &Arc<Self>, id: &SandboxId) {
        if let Err(error) = self.try_trust(id).await {
            let what = "programs in it may not trust the egress proxy, which sets headers of their requests";
            tracing::warn!(sandbox = %id, error = chain(&error), "{what}");
        }
    }

    async fn try_trust(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let files = {
            let state = self.state();
            let record = state.sandbox(id)?;
            if record.network.rules.is_empty() || self.host.network.is_none() {
                return Ok(());
            }
            Files::of(&Users::of(&record.layers))
        };
        let mut certificate = self.egress_certificate.subscribe();
        let known = timeout(AUTHORITY_MAX, certificate.wait_for(Option::is_some)).await;
        let known = known.map_err(std::io::Error::from).map(|known| known.ok().and_then(|known| known.clone()));
        let Some(certificate) = known.doing("wait for the authority of the egress proxy")? else { return Ok(()) };
        let hand = self.hand_of(id, &files.user).await?;
        for (to, from) in [(files.bundle, BUNDLE), (files.own, files.own)] {
            let added = add(&hand, &certificate, Path::new(to), Path::new(from)).await;
            added.map_err(std::io::Error::other).doing("write the authorities that a sandbox trusts")?;
        }
        Ok(())
    }
}

/// Adds a certificate to those in the file `to`, or, if that is not there, to those in `from`.
async fn add(hand: &Arc<Hand>, certificate: &str, to: &Path, from: &Path) -> Result<(), hands::Error> {
    let mut known = match read(hand, to).await? {
        Some(known) => known,
        None => read(hand, from).await?.unwrap_or_default(),
    };
    // The same node may have added it before. Others may have added theirs, which a later resume there needs.
    if contains(&known, certificate.trim().as_bytes()) {
        return Ok(());
    }
    if known.last().is_some_and(|last| *last != b'\n') {
        known.push(b'\n');
    }
    known.extend(certificate.as_bytes());
    let mut writer = hand.write(to, None).await?;
    writer.write(&known).await?;
    writer.finish().await.map(drop)
}

async fn read(hand: &Arc<Hand>, path: &Path) -> Result<Option<Vec<u8>>, hands::Error> {
    match hand.read(path, 0, Some(BUNDLE_BYTES_MAX)).await {
        Ok(mut reader) => reader.read_to_end().await.map(Some),
        Err(error) if error.problem() == Some(&Problem::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
