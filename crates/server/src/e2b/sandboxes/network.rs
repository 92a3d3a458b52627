//! The network policy of a sandbox: checked, noted and shown. Nothing applies it yet: sandboxes have loopback only.

use std::net::IpAddr;

use api::e2b;
use axum::{extract::State, http::StatusCode};

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
/// The server notes the policy. Sandboxes have no network to apply it to yet.
#[utoipa::path(
    put,
    path = "/sandboxes/{id}/network",
    operation_id = "updateSandboxNetwork",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = e2b::NetworkUpdate,
    responses((status = 204, description = "The policy is noted"), NoSandbox, Conflict),
)]
pub(crate) async fn update(
    State(platform): Shared,
    Team(team): Team,
    Path(id): Path<String>,
    Body(request): Body<e2b::NetworkUpdate>,
) -> Result<StatusCode> {
    let id = sandbox_id(&id)?;
    check(request.allow_out.as_deref(), request.deny_out.as_deref(), request.dns_servers.as_deref())?;
    if request.egress_proxy.is_some() || request.rules.as_ref().is_some_and(|rules| !rules.is_empty()) {
        return Err(Failed::invalid("an egress proxy, or a rule for requests, is not supported by this server yet"));
    }
    let sandbox = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
    let allow = request.allow_internet_access.unwrap_or(sandbox.spec.allow_internet);
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
    let noted = platform.control.sandboxes().set_network(&team, &id, Some(&policy), allow).await;
    noted.map_err(|error| found(error, &id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses what no policy can have.
pub(super) fn check(allow: Option<&[String]>, deny: Option<&[String]>, dns: Option<&[String]>) -> Result<()> {
    for target in allow.unwrap_or_default() {
        if !is_network(target) && !is_domain(target) {
            return Err(wrong("allowOut", target, "an address, a network such as 10.0.0.0/8, or a domain"));
        }
    }
    for target in deny.unwrap_or_default() {
        if !is_network(target) {
            return Err(wrong("denyOut", target, "an address, or a network such as 10.0.0.0/8"));
        }
    }
    for server in dns.unwrap_or_default() {
        if server.parse::<IpAddr>().is_err() {
            return Err(wrong("dnsServers", server, "an address"));
        }
    }
    Ok(())
}

fn wrong(field: &str, value: &str, rule: &str) -> Failed {
    let shown: String = value.chars().take(80).collect();
    Failed::invalid(format!("{field}: {shown:?} is not valid: use {rule}"))
}

fn is_network(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    prefix.is_none_or(|prefix| prefix.parse::<u8>().is_ok_and(|prefix| prefix <= most))
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
    fn only_addresses_networks_and_domains_are_rules() {
        let ok = |allow: &[&str], deny: &[&str], dns: &[&str]| {
            let [allow, deny, dns] =
                [allow, deny, dns].map(|list| list.iter().map(|&text| text.into()).collect::<Vec<_>>());
            check(Some(&allow), Some(&deny), Some(&dns)).is_ok()
        };
        assert!(ok(
            &["1.1.1.1", "10.0.0.0/8", "2001:db8::/32", "example.com", "*.example.com"],
            &["0.0.0.0/0"],
            &["::1"]
        ));
        for bad in ["", "300.1.1.1", "1.1.1.1/33", "::/129", "1.1.1.1/", "a b", "*", "*.", "a..b", "a/b"] {
            assert!(!ok(&[bad], &[], &[]), "{bad}");
        }
        assert!(!ok(&[], &["example.com"], &[]) && !ok(&[], &[], &["1.1.1.0/24"]));
    }
}
