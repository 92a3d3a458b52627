//! The server: takes the state directory and the socket, runs the node behind them, leaves orderly.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
};

use node::{
    Config, Context, Error, Node, Result,
    self_test::{Finding, Runner, Scope, Verdict},
};
use rustix::fs::{FlockOperation, flock};
use tokio::{
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    http,
    public::{Public, Taken},
};

/// Runs a node until SIGINT or SIGTERM.
pub async fn run(config: Config, public: Option<Public>) -> Result<()> {
    keeper::descriptor::raise_limit();
    keeper::protect_from_memory_shortage();
    sys::heap::return_large_allocations();
    let _lock = lock_state(&config.state_dir)?;
    let socket = config.socket.clone();
    // From here on a node that is told to stop leaves orderly, also if it has only just begun.
    let interrupted = interrupted()?;
    let listener = listen(&socket).await?;
    registers_survive(&config).await?;
    let public = public.map(Taken::new).transpose()?;
    let node = Node::load(config).await?;
    node.serve_peers().await?;
    let stop = watch::Sender::new(false);
    let mut supervised = tokio::spawn(Arc::clone(&node).supervise(stop.subscribe()));
    let served = {
        let (router, mut stopped) = (http::router(Arc::clone(&node)), stop.subscribe());
        let ready = node.first_keeper();
        tokio::spawn(async move {
            let serve = async {
                // A client that connects before that waits in the socket's queue.
                ready.await;
                tracing::info!(socket = %socket.display(), "node ready");
                axum::serve(listener, router).await
            };
            tokio::select! {
                served = serve => served,
                // Also if there never was a keeper, or was one for so short a time that this has not seen it.
                _ = stopped.wait_for(|stop| *stop) => Ok(()),
            }
        })
    };
    let leave = watch::Sender::new(false);
    let mut served_clients = tokio::spawn(serve_clients(public, Arc::clone(&node), leave.subscribe()));
    let mut early = None;
    let finished = tokio::select! {
        () = interrupted => None,
        finished = &mut supervised => Some(finished),
        ended = &mut served_clients => {
            early = Some(ended);
            None
        }
    };
    tracing::info!("the node stops");
    // Requests of clients that run are finished first: they need the node.
    leave.send_replace(true);
    let clients = match early {
        Some(ended) => ended,
        None => served_clients.await,
    };
    node.leave_peers().await;
    stop.send_replace(true);
    let finished = match finished {
        Some(finished) => finished,
        None => supervised.await,
    };
    let _ = fs::remove_file(&node.config().socket);
    let _ = served.await;
    clients.map_err(io::Error::other).doing("serve clients").flatten()?;
    finished.map_err(io::Error::other).doing("run the node")?
}

/// Serves E2B's clients, if there is a port for them, until it is told to leave.
async fn serve_clients(public: Option<Taken>, node: Arc<Node>, leave: watch::Receiver<bool>) -> Result<()> {
    let left = told(leave.clone());
    let told = told(leave);
    let Some(public) = public else {
        told.await;
        return Ok(());
    };
    let ready = node.first_keeper();
    tokio::select! {
        () = ready => public.serve(node, told).await,
        () = left => Ok(()),
    }
}

/// Resolves when the server is to stop, or the one that would say so is gone.
async fn told(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Forks a program that holds values in all registers that this processor has. Where one is lost, every copy would be wrong now and then.
async fn registers_survive(config: &Config) -> Result<()> {
    let group = format!("{}-self-test", node::node_id(&config.state_dir)?);
    let runner = Runner { dir: config.state_dir.join("self-test"), group, scope: Scope::Registers };
    nothing_lost(runner.run().await?)
}

fn nothing_lost(findings: Vec<Finding>) -> Result<()> {
    match findings.into_iter().find(|finding| finding.verdict == Verdict::Failed) {
        Some(Finding { probe, found, .. }) => Err(Error::SelfTest(format!(
            "{probe}: {found}; nothing is started. `pando doctor --self-test` tries all there is"
        ))),
        None => Ok(()),
    }
}

/// Resolves at the first SIGINT or SIGTERM.
fn interrupted() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).doing("watch for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).doing("watch for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// One node per state directory: the lock goes with the process, however it ends.
fn lock_state(dir: &Path) -> Result<File> {
    fs::create_dir_all(dir).at("create", dir)?;
    // Programs' files and outputs are nobody else's business.
    fs::set_permissions(dir, Permissions::from_mode(0o700)).at("protect", dir)?;
    let path = dir.join("lock");
    let lock = File::create(&path).at("create", &path)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::StateInUse(dir.to_owned())),
        Err(errno) => Err(errno).at("lock", &path),
    }
}

/// Listens for root only. A socket file that nobody listens on is a dead node's, and is replaced.
async fn listen(path: &Path) -> Result<UnixListener> {
    if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
        fs::create_dir_all(dir).at("create", dir)?;
        fs::set_permissions(dir, Permissions::from_mode(0o700)).at("protect", dir)?;
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(Error::SocketInUse(path.to_owned()));
    }
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).at("remove the old socket", path),
    }
    let listener = UnixListener::bind(path).at("listen on", path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).at("protect", path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_starts_only_if_no_register_is_lost() {
        let finding = |verdict, found: &str| Finding {
            probe: "registers of a copy".to_owned(),
            verdict,
            found: found.to_owned(),
            took_us: 1,
        };
        assert!(nothing_lost(vec![finding(Verdict::Ok, "all"), finding(Verdict::Skipped, "none")]).is_ok());
        let lost = nothing_lost(vec![finding(Verdict::Failed, "the copy has lost zmm3")]).unwrap_err().to_string();
        assert!(lost.contains("the copy has lost zmm3; nothing is started"), "{lost}");
    }
}
