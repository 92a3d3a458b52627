//! The rules: of the host's end, of the router, of one sandbox.

use std::{collections::BTreeMap, io, net::Ipv4Addr};

use ipnet::Ipv4Net;
use model::{Addresses, NetworkPolicy};

use crate::{
    netlink::Sockets,
    nft::{Batch, DESTINATION, Expression as Is, Family, Hook, SOURCE, SetKind, Verdict, connection, hook},
    policy::{proxied_ports, ruled_ports},
    ranges::Ranges,
    settings::{self, GATEWAY, INSIDE, LINK},
};

/// The table of a sandbox's link, and of the router.
pub(crate) const TABLE: &str = "pando";
/// The router's link to the host.
pub(crate) const UPLINK: &str = "up";

/// Of the connections that the host can track, the part that all sandboxes may have.
pub(crate) const CONNECTIONS_PART: u32 = 2;

/// Connections of a sandbox at a time: each takes about 300 bytes of the kernel's memory, and as much for the host's masquerading.
pub(crate) const CONNECTIONS_MAX: u32 = 4_096;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const DNS: [u8; 2] = 53u16.to_be_bytes();
/// Where ports are, in the header behind that of IP.
const FROM_PORT: u32 = 0;
const TO_PORT: u32 = 2;
/// Packets to the DNS server that a sandbox may send in a second, on average, and at once.
const QUERY_PACKETS: (u64, u32) = (500, 1_000);

/// Where the egress proxy listens, at the router's address.
pub(crate) const EGRESS_PORT: u16 = 8_443;
/// Connections to the egress proxy that a sandbox may begin in a second, on average, and at once. The host keeps some for two minutes after their end:
/// so many that they are no more than [`CONNECTIONS_MAX`].
const EGRESS_CONNECTIONS: (u64, u32) = (30, 500);

/// Bytes that may come at once beside those of a second, where there is a limit of bandwidth: one packet as the kernel puts it together.
const BURST_BYTES: u32 = 64 << 10;

/// Set of what no policy opens.
const CLOSED: &str = "closed";
/// Verdicts of sandboxes with a policy of their own: by what they send, and by what they get.
const SENDS: &str = "sends";
const GETS: &str = "gets";
/// And by what goes to the egress proxy.
const NAMES: &str = "names";
/// And by how fast it sends and gets.
const UPLOADS: &str = "uploads";
const DOWNLOADS: &str = "downloads";
/// Counts of connections to it.
const EGRESS: &str = "egress";
/// Counts of connections, and of packets to the DNS server.
const COUNTS: &str = "counts";
const QUERIES: &str = "queries";
/// The chain of packets to sandboxes.
const INWARD: &str = "inward";

/// Priorities that `nft` calls raw, mangle, dstnat, filter and srcnat.
const RAW: i32 = -300;
const BEFORE_DESTINATION_NAT: i32 = -150;
const DESTINATION_NAT: i32 = -100;
const FILTER: i32 = 0;
const SOURCE_NAT: i32 = 100;

fn chain(number: u32, priority: i32, accepts: bool) -> Hook<'static> {
    Hook { number, priority, link: None, kind: "filter", accepts }
}

const DROP: Is<'static> = Is::Decide(Verdict::Drop);
const ACCEPT: Is<'static> = Is::Decide(Verdict::Accept);

