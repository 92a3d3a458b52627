//! What networks of sandboxes need, found by trying.

use super::checks::{Check, Verdict, check, feature};

const MODULES: &str = "run as root, and load the modules: `modprobe -a veth nf_tables nft_fib_ipv4 nft_connlimit nft_masq nft_reject_ipv4`; without it sandboxes have no network";
const DOCKER: &str = "accept what comes from and goes to the node's link; with Docker: `iptables -I DOCKER-USER -i pd+ -j ACCEPT` and `iptables -I DOCKER-USER -o pd+ -j ACCEPT`";

pub(super) fn all() -> [Check; 2] {
    let tried = tempfile::tempdir().map_err(|error| error.to_string()).and_then(|directory| {
        network::probe(&directory.path().join("router")).map_err(|error| base::error::chain(&error))
    });
    let closed = network::closed_forwarding().unwrap_or_default();
    let found = if closed.is_empty() { "open".to_owned() } else { format!("dropped by {}", closed.join(", ")) };
    [
        feature("networks of sandboxes", tried.map(|()| "available"), Verdict::Reduced, MODULES),
        check("forwarding", closed.is_empty(), Verdict::Reduced, found, DOCKER),
    ]
}
