//! Rules of nf_tables, as messages of the kernel's own interface (include/uapi/linux/netfilter/nf_tables.h).
//!
//! No library with a licence that goes with ours speaks it without `nft` or C (docs/dependencies.md). This has what the rules of a node need.

mod attributes;
mod expression;

use std::{io, net::Ipv4Addr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST};

use self::attributes::{Attributes, number_of, text_of, value_of};
pub(crate) use self::expression::{DESTINATION, Expression, SOURCE, Verdict, connection};
use crate::netlink::{HEADER_BYTES, Sockets};

const SUBSYSTEM: u16 = 10; // NFNL_SUBSYS_NFTABLES
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;

/// What packets a table sees.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Family {
    /// IPv4.
    Ip = 2,
    /// All that comes to or leaves one link.
    Link = 5,
}

/// Where a chain is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hook<'a> {
    pub(crate) number: u32,
    pub(crate) priority: i32,
    /// Of a chain of a link.
    pub(crate) link: Option<&'a str>,
    /// `filter` or `nat`.
    pub(crate) kind: &'static str,
    /// What becomes of a packet that no rule decides upon.
    pub(crate) accepts: bool,
}

/// Numbers of hooks, which depend on the family.
pub(crate) mod hook {
    pub(crate) const PREROUTING: u32 = 0;
    pub(crate) const INPUT: u32 = 1;
    pub(crate) const FORWARD: u32 = 2;
    pub(crate) const OUTPUT: u32 = 3;
    pub(crate) const POSTROUTING: u32 = 4;
    pub(crate) const LINK_INGRESS: u32 = 0;
    pub(crate) const LINK_EGRESS: u32 = 1;
}

/// What a set of IPv4 addresses is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetKind {
    /// Ranges.
    Ranges,
    /// Ranges, each with a port.
    RangesWithPorts,
    /// What to do, by address.
    Verdicts,
    /// Addresses that rules add, each with something that is counted.
    Counted,
}