/// The host's: nothing that comes from sandboxes is for the host itself, whatever the host makes of its destination, and what leaves has an address of
/// the host's. `connections`: of all sandboxes together.
pub(crate) fn of_host(
    sockets: &Sockets,
    (table, uplink): (&str, &str),
    (range, closed): (Ipv4Net, &Ranges),
    connections: u32,
) -> io::Result<()> {
    let mut batch = Batch::new(Family::Ip, table);
    batch.renew_table();
    batch.add_set(CLOSED, SetKind::Ranges);
    batch.add_ranges(CLOSED, closed.elements());
    batch.add_set(COUNTS, SetKind::Counted);
    // Before the host's own rules send it elsewhere, to a container of the host's, for one.
    batch.add_chain("arrival", Some(chain(hook::PREROUTING, BEFORE_DESTINATION_NAT, true)));
    batch.add_rule("arrival", &[Is::From(uplink), Is::ForOwn, Is::Reject]);
    batch.add_chain("input", Some(chain(hook::INPUT, FILTER, true)));
    batch.add_rule("input", &[Is::From(uplink), Is::Reject]);
    batch.add_chain("forward", Some(chain(hook::FORWARD, FILTER, true)));
    batch.add_rule("forward", &[Is::From(uplink), Is::Connection(connection::INVALID), DROP]);
    batch.add_rule("forward", &[Is::From(uplink), Is::DestinationIn(CLOSED), Is::Reject]);
    // Also here: the router does not keep all that the host does, such as what ends on its way.
    let new = [Is::From(uplink), Is::Connection(connection::NEW), Is::First];
    batch.add_rule("forward", &[&new[..], &[Is::MoreInAll(connections), DROP]].concat());
    // Of the egress proxy, for all sandboxes: the router and the proxy have bounds for each.
    let router = settings::ends(range).1.octets();
    batch.add_rule("forward", &[Is::From(uplink), Is::Network { at: SOURCE, is: &router }, ACCEPT]);
    batch.add_rule("forward", &[&new[..], &[Is::MoreThan(COUNTS, CONNECTIONS_MAX), DROP]].concat());
    let masquerade = Hook { kind: "nat", ..chain(hook::POSTROUTING, SOURCE_NAT, true) };
    batch.add_chain("postrouting", Some(masquerade));
    batch.add_set("sandboxes", SetKind::Ranges);
    batch.add_ranges("sandboxes", Ranges::of([&range]).elements());
    batch.add_rule("postrouting", &[Is::SourceIn("sandboxes"), Is::NotTo(uplink), Is::Masquerade]);
    batch.commit(sockets)
}

/// The router's, with what is closed to all. Sandboxes with these addresses reach nothing until their policies are known.
pub(crate) fn of_router(sockets: &Sockets, closed: &Ranges, unknown: &[(u32, Ipv4Addr)]) -> io::Result<()> {
    let mut batch = Batch::new(Family::Ip, TABLE);
    batch.renew_table();
    batch.add_set(CLOSED, SetKind::Ranges);
    batch.add_ranges(CLOSED, closed.elements());
    batch.add_set(SENDS, SetKind::Verdicts);
    batch.add_set(GETS, SetKind::Verdicts);
    [NAMES, UPLOADS, DOWNLOADS].iter().for_each(|set| batch.add_set(set, SetKind::Verdicts));
    [COUNTS, QUERIES, EGRESS].iter().for_each(|set| batch.add_set(set, SetKind::Counted));
    arrival(&mut batch);
    egress(&mut batch);
    forward(&mut batch);
    let nothing = NetworkPolicy { closed: true, ..NetworkPolicy::default() };
    unknown.iter().for_each(|(number, own)| add_policy(&mut batch, &Chains::of(*number), *own, &nothing));
    batch.commit(sockets)
}

