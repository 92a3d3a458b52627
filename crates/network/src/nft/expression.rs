//! What rules consist of: each loads, compares, changes or decides something.

use super::attributes::Attributes;

/// The register that values go through: of 16 bytes.
const REGISTER: u32 = 1;
/// The second four bytes of it, as a register of their own.
const SECOND: u32 = 9;
/// The register of verdicts.
const VERDICT: u32 = 0;

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    Accept,
    Drop,
    /// The rest of this chain is asked if that one does not decide.
    Jump(&'a str),
    /// As if this were the end of the chain.
    Return,
}

impl Verdict<'_> {
    pub(super) fn attributes(self) -> Attributes {
        let (code, chain) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Return => (-5, None),
        };
        let mut verdict = Attributes::default().number(1, i32::cast_unsigned(code));
        if let Some(chain) = chain {
            verdict = verdict.text(2, chain);
        }
        Attributes::default().nested(2, &verdict)
    }
}

/// A part of a rule. Those that match end the rule where they do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expression<'a> {
    /// It came in by the link of this name.
    From(&'a str),
    /// It did not.
    NotFrom(&'a str),
    /// It leaves by the link of this name.
    To(&'a str),
    /// It does not.
    NotTo(&'a str),
    /// Its protocol is this one (IANA's number).
    Protocol(u8),
    /// The bytes at this place of the network header are these.
    Network {
        at: u32,
        is: &'a [u8],
    },
    /// The same, of the header behind it.
    Transport {
        at: u32,
        is: &'a [u8],
    },
    /// Its source is in a set of ranges.
    SourceIn(&'a str),
    /// Its destination is.
    DestinationIn(&'a str),
    /// Its source, and the port that it comes from, are in a set of ranges with ports.
    SourceAndPortIn(&'a str),
    /// Its destination is, and the port that it goes to.
    DestinationAndPortIn(&'a str),
    /// Does what a set of verdicts has for its source.
    BySource(&'a str),
    /// And for its destination.
    ByDestination(&'a str),
    /// Its connection is in one of these states (`connection`).
    Connection(u32),
    /// It is the first one of its connection, also if more come before an answer.
    First,
    /// It came by another link than an answer would take.
    Forged,
    /// It is for an address of the machine's own.
    ForOwn,
    /// Its source has more connections than these; `0` is a set for their counts.
    MoreThan(&'a str, u32),
    /// All that this rule has seen are more connections than these.
    MoreInAll(u32),
    /// More than so many came from its source in a second, on average, but for so many at once; `0` is a set for what is counted.
    FasterThan(&'a str, u64, u32),
    /// More bytes than so many came here in a second, on average. At once may come those of a second, and so many more.
    MoreBytesThan(u64, u32),
    /// Its connection is not tracked.
    Untracked,
    /// Its destination was changed by [`Self::SendTo`].
    Redirected,
    /// Has its connection end at this address and port, in a chain of kind `nat`.
    SendTo([u8; 4], u16),
    /// Sets the address at this place of the network header, and mends checksums.
    SetAddress {
        at: u32,
        to: [u8; 4],
    },
    /// Sets an address within an ICMP message, and mends that message's checksum.
    SetInnerAddress {
        at: u32,
        to: [u8; 4],
    },
    /// Gives it an address of the link that it leaves by.
    Masquerade,
    /// Tells the sender that it is prohibited.
    Reject,
    Decide(Verdict<'a>),
}

/// States of connections.
pub(crate) mod connection {
    pub(crate) const INVALID: u32 = 1;
    pub(crate) const ESTABLISHED: u32 = 2;
    pub(crate) const RELATED: u32 = 4;
    pub(crate) const NEW: u32 = 8;
}

/// Places of addresses in the header of IPv4.
pub(crate) const SOURCE: u32 = 12;
pub(crate) const DESTINATION: u32 = 16;

const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// Longest name of a link, with the byte that ends it.
const NAME_BYTES: usize = 16;

impl Expression<'_> {
    /// As one or several elements of a rule.
    pub(super) fn parts(self) -> Vec<(&'static str, Attributes)> {
        const IN_NAME: u32 = 6;
        const OUT_NAME: u32 = 7;
        const PROTOCOL: u32 = 16;
        let none = Attributes::default;
        match self {
            Self::From(link) => vec![meta(IN_NAME), compare(EQUAL, &name(link))],
            Self::NotFrom(link) => vec![meta(IN_NAME), compare(NOT_EQUAL, &name(link))],
            Self::To(link) => vec![meta(OUT_NAME), compare(EQUAL, &name(link))],
            Self::NotTo(link) => vec![meta(OUT_NAME), compare(NOT_EQUAL, &name(link))],
            Self::Protocol(number) => vec![meta(PROTOCOL), compare(EQUAL, &[number])],
            Self::Network { at, is } => vec![load(NETWORK, at, is.len()), compare(EQUAL, is)],
            Self::Transport { at, is } => vec![load(TRANSPORT, at, is.len()), compare(EQUAL, is)],
            Self::SourceIn(set) => vec![load(NETWORK, SOURCE, 4), lookup(set)],
            Self::DestinationIn(set) => vec![load(NETWORK, DESTINATION, 4), lookup(set)],
            Self::SourceAndPortIn(set) => {
                vec![load(NETWORK, SOURCE, 4), load_into(SECOND, TRANSPORT, 0, 2), lookup(set)]
            }
            Self::DestinationAndPortIn(set) => {
                vec![load(NETWORK, DESTINATION, 4), load_into(SECOND, TRANSPORT, 2, 2), lookup(set)]
            }
            Self::BySource(set) => vec![load(NETWORK, SOURCE, 4), lookup_verdict(set)],
            Self::ByDestination(set) => vec![load(NETWORK, DESTINATION, 4), lookup_verdict(set)],
            Self::Connection(states) => {
                let state = ("ct", none().number(1, REGISTER).number(2, 0));
                // Numbers of the machine's own order, unlike what packets have.
                vec![state, mask(&states.to_ne_bytes()), compare(NOT_EQUAL, &[0; 4])]
            }
            Self::First => status(1 << 3, EQUAL),
            Self::Redirected => status(1 << 5, NOT_EQUAL),
            Self::SendTo(address, port) => send_to(address, port),
            Self::ForOwn => {
                const KIND: u32 = 3;
                const BY_DESTINATION: u32 = 2;
                const LOCAL: u32 = 2; // RTN_LOCAL
                let kind = none().number(1, REGISTER).number(2, KIND).number(3, BY_DESTINATION);
                vec![("fib", kind), compare(EQUAL, &LOCAL.to_ne_bytes())]
            }
            Self::Forged => {
                const INDEX: u32 = 1;
                const BY_SOURCE_AND_LINK: u32 = 1 | 8;
                let route = none().number(1, REGISTER).number(2, INDEX).number(3, BY_SOURCE_AND_LINK);
                vec![("fib", route), compare(EQUAL, &[0; 4])]
            }
            Self::MoreThan(set, connections) => {
                vec![load(NETWORK, SOURCE, 4), counted(set, "connlimit", &connection_limit(connections))]
            }
            Self::MoreInAll(connections) => vec![("connlimit", connection_limit(connections))],
            Self::FasterThan(set, packets, burst) => {
                const OVER: u32 = 1;
                let limit = none().long(1, packets).long(2, 1).number(3, burst).number(4, 0).number(5, OVER);
                vec![load(NETWORK, SOURCE, 4), counted(set, "limit", &limit)]
            }
            Self::MoreBytesThan(bytes, burst) => {
                const OVER: u32 = 1;
                const OF_BYTES: u32 = 1;
                let limit = none().long(1, bytes).long(2, 1).number(3, burst).number(4, OF_BYTES).number(5, OVER);
                vec![("limit", limit)]
            }
            Self::Untracked => vec![("notrack", none())],
            Self::SetAddress { at, to } => {
                const OF_HEADER: u32 = 10;
                vec![immediate(&to), store(NETWORK, at, OF_HEADER, true)]
            }
            Self::SetInnerAddress { at, to } => {
                const OF_MESSAGE: u32 = 2;
                vec![immediate(&to), store(TRANSPORT, at, OF_MESSAGE, false)]
            }
            Self::Masquerade => vec![("masq", none())],
            Self::Reject => {
                const UNREACHABLE: u32 = 0;
                const PROHIBITED: u8 = 13;
                vec![("reject", none().number(1, UNREACHABLE).bytes(2, &[PROHIBITED]))]
            }
            Self::Decide(verdict) => {
                vec![("immediate", none().number(1, VERDICT).nested(2, &verdict.attributes()))]
            }
        }
    }
}

/// Compares a bit of what the kernel has noted of its connection with 0: 1 << 3 if it is confirmed, 1 << 5 if its destination was changed.
fn status(bit: u32, how: u32) -> Vec<(&'static str, Attributes)> {
    const STATUS: u32 = 2;
    let status = ("ct", Attributes::default().number(1, REGISTER).number(2, STATUS));
    vec![status, mask(&bit.to_ne_bytes()), compare(how, &[0; 4])]
}

fn send_to(address: [u8; 4], port: u16) -> Vec<(&'static str, Attributes)> {
    const OF_DESTINATION: u32 = 1;
    const IPV4: u32 = libc::NFPROTO_IPV4 as u32;
    let to = Attributes::default().number(1, OF_DESTINATION).number(2, IPV4).number(3, REGISTER).number(5, SECOND);
    let port = Attributes::default().number(1, SECOND).nested(2, &value(&port.to_be_bytes()));
    vec![immediate(&address), ("immediate", port), ("nat", to)]
}

fn connection_limit(connections: u32) -> Attributes {
    const OVER: u32 = 1;
    Attributes::default().number(1, connections).number(2, OVER)
}

/// Counts by what is in the register, which the kernel adds to the set when it is new.
fn counted(set: &str, name: &str, what: &Attributes) -> (&'static str, Attributes) {
    let expression = Attributes::default().text(1, name).nested(2, what);
    ("dynset", Attributes::default().text(1, set).number(3, 0).number(4, REGISTER).nested(7, &expression))
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().bytes(1, bytes)
}

fn name(link: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let length = link.len().min(NAME_BYTES - 1);
    bytes[..length].copy_from_slice(&link.as_bytes()[..length]);
    bytes
}

fn meta(key: u32) -> (&'static str, Attributes) {
    ("meta", Attributes::default().number(1, REGISTER).number(2, key))
}

fn compare(how: u32, with: &[u8]) -> (&'static str, Attributes) {
    ("cmp", Attributes::default().number(1, REGISTER).number(2, how).nested(3, &value(with)))
}

fn load(header: u32, at: u32, bytes: usize) -> (&'static str, Attributes) {
    load_into(REGISTER, header, at, bytes)
}

fn load_into(register: u32, header: u32, at: u32, bytes: usize) -> (&'static str, Attributes) {
    ("payload", Attributes::default().number(1, register).number(2, header).number(3, at).number(4, bytes as u32))
}

/// Writes four bytes from the register, and mends the checksum at a place of the same header, and that of the protocol behind it.
fn store(header: u32, at: u32, checksum: u32, is_in_pseudo_header: bool) -> (&'static str, Attributes) {
    const INTERNET: u32 = 1;
    const PSEUDO_HEADER: u32 = 1;
    let to = Attributes::default().number(5, REGISTER).number(2, header).number(3, at).number(4, 4);
    let sum = to.number(6, INTERNET).number(7, checksum);
    ("payload", if is_in_pseudo_header { sum.number(8, PSEUDO_HEADER) } else { sum })
}

fn immediate(bytes: &[u8]) -> (&'static str, Attributes) {
    ("immediate", Attributes::default().number(1, REGISTER).nested(2, &value(bytes)))
}

fn mask(with: &[u8]) -> (&'static str, Attributes) {
    let zeros = vec![0; with.len()];
    let operation = Attributes::default().number(1, REGISTER).number(2, REGISTER).number(3, with.len() as u32);
    ("bitwise", operation.nested(4, &value(with)).nested(5, &value(&zeros)))
}

fn lookup(set: &str) -> (&'static str, Attributes) {
    ("lookup", Attributes::default().text(1, set).number(2, REGISTER))
}

fn lookup_verdict(set: &str) -> (&'static str, Attributes) {
    ("lookup", Attributes::default().text(1, set).number(2, REGISTER).number(3, VERDICT))
}
