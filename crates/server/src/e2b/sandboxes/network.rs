//! The network policy of a sandbox: checked, applied by the node, noted and shown.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use api::e2b;
use axum::{extract::State, http::StatusCode};
use base::id::TeamId;
use control::ControlError;
use model::{Addresses, Domain, Header, HeaderRule, Hidden, NetworkPolicy};

use super::{Body, Path, Shared, found};
use crate::e2b::{
    auth::Team,
    failed::{Failed, Result},
    openapi::{Conflict, NoSandbox},
    platform::{Platform, sandbox_id},
};

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
    if request.egress_proxy.is_some() {
        return Err(Failed::invalid("an egress proxy is not supported by this server yet"));
    }
    let sandbox = platform.control.sandboxes().get(&team, &id).await.map_err(|error| found(error, &id))?;
    let allow = request.allow_internet_access.unwrap_or(sandbox.spec.allow_internet);
    let lists = Lists {
        allow: request.allow_out.as_deref(),
        deny: request.deny_out.as_deref(),
        dns: request.dns_servers.as_deref(),
        rules: request.rules.as_ref(),
    };
    let mut applied = lists.policy(allow)?;
    fill_in(&platform, &team, &mut applied).await?;
    let shown = e2b::NetworkUpdate { rules: request.rules.clone().map(hidden), ..request };
    let mut policy = serde_json::to_value(&shown).map_err(|error| Failed::invalid(error.to_string()))?;
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
    pub(super) rules: Option<&'a BTreeMap<String, Vec<e2b::Rule>>>,
}

/// Rules as they are noted and shown: no request gets the values of headers back.
pub(super) fn hidden(rules: BTreeMap<String, Vec<e2b::Rule>>) -> BTreeMap<String, Vec<e2b::Rule>> {
    let hide = |mut rule: e2b::Rule| {
        let headers = rule.transform.iter_mut().filter_map(|transform| transform.headers.as_mut());
        headers.flat_map(BTreeMap::values_mut).for_each(|value| *value = Hidden::SHOWN.to_owned());
        rule
    };
    rules.into_iter().map(|(domain, rules)| (domain, rules.into_iter().map(hide).collect())).collect()
}

/// A piece of a header's value.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// `${e2b.secrets.NAME}`, by its name.
    Secret(&'a str),
}

/// None: it has another placeholder.
fn pieces(value: &str) -> Option<Vec<Piece<'_>>> {
    let (mut pieces, mut rest) = (Vec::new(), value);
    while let Some((text, behind)) = rest.split_once("${") {
        let (placeholder, after) = behind.split_once('}')?;
        pieces.extend([Piece::Text(text), Piece::Secret(placeholder.strip_prefix("e2b.secrets.")?)]);
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Some(pieces)
}

/// Puts the secrets of the team in the place of their names, as they are now.
pub(super) async fn fill_in(platform: &Platform, team: &TeamId, policy: &mut NetworkPolicy) -> Result<()> {
    let secrets = platform.control.secrets(platform.node.data_keys());
    for header in policy.rules.iter_mut().flat_map(|rule| &mut rule.headers) {
        let Hidden::Plain(value) = &header.value else { continue };
        let shown = &header.name;
        let other =
            || Failed::invalid(format!("rules: the header {shown} has a placeholder that this server does not know"));
        let mut filled = String::new();
        let too_long =
            || Failed::invalid(format!("rules: the header {shown} has more than {} bytes", Header::VALUE_BYTES_MAX));
        for piece in pieces(value).ok_or_else(other)? {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Secret(name) => match secrets.value(team, name).await {
                    Ok(value) => filled.push_str(&value),
                    Err(ControlError::NotFound { .. }) => {
                        return Err(Failed::invalid(format!(
                            "rules: there is no secret {name:?} for the header {shown}"
                        )));
                    }
                    Err(error) => return Err(error.into()),
                },
            }
            if filled.len() > Header::VALUE_BYTES_MAX {
                return Err(too_long());
            }
        }
        header.value = Hidden::Plain(filled);
    }
    Ok(())
}

/// Of several rules for a domain, the last one that sets a header counts.
fn rule(text: &str, rules: &[e2b::Rule]) -> Result<Option<HeaderRule>> {
    let headers = rules.iter().filter_map(|rule| rule.transform.as_ref()?.headers.clone()).flatten();
    let mut last = BTreeMap::new();
    for (name, value) in headers {
        last.insert(name.to_ascii_lowercase(), (name, value));
    }
    if last.is_empty() {
        return Ok(None);
    }
    let domain =
        domain(text).ok_or_else(|| wrong("rules", text, "a domain such as api.example.com or *.example.com"))?;
    let rule = api::rule(domain, last.into_values());
    rule.check().map_err(Failed::invalid)?;
    Ok(Some(rule))
}

impl<'a> Lists<'a> {
    pub(super) fn of(network: &'a e2b::Network) -> Self {
        Self {
            allow: network.allow_out.as_deref(),
            deny: network.deny_out.as_deref(),
            dns: network.dns_servers.as_deref(),
            rules: network.rules.as_ref(),
        }
    }