/// Who sends, and what is for the router itself: DNS, which is not tracked, so that it takes nothing from what is.
fn arrival(batch: &mut Batch<'_>) {
    let gateway = GATEWAY.octets();
    batch.add_chain("arrival", Some(chain(hook::PREROUTING, RAW, true)));
    // Whatever a sandbox writes into its packets: it has one address, which tells who it is.
    batch.add_rule("arrival", &[Is::NotFrom(UPLINK), Is::Forged, DROP]);
    // Also what the egress proxy and DNS get, and send.
    batch.add_rule("arrival", &[Is::NotFrom(UPLINK), Is::BySource(UPLOADS)]);
    batch.add_chain("departure", Some(chain(hook::POSTROUTING, FILTER, true)));
    batch.add_rule("departure", &[Is::NotTo(UPLINK), Is::ByDestination(DOWNLOADS)]);
    batch.add_chain("output", Some(chain(hook::OUTPUT, RAW, true)));
    batch.add_chain("input", Some(chain(hook::INPUT, FILTER, false)));
    for protocol in [UDP, TCP] {
        let query = [
            Is::NotFrom(UPLINK),
            Is::Network { at: DESTINATION, is: &gateway },
            Is::Protocol(protocol),
            Is::Transport { at: TO_PORT, is: &DNS },
        ];
        let answer = [
            Is::Network { at: SOURCE, is: &gateway },
            Is::Protocol(protocol),
            Is::Transport { at: FROM_PORT, is: &DNS },
        ];
        let (packets, burst) = QUERY_PACKETS;
        batch.add_rule("arrival", &[&query[..], &[Is::FasterThan(QUERIES, packets, burst), DROP]].concat());
        batch.add_rule("arrival", &[&query[..], &[Is::Untracked]].concat());
        batch.add_rule("output", &[&answer[..], &[Is::Untracked]].concat());
        batch.add_rule("input", &[&query[..], &[ACCEPT]].concat());
    }
}

/// What goes to the egress proxy, and what that sends for sandboxes: it is forwarded by the host, which judges it as it does theirs.
fn egress(batch: &mut Batch<'_>) {
    batch.add_chain("redirect", Some(Hook { kind: "nat", ..chain(hook::PREROUTING, DESTINATION_NAT, true) }));
    // Refused as ever.
    batch.add_rule("redirect", &[Is::DestinationIn(CLOSED), ACCEPT]);
    batch.add_rule("redirect", &[Is::NotFrom(UPLINK), Is::BySource(NAMES)]);
    let (connections, burst) = EGRESS_CONNECTIONS;
    let ours = [Is::NotFrom(UPLINK), Is::Redirected];
    let new =
        [&ours[..], &[Is::Connection(connection::NEW), Is::FasterThan(EGRESS, connections, burst), DROP]].concat();
    batch.add_rule("input", &new);
    let more = [Is::Connection(connection::NEW), Is::First, Is::MoreThan(COUNTS, CONNECTIONS_MAX), DROP];
    batch.add_rule("input", &[&ours[..], &more].concat());
    batch.add_rule("input", &[&ours[..], &[ACCEPT]].concat());
    batch.add_rule("input", &[Is::NotFrom(UPLINK), Is::Reject]);
    let answers = connection::ESTABLISHED | connection::RELATED;
    batch.add_rule("input", &[Is::From(UPLINK), Is::Connection(answers), ACCEPT]);
}

/// What passes.
fn forward(batch: &mut Batch<'_>) {
    let known = connection::ESTABLISHED | connection::RELATED;
    batch.add_chain(INWARD, None);
    // That a packet was too long, for one: such errors come from routers that no policy names.
    batch.add_rule(INWARD, &[Is::Protocol(ICMP), Is::Connection(connection::RELATED), ACCEPT]);
    batch.add_rule(INWARD, &[Is::ByDestination(GETS)]);
    batch.add_rule(INWARD, &[ACCEPT]);
    batch.add_chain("forward", Some(chain(hook::FORWARD, FILTER, false)));
    // For sandboxes that are gone: the host would send it here again.
    batch.add_rule("forward", &[Is::From(UPLINK), Is::To(UPLINK), DROP]);
    batch.add_rule("forward", &[Is::Connection(connection::INVALID), DROP]);
    batch.add_rule("forward", &[Is::From(UPLINK), Is::Connection(known), Is::Decide(Verdict::Jump(INWARD))]);
    batch.add_rule("forward", &[Is::From(UPLINK), DROP]);
    // Other sandboxes are among what is closed.
    batch.add_rule("forward", &[Is::DestinationIn(CLOSED), Is::Reject]);
    batch.add_rule("forward", &[Is::NotTo(UPLINK), DROP]);
    batch.add_rule("forward", &[Is::BySource(SENDS)]);
    let new = [Is::Connection(connection::NEW), Is::First];
    batch.add_rule("forward", &[&new[..], &[Is::MoreThan(COUNTS, CONNECTIONS_MAX), DROP]].concat());
    batch.add_rule("forward", &[ACCEPT]);
}

