//! Links, addresses and routes.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd,
};

use ipnet::Ipv4Net;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
};

use crate::netlink::Sockets;

/// Both ends of every link have this address: then neither needs to ask for the other's (`IFF_NOARP`), and a program's copy finds the address that
/// its source had.
const HARDWARE_ADDRESS: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// One end of a pair of links.
pub(crate) struct End<'a> {
    pub(crate) name: &'a str,
    /// Who it belongs to, for those who list links.
    pub(crate) alias: &'a str,
}

/// Makes two connected links: one here, which is switched on, and one in another namespace, which cannot be before they are connected.
pub(crate) fn make_pair(here: &Sockets, near: &End<'_>, there: &Sockets, far: &str, mtu: u32) -> io::Result<()> {
    let mut peer = end(far, mtu, LinkFlags::Noarp);
    peer.attributes.push(LinkAttribute::NetNsFd(there.namespace.as_raw_fd()));
    let mut link = end(near.name, mtu, LinkFlags::Noarp | LinkFlags::Up);
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    here.route.request(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)?;
    // The kernel takes it of a link that is there only.
    let mut alias = LinkMessage::default();
    alias.attributes = vec![LinkAttribute::IfName(near.name.to_owned()), LinkAttribute::IfAlias(near.alias.to_owned())];
    here.route.request(RouteNetlinkMessage::SetLink(alias), 0).map(drop)
}

fn end(name: &str, mtu: u32, flags: LinkFlags) -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header.flags, message.header.change_mask) = (flags, flags);
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::Address(HARDWARE_ADDRESS.to_vec()),
    ];
    message
}

/// Removes a link, and the one it is connected with. One that is not there is fine.
pub(crate) fn remove(sockets: &Sockets, name: &str) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    match sockets.route.request(RouteNetlinkMessage::DelLink(link), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        removed => removed.map(drop),
    }
}

/// A link that is there.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) alias: String,
    pub(crate) mtu: u32,
}

pub(crate) fn list(sockets: &Sockets) -> io::Result<Vec<Link>> {
    let found = sockets.route.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let link = |message| match message {
        RouteNetlinkMessage::NewLink(message) => Some(read(&message)),
        _ => None,
    };
    Ok(found.into_iter().filter_map(link).collect())
}

fn read(message: &LinkMessage) -> Link {
    let mut link = Link { index: message.header.index, ..Link::default() };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::IfAlias(alias) => link.alias.clone_from(alias),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            _ => {}
        }
    }
    link
}

/// The number of a link in the namespace.
pub(crate) fn index(sockets: &Sockets, name: &str) -> io::Result<u32> {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    let found = sockets.route.request(RouteNetlinkMessage::GetLink(link), 0)?;
    match found {
        Some(RouteNetlinkMessage::NewLink(message)) => Ok(message.header.index),
        _ => Err(io::Error::from_raw_os_error(libc::ENODEV)),
    }
}

/// Gives a link an address.
pub(crate) fn add_address(sockets: &Sockets, link: u32, address: Ipv4Net) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = address.prefix_len();
    message.header.index = link;
    let own = IpAddr::V4(address.addr());
    message.attributes = vec![AddressAttribute::Local(own), AddressAttribute::Address(own)];
    sockets.route.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
}

/// Sends what goes to `to` out of a link: by way of a gateway there, or to that link's other end.
pub(crate) fn add_route(sockets: &Sockets, to: Ipv4Net, link: u32, gateway: Option<Ipv4Addr>) -> io::Result<()> {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: AddressFamily::Inet,
        destination_prefix_length: to.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: if gateway.is_some() { RouteScope::Universe } else { RouteScope::Link },
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Destination(RouteAddress::Inet(to.network())), RouteAttribute::Oif(link)];
    message.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::Inet(gateway))));
    sockets.route.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
}

/// A route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: Ipv4Net,
    pub(crate) link: Option<u32>,
}

pub(crate) fn routes(sockets: &Sockets) -> io::Result<Vec<Route>> {
    let mut wanted = RouteMessage::default();
    wanted.header.address_family = AddressFamily::Inet;
    let found = sockets.route.dump(&RouteNetlinkMessage::GetRoute(wanted))?;
    let route = |message| {
        let RouteNetlinkMessage::NewRoute(message) = message else { return None };
        let mut to = Ipv4Addr::UNSPECIFIED;
        let mut link = None;
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(address)) => to = *address,
                RouteAttribute::Oif(index) => link = Some(*index),
                _ => {}
            }
        }
        let is_main = message.header.table == RouteHeader::RT_TABLE_MAIN;
        is_main.then(|| Ipv4Net::new(to, message.header.destination_prefix_length).ok().map(|to| Route { to, link }))?
    };
    Ok(found.into_iter().filter_map(route).collect())
}

/// Switches a link on.
pub(crate) fn switch_on(sockets: &Sockets, name: &str) -> io::Result<()> {
    let mut link = LinkMessage::default();
    (link.header.flags, link.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
    link.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    sockets.route.request(RouteNetlinkMessage::SetLink(link), 0).map(drop)
}
