//! The network policy of a sandbox: checked, applied by the node, noted and shown.

use std::net::{IpAddr, Ipv4Addr};

use api::e2b;
use axum::{extract::State, http::StatusCode};
use ipnet::Ipv4Net;
use model::NetworkPolicy;

use super::{Body, Path, Shared, found};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{Conflict, NoSandbox},
    platform::sandbox_id,
};

/// Longest name of a host, in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;
/// Longest part of one between two dots, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// Replaces the network policy of a sandbox.
///
/// It holds from now on. Connections that it does not allow end.
#[utoipa::path(
    put,
    path = "/sandboxes/{id}/network",
    operation_id = "updateSandboxNetwork",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = e2b::NetworkUpdate,
    responses((status = 204, description = "The policy holds"), NoSandbox, Conflict),
)]
pub(crate) async fn update(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::NetworkUpdate>,
) -> Result<StatusCode> {
    let id = sandbox_id(&id)?;
    if request.egress_proxy.is_some() || request.rules.as_ref().is_some_and(|rules| !rules.is_empty()) {
        return Err(Failed::invalid("an egress proxy, or a rule for requests, is not supported by this server yet"));
    }
    let sandbox = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
    let allow = request.allow_internet_access.unwrap_or(sandbox.spec.allow_internet);
    let lists = Lists {
        allow: request.allow_out.as_deref(),
        deny: request.deny_out.as_deref(),
        dns: request.dns_servers.as_deref(),
    };
    let applied = lists.policy(allow)?;
    let mut policy = serde_json::to_value(&request).map_err(|error| Failed::invalid(error.to_string()))?;
    // It has a column of its own.
    policy.as_object_mut().map(|policy| policy.remove("allow_internet_access"));
    if let (Some(policy), Some(serde_json::Value::Object(old))) = (policy.as_object_mut(), &sandbox.spec.network) {
        // These are of its creation, and stay.
        for key in ["allowPublicTraffic", "maskRequestHost", "httpsPorts"] {
            if let Some(value) = old.get(key) {
                policy.insert(key.to_owned(), value.clone());
            }
        }
    }
    platform.control.check_here(&sandbox)?;
    platform.node.set_network(&id, applied).await?;
    let noted = platform.control.sandboxes().set_network(&team, &id, Some(&policy), allow).await;
    noted.map_err(|error| found(error, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a request says about the ways out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lists<'a> {
    pub(super) allow: Option<&'a [String]>,
    pub(super) deny: Option<&'a [String]>,
    pub(super) dns: Option<&'a [String]>,
}

impl<'a> Lists<'a> {
    pub(super) fn of(network: &'a e2b::Network) -> Self {
        Self {
            allow: network.allow_out.as_deref(),
            deny: network.deny_out.as_deref(),
            dns: network.dns_servers.as_deref(),
        }
    }

    /// As the node applies it. Refuses what no policy can have. Sandboxes have IPv4 alone, so networks of IPv6 are closed whatever is said of them.
    pub(super) fn policy(self, allow_internet: bool) -> Result<NetworkPolicy> {
        let mut policy = NetworkPolicy { closed: !allow_internet, ..NetworkPolicy::default() };
        for target in self.allow.unwrap_or_default() {
            if is_domain(target) {
                return Err(Failed::invalid(format!(
                    "allowOut: the domain {target:?} is not supported by this server yet"
                )));
            }
            const RULE: &str = "an address, or a network such as 10.0.0.0/8";
            policy.allow.extend(network(target).ok_or_else(|| wrong("allowOut", target, RULE))?);
        }
        for target in self.deny.unwrap_or_default() {
            const RULE: &str = "an address, or a network such as 10.0.0.0/8";
            policy.deny.extend(network(target).ok_or_else(|| wrong("denyOut", target, RULE))?);
        }
        for server in self.dns.unwrap_or_default() {
            policy.dns.push(server.parse::<IpAddr>().map_err(|_| wrong("dnsServers", server, "an address"))?);
        }
        let longest = policy.allow.len().max(policy.deny.len());
        if longest > network::ENTRIES_MAX || policy.dns.len() > network::SERVERS_MAX {
            let (entries, servers) = (network::ENTRIES_MAX, network::SERVERS_MAX);
            return Err(Failed::invalid(format!("network: use at most {entries} networks and {servers} DNS servers")));
        }
        Ok(policy)
    }
}

fn wrong(field: &str, value: &str, rule: &str) -> Failed {
    let shown: String = value.chars().take(80).collect();
    Failed::invalid(format!("{field}: {shown:?} is not valid: use {rule}"))
}

/// None: it is no network. Empty: it is one of IPv6.
fn network(text: &str) -> Option<Option<Ipv4Net>> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Some(most), |prefix| prefix.parse::<u8>().ok().filter(|prefix| *prefix <= most))?;
    let of_ipv4 = |address: Ipv4Addr| Ipv4Net::new(address, prefix).ok().map(|net| net.trunc());
    Some(match address {
        IpAddr::V4(address) => of_ipv4(address),
        IpAddr::V6(_) => None,
    })
}

/// A name of a host, or `*.` and one.
fn is_domain(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(allowed);
    // A name whose last part is a number is an address that is wrong.
    let named = name.rsplit('.').next().is_some_and(|last| last.bytes().any(|byte| !byte.is_ascii_digit()));
    name.len() <= NAME_BYTES_MAX && named && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_networks_are_rules() {
        let ok = |allow: &[&str], deny: &[&str], dns: &[&str]| {
            let [allow, deny, dns] =
                [allow, deny, dns].map(|list| list.iter().map(|&text| text.into()).collect::<Vec<_>>());
            Lists { allow: Some(&allow), deny: Some(&deny), dns: Some(&dns) }.policy(true).ok()
        };
        let policy = ok(&["1.1.1.1", "10.1.0.0/8", "2001:db8::/32"], &["0.0.0.0/0"], &["9.9.9.9"]).unwrap();
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<Ipv4Net>>();
        assert_eq!((policy.allow, policy.deny), (nets(&["1.1.1.1/32", "10.0.0.0/8"]), nets(&["0.0.0.0/0"])));
        assert!(is_domain("example.com") && is_domain("*.example.com"));
        for bad in ["", "300.1.1.1", "1.1.1.1/33", "::/129", "1.1.1.1/", "a b", "*", "*.", "a..b", "a/b"] {
            assert!(ok(&[bad], &[], &[]).is_none(), "{bad}");
        }
        assert!(ok(&[], &["example.com"], &[]).is_none() && ok(&[], &[], &["1.1.1.0/24"]).is_none());
    }
}