/// Changes that take effect together, or not at all.
pub(crate) struct Batch<'a> {
    family: Family,
    table: &'a str,
    messages: Vec<u8>,
    /// Where the numbers of the messages go.
    numbers: Vec<usize>,
    sets: u32,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(family: Family, table: &'a str) -> Self {
        let mut batch = Self { family, table, messages: Vec::new(), numbers: Vec::new(), sets: 0 };
        batch.message(BATCH_BEGIN, 0, &Attributes::default());
        batch
    }

    pub(crate) fn add_table(&mut self) {
        self.change(NEW_TABLE, NLM_F_CREATE, Attributes::default().text(1, self.table));
    }

    /// Makes it anew, and empty, whether it was there or not.
    pub(crate) fn renew_table(&mut self) {
        self.add_table();
        self.remove_table();
        self.add_table();
    }

    pub(crate) fn remove_table(&mut self) {
        self.change(DELETE_TABLE, 0, Attributes::default().text(1, self.table));
    }

    /// A chain without a hook is one that rules jump to.
    pub(crate) fn add_chain(&mut self, name: &str, hook: Option<Hook<'_>>) {
        let mut chain = Attributes::default().text(1, self.table).text(3, name);
        if let Some(Hook { number, priority, link, kind, accepts }) = hook {
            let mut place = Attributes::default().number(1, number).number(2, priority as u32);
            if let Some(link) = link {
                place = place.text(3, link);
            }
            chain = chain.nested(4, &place).number(5, u32::from(accepts)).text(7, kind);
        }
        self.change(NEW_CHAIN, NLM_F_CREATE, chain);
    }

    /// Also its rules. Nothing may jump to it any more.
    pub(crate) fn remove_chain(&mut self, name: &str) {
        let chain = || Attributes::default().text(1, self.table);
        let (rules, chain) = (chain().text(2, name), chain().text(3, name));
        self.change(DELETE_RULE, 0, rules);
        self.change(DELETE_CHAIN, 0, chain);
    }

    pub(crate) fn add_rule(&mut self, chain: &str, expressions: &[Expression<'_>]) {
        let mut list = Attributes::default();
        for (name, data) in expressions.iter().flat_map(|expression| expression.parts()) {
            list = list.nested(1, &Attributes::default().text(1, name).nested(2, &data));
        }
        let rule = Attributes::default().text(1, self.table).text(2, chain).nested(4, &list);
        // Behind those that are there: NLM_F_APPEND.
        self.change(NEW_RULE, NLM_F_CREATE | libc::NLM_F_APPEND as u16, rule);
    }

    pub(crate) fn add_set(&mut self, name: &str, kind: SetKind) {
        const INTERVAL: u32 = 0x4;
        const MAP: u32 = 0x8;
        const EVALUATED: u32 = 0x20;
        const CONCATENATED: u32 = 0x80;
        /// What `nft` shows it as.
        const IPV4_ADDRESS: u32 = 7;
        const WITH_PORT: u32 = IPV4_ADDRESS << 6 | 13;
        const VERDICT: u32 = 0xffff_ff00;
        self.sets += 1;
        let flags = match kind {
            SetKind::Ranges => INTERVAL,
            SetKind::RangesWithPorts => INTERVAL | CONCATENATED,
            SetKind::Verdicts => MAP,
            SetKind::Counted => EVALUATED,
        };
        let (shown, bytes) = if kind == SetKind::RangesWithPorts { (WITH_PORT, 8) } else { (IPV4_ADDRESS, 4) };
        let mut set = Attributes::default()
            .text(1, self.table)
            .text(2, name)
            .number(3, flags)
            .number(4, shown)
            .number(5, bytes)
            .number(10, self.sets);
        if kind == SetKind::Verdicts {
            set = set.number(6, VERDICT).number(7, 16);
        }
        if kind == SetKind::RangesWithPorts {
            let part = |list: Attributes, bytes| list.nested(1, &Attributes::default().number(1, bytes));
            let parts = [4, 2].into_iter().fold(Attributes::default(), part);
            set = set.nested(9, &Attributes::default().nested(2, &parts));
        }
        self.change(NEW_SET, NLM_F_CREATE, set);
    }

    pub(crate) fn remove_set(&mut self, name: &str) {
        self.change(DELETE_SET, 0, Attributes::default().text(1, self.table).text(2, name));
    }

    /// Beginnings and ends of ranges.
    pub(crate) fn add_ranges(&mut self, set: &str, ranges: impl Iterator<Item = (Ipv4Addr, bool)>) {
        const END: u32 = 1;
        let element = |(address, is_end): (Ipv4Addr, bool)| {
            let element = key(address);
            if is_end { element.number(3, END) } else { element }
        };
        // A list is one attribute, whose length has 16 bits.
        let elements: Vec<Attributes> = ranges.map(element).collect();
        elements.chunks(1_000).for_each(|part| self.elements(NEW_ELEMENTS, set, part));
    }

    /// Ranges by their first and last addresses, with a port.
    pub(crate) fn add_ranges_with_port(
        &mut self,
        set: &str,
        ranges: impl Iterator<Item = (Ipv4Addr, Ipv4Addr)>,
        port: u16,
    ) {
        const KEY: u16 = 1;
        const KEY_END: u16 = 10;
        let value = |address: Ipv4Addr| {
            // Each part takes whole registers of four bytes.
            let [a, b, c, d] = address.octets();
            let [high, low] = port.to_be_bytes();
            Attributes::default().bytes(1, &[a, b, c, d, high, low, 0, 0])
        };
        let element = |(first, last)| Attributes::default().nested(KEY, &value(first)).nested(KEY_END, &value(last));
        let elements: Vec<Attributes> = ranges.map(element).collect();
        elements.chunks(1_000).for_each(|part| self.elements(NEW_ELEMENTS, set, part));
    }

    pub(crate) fn add_verdict(&mut self, set: &str, address: Ipv4Addr, verdict: Verdict<'_>) {
        self.elements(NEW_ELEMENTS, set, &[key(address).nested(2, &verdict.attributes())]);
    }

    pub(crate) fn remove_verdict(&mut self, set: &str, address: Ipv4Addr) {
        self.elements(DELETE_ELEMENTS, set, &[key(address)]);
    }

    fn elements(&mut self, kind: u16, set: &str, elements: &[Attributes]) {
        let list = elements.iter().fold(Attributes::default(), |list, element| list.nested(1, element));
        let message = Attributes::default().text(1, self.table).text(2, set).nested(3, &list);
        self.change(kind, NLM_F_CREATE, message);
    }

    fn change(&mut self, kind: u16, flags: u16, attributes: Attributes) {
        // Only errors are answered: acknowledgements of thousands would not find room, and the batch would count as failed.
        self.message(SUBSYSTEM << 8 | kind, flags, &attributes);
    }

    fn message(&mut self, kind: u16, flags: u16, attributes: &Attributes) {
        let is_frame = kind == BATCH_BEGIN || kind == BATCH_END;
        let (family, resource) = if is_frame { (0, SUBSYSTEM) } else { (self.family as u8, 0) };
        self.numbers.push(self.messages.len() + NUMBER_AT);
        append(&mut self.messages, kind, NLM_F_REQUEST | flags, (family, resource), (0, attributes));
    }

    /// Makes all changes.
    pub(crate) fn commit(mut self, sockets: &Sockets) -> io::Result<()> {
        self.message(BATCH_END, 0, &Attributes::default());
        let number = sockets.rules.next();
        self.numbers.iter().for_each(|at| self.messages[*at..*at + 4].copy_from_slice(&number.to_ne_bytes()));
        sockets.rules.send(&self.messages)?;
        sockets.rules.all_answers()
    }
}

