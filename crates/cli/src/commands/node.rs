//! `pando node`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use base::limits::{PARKED_COPIES_DEFAULT, POOL_SANDBOXES_DEFAULT};
use checkpoint::{PeerSettings, Settings};
use node::config::{AtExit, Config, PeerListen, STATE_DIR_DEFAULT};
use store::{
    id::Realm,
    object::{Location, S3Location},
};

/// Run the node in the foreground. Its log goes to standard error; "node ready" says that it takes requests.
///
/// When it is stopped (SIGINT, SIGTERM), sandboxes run on and the next node with the same state directory takes them over.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where templates and sandboxes are kept. One node per directory.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR_DEFAULT)]
    state: PathBuf,
    /// Most blank sandboxes kept ready, over all templates, and as many for templates to come. 0: none.
    #[arg(long, value_name = "N", default_value_t = POOL_SANDBOXES_DEFAULT)]
    pool: usize,
    /// Most of those that have a copy forked ahead, which a start only lets go. Each holds up to 4 MiB. 0: none.
    #[arg(long, value_name = "N", default_value_t = PARKED_COPIES_DEFAULT)]
    ahead: usize,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Most memory of the pager, which fills restored programs: 512M, 1G. What it fills is not counted. At its limit it is restarted.
    #[arg(long, value_name = "BYTES", default_value = PAGER_MEMORY_DEFAULT, value_parser = super::template::parse_bytes)]
    pager_memory: u64,
    /// Most memory of the processes of volumes: 1G, 16G. At its limit they are restarted; programs wait meanwhile.
    #[arg(long, value_name = "BYTES", default_value = VOLUMES_MEMORY_DEFAULT, value_parser = super::template::parse_bytes)]
    volumes_memory: u64,
    #[command(flatten)]
    lag: LagArgs,
    /// Serve other nodes of the realm, who show that they have its key, what this node's cache holds of checkpoints; and find them (as
    /// --find-peers). Not encrypted: chunks stay sealed, but which are asked for shows. Port 0: any.
    #[arg(long, value_name = "IP:PORT")]
    peer_listen: Option<SocketAddr>,
    /// Where other nodes reach --peer-listen, if not at that address itself.
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen", value_parser = parse_peer)]
    peer_address: Option<String>,
    /// Remove all sandboxes when the node is stopped.
    #[arg(long)]
    ephemeral: bool,
}

/// Where what outlives the node is.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where checkpoints are kept: a directory, or s3://BUCKET/PREFIX (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).
    /// Without it: a directory below --state.
    #[arg(long, value_name = "DIR|s3://...", value_parser = parse_objects)]
    objects: Option<Location>,
    /// Address of the S3 service, if it is not AWS: http://127.0.0.1:7070. Its buckets are in paths.
    #[arg(long, value_name = "URL", requires = "objects")]
    s3_endpoint: Option<String>,
    /// Where the names of checkpoints are kept: postgres://USER@HOST/DATABASE, which nodes share. Without it: SQLite below --state.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File of the master keys, which nodes share; made if it is missing. Without it: PANDO_MASTER_KEYS, or a file below --state.
    #[arg(long, value_name = "FILE")]
    master_keys: Option<PathBuf>,
    /// Most bytes of checkpoints kept on the local disk: 512M, 4G.
    #[arg(long, value_name = "BYTES", default_value = CACHE_DEFAULT, value_parser = super::template::parse_bytes)]
    cache: u64,
    /// Ask this node for chunks before the object store. May be repeated.
    #[arg(long = "peer", value_name = "HOST:PORT", value_parser = parse_peer)]
    peers: Vec<String>,
    /// Ask the nodes, too, that have named themselves in the database.
    #[arg(long)]
    find_peers: bool,
}

/// Where memory that copies share is taken from.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// NUMA nodes that hold the memory of zygotes, which copies share and hardly any touches whole; memory of other kinds (CXL) appears as such
    /// nodes. When they are full, others are used. What copies write is where they run. Without it: wherever zygotes are built.
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

/// How far the store may be behind.
#[derive(Debug, clap::Args)]
pub(crate) struct LagArgs {
    /// Pause between two commits of a volume that is written: what the loss of this node costs at most while the store answers. 100ms to 60m.
    /// Of the processes of volumes that are there already, only the next ones take it.
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

pub(crate) async fn run(args: Args, socket: PathBuf, log: String) -> Result<ExitCode> {
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
    let mut pager_command = vec![program.display().to_string(), "--log".to_owned(), log.clone(), "guardian".to_owned()];
    pager_command.extend(["--state".to_owned(), state_dir.display().to_string()]);
    pager_command.extend(arguments(&durable));
    pager_command.extend(args.memory.arguments());
    // Its role comes last: the processes start each other with the arguments before it.
    let mut volumes_command =
        vec![program.display().to_string(), "--log".to_owned(), log.clone(), "volumed".to_owned()];
    volumes_command.extend(["--state".to_owned(), state_dir.display().to_string()]);
    volumes_command.extend(arguments(&durable));
    volumes_command.extend(args.lag.arguments());
    volumes_command.push(volumed::Role::Guardian.argument().to_owned());
    let mut keeper_command = vec![program.display().to_string(), "--log".to_owned(), log, "keeper".to_owned()];
    keeper_command.extend(args.memory.arguments());
    let config = Config {
        state_dir,
        socket,
        pool_limit: args.pool,
        parked_limit: args.ahead,
        durable,
        pager_command,
        volumes_command,
        pager_memory: args.pager_memory,
        volumes_memory: args.volumes_memory,
        peer_listen,
        at_exit: if args.ephemeral { AtExit::Remove } else { AtExit::Keep },
        keeper_command,
    };
    server::run(config).await?;
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
