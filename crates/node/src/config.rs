//! What an operator may choose, and where things are.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use base::id::{SandboxId, TemplateName};

use crate::given::Given;

/// Of one node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Everything that must survive the node.
    pub state_dir: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// The most blank sandboxes it keeps.
    pub pool_limit: usize,
    /// The most of them that have a copy forked ahead.
    pub parked_limit: usize,
    /// Where what outlives it is.
    pub durable: checkpoint::Settings,
    /// Where it serves other nodes what it has of checkpoints; none: nowhere.
    pub peer_listen: Option<PeerListen>,
    /// How what sandboxes change is kept.
    pub layers: Layers,
    /// The networks of sandboxes.
    pub network: NetworkConfig,
    /// What all sandboxes have.
    pub given: Given,
    /// Where images are pulled from.
    pub registry: registry::Settings,
    /// What becomes of the sandboxes when it stops.
    pub at_exit: AtExit,
    /// Command that runs the keeper: the program and the arguments before `--node ID`.
    pub keeper_command: Vec<String>,
    /// Command that runs the pager, whole. With `--join` after it, it joins the control group whose `cgroup.procs` is its standard input.
    pub pager_command: Vec<String>,
    /// Command that runs the processes of volumes, whole. With `--join` after it, as with the pager's.
    pub volumes_command: Vec<String>,
    /// Command that runs the holder of commands, whole.
    pub holder_command: Vec<String>,
    /// Most bytes of memory that the pager may take.
    pub pager_memory: u64,
    /// Most bytes of memory that the processes of volumes may take.
    pub volumes_memory: u64,
}

/// Where other nodes are served.
#[derive(Debug, Clone)]
pub struct PeerListen {
    /// Where it listens. Port 0: any.
    pub listen: SocketAddr,
    /// What others are told, `HOST:PORT`; none: where it listens.
    pub address: Option<String>,
}

/// How what sandboxes change in their root filesystems is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Layers {
    /// On what.
    pub kind: LayerKind,
    /// Most bytes of the image with the btrfs; none: what the host has, but for a reserve.
    pub bytes_max: Option<u64>,
}

/// What keeps changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LayerKind {
    /// Btrfs where it can be had, else copies.
    #[default]
    Auto,
    /// Snapshots of btrfs.
    Btrfs,
    /// Copies on the filesystem of the state directory.
    Copy,
}

/// The networks of sandboxes.
#[derive(Debug, Clone, Default)]
pub struct NetworkConfig {
    /// Whether they have any.
    pub kind: NetworkKind,
    /// Addresses, and what no policy opens.
    pub settings: network::Settings,
    /// Files of authorities, as PEM, that hosts may have whose requests get headers, beside those that the system knows.
    pub egress_roots: Vec<PathBuf>,
    /// Where their DNS queries go; empty: to the servers of the host's `/etc/resolv.conf`.
    pub dns: Vec<std::net::IpAddr>,
}

/// Whether sandboxes have a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkKind {
    /// Where the host can give them one; else there is a warning.
    #[default]
    Auto,
    /// A node that cannot does not start.
    Required,
    /// The loopback interface alone.
    None,
}

/// What becomes of the sandboxes when the node stops orderly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtExit {
    /// They run on, and the next node takes them over.
    Keep,
    /// All are removed.
    Remove,
}

/// Where a node's state is, by default.
pub const STATE_DIR_DEFAULT: &str = "/var/lib/pando";

/// Where a node listens, by default.
pub const SOCKET_DEFAULT: &str = "/run/pando/node.sock";

impl Config {
    pub(crate) fn templates_dir(&self) -> PathBuf {
        self.state_dir.join("templates")
    }

    pub(crate) fn template_dir(&self, name: &TemplateName) -> PathBuf {
        self.templates_dir().join(name.as_str())
    }

    pub(crate) fn sandboxes_dir(&self) -> PathBuf {
        self.state_dir.join("sandboxes")
    }

    pub(crate) fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes_dir().join(id.as_str())
    }

    /// What is left here of paused sandboxes. Not among the others: what a crash leaves there of one is swept like anything else.
    pub(crate) fn paused_dir(&self) -> PathBuf {
        self.state_dir.join("paused")
    }

    /// Sandboxes that are gone and have descendants.
    pub(crate) fn lineage_dir(&self) -> PathBuf {
        self.state_dir.join("lineage")
    }

    pub(crate) fn host_mounts_dir(&self) -> PathBuf {
        self.state_dir.join("mounts")
    }

    /// Where it is recorded that a volume is mounted on `path` of the host.
    pub(crate) fn host_mount_dir(&self, path: &str) -> PathBuf {
        self.host_mounts_dir().join(&blake3::hash(path.as_bytes()).to_hex()[..32])
    }

    /// Notes of what was made of volumes, until a sandbox has it.
    pub(crate) fn unseen_dir(&self) -> PathBuf {
        self.state_dir.join("unseen")
    }

    /// Images with names, and their layers.
    pub(crate) fn image_store(&self) -> PathBuf {
        self.state_dir.join("image-store")
    }

    /// Layers of the steps of builds.
    pub(crate) fn builds_dir(&self) -> PathBuf {
        self.state_dir.join("builds")
    }

    pub(crate) fn images_dir(&self) -> PathBuf {
        self.state_dir.join("images")
    }

    /// Where the btrfs with what sandboxes change is mounted.
    pub(crate) fn changes_dir(&self) -> PathBuf {
        self.state_dir.join("changes")
    }

    pub(crate) fn changes_image(&self) -> PathBuf {
        self.state_dir.join("changes.img")
    }

    pub(crate) fn egress(&self) -> egress::Settings {
        egress::Settings { authority: self.state_dir.join("egress"), roots: self.network.egress_roots.clone() }
    }

    /// Where the namespace of the sandboxes' router is mounted.
    pub(crate) fn router(&self) -> PathBuf {
        self.state_dir.join("router")
    }

    pub(crate) fn layers_dir(&self) -> PathBuf {
        self.state_dir.join("layers")
    }

    pub(crate) fn host_mask(&self) -> PathBuf {
        self.layers_dir().join("host-mask")
    }
}

/// Name of the record in a template's or sandbox's directory.
pub(crate) const RECORD: &str = "record";

/// Name of the output file in a sandbox's directory.
pub(crate) const OUTPUT: &str = "output.log";

/// The output file of the sandbox in `dir`.
pub(crate) fn output_file(dir: &Path) -> PathBuf {
    dir.join(OUTPUT)
}
