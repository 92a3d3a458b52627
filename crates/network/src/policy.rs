//! Bounds of policies, and what they mean for names and for connections that the egress proxy makes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket},
    ops::RangeInclusive,
    sync::Arc,
};

use ipnet::Ipv4Net;
use model::{Addresses, DomainName, HeaderRule, NetworkPolicy};

use crate::{error::Error, ranges::Ranges};

/// Most networks and domains that a policy allows, and most networks that it denies.
pub const ENTRIES_MAX: usize = 1_000;
/// Most DNS servers of a policy.
pub const SERVERS_MAX: usize = 4;
/// Most rules for requests of a policy.
pub const RULES_MAX: usize = 100;
/// Bytes a second that a sandbox can be limited to. The kernel multiplies them by a second in nanoseconds, in 64 bits: 17.1 GiB at most.
const BANDWIDTH: RangeInclusive<u64> = 64 << 10..=16 << 30;
/// Most ports that the domains and rules of a policy have together.
pub const DOMAIN_PORTS_MAX: usize = 16;

/// What a sandbox reaches, for DNS and for the egress proxy.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Nothing can be reached by its address: no other name than those of its domains is of any use, but could carry something out.
    by_name_only: bool,
    policy: Arc<NetworkPolicy>,
    closed: Arc<Ranges>,
}

impl Reach {
    /// What a closed sandbox reaches.
    pub(crate) fn nothing(&self) -> Self {
        Self::of(&NetworkPolicy { closed: true, ..NetworkPolicy::default() }, &self.closed)
    }

    pub(crate) fn of(policy: &NetworkPolicy, closed: &Arc<Ranges>) -> Self {
        let all = [Ipv4Net::default()];
        let whole = policy.deny.iter().filter(|denied| denied.port.is_none()).map(|denied| &denied.net);
        let denied = if policy.closed { Ranges::of(&all) } else { Ranges::of(whole) };
        let allowed = Ranges::of(policy.allow.iter().map(|allowed| &allowed.net));
        let left = Ranges::of(&all).without(&denied).with(&allowed).without(closed);
        Self { by_name_only: left.is_empty(), policy: Arc::new(policy.clone()), closed: Arc::clone(closed) }
    }

    /// Its DNS servers; empty: the node's.
    pub(crate) fn dns(&self) -> &[IpAddr] {
        &self.policy.dns
    }

    /// Whether DNS answers questions about a name.
    pub(crate) fn resolves(&self, name: Option<&DomainName>) -> bool {
        let is_named = |name| self.policy.domains.iter().any(|domain| domain.holds(name));
        !self.by_name_only || name.is_some_and(is_named)
    }

    /// Whether a name may be reached at a port because of a domain of the policy, at an address that is not closed to all.
    pub fn allows(&self, name: &DomainName, port: u16) -> bool {
        let is_it = |domain: &model::Domain| domain.holds(name) && domain.ports().any(|its| its == port);
        self.policy.domains.iter().any(is_it)
    }

    /// Whether an address may be reached by TCP, whatever its name.
    pub fn permits(&self, address: SocketAddrV4) -> bool {
        let is_it = |of: &Addresses| of.net.contains(address.ip()) && of.port.is_none_or(|port| port == address.port());
        let NetworkPolicy { closed, allow, deny, .. } = &*self.policy;
        !self.is_closed(*address.ip()) && (allow.iter().any(is_it) || !(*closed || deny.iter().any(is_it)))
    }

    /// The rule of HTTPS requests to a name at a port: an exact name goes before a wildcard, and a longer wildcard before a shorter one.
    pub fn rule(&self, name: &DomainName, port: u16) -> Option<&HeaderRule> {
        let rules = self.policy.rules.iter().filter(|rule| rule.port() == port && rule.domain.holds(name));
        let rank = |rule: &&HeaderRule| (!rule.domain.is_wildcard, rule.domain.name.as_str().len());
        rules.max_by_key(rank)
    }

    /// Whether no policy opens an address.
    pub fn is_closed(&self, address: Ipv4Addr) -> bool {
        self.closed.contains(address)
    }
}

/// Ports whose connections the egress proxy gets.
pub(crate) fn proxied_ports(policy: &NetworkPolicy) -> BTreeSet<u16> {
    let of_domains = policy.domains.iter().flat_map(model::Domain::ports);
    of_domains.chain(ruled_ports(policy)).collect()
}

/// Ports of rules: the proxy gets their connections also where the policy allows the address.
pub(crate) fn ruled_ports(policy: &NetworkPolicy) -> BTreeSet<u16> {
    policy.rules.iter().map(HeaderRule::port).collect()
}

/// Fails if a policy is too long, or names servers that are not for sandboxes: the node asks them, and could reach more than they may.
pub(crate) fn check(policy: &NetworkPolicy, closed: &Ranges) -> Result<(), Error> {
    if (policy.allow.len() + policy.domains.len()).max(policy.deny.len()) > ENTRIES_MAX {
        return Err(Error::TooLong(ENTRIES_MAX));
    }
    if policy.rules.len() > RULES_MAX {
        return Err(Error::TooManyRules(RULES_MAX));
    }
    policy.rules.iter().try_for_each(|rule| rule.check().map_err(Error::Rule))?;
    if policy.bandwidth.is_some_and(|bandwidth| !BANDWIDTH.contains(&bandwidth)) {
        return Err(Error::Bandwidth);
    }
    if proxied_ports(policy).len() > DOMAIN_PORTS_MAX {
        return Err(Error::TooManyPorts(DOMAIN_PORTS_MAX));
    }
    if let (Some(domain), false) = (policy.domains.first(), policy.denies_all()) {
        return Err(Error::OpenBeside(domain.to_string()));
    }
    if policy.dns.len() > SERVERS_MAX {
        return Err(Error::TooManyServers(SERVERS_MAX));
    }
    match policy.dns.iter().find(|server| is_closed(**server, closed)) {
        Some(server) => Err(Error::ClosedServer(*server)),
        None => Ok(()),
    }
}

