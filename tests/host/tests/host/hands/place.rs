//! A node in this process.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base::id::SandboxId;
use checkpoint::{PeerSettings, Settings};
use hands::{Entry, Hand, Problem};
use model::{CommandSpec, Image, Interpreter, Limits, Ready, RunSpec, TemplateSpec, VolumeDurability, VolumeSpec};
use node::{
    Config, Node, Progress,
    config::{AtExit, Layers, NetworkConfig},
    exec::{Input, Inputs, Output, Outputs},
};
use testkit::runner::Case;
use tokio::{
    runtime::Runtime,
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// The directory on which sandboxes can have volumes.
pub(super) const VOLUME_PATH: &str = "/data";

/// A case with a place of its own.
pub(super) fn case(name: String, body: fn(&Place) -> Result<()>) -> Case {
    let run = move || {
        let place = Place::new()?;
        let done = body(&place);
        let left = place.leave();
        done.and(left)
    };
    // Descriptors that the library opens with the first process of a runtime stay open.
    Case::new(name, run).after(|| {
        let runtime = Runtime::new();
        if let Ok(runtime) = runtime {
            let _ = runtime.block_on(async { tokio::process::Command::new("true").status().await });
        }
    })
}

/// A node that runs.
pub(super) struct Place {
    pub(super) runtime: Runtime,
    pub(super) node: Arc<Node>,
    stop: watch::Sender<bool>,
    supervised: Mutex<Option<JoinHandle<node::Result<()>>>>,
    pub(super) state: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        let runtime = Runtime::new()?;
        let prefix = format!("pando-host-{}-hands-", std::process::id());
        let state = tempfile::Builder::new().prefix(&prefix).tempdir_in("/var/tmp")?;
        let config = config(state.path())?;
        let (node, stop, supervised) = runtime.block_on(async {
            let node = Node::load(config).await?;
            let stop = watch::Sender::new(false);
            let supervised = tokio::spawn(Arc::clone(&node).supervise(stop.subscribe()));
            tokio::time::timeout(Duration::from_secs(20), node.first_keeper()).await.context("no keeper")?;
            let spec = template()?;
            // A client that has left would end it.
            let (sender, _client) = mpsc::unbounded_channel();
            let built = node.build(spec, &Progress::to(sender, |progress| progress)).await;
            built.map_err(|error| anyhow::anyhow!("no template: {}", node::chain(&error)))?;
            anyhow::Ok((node, stop, supervised))
        })?;
        Ok(Self { runtime, node, stop, supervised: Mutex::new(Some(supervised)), state })
    }

    /// Ends the node with all that it has. Fails if a process stays.
    fn leave(self) -> Result<()> {
        self.stop_node()?;
        let Self { runtime, node, state, .. } = self;
        drop(node);
        runtime.shutdown_timeout(Duration::from_secs(5));
        state.close().context("the state stays")
    }

    pub(super) fn stop_node(&self) -> Result<()> {
        self.stop.send_replace(true);
        let supervised = self.supervised.lock().ok().and_then(|mut supervised| supervised.take());
        let Some(supervised) = supervised else { return Ok(()) };
        let ended = async { tokio::time::timeout(Duration::from_secs(15), supervised).await };
        let ended = self.runtime.block_on(ended);
        Ok(ended.context("the node does not end")???)
    }

    /// A sandbox that runs.
    pub(super) fn sandbox(&self) -> Result<SandboxId> {
        self.sandbox_with(Vec::new())
    }

    pub(super) fn sandbox_with(&self, volumes: Vec<model::Mount>) -> Result<SandboxId> {
        let request = RunSpec {
            count: 1,
            interpreter: Interpreter::InProcess,
            volumes,
            mount_points: model::MountPoints::Declared,
            reservation: None,
            network: model::NetworkPolicy::default(),
        };
        let started = self.runtime.block_on(self.node.run(&"sleeper".parse()?, &request))?;
        ensure!(started.failures.is_empty(), "{:?}", started.failures);
        Ok(started.sandboxes[0].id.clone())
    }

    pub(super) async fn make_volume(&self, name: &str) -> Result<()> {
        let spec = VolumeSpec {
            name: name.parse()?,
            bytes_max: None,
            inodes_max: None,
            durability: VolumeDurability::default(),
            uid: None,
            gid: None,
            mode: None,
        };
        Ok(self.node.volumes().create(spec).await?)
    }

    /// Its hand.
    pub(super) async fn hand(&self, id: &SandboxId) -> Result<Arc<Hand>> {
        Ok(self.node.files(id, None).await?)
    }

    /// The output of a shell command inside a sandbox.
    pub(super) async fn shell(&self, id: &SandboxId, command: &str) -> Result<String> {
        let command = ["/bin/sh", "-c", command].map(str::to_owned).into();
        let spec = CommandSpec {
            command,
            env: Vec::new(),
            cwd: None,
            terminal: None,
            timeout_ms: None,
            user: None,
            tag: None,
            stdin: false,
        };
        let printed = Printed::default();
        let exec = self.node.exec(id, spec).await?;
        exec.serve(Silent, printed.clone()).await;
        let printed = printed.0.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    /// Process ids of all hands.
    pub(super) fn hands(&self) -> Vec<i32> {
        let keeper = self.node.info().keeper_pid.unwrap_or_default();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        children.filter(|pid| is_hand(*pid)).collect()
    }

    /// Fails unless there are so many hands within some seconds.
    pub(super) fn expect_hands(&self, count: usize) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let hands = self.hands();
            if hands.len() == count {
                return Ok(());
            }
            ensure!(Instant::now() < until, "hands: {hands:?}, not {count}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn is_hand(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "pando-hand")
}

fn config(state: &Path) -> Result<Config> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = std::env::var_os("PANDO_BINARY").map_or_else(|| root.join("target/debug/pando"), PathBuf::from);
    let binary = binary.canonicalize().context("build the binary first")?.display().to_string();
    let at = state.display().to_string();
    let role = |arguments: &[&str]| -> Vec<String> {
        std::iter::once(binary.clone()).chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
    };
    Ok(Config {
        state_dir: state.to_owned(),
        socket: state.join("node.sock"),
        pool_limit: 1,
        parked_limit: 0,
        durable: Settings {
            realm: store::id::Realm::default(),
            objects: None,
            database: None,
            master_keys: None,
            cache_bytes: 256 << 20,
            peers: PeerSettings::default(),
        },
        peer_listen: None,
        layers: Layers::default(),
        given: node::Given::default(),
        network: NetworkConfig::default(),
        registry: Default::default(),
        at_exit: AtExit::Remove,
        keeper_command: role(&["keeper"]),
        pager_command: role(&["guardian", "--state", &at]),
        holder_command: role(&["holder", "--state", &at, "serve"]),
        volumes_command: role(&["volumed", "--state", &at, "guardian"]),
        pager_memory: 1 << 30,
        volumes_memory: 1 << 30,
    })
}

fn template() -> Result<TemplateSpec> {
    let script = "touch /tmp/ready; exec sleep 100000";
    Ok(TemplateSpec {
        name: "sleeper".parse()?,
        image: Image::Host,
        command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        env: Vec::new(),
        cwd: "/".into(),
        ready: Ready::File("/tmp/ready".into()),
        ready_timeout_ms: 20_000,
        limits: Limits::default(),
        mount_points: vec![VOLUME_PATH.into()],
        user: None,
        startup: Vec::new(),
        on_fork: Vec::new(),
    })
}

/// Writes a whole file.
pub(super) async fn put(hand: &Arc<Hand>, path: &str, content: &[u8]) -> Result<Entry, hands::Error> {
    let mut writer = hand.write(Path::new(path), None).await?;
    writer.write(content).await?;
    writer.finish().await
}

/// Reads a whole file.
pub(super) async fn get(hand: &Arc<Hand>, path: &str) -> Result<Vec<u8>, hands::Error> {
    hand.read(Path::new(path), 0, None).await?.read_to_end().await
}

/// Fails unless the work is refused within five seconds. Gives the reason.
pub(super) async fn refusal<T>(work: impl Future<Output = Result<T, hands::Error>>) -> Result<Problem> {
    let began = Instant::now();
    let done = work.await;
    ensure!(began.elapsed() < Duration::from_secs(5), "a refusal took {:?}", began.elapsed());
    match done {
        Ok(_) => bail!("it was not refused"),
        Err(error) => Ok(error.problem().with_context(|| node::chain(&error))?.clone()),
    }
}

/// A client that says nothing.
struct Silent;

impl Inputs for Silent {
    async fn next(&mut self) -> Option<Input> {
        std::future::pending().await
    }
}

/// A client that keeps everything.
#[derive(Default, Clone)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Outputs for Printed {
    fn put(&mut self, output: Output) {
        if let (Output::Stdout(bytes) | Output::Stderr(bytes), Ok(mut printed)) = (output, self.0.lock()) {
            printed.extend(bytes);
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn close(&mut self) {}
}
