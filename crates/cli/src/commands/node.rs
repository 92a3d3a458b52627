//! `pando node`.

mod given;
mod registry;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use base::limits::{PARKED_COPIES_DEFAULT, POOL_SANDBOXES_DEFAULT};
use checkpoint::{PeerSettings, Settings};
use ipnet::Ipv4Net;
use node::config::{AtExit, Config, LayerKind, Layers, NetworkConfig, NetworkKind, PeerListen, STATE_DIR_DEFAULT};
use store::{
    id::Realm,
    object::{Location, S3Location},
};

use crate::output::Log;

/// Run the node in the foreground. It logs to standard error, and logs "node ready" once it takes requests.
///
/// When the node is stopped (SIGINT, SIGTERM), sandboxes run on. The next node with the same state directory takes them over.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of templates, sandboxes and logs of volumes. One node per directory.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR_DEFAULT)]
    state: PathBuf,
    /// Most prepared sandboxes that wait for starts, over all templates, and as many for programs that are new to the node. 0: none.
    #[arg(long, value_name = "N", default_value_t = POOL_SANDBOXES_DEFAULT)]
    pool: usize,
    /// Most of these that hold a copy of a program, ready to go. Each takes up to 4 MiB. 0: none.
    #[arg(long, value_name = "N", default_value_t = PARKED_COPIES_DEFAULT)]
    ahead: usize,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Memory limit of the processes that bring the memory of checkpoints: 512M, 1G. What they bring is not counted. At the limit they are
    /// restarted.
    #[arg(long, value_name = "BYTES", default_value = PAGER_MEMORY_DEFAULT, value_parser = super::template::parse_bytes)]
    pager_memory: u64,
    /// Memory limit of the processes that serve volumes: 1G, 16G. At the limit they are restarted, and programs wait meanwhile.
    #[arg(long, value_name = "BYTES", default_value = VOLUMES_MEMORY_DEFAULT, value_parser = super::template::parse_bytes)]
    volumes_memory: u64,
    #[command(flatten)]
    lag: LagArgs,
    #[command(flatten)]
    layers: LayersArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    registry: registry::RegistryArgs,
    #[command(flatten)]
    given: given::GivenArgs,
    /// Serve other nodes of the store from this node's cache, at this address, and find them (as --find-peers). Nodes must show that they have
    /// the store's key. Data stays sealed, but the connection shows which parts are asked for. Port 0: any.
    #[arg(long, value_name = "IP:PORT")]
    peer_listen: Option<SocketAddr>,
    /// Address at which other nodes reach --peer-listen, if it is another one.
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen", value_parser = parse_peer)]
    peer_address: Option<String>,
    /// Remove all sandboxes when the node is stopped.
    #[arg(long)]
    ephemeral: bool,
}

/// Where everything is stored that outlives the node.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where checkpoints and volumes are stored: a directory, or s3://BUCKET/PREFIX (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).
    /// Default: a directory below --state.
    #[arg(long, value_name = "DIR|s3://...", value_parser = parse_objects)]
    objects: Option<Location>,
    /// Address of the S3 service, if it is not AWS: http://127.0.0.1:7070. Buckets are addressed by path.
    #[arg(long, value_name = "URL", requires = "objects")]
    s3_endpoint: Option<String>,
    /// Database of the names of checkpoints and volumes: postgres://USER@HOST/DATABASE, or sqlite:///PATH for nodes of one machine. Default:
    /// SQLite below --state.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File of the master keys, the same on all nodes of a store. Made if it is missing. Default: PANDO_MASTER_KEYS, or a file below --state.
    #[arg(long, value_name = "FILE")]
    master_keys: Option<PathBuf>,
    /// Size of the local cache of the store: 512M, 4G.
    #[arg(long, value_name = "BYTES", default_value = CACHE_DEFAULT, value_parser = super::template::parse_bytes)]
    cache: u64,
    /// Ask this node for data before the object store. May be repeated.
    #[arg(long = "peer", value_name = "HOST:PORT", value_parser = parse_peer)]
    peers: Vec<String>,
    /// Also ask the nodes that have registered themselves in the database.
    #[arg(long)]
    find_peers: bool,
}

