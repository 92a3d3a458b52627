//! The router of a node, and the links of its sandboxes.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::Ipv4Addr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use base::id::SandboxId;
use ipnet::Ipv4Net;
use model::NetworkPolicy;
use rustix::{
    mount::{UnmountFlags, mount_bind, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use crate::{
    error::{Context, Error},
    link,
    links::Links,
    netlink::Sockets,
    nft::{self, Batch, Family},
    policy::Reach,
    ranges::Ranges,
    rules::{self, EGRESS_PORT, UPLINK},
    settings::{self, CHOICE, CHOSEN_PREFIX, GATEWAY, INSIDE, INSIDE_PREFIX, LINK, LINK_PREFIX, Settings},
};

/// What most links take; used if the host's way out is not known.
const MTU_DEFAULT: u32 = 1_500;

/// The network of a node.
pub struct Network {
    /// Where the router's namespace is mounted.
    place: PathBuf,
    /// Names of this node's link and table on the host.
    names: Names,
    router: Mutex<Sockets>,
    range: Ipv4Net,
    closed: Arc<Ranges>,
    mtu: u32,
    links: Mutex<Links>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Names {
    uplink: String,
    table: String,
}

impl Names {
    /// A link's name has 15 bytes at most.
    fn of(node: &str) -> Self {
        let mut hash = DefaultHasher::new();
        node.hash(&mut hash);
        Self { uplink: format!("pd{:08x}", hash.finish() as u32), table: format!("pando-{node}") }
    }
}

impl Network {
    /// Makes the router of node `node`, whose namespace is mounted at `place`, or takes over the one that is there.
    ///
    /// It switches on the forwarding of IPv4 on the host.
    pub fn open(place: &Path, node: &str, settings: &Settings) -> Result<Self, Error> {
        let names = Names::of(node);
        let host = Sockets::open().doing("talk to the kernel about networks")?;
        if let Some(router) = adopt(place)? {
            let links = link::list(&router).doing("look for links of sandboxes")?;
            match own_range(&host, &names.uplink) {
                Ok(range) => return Self::take_over(place, names, (host, router), settings, (range, links)),
                // Without sandboxes nothing is lost: it was made in part only.
                Err(error) if links.iter().any(|link| link.name.starts_with(LINK_PREFIX)) => return Err(error),
                Err(_) => {}
            }
        }
        // Of a router that is gone: by a boot, or with its mount; or of one that never came to be.
        remove(place, &names)?;
        let made = Self::make(place, names.clone(), &host, settings);
        if made.is_err() {
            let _ = remove(place, &names);
        }
        made
    }

    fn make(place: &Path, names: Names, host: &Sockets, settings: &Settings) -> Result<Self, Error> {
        let router = make_namespace(place)?;
        let mtu = mtu_of(host).doing("look for the host's way out")?;
        let range = choose(host, settings.range)?;
        let closed = settings.closed(range);
        rules::of_router(&router, &closed, &[]).doing("make the rules of the sandboxes' router")?;
        connect_host(host, &router, &names, range, mtu).doing("connect the sandboxes' router with the host")?;
        Self::complete(place, names, (host, router), (range, closed, mtu), (Vec::new(), Vec::new()))
    }

    fn take_over(
        place: &Path,
        names: Names,
        (host, router): (Sockets, Sockets),
        settings: &Settings,
        (range, links): (Ipv4Net, Vec<link::Link>),
    ) -> Result<Self, Error> {
        let mtu = links.iter().find(|link| link.name == UPLINK).map_or(MTU_DEFAULT, |link| link.mtu);
        let closed = settings.closed(range);
        let ruled = rules::numbers_with_policy(&router).doing("look for rules of sandboxes")?;
        let unknown: Vec<_> = ruled.iter().map(|number| (*number, settings::address(range, *number))).collect();
        // Anew: those of an earlier version, or of other options.
        rules::of_router(&router, &closed, &unknown).doing("make the rules of the sandboxes' router")?;
        Self::complete(place, names, (&host, router), (range, closed, mtu), (links, ruled))
    }

    fn complete(
        place: &Path,
        names: Names,
        (host, router): (&Sockets, Sockets),
        (range, closed, mtu): (Ipv4Net, Ranges, u32),
        (links, ruled): (Vec<link::Link>, Vec<u32>),
    ) -> Result<Self, Error> {
        let connections = tracked_connections() / rules::CONNECTIONS_PART;
        rules::of_host(host, (&names.table, &names.uplink), (range, &closed), connections)
            .doing("make the node's rules on the host")?;
        allow_forwarding()?;
        let closed = Arc::new(closed);
        let usual = Reach::of(&NetworkPolicy::default(), &closed);
        let (router, links) = (Mutex::new(router), Mutex::new(Links::of(links, ruled, usual)));
        Ok(Self { place: place.to_owned(), names, router, range, closed, mtu, links })
    }

    /// The range of its sandboxes' addresses.
    pub fn range(&self) -> Ipv4Net {
        self.range
    }

    /// Connects a sandbox, with what every one may reach. `inside` was opened in its namespace.
    pub fn attach(&self, id: &SandboxId, inside: &Sockets) -> Result<(), Error> {
        // An earlier one of that name.
        self.detach(id);
        const ACTION: &str = "connect a sandbox with the node's router";
        let router = self.router();
        let number = loop {
            let number = self.links().take(id, self.range)?;
            let near = link::End { name: &name_of(number), alias: id.as_str() };
            match link::make_pair(&router, &near, inside, LINK, self.mtu) {
                Ok(()) => break number,
                // Another one's, which is not known: it stays, and its number is taken.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => self.links().forget(id),
                Err(error) => {
                    self.links().give_back(id, number);
                    return Err(error).doing(ACTION);
                }
            }
        };
        let attached = self.finish(number, &router, inside).doing(ACTION);
        if attached.is_err() {
            self.remove_link(id, number, &router);
        }
        attached
    }

    /// Until its rules are there nothing of it is let through: its packets have the wrong source.
    fn finish(&self, number: u32, router: &Sockets, inside: &Sockets) -> io::Result<()> {
        let own = settings::address(self.range, number);
        link::add_route(router, Ipv4Net::from(own), link::index(router, &name_of(number))?, None)?;
        rules::of_link(inside, own)?;
        link::switch_on(inside, LINK)?;
        let index = link::index(inside, LINK)?;
        link::add_address(inside, index, inside_net(INSIDE))?;
        link::add_route(inside, Ipv4Net::default(), index, Some(GATEWAY))
    }

    /// Fails if no sandbox of this node can have a policy.
    pub fn check(&self, policy: &NetworkPolicy) -> Result<(), Error> {
        crate::policy::check(policy, &self.closed)
    }

    /// Has a sandbox reach what `policy` says, from now on. Connections that it does not allow stop.
    pub fn apply(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<(), Error> {
        self.check(policy)?;
        let router = self.router();
        self.set(id, policy, &router)
    }

    fn set(&self, id: &SandboxId, policy: &NetworkPolicy, router: &Sockets) -> Result<(), Error> {
        let (number, had) = {
            let links = self.links();
            let number = links.number(id).ok_or_else(|| Error::NoLink(id.clone()))?;
            (number, links.is_ruled(number))
        };
        if had || !policy.is_default() {
            let own = settings::address(self.range, number);
            rules::of_policy(router, (number, own), policy, had).doing("change the network policy of a sandbox")?;
            self.links().set(number, !policy.is_default(), Reach::of(policy, &self.closed));
        }
        Ok(())
    }

    /// Takes a sandbox's link away, if it has one. The sandbox may be gone.
    pub fn detach(&self, id: &SandboxId) {
        let router = self.router();
        let number = self.links().number(id);
        if let Some(number) = number {
            if let Err(error) = self.set(id, &NetworkPolicy::default(), &router) {
                tracing::warn!(sandbox = %id, %error, "rules of a sandbox's network stay");
            }
            self.remove_link(id, number, &router);
        }
    }

    fn remove_link(&self, id: &SandboxId, number: u32, router: &Sockets) {
        match link::remove(router, &name_of(number)) {
            Ok(()) => self.links().give_back(id, number),
            Err(error) => {
                self.links().forget(id);
                tracing::warn!(sandbox = %id, %error, "a sandbox's link stays");
            }
        }
    }

    /// Which sandbox has an address of the range, and what it reaches.
    pub(crate) fn sandbox_at(&self, address: Ipv4Addr) -> Option<(SandboxId, Reach)> {
        let number = u32::from(address).checked_sub(u32::from(self.range.network()))?;
        self.links().at(number).map(|(id, reach)| (id.clone(), reach))
    }

    /// The same, with each change, of a sandbox that has, or had, a policy of its own. It ends with the sandbox's link.
    pub fn guest_at(&self, address: Ipv4Addr) -> Option<(SandboxId, watch::Receiver<Reach>)> {
        let number = u32::from(address).checked_sub(u32::from(self.range.network()))?;
        self.links().watched(number).map(|(id, reach)| (id.clone(), reach))
    }

    /// The socket to which the connections of sandboxes come whose policies have domains. Only one can be open at a time.
    pub fn listen(&self) -> io::Result<TcpListener> {
        let listener = self.in_router(|| std::net::TcpListener::bind((GATEWAY, EGRESS_PORT)))??;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// A socket for one connection, which the host judges as those of sandboxes: with all that is closed to them, and to itself. Blocks for a moment.
    pub fn socket(&self) -> io::Result<TcpSocket> {
        self.in_router(TcpSocket::new_v4)?
    }

    /// Ids of all sandboxes that have a link.
    pub fn connected(&self) -> Vec<SandboxId> {
        self.links().ids()
    }

    /// Does `work` in the router's namespace, on a thread of its own.
    pub fn in_router<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let namespace = self.router().namespace.try_clone()?;
        within(&namespace, work)
    }

    /// The node stops. What runs keeps its network, and the next node finds it; if nothing needs it, all of it goes.
    pub fn close(&self, is_needed: bool) {
        if is_needed {
            return;
        }
        if let Err(error) = remove(&self.place, &self.names) {
            tracing::warn!(error = &error as &dyn std::error::Error, "something of the node's network stays");
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request at a time: answers are read in the order of requests.
    fn router(&self) -> MutexGuard<'_, Sockets> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(number: u32) -> String {
    format!("{LINK_PREFIX}{number}")
}

fn inside_net(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new_assert(address, INSIDE_PREFIX)
}

/// Runs `work` on a thread of its own, whose namespaces end with it.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `work` in a network namespace.
fn within<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    aside(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    })
}

/// The sockets of the router that is mounted at `place`; none if there is none.
fn adopt(place: &Path) -> Result<Option<Sockets>, Error> {
    const NAMESPACES: i64 = 0x6e73_6673; // NSFS_MAGIC
    let file = match File::open(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.at("open", place)?,
    };
    if rustix::fs::fstatfs(&file).at("look at", place)?.f_type != NAMESPACES {
        return Ok(None);
    }
    let sockets = within(&file, Sockets::open).and_then(|sockets| sockets);
    sockets.doing("talk to the kernel about the sandboxes' router").map(Some)
}

/// Makes a network namespace that lasts, mounted at `place`.
fn make_namespace(place: &Path) -> Result<Sockets, Error> {
    File::create(place).at("create", place)?;
    aside(|| {
        sys::namespace::unshare(UnshareFlags::NEWNET).doing("make the namespace of the sandboxes' router")?;
        mount_bind("/proc/thread-self/ns/net", place).at("mount a namespace on", place)?;
        let settings = [
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/accept_redirects", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/conf/all/accept_source_route", "0"),
            ("ipv4/conf/default/accept_source_route", "0"),
            ("ipv4/conf/all/route_localnet", "0"),
            ("ipv4/conf/default/route_localnet", "0"),
            ("ipv4/conf/all/proxy_arp", "0"),
            ("ipv4/conf/default/proxy_arp", "0"),
        ];
        for (setting, value) in settings {
            let path = Path::new("/proc/sys/net").join(setting);
            match fs::write(&path, value) {
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                written => written.at("write", &path)?,
            }
        }
        Sockets::open().doing("talk to the kernel about the sandboxes' router")
    })
}

/// Connects both ends, with addresses and routes.
fn connect_host(host: &Sockets, router: &Sockets, names: &Names, range: Ipv4Net, mtu: u32) -> io::Result<()> {
    let (outer, inner) = settings::ends(range);
    let near = link::End { name: &names.uplink, alias: &names.table };
    link::make_pair(host, &near, router, UPLINK, mtu)?;
    no_ipv6(&names.uplink)?;
    link::switch_on(router, UPLINK)?;
    let (outside, inside) = (link::index(host, &names.uplink)?, link::index(router, UPLINK)?);
    link::add_address(host, outside, Ipv4Net::new_assert(outer, INSIDE_PREFIX))?;
    link::add_address(router, inside, Ipv4Net::new_assert(inner, INSIDE_PREFIX))?;
    link::add_route(host, range, outside, Some(inner))?;
    link::add_route(router, Ipv4Net::default(), inside, Some(outer))?;
    link::switch_on(router, "lo")?;
    let loopback = link::index(router, "lo")?;
    link::add_address(router, loopback, Ipv4Net::from(GATEWAY))
}

/// Of the host: sandboxes speak IPv4 only.
fn no_ipv6(link: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

/// The range of a router that is there already.
fn own_range(host: &Sockets, uplink: &str) -> Result<Ipv4Net, Error> {
    let index = link::index(host, uplink).doing("find the link to the sandboxes' router")?;
    let routes = link::routes(host).doing("read the host's routes")?;
    let own = routes.iter().find(|route| route.link == Some(index) && route.to.prefix_len() < INSIDE_PREFIX);
    own.map(|route| route.to).ok_or(io::ErrorKind::NotFound).doing("find the route to the sandboxes' router")
}

/// The one that is wanted, or one that nothing of the host's is in.
fn choose(host: &Sockets, wanted: Option<Ipv4Net>) -> Result<Ipv4Net, Error> {
    let routes = link::routes(host).doing("read the host's routes")?;
    let overlap = |range: &Ipv4Net| {
        let overlaps = |other: &Ipv4Net| range.contains(other) || other.contains(range);
        routes.iter().map(|route| route.to).find(|other| other.prefix_len() > 0 && overlaps(other))
    };
    if let Some(wanted) = wanted {
        let range = settings::checked(wanted)?;
        return overlap(&range).map_or(Ok(range), |other| Err(Error::Taken { range, other }));
    }
    let is_free = |range: &Ipv4Net| overlap(range).is_none();
    let mut choice = CHOICE.subnets(CHOSEN_PREFIX).into_iter().flatten();
    choice.find(is_free).ok_or(Error::NoRange)
}

/// Of the link by which the host reaches the internet.
fn mtu_of(host: &Sockets) -> io::Result<u32> {
    let way_out = link::routes(host)?.into_iter().find(|route| route.to.prefix_len() == 0).and_then(|route| route.link);
    let links = link::list(host)?;
    Ok(links.into_iter().find(|link| Some(link.index) == way_out).map_or(MTU_DEFAULT, |link| link.mtu.min(65_535)))
}

/// How many connections the host can track.
fn tracked_connections() -> u32 {
    const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
    // Not there before the first rule that needs it; then the kernel's least default.
    fs::read_to_string(TRACKED).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65_536)
}

/// Packets of sandboxes are forwarded by the host.
fn allow_forwarding() -> Result<(), Error> {
    const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
    let path = Path::new(FORWARDING);
    if fs::read(path).at("read", path)?.starts_with(b"0") {
        fs::write(path, "1").at("write", path)?;
        tracing::info!("{FORWARDING} is 1 now: the host forwards packets of sandboxes");
    }
    Ok(())
}

/// Takes the router away, with all its links, and the node's rules on the host, as far as they are there.
fn remove(place: &Path, names: &Names) -> Result<(), Error> {
    let host = Sockets::open().doing("talk to the kernel about networks")?;
    link::remove(&host, &names.uplink).doing("remove the link to the sandboxes' router")?;
    if nft::has_table(&host, Family::Ip, &names.table).doing("look for the node's rules")? {
        let mut batch = Batch::new(Family::Ip, &names.table);
        batch.remove_table();
        batch.commit(&host).doing("remove the node's rules")?;
    }
    let _ = unmount(place, UnmountFlags::DETACH);
    match fs::remove_file(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.at("remove", place),
    }
}