/// Names of the chains and sets of one sandbox.
struct Chains {
    sends: String,
    gets: String,
    names: String,
    uploads: String,
    downloads: String,
    allow: Sets,
    deny: Sets,
}

/// Of addresses with all their ports, and of those with one.
struct Sets {
    whole: String,
    ported: String,
}

impl Chains {
    fn of(number: u32) -> Self {
        let [sends, gets, names, uploads, downloads] =
            [SENDS, GETS, NAMES, UPLOADS, DOWNLOADS].map(|name| format!("{name}-{number}"));
        let [allow, deny] = ["allow", "deny"]
            .map(|name| Sets { whole: format!("{name}-{number}"), ported: format!("{name}-ports-{number}") });
        Self { sends, gets, names, uploads, downloads, allow, deny }
    }
}

/// Those of one sandbox with the address `own`, numbered; `had`: it has some that these replace.
pub(crate) fn of_policy(
    sockets: &Sockets,
    (number, own): (u32, Ipv4Addr),
    policy: &NetworkPolicy,
    had: bool,
) -> io::Result<()> {
    let chains = Chains::of(number);
    let mut batch = Batch::new(Family::Ip, TABLE);
    if had {
        let Chains { sends, gets, names, uploads, downloads, .. } = &chains;
        [SENDS, GETS, NAMES, UPLOADS, DOWNLOADS].iter().for_each(|set| batch.remove_verdict(set, own));
        [sends, gets, names, uploads, downloads].iter().for_each(|chain| batch.remove_chain(chain));
        for sets in [&chains.allow, &chains.deny] {
            batch.remove_set(&sets.whole);
            batch.remove_set(&sets.ported);
        }
    }
    if !policy.is_default() {
        add_policy(&mut batch, &chains, own, policy);
    }
    batch.commit(sockets)
}

fn add_policy(
    batch: &mut Batch<'_>,
    Chains { sends, gets, names, uploads, downloads, allow, deny }: &Chains,
    own: Ipv4Addr,
    policy: &NetworkPolicy,
) {
    add_addresses(batch, allow, &policy.allow);
    add_addresses(batch, deny, &policy.deny);
    let ruled = ruled_ports(policy);
    // What it gets is judged by the sender: what flowed before a change stops.
    for (chain, set, way, refused) in [(sends, SENDS, Way::Out, Is::Reject), (gets, GETS, Way::In, DROP)] {
        batch.add_chain(chain, None);
        for port in &ruled {
            // QUIC goes around the proxy. Without it, clients use TCP.
            let at = if chain == sends { TO_PORT } else { FROM_PORT };
            batch.add_rule(chain, &[Is::Protocol(UDP), Is::Transport { at, is: &port.to_be_bytes() }, refused]);
        }
        add_rules(batch, chain, (way, allow), Is::Decide(Verdict::Return));
        add_rules(batch, chain, (way, deny), refused);
        if policy.closed {
            batch.add_rule(chain, &[refused]);
        }
        batch.add_verdict(set, own, Verdict::Jump(chain));
    }
    batch.add_chain(names, None);
    let others: Vec<u16> = proxied_ports(policy).difference(&ruled).copied().collect();
    ruled.iter().for_each(|port| send_to_proxy(batch, names, *port));
    if !others.is_empty() {
        // These need no name.
        add_rules(batch, names, (Way::Out, allow), Is::Decide(Verdict::Return));
    }
    others.iter().for_each(|port| send_to_proxy(batch, names, *port));
    batch.add_verdict(NAMES, own, Verdict::Jump(names));
    for (chain, set) in [(uploads, UPLOADS), (downloads, DOWNLOADS)] {
        batch.add_chain(chain, None);
        if let Some(bytes) = policy.bandwidth {
            batch.add_rule(chain, &[Is::MoreBytesThan(bytes, BURST_BYTES), DROP]);
        }
        batch.add_verdict(set, own, Verdict::Jump(chain));
    }
}

