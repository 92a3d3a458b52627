//! The router of a node, and the links of its sandboxes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::Ipv4Addr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use base::id::SandboxId;
use ipnet::Ipv4Net;
use model::NetworkPolicy;
use rustix::{
    mount::{UnmountFlags, mount_bind, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::{
    error::{Context, Error},
    link,
    netlink::Sockets,
    nft::{self, Batch, Family},
    ranges::Ranges,
    rules::{self, UPLINK},
    settings::{self, CHOICE, CHOSEN_PREFIX, GATEWAY, INSIDE, INSIDE_PREFIX, LINK, Settings},
};

/// Begins the names of the router's links to sandboxes; their numbers follow.
const LINK_PREFIX: &str = "s";
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
    closed: Ranges,
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

/// Who has which number.
#[derive(Debug, Default)]
struct Links {
    of: BTreeMap<SandboxId, u32>,
    taken: BTreeSet<u32>,
    /// Numbers with rules of their own.
    ruled: BTreeSet<u32>,
    /// Policies that are not everyone's.
    policies: BTreeMap<u32, NetworkPolicy>,
    /// Where the search for a free one goes on: the same is not taken again at once.
    next: u32,
}

impl Network {
    /// Makes the router of node `node`, whose namespace is mounted at `place`, or takes over the one that is there.
    ///
    /// It switches on the forwarding of IPv4 on the host.
    pub fn open(place: &Path, node: &str, settings: &Settings) -> Result<Self, Error> {
        let names = Names::of(node);
        let host = Sockets::open().doing("talk to the kernel about networks")?;
        let found = adopt(place)?;
        let is_new = found.is_none();
        let router = match found {
            Some(router) => router,
            None => {
                // Of a router that is gone: by a boot, or with its mount.
                link::remove(&host, &names.uplink).doing("remove an old link of the node")?;
                make_namespace(place)?
            }
        };
        let made = Self::connect(place, names.clone(), (host, router), settings, is_new);
        if made.is_err() && is_new {
            let _ = remove(place, &names);
        }
        made
    }

    fn connect(
        place: &Path,
        names: Names,
        (host, router): (Sockets, Sockets),
        settings: &Settings,
        is_new: bool,
    ) -> Result<Self, Error> {
        let mtu = mtu_of(&host).doing("look for the host's way out")?;
        let range = if is_new {
            let range = choose(&host, settings.range)?;
            connect_host(&host, &router, &names, range, mtu).doing("connect the sandboxes' router with the host")?;
            rules::of_router(&router, &settings.closed(range)).doing("make the rules of the sandboxes' router")?;
            range
        } else {
            let range = own_range(&host, &names.uplink)?;
            // The options may be others than its earlier node's.
            rules::set_closed(&router, &settings.closed(range)).doing("change the rules of the sandboxes' router")?;
            range
        };
        // An administrator may have flushed all rules of the host's.
        if !nft::has_table(&host, Family::Ip, &names.table).doing("look for the node's rules")? {
            rules::of_host(&host, &names.table, &names.uplink, range).doing("make the node's rules on the host")?;
        }
        allow_forwarding()?;
        let mut links = Links::default();
        let ruled = rules::numbers_with_policy(&router).doing("look for rules of sandboxes")?;
        links.ruled.extend(ruled);
        for link in link::list(&router).doing("look for links of sandboxes")? {
            let number = link.name.strip_prefix(LINK_PREFIX).and_then(|number| number.parse().ok());
            let Some(number) = number else { continue };
            links.taken.insert(number);
            if let Ok(id) = link.alias.parse() {
                links.of.insert(id, number);
            }
        }
        let (router, links) = (Mutex::new(router), Mutex::new(links));
        Ok(Self { place: place.to_owned(), names, router, range, closed: settings.closed(range), mtu, links })
    }

    /// The range of its sandboxes' addresses.
    pub fn range(&self) -> Ipv4Net {
        self.range
    }

    /// Connects a sandbox, with what every one may reach. `inside` was opened in its namespace.
    pub fn attach(&self, id: &SandboxId, inside: &Sockets) -> Result<(), Error> {
        let number = self.take_number(id)?;
        let attached = self.try_attach(id, number, inside);
        if attached.is_err() {
            self.give_back(id, number);
        }
        attached
    }

    fn try_attach(&self, id: &SandboxId, number: u32, inside: &Sockets) -> Result<(), Error> {
        const ACTION: &str = "connect a sandbox with the node's router";
        let own = settings::address(self.range, number);
        let (router, name) = (self.router(), name_of(number));
        let near = link::End { name: &name, alias: id.as_str() };
        link::make_pair(&router, &near, inside, LINK, self.mtu).doing(ACTION)?;
        // Without its rules nothing of it is let through: its packets have the wrong source.
        let index = link::index(&router, &name).doing(ACTION)?;
        link::add_route(&router, Ipv4Net::from(own), index, None).doing(ACTION)?;
        drop(router);
        rules::of_link(inside, own).doing("make the rules of a sandbox's link")?;
        link::switch_on(inside, LINK).doing(ACTION)?;
        let index = link::index(inside, LINK).doing(ACTION)?;
        link::add_address(inside, index, inside_net(INSIDE)).doing(ACTION)?;
        link::add_route(inside, Ipv4Net::default(), index, Some(GATEWAY)).doing(ACTION)
    }

    /// Has a sandbox reach what `policy` says, from now on. What flows and is not allowed any more stops.
    pub fn apply(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<(), Error> {
        crate::policy::check(policy)?;
        let mut links = self.links();
        let number = *links.of.get(id).ok_or_else(|| Error::NoLink(id.clone()))?;
        let had = links.ruled.contains(&number);
        if policy.is_default() && !had {
            return Ok(());
        }
        let own = settings::address(self.range, number);
        rules::of_policy(&self.router(), number, own, policy, had).doing("change the network policy of a sandbox")?;
        if policy.is_default() {
            links.ruled.remove(&number);
            links.policies.remove(&number);
        } else {
            links.ruled.insert(number);
            links.policies.insert(number, policy.clone());
        }
        Ok(())
    }

    /// Takes a sandbox's link away, if it has one. The sandbox may be gone.
    pub fn detach(&self, id: &SandboxId) {
        let number = self.links().of.get(id).copied();
        if let Some(number) = number {
            if let Err(error) = self.apply(id, &NetworkPolicy::default()) {
                tracing::warn!(sandbox = %id, %error, "rules of a sandbox's network stay");
            }
            self.give_back(id, number);
        }
    }

    /// Which sandbox has an address of the range, and what it may reach.
    pub(crate) fn sandbox_at(&self, address: Ipv4Addr) -> Option<(SandboxId, NetworkPolicy)> {
        let number = u32::from(address).checked_sub(u32::from(self.range.network()))?;
        let links = self.links();
        let (id, _) = links.of.iter().find(|(_, of)| **of == number)?;
        Some((id.clone(), links.policies.get(&number).cloned().unwrap_or_default()))
    }

    /// Whether an address is among those that no policy opens.
    pub(crate) fn is_closed(&self, address: Ipv4Addr) -> bool {
        self.closed.contains(address)
    }

    /// Ids of all sandboxes that have a link.
    pub fn connected(&self) -> Vec<SandboxId> {
        self.links().of.keys().cloned().collect()
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

    fn take_number(&self, id: &SandboxId) -> Result<u32, Error> {
        let mut links = self.links();
        let numbers = settings::numbers(self.range);
        let begin = links.next.clamp(numbers.start, numbers.end - 1);
        let free = (begin..numbers.end).chain(numbers.start..begin).find(|number| !links.taken.contains(number));
        let number = free.ok_or(Error::Full(self.range))?;
        links.taken.insert(number);
        links.of.insert(id.clone(), number);
        links.next = number + 1;
        Ok(number)
    }

    fn give_back(&self, id: &SandboxId, number: u32) {
        let removed = link::remove(&self.router(), &name_of(number));
        if let Err(error) = removed {
            // The number stays taken: two links cannot have it.
            tracing::warn!(sandbox = %id, %error, "a sandbox's link stays");
            return;
        }
        let mut links = self.links();
        links.of.remove(id);
        links.taken.remove(&number);
        links.policies.remove(&number);
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

/// Runs `work` in a network namespace, on a thread that ends with it.
fn within<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let visit = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    thread::scope(|scope| scope.spawn(visit).join()).unwrap_or_else(|_| Err(io::Error::other("a thread broke off")))
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
    let make = || -> Result<Sockets, Error> {
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
    };
    let made = thread::scope(|scope| scope.spawn(make).join());
    made.unwrap_or_else(|_| Err(io::Error::other("a thread broke off")).doing("make the sandboxes' router"))
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
    if let Some(wanted) = wanted {
        return settings::checked(wanted);
    }
    let routes = link::routes(host).doing("read the host's routes")?;
    let overlaps = |range: &Ipv4Net, other: Ipv4Net| range.contains(&other) || other.contains(range);
    let is_free = |range: &Ipv4Net| !routes.iter().any(|route| route.to.prefix_len() > 0 && overlaps(range, route.to));
    let mut choice = CHOICE.subnets(CHOSEN_PREFIX).into_iter().flatten();
    choice.find(is_free).ok_or(Error::NoRange)
}

/// Of the link by which the host reaches the internet.
fn mtu_of(host: &Sockets) -> io::Result<u32> {
    let way_out = link::routes(host)?.into_iter().find(|route| route.to.prefix_len() == 0).and_then(|route| route.link);
    let links = link::list(host)?;
    Ok(links.into_iter().find(|link| Some(link.index) == way_out).map_or(MTU_DEFAULT, |link| link.mtu.min(65_535)))
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