/// How what sandboxes change in their root filesystems is kept.
#[derive(Debug, clap::Args)]
pub(crate) struct LayersArgs {
    /// How the files that sandboxes change are kept. btrfs: in a file DIR/changes.img of --state; forks take snapshots in milliseconds. copy: as
    /// files below --state, copied for each fork. auto: btrfs where it can be had (`pando doctor`).
    #[arg(long = "layers", value_name = "KIND", value_enum, default_value_t = LayersKind::Auto)]
    kind: LayersKind,
    /// Most bytes of that file: 20G, 1T. It grows step by step. Default: what the host has, but for a twentieth (4 GiB at most).
    #[arg(long = "layers-max", value_name = "BYTES", value_parser = super::template::parse_bytes)]
    bytes_max: Option<u64>,
}

/// As [`LayerKind`].
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum LayersKind {
    Auto,
    Btrfs,
    Copy,
}

/// Below that btrfs cannot be made.
const LAYERS_MIN: u64 = 256 << 20;

impl LayersArgs {
    fn layers(&self) -> Result<Layers> {
        if self.bytes_max.is_some_and(|bytes| bytes < LAYERS_MIN) {
            bail!("--layers-max: give it 256M at least");
        }
        let kind = match self.kind {
            LayersKind::Auto => LayerKind::Auto,
            LayersKind::Btrfs => LayerKind::Btrfs,
            LayersKind::Copy => LayerKind::Copy,
        };
        Ok(Layers { kind, bytes_max: self.bytes_max })
    }
}

/// What sandboxes have of networks.
#[derive(Debug, clap::Args)]
pub(crate) struct NetworkArgs {
    /// Networks of sandboxes. on: each has one, or the node does not start. none: the loopback interface alone. auto: on where the host can
    /// (`pando doctor`). The node switches on the forwarding of IPv4.
    #[arg(long, value_name = "KIND", value_enum, default_value_t = NetworkChoice::Auto)]
    network: NetworkChoice,
    /// Addresses of sandboxes on the host, /16 to /24: 10.200.0.0/16. A node that takes over a network keeps its range. Default: a free /20 of
    /// 198.18.0.0/15.
    #[arg(long, value_name = "NET")]
    network_range: Option<Ipv4Net>,
    /// A private network that sandboxes may reach, unless their policies deny it: 10.1.0.0/16. May be repeated.
    #[arg(long, value_name = "NET", value_parser = parse_net)]
    network_allow: Vec<Ipv4Net>,
    /// A network that no sandbox may reach: 203.0.113.0/24. May be repeated.
    #[arg(long, value_name = "NET", value_parser = parse_net)]
    network_deny: Vec<Ipv4Net>,
    /// A file of certificate authorities, as PEM, that hosts may have whose requests get headers (--header), beside those that the system knows. May be
    /// repeated.
    #[arg(long = "egress-ca", value_name = "FILE")]
    egress_roots: Vec<PathBuf>,
    /// A DNS server for sandboxes, asked by the node. May be repeated. Default: those of the host's /etc/resolv.conf.
    #[arg(long = "dns", value_name = "IP")]
    dns: Vec<IpAddr>,
}

/// As [`NetworkKind`].
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum NetworkChoice {
    Auto,
    On,
    None,
}

impl NetworkArgs {
    fn config(self) -> NetworkConfig {
        let kind = match self.network {
            NetworkChoice::Auto => NetworkKind::Auto,
            NetworkChoice::On => NetworkKind::Required,
            NetworkChoice::None => NetworkKind::None,
        };
        let settings =
            network::Settings { range: self.network_range, allow: self.network_allow, deny: self.network_deny };
        NetworkConfig { kind, settings, egress_roots: self.egress_roots, dns: self.dns }
    }
}

/// A network, or a single address.
fn parse_net(text: &str) -> Result<Ipv4Net, String> {
    let address = || text.parse::<Ipv4Addr>().map(Ipv4Net::from);
    text.parse().or_else(|_| address()).map_err(|_| "give a network such as 10.0.0.0/8, or an address".to_owned())
}

/// Where the memory that sandboxes share is taken from.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// NUMA nodes for the memory that the sandboxes of a template share; CXL memory appears as such nodes. If they are full, other nodes are
    /// used. What a sandbox writes is where it runs. Default: wherever the template is built.
    #[arg(long = "memory-node", value_name = "N[,N...]", value_delimiter = ',')]
    pub(crate) nodes: Vec<u32>,
}

