//! The process that serves: opens the volume and answers the device that is its standard input, until the superblock ends.

use std::{os::fd::AsFd, path::Path, sync::Arc, time::Duration};

use fuse::{Options, Served};
use tokio::runtime::Runtime;
use volume::Committer;

use super::{local, place::NAME};

pub(crate) fn run(state: &Path, how: &str) {
    let runtime = Runtime::new().unwrap();
    let volumes = local::volumes(state, &runtime).unwrap();
    let volume = Arc::new(if how == "start" { volumes.open(NAME) } else { volumes.adopt(NAME) }.unwrap());
    let device = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let serve = if how == "start" { Served::start } else { Served::adopt };
    let served = serve(volume.clone(), device, Options::default());
    let committer = Committer::start(volume.clone(), Duration::from_millis(200)).unwrap();
    served.unwrap().wait().unwrap();
    drop(committer);
    volume.close().unwrap();
}
