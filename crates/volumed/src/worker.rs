//! The worker: owns all volumes that are open on this node, and answers for them.
//!
//! ```text
//!   control ── attach, detach ─┐
//!   http ───── all else ───────┼─► table ── opened: volume, commits by the clock, FUSE threads
//!                              └─► link ─── the guardian: what is mounted, and by whom it is held
//! ```

mod control;
mod link;
pub(crate) mod making;
mod meter;
pub(crate) mod opened;
mod remounts;
pub(crate) mod table;
mod turns;
pub(crate) mod work;

use std::{os::fd::OwnedFd, sync::Arc, thread};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    net::UnixListener,
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{interval, timeout},
};
use volume::Volumes;

use self::{link::Link, table::Table};
use crate::{
    Config, Error, OpenStore,
    error::chain,
    held::Held,
    http,
    limits::{END_MAX, RESTART_MAX, SLICE, STORE_PAUSE_FIRST, TICK},
};

/// The body of a worker; `guardian` is the socket of the one that started it.
pub(crate) fn run(config: Config, store: &dyn OpenStore, guardian: OwnedFd) -> Result<(), Error> {
    // Not permitted only where there is no such limit.
    let _ = rustix::thread::set_name(c"volumed");
    raise_descriptor_limit();
    if let Err(error) = sys::sched::set_slice(SLICE) {
        // A kernel without it is slower for those who wait beside much work.
        tracing::debug!(error = chain(&error), "threads keep the kernel's own slice");
    }
    sys::heap::reuse_large_allocations();
    let held = Held::receive(&guardian).map_err(Error::system("hear what is mounted"))?;
    let is_needed = !held.mounts.is_empty();
    let (link, http, control) = Link::new(&config, guardian, held).map_err(Error::system("watch the guardian"))?;
    let runtime = Runtime::new().map_err(Error::system("start a runtime"))?;
    let (heads, store) = open_store(store, &runtime, is_needed)?;
    let realm = store.realm().to_string();
    let volumes = Volumes::new(heads, store, runtime.handle().clone(), config.folder.join("logs"));
    let table = Table::new(volumes, link.clone(), config.options, realm);
    let served = runtime.block_on(serve(&table, http, control));
    runtime.block_on(table.close_all());
    // In this order: what is mounted ends with the last of the two processes.
    link.end();
    served
}

/// Opens the store. While programs wait in mounts, a store that is away is waited for.
fn open_store(
    store: &dyn OpenStore,
    runtime: &Runtime,
    is_needed: bool,
) -> Result<(store::heads::Heads, store::Store), Error> {
    let mut pause = STORE_PAUSE_FIRST;
    loop {
        match store.open(runtime.handle()) {
            Err(error) if is_needed => {
                tracing::warn!(error = chain(&*error), "programs in volumes wait until the store can be opened");
                thread::sleep(pause);
                pause = (pause * 2).min(RESTART_MAX);
            }
            opened => return opened.map_err(Error::Store),
        }
    }
}

/// Each mount takes some, each request one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // As far as it is allowed; what does not fit is refused when it comes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Answers until it is told to end, or is of no use.
async fn serve(table: &Arc<Table>, http: OwnedFd, control: OwnedFd) -> Result<(), Error> {
    let listen = || Error::system("listen");
    let mut terminate = signal(SignalKind::terminate()).map_err(listen())?;
    let stop = Arc::new(watch::Sender::new(false));
    let mut stopped = stop.subscribe();
    table.adopt_all();
    let listener = UnixListener::from_std(http.into()).map_err(listen())?;
    let router = http::router(table.clone());
    let mut until = stop.subscribe();
    let until = async move { drop(until.wait_for(|stop| *stop).await) };
    let serving = tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(until).await });
    tokio::spawn(control::listen(control, table.clone(), stop.clone()));
    tokio::spawn(remounts::watch(table.clone()));
    tracing::info!("volumes are served");
    let mut ticks = interval(TICK);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = stopped.wait_for(|stop| *stop) => break,
            _ = ticks.tick() => {
                table.close_idle();
                if table.is_idle() {
                    break;
                }
            }
        }
    }
    stop.send_replace(true);
    // A client that holds on to its connection is not waited for.
    let _ = timeout(END_MAX, serving).await;
    Ok(())
}