impl MemoryArgs {
    /// Refuses nodes that are not there; the kernel would leave them out without a word.
    fn check(&self) -> Result<()> {
        let known = sys::numa::nodes().context("cannot list the NUMA nodes of this machine")?;
        match self.nodes.iter().find(|node| !known.contains(node)) {
            None => Ok(()),
            Some(_) if known.is_empty() => bail!("--memory-node: this kernel knows no NUMA nodes"),
            Some(node) => {
                let known: Vec<String> = known.iter().map(u32::to_string).collect();
                bail!("--memory-node {node}: no such node has memory; this machine has {}", known.join(", "))
            }
        }
    }

    /// Makes it this process's own policy.
    pub(crate) fn prefer(&self) -> Result<()> {
        if self.nodes.is_empty() {
            return Ok(());
        }
        sys::numa::prefer(&self.nodes).with_context(|| format!("cannot take memory from nodes {:?}", self.nodes))
    }

    /// The arguments that say the same.
    fn arguments(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().flat_map(|node| ["--memory-node".to_owned(), node.to_string()])
    }
}

/// How far the store may be behind a volume.
#[derive(Debug, clap::Args)]
pub(crate) struct LagArgs {
    /// Pause between two commits of a volume that is written: at most this much work is lost with the node, while the store answers. 100ms to
    /// 60m. Processes of volumes that already run keep their earlier value.
    #[arg(long, value_name = "TIME", default_value = VOLUMES_LAG_DEFAULT, value_parser = parse_lag)]
    pub(crate) volumes_lag: Duration,
}

impl LagArgs {
    /// The arguments that say the same.
    fn arguments(&self) -> [String; 2] {
        ["--volumes-lag".to_owned(), format!("{}ms", self.volumes_lag.as_millis())]
    }
}

fn parse_lag(text: &str) -> Result<Duration, String> {
    let lag = super::template::parse_time(text)?;
    let fits = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&lag);
    if fits { Ok(lag) } else { Err("give it from 100ms to 60m".to_owned()) }
}

impl StoreArgs {
    pub(crate) fn settings(&self) -> Result<Settings> {
        let objects = match (self.objects.clone(), &self.s3_endpoint) {
            (Some(Location::S3(s3)), Some(endpoint)) => {
                Some(Location::S3(S3Location { endpoint: Some(endpoint.clone()), path_style: true, ..s3 }))
            }
            (Some(Location::Directory(path)), Some(_)) => {
                bail!("--s3-endpoint goes with s3://..., not with {}", path.display())
            }
            (Some(Location::Directory(path)), None) => Some(Location::Directory(std::path::absolute(path)?)),
            (objects, _) => objects,
        };
        Ok(Settings {
            realm: Realm::default(),
            objects,
            database: self.database.clone(),
            master_keys: self.master_keys.as_ref().map(std::path::absolute).transpose()?,
            cache_bytes: self.cache,
            peers: PeerSettings { given: self.peers.clone(), found: self.find_peers },
        })
    }
}

/// The arguments from which [`StoreArgs`] makes the same settings.
fn arguments(settings: &Settings) -> Vec<String> {
    let mut arguments = vec!["--cache".to_owned(), settings.cache_bytes.to_string()];
    let mut add = |option: &str, value: Option<String>| {
        arguments.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
    };
    add("--objects", settings.objects.as_ref().map(Location::to_string));
    add("--database", settings.database.clone());
    add("--master-keys", settings.master_keys.as_ref().map(|path| path.display().to_string()));
    for peer in &settings.peers.given {
        add("--peer", Some(peer.clone()));
    }
    arguments.extend(settings.peers.found.then(|| "--find-peers".to_owned()));
    arguments
}

/// For people; 8 GiB hold the working sets of hundreds of programs.
const CACHE_DEFAULT: &str = "8G";

/// Each of its 10 threads holds at most a chunk of 16 MiB, packed and unpacked, and what was read ahead; the journal of a process takes 40 KiB
/// for each GiB of it, so some hundred MiB for the 3,584 that it serves at most.
const PAGER_MEMORY_DEFAULT: &str = "1G";