fn is_closed(server: IpAddr, closed: &Ranges) -> bool {
    match server {
        IpAddr::V4(address) => closed.contains(address) || is_own(server),
        IpAddr::V6(_) => true,
    }
}

/// Whether it is an address of the host: such can be bound to.
pub(crate) fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<Addresses> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn private() -> Arc<Ranges> {
        Arc::new(Ranges::of(&["10.0.0.0/8".parse().unwrap()]))
    }

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_of_no_use_where_nothing_is_reached() {
        let nothing = |policy: NetworkPolicy| !Reach::of(&policy, &private()).resolves(Some(&name("a.example")));
        let open = NetworkPolicy::default();
        assert!(!nothing(open.clone()) && nothing(NetworkPolicy { closed: true, ..open.clone() }));
        assert!(nothing(NetworkPolicy { deny: nets(&["0.0.0.0/1", "128.0.0.0/1"]), ..open.clone() }));
        assert!(nothing(NetworkPolicy { closed: true, allow: nets(&["10.1.0.0/16"]), ..open.clone() }));
        assert!(!nothing(NetworkPolicy { closed: true, allow: nets(&["1.1.1.1:53"]), ..open.clone() }));
        assert!(!nothing(NetworkPolicy { deny: nets(&["0.0.0.0/0:443"]), ..open.clone() }));
        let domains = |text: &str| NetworkPolicy { closed: true, domains: vec![text.parse().unwrap()], ..open.clone() };
        assert!(!nothing(domains("*.example")) && nothing(domains("b.example")));
    }

    #[test]
    fn domains_and_addresses_are_allowed_at_their_ports() {
        let policy = NetworkPolicy {
            closed: true,
            allow: nets(&["1.1.1.1", "2.2.2.0/24:22", "10.1.1.1"]),
            domains: vec!["a.example".parse().unwrap(), "*.b.example:8443".parse().unwrap()],
            ..NetworkPolicy::default()
        };
        let reach = Reach::of(&policy, &private());
        assert!(reach.allows(&name("A.example"), 80) && reach.allows(&name("x.b.example"), 8443));
        assert!(!reach.allows(&name("a.example"), 22) && !reach.allows(&name("x.b.example"), 443));
        let permits = |text: &str| reach.permits(text.parse().unwrap());
        assert!(permits("1.1.1.1:9") && permits("2.2.2.9:22"));
        assert!(!permits("2.2.2.9:23") && !permits("10.1.1.1:80") && !permits("8.8.8.8:443"));
        assert_eq!(proxied_ports(&policy), [80, 443, 8443].into());
    }

    #[test]
    fn the_closest_rule_counts() {
        let rule = |domain: &str| HeaderRule {
            domain: domain.parse().unwrap(),
            headers: vec![model::Header { name: domain.to_owned(), value: model::Hidden::Sealed(String::new()) }],
        };
        let rules = ["*.example", "b.a.example", "*.a.example", "x.example:8443"].map(rule).to_vec();
        let reach = Reach::of(&NetworkPolicy { rules, ..NetworkPolicy::default() }, &private());
        let of = |text: &str, port| reach.rule(&name(text), port).map(|rule| rule.headers[0].name.clone());
        assert_eq!(of("b.a.example", 443).as_deref(), Some("b.a.example"));
        assert_eq!(of("c.a.example", 443).as_deref(), Some("*.a.example"));
        assert_eq!(of("x.example", 443).as_deref(), Some("*.example"));
        assert_eq!(of("x.example", 8443).as_deref(), Some("x.example:8443"));
        assert_eq!((of("example", 443), of("x.example", 80)), (None, None));
    }

    #[test]
    fn a_domain_needs_all_else_denied() {
        let check = |closed, deny: &[&str]| {
            let domains = vec!["a.example".parse().unwrap()];
            check(&NetworkPolicy { closed, deny: nets(deny), domains, ..NetworkPolicy::default() }, &private())
        };
        assert!(check(true, &[]).is_ok() && check(false, &["0.0.0.0/0"]).is_ok());
        assert!(matches!(check(false, &["1.1.1.1"]), Err(Error::OpenBeside(_))));
        assert!(matches!(check(false, &["0.0.0.0/0:80"]), Err(Error::OpenBeside(_))));
    }

    #[test]
    fn servers_of_the_host_or_of_closed_networks_are_refused() {
        let with = |dns: &[&str]| {
            let dns = dns.iter().map(|server| server.parse().unwrap()).collect();
            check(&NetworkPolicy { dns, ..NetworkPolicy::default() }, &private())
        };
        assert!(with(&["203.0.113.1"]).is_ok());
        for wrong in ["10.0.0.1", "127.0.0.1", "::1", "2001:db8::1"] {
            assert!(matches!(with(&[wrong]), Err(Error::ClosedServer(_))), "{wrong}");
        }
        assert!(matches!(with(&["1.1.1.1"; 5]), Err(Error::TooManyServers(4))));
    }
}