    /// As the node applies it. Refuses what no policy can have. Sandboxes have IPv4 alone, so networks of IPv6 are closed whatever is said of them.
    pub(super) fn policy(self, allow_internet: bool) -> Result<NetworkPolicy> {
        let mut policy = NetworkPolicy { closed: !allow_internet, ..NetworkPolicy::default() };
        for target in self.allow.unwrap_or_default() {
            const RULE: &str = "an address, a network such as 10.0.0.0/8, or a domain such as *.example.com";
            match (network(target), domain(target)) {
                (Some(network), _) => policy.allow.extend(network),
                (None, Some(domain)) => policy.domains.push(domain),
                (None, None) => return Err(wrong("allowOut", target, RULE)),
            }
        }
        for target in self.deny.unwrap_or_default() {
            const RULE: &str = "an address, or a network such as 10.0.0.0/8";
            policy.deny.extend(network(target).ok_or_else(|| wrong("denyOut", target, RULE))?);
        }
        for server in self.dns.unwrap_or_default() {
            policy.dns.push(server.parse::<IpAddr>().map_err(|_| wrong("dnsServers", server, "an address"))?);
        }
        for (text, rules) in self.rules.into_iter().flatten() {
            policy.rules.extend(rule(text, rules)?);
        }
        if let (Some(domain), false) = (policy.domains.first(), policy.denies_all()) {
            return Err(Failed::invalid(format!(
                "allowOut: the domain {domain} needs all else denied: put 0.0.0.0/0 in denyOut"
            )));
        }
        let longest = (policy.allow.len() + policy.domains.len()).max(policy.deny.len());
        if longest > network::ENTRIES_MAX || policy.dns.len() > network::SERVERS_MAX {
            let (entries, servers) = (network::ENTRIES_MAX, network::SERVERS_MAX);
            return Err(Failed::invalid(format!("network: use at most {entries} networks and {servers} DNS servers")));
        }
        if policy.rules.len() > network::RULES_MAX {
            return Err(Failed::invalid(format!("network: use at most {} rules", network::RULES_MAX)));
        }
        Ok(policy)
    }
}

fn wrong(field: &str, value: &str, rule: &str) -> Failed {
    let shown: String = value.chars().take(80).collect();
    Failed::invalid(format!("{field}: {shown:?} is not valid: use {rule}"))
}

/// None: it is no network. Empty: it is one of IPv6.
fn network(text: &str) -> Option<Option<Addresses>> {
    match text.parse::<Addresses>() {
        // E2B's networks have no ports.
        Ok(addresses) => addresses.port.is_none().then_some(Some(addresses)),
        Err(_) => {
            let (address, prefix) = text.split_once('/').unwrap_or((text, "128"));
            let is_ipv6 = address.parse::<Ipv6Addr>().is_ok() && prefix.parse().is_ok_and(|prefix: u8| prefix <= 128);
            is_ipv6.then_some(None)
        }
    }
}

fn domain(text: &str) -> Option<Domain> {
    text.parse().ok().filter(|domain: &Domain| domain.port.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_networks_and_domains_are_rules() {
        let ok = |allow: &[&str], deny: &[&str], dns: &[&str]| {
            let [allow, deny, dns] =
                [allow, deny, dns].map(|list| list.iter().map(|&text| text.into()).collect::<Vec<_>>());
            Lists { allow: Some(&allow), deny: Some(&deny), dns: Some(&dns), rules: None }.policy(true).ok()
        };
        let policy = ok(&["1.1.1.1", "10.1.0.0/8", "2001:db8::/32"], &["0.0.0.0/0"], &["9.9.9.9"]).unwrap();
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<Addresses>>();
        assert_eq!((policy.allow, policy.deny), (nets(&["1.1.1.1/32", "10.0.0.0/8"]), nets(&["0.0.0.0/0"])));
        for domain in ["example.com", "*.example.com"] {
            let policy = ok(&[domain], &["0.0.0.0/0"], &[]).unwrap();
            assert_eq!(policy.domains, [domain.parse().unwrap()]);
            assert!(ok(&[domain], &["1.1.1.1"], &[]).is_none(), "it needs all else denied");
        }
        for bad in [
            "1.1.1.1:80",
            "a.example:80",
            "",
            "300.1.1.1",
            "1.1.1.1/33",
            "::/129",
            "1.1.1.1/",
            "a b",
            "*",
            "*.",
            "a..b",
            "a/b",
        ] {
            assert!(ok(&[bad], &[], &[]).is_none(), "{bad}");
        }
        assert!(ok(&[], &["example.com"], &[]).is_none() && ok(&[], &[], &["1.1.1.0/24"]).is_none());
    }

    #[test]
    fn values_of_headers_are_taken_and_not_shown() {
        let rules = |domain: &str, value: &str| -> BTreeMap<String, Vec<e2b::Rule>> {
            let headers = BTreeMap::from([("Authorization".to_owned(), value.to_owned())]);
            let rule = e2b::Rule { transform: Some(e2b::Transform { headers: Some(headers) }) };
            BTreeMap::from([(domain.to_owned(), vec![rule])])
        };
        let given = rules("API.example.com", "Bearer secret");
        let policy = Lists { rules: Some(&given), ..Lists::default() }.policy(true).ok().unwrap();
        assert_eq!(policy.rules[0].headers[0].value, Hidden::Plain("Bearer secret".to_owned()));
        let shown = serde_json::to_string(&hidden(given)).unwrap();
        assert!(shown.contains("Authorization") && !shown.contains("secret"), "{shown}");
        for bad in [rules("*", "a"), rules("1.1.1.1", "a"), rules("a.example", "a\nb")] {
            assert!(Lists { rules: Some(&bad), ..Lists::default() }.policy(true).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_value_can_have_secrets_and_no_other_placeholders() {
        use Piece::{Secret, Text};
        let found = pieces("Bearer ${e2b.secrets.a b} $ } ${e2b.secrets.c}");
        assert_eq!(found.unwrap(), [Text("Bearer "), Secret("a b"), Text(" $ } "), Secret("c"), Text("")]);
        assert!(pieces("${e2b.identity.tokens.aws}").is_none() && pieces("${e2b.secrets.a").is_none());
    }
}