/// A volume that is open takes up to some 1.1 GiB: 256 Ki inodes, 256 MiB that are not committed yet, 96 MiB of chunks and nodes. Those in use share this;
/// the kernel's cache of their logs counts, too, and is given back first.
const VOLUMES_MEMORY_DEFAULT: &str = "4G";

/// A commit of a volume in which much goes on takes some hundred milliseconds of a processor, and some objects.
const VOLUMES_LAG_DEFAULT: &str = "2s";

/// Below what one volume holds before writers wait, they would be killed again and again over the same log.
const VOLUMES_MEMORY_MIN: u64 = 512 << 20;

pub(super) fn parse_objects(text: &str) -> Result<Location, String> {
    text.parse::<Location>().map_err(|error| error.to_string())
}

fn parse_peer(text: &str) -> Result<String, String> {
    peers::check_address(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// Where others are served. An address that means all interfaces is none that others could connect to.
fn peer_listen(args: &Args) -> Result<Option<PeerListen>> {
    let Some(listen) = args.peer_listen else { return Ok(None) };
    if listen.ip().is_unspecified() && args.peer_address.is_none() {
        bail!(
            "--peer-listen {listen} is no address that other nodes could connect to; name one with --peer-address HOST:PORT"
        );
    }
    Ok(Some(PeerListen { listen, address: args.peer_address.clone() }))
}

pub(crate) async fn run(args: Args, socket: PathBuf, log: &Log, public: Option<server::Public>) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("the node has to run as root, to make namespaces and control groups; the programs in sandboxes never do");
    }
    args.memory.check()?;
    if args.volumes_memory < VOLUMES_MEMORY_MIN {
        bail!("--volumes-memory: one volume that is written to takes more; give it 512M at least");
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    // Overlay layers and the keeper's paths must not depend on a working directory.
    let state_dir = std::path::absolute(&args.state).context("cannot make the state directory's path absolute")?;
    if state_dir.parent().is_none() {
        bail!("the root directory cannot be the state directory; name one of its own with --state");
    }
    let socket = std::path::absolute(&socket).context("cannot make the socket's path absolute")?;
    let peer_listen = peer_listen(&args)?;
    let mut durable = args.store.settings()?;
    durable.peers.found |= peer_listen.is_some();
    let role = |role: &str| -> Vec<String> {
        let command = std::iter::once(program.display().to_string()).chain(log.arguments());
        command.chain([role.to_owned()]).collect()
    };
    let mut pager_command = role("guardian");
    pager_command.extend(["--state".to_owned(), state_dir.display().to_string()]);
    pager_command.extend(arguments(&durable));
    pager_command.extend(args.memory.arguments());
    // Its role comes last: the processes start each other with the arguments before it.
    let mut volumes_command = role("volumed");
    volumes_command.extend(["--state".to_owned(), state_dir.display().to_string()]);
    volumes_command.extend(arguments(&durable));
    volumes_command.extend(args.lag.arguments());
    volumes_command.push(volumed::Role::Guardian.argument().to_owned());
    let mut holder_command = role("holder");
    holder_command.extend(["--state".to_owned(), state_dir.display().to_string()]);
    holder_command.push(holder::Role::Holder.argument().to_owned());
    let mut keeper_command = role("keeper");
    keeper_command.extend(args.memory.arguments());
    let config = Config {
        state_dir,
        socket,
        pool_limit: args.pool,
        parked_limit: args.ahead,
        durable,
        pager_command,
        volumes_command,
        holder_command,
        pager_memory: args.pager_memory,
        volumes_memory: args.volumes_memory,
        peer_listen,
        layers: args.layers.layers()?,
        network: args.network.config(),
        registry: args.registry.settings(),
        given: args.given.given(),
        at_exit: if args.ephemeral { AtExit::Remove } else { AtExit::Keep },
        keeper_command,
    };
    server::run(config, public).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_has_bounds() {
        assert_eq!(parse_lag(VOLUMES_LAG_DEFAULT), Ok(Duration::from_secs(2)));
        assert_eq!(parse_lag("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_lag("60m"), Ok(Duration::from_secs(3600)));
        for wrong in ["99ms", "61m", "0s", "often"] {
            assert!(parse_lag(wrong).is_err(), "{wrong}");
        }
    }
}