fn key(address: Ipv4Addr) -> Attributes {
    Attributes::default().nested(1, &Attributes::default().bytes(1, &address.octets()))
}

/// Where a message has its number.
const NUMBER_AT: usize = 8;

/// A message with the header of netfilter: family, version, resource.
fn append(
    to: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    (family, resource): (u8, u16),
    (number, attributes): (u32, &Attributes),
) {
    let length = HEADER_BYTES + 4 + attributes.as_bytes().len();
    to.extend((length as u32).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(number.to_ne_bytes());
    to.extend([0; 4]);
    to.extend([family, 0]);
    to.extend(resource.to_be_bytes());
    to.extend(attributes.as_bytes());
}

/// Whether there is a table.
pub(crate) fn has_table(sockets: &Sockets, family: Family, table: &str) -> io::Result<bool> {
    let mut message = Vec::new();
    let name = Attributes::default().text(1, table);
    let number = sockets.rules.next();
    append(&mut message, SUBSYSTEM << 8 | GET_TABLE, NLM_F_REQUEST | NLM_F_ACK, (family as u8, 0), (number, &name));
    sockets.rules.send(&message)?;
    match sockets.rules.answers(|_| Ok(())) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        found => found.map(|()| true),
    }
}

/// The names of a table's chains.
pub(crate) fn chains(sockets: &Sockets, family: Family, table: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    each_chain(sockets, family as u8, |chain| {
        if text_of(chain, 1).as_deref() == Some(table) {
            found.extend(text_of(chain, 3));
        }
    })?;
    Ok(found)
}

/// Tables and chains that drop what is forwarded, of IPv4 and of both families, unless a rule accepts it.
pub(crate) fn closed_forwarding(sockets: &Sockets) -> io::Result<Vec<String>> {
    const IPV4_AND_IPV6: u8 = 1;
    let mut found = Vec::new();
    for family in [IPV4_AND_IPV6, Family::Ip as u8] {
        each_chain(sockets, family, |chain| {
            let hook = value_of(chain, 4).and_then(|hook| number_of(hook, 1));
            let drops = number_of(chain, 5) == Some(0);
            if let (Some(hook::FORWARD), true, Some(table), Some(name)) =
                (hook, drops, text_of(chain, 1), text_of(chain, 3))
            {
                found.push(format!("{table} {name}"));
            }
        })?;
    }
    Ok(found)
}

fn each_chain(sockets: &Sockets, family: u8, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut message = Vec::new();
    let flags = NLM_F_REQUEST | netlink_packet_core::NLM_F_DUMP;
    let number = sockets.rules.next();
    append(&mut message, SUBSYSTEM << 8 | GET_CHAIN, flags, (family, 0), (number, &Attributes::default()));
    sockets.rules.send(&message)?;
    sockets.rules.answers(|message| {
        each(message.get(HEADER_BYTES + 4..).unwrap_or_default());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;

    /// In a network namespace of its own, which ends with its thread.
    fn alone(test: impl FnOnce(&Sockets) + Send + 'static) {
        let thread = std::thread::spawn(move || match sys::namespace::unshare(UnshareFlags::NEWNET) {
            Ok(()) => test(&Sockets::open().unwrap()),
            Err(error) => eprintln!("skipped: no network namespace can be made ({error}): run it as root"),
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_batch_for_thousands_of_links_is_made_at_once_or_not_at_all() {
        alone(|sockets| {
            let links = |ending: Option<&str>| {
                let mut batch = Batch::new(Family::Ip, "many");
                batch.renew_table();
                for link in 0..4_096 {
                    let chain = format!("link{link}");
                    batch.add_chain(&chain, None);
                    for port in 0..16u16 {
                        let is = port.to_be_bytes();
                        batch.add_rule(
                            &chain,
                            &[Expression::Transport { at: 2, is: &is }, Expression::Decide(Verdict::Accept)],
                        );
                    }
                }
                ending.iter().for_each(|chain| batch.remove_chain(chain));
                batch.commit(sockets)
            };
            let missing = links(Some("none")).unwrap_err();
            assert_eq!(
                (missing.raw_os_error(), has_table(sockets, Family::Ip, "many").unwrap()),
                (Some(libc::ENOENT), false)
            );
            links(None).unwrap();
            assert_eq!(chains(sockets, Family::Ip, "many").unwrap().len(), 4_096);
        });
    }
}
