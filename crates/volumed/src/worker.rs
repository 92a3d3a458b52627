//! The worker: owns all volumes that are open on this node, and answers for them.

use std::os::fd::OwnedFd;

use tokio::runtime::Runtime;

use crate::{Config, Error, OpenStore, held::Held};

/// The body of a worker; `guardian` is the socket of the one that started it.
pub(crate) fn run(config: Config, store: &dyn OpenStore, guardian: OwnedFd) -> Result<(), Error> {
    // Not permitted only where there is no such limit.
    let _ = rustix::thread::set_name(c"volumed");
    let held = Held::receive(&guardian).map_err(Error::system("hear what is mounted"))?;
    let runtime = Runtime::new().map_err(Error::system("start a runtime"))?;
    let (heads, store) = store.open(runtime.handle()).map_err(Error::Store)?;
    drop((config, held, heads, store));
    Ok(())
}