fn send_to_proxy(batch: &mut Batch<'_>, chain: &str, port: u16) {
    let is_it = [Is::Protocol(TCP), Is::Transport { at: TO_PORT, is: &port.to_be_bytes() }];
    batch.add_rule(chain, &[&is_it[..], &[Is::SendTo(GATEWAY.octets(), EGRESS_PORT)]].concat());
}

fn add_addresses(batch: &mut Batch<'_>, Sets { whole, ported }: &Sets, all: &[Addresses]) {
    let mut by_port: BTreeMap<Option<u16>, Vec<Ipv4Net>> = BTreeMap::new();
    all.iter().for_each(|addresses| by_port.entry(addresses.port).or_default().push(addresses.net));
    batch.add_set(whole, SetKind::Ranges);
    batch.add_set(ported, SetKind::RangesWithPorts);
    for (port, nets) in by_port {
        let ranges = Ranges::of(&nets);
        match port {
            None => batch.add_ranges(whole, ranges.elements()),
            Some(port) => batch.add_ranges_with_port(ported, ranges.ends(), port),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Out,
    In,
}

fn add_rules(batch: &mut Batch<'_>, chain: &str, (way, Sets { whole, ported }): (Way, &Sets), then: Is<'_>) {
    let (is_in_whole, is_in_ported) = match way {
        Way::Out => (Is::DestinationIn(whole), Is::DestinationAndPortIn(ported)),
        Way::In => (Is::SourceIn(whole), Is::SourceAndPortIn(ported)),
    };
    batch.add_rule(chain, &[is_in_whole, then]);
    // Others have no ports.
    [TCP, UDP].iter().for_each(|protocol| batch.add_rule(chain, &[Is::Protocol(*protocol), is_in_ported, then]));
}

/// The numbers of sandboxes with rules of their own.
pub(crate) fn numbers_with_policy(sockets: &Sockets) -> io::Result<Vec<u32>> {
    let chains = crate::nft::chains(sockets, Family::Ip, TABLE)?;
    Ok(chains.iter().filter_map(|chain| chain.strip_prefix("sends-")?.parse().ok()).collect())
}

/// Those of a sandbox's link, in its namespace: `own` is its address outside.
pub(crate) fn of_link(sockets: &Sockets, own: Ipv4Addr) -> io::Result<()> {
    let mut batch = Batch::new(Family::Link, TABLE);
    batch.add_table();
    let hook = |number| Hook { link: Some(LINK), ..chain(number, FILTER, true) };
    batch.add_chain("out", Some(hook(hook::LINK_EGRESS)));
    batch.add_rule("out", &[Is::SetAddress { at: SOURCE, to: own.octets() }]);
    batch.add_chain("in", Some(hook(hook::LINK_INGRESS)));
    // An error names the packet that it is about, by the addresses that that had outside: in a header behind the message's own 8 bytes.
    const INNER_SOURCE: u32 = 8 + SOURCE;
    for kind in [UNREACHABLE, TOO_LONG] {
        let error = [Is::Protocol(ICMP), Is::Transport { at: 0, is: &[kind] }];
        let about_own = Is::Transport { at: INNER_SOURCE, is: &own.octets() };
        let mend = Is::SetInnerAddress { at: INNER_SOURCE, to: INSIDE.octets() };
        batch.add_rule("in", &[&error[..], &[about_own, mend]].concat());
    }
    batch.add_rule("in", &[Is::SetAddress { at: DESTINATION, to: INSIDE.octets() }]);
    batch.commit(sockets)
}

/// Kinds of errors of ICMP: destination unreachable (also: fragmentation needed), time exceeded.
const UNREACHABLE: u8 = 3;
const TOO_LONG: u8 = 11;
