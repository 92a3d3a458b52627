//! Makes or opens a volume in a directory, and mounts it: `mount STATE DIR [--threads N] [--writeback] [--object] [--bytes-max N]`.
//! Ends when DIR is unmounted. For tests and measurements of programs on a volume; people have `pando volume mount`.

mod local;

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use fuse::{Access, Mount, Options, Served, clone_tree, mount, set_read_ahead};
use rustix::mount::{MoveMountFlags, move_mount};
use tokio::runtime::Runtime;
use volume::{Committer, Durability, Volume, VolumeError};

const NAME: &str = "example";

struct Arguments {
    state: PathBuf,
    directory: PathBuf,
    options: Options,
    durability: Durability,
    bytes_max: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    // As the node's process of volumes does.
    sys::heap::reuse_large_allocations();
    let runtime = Runtime::new()?;
    let volume = Arc::new(open(&arguments, &runtime)?);
    let committer = Committer::start(volume.clone(), Duration::from_secs(2))?;
    let mounted = mount(NAME)?;
    let served = Served::start(volume.clone(), mounted.device.try_clone()?, arguments.options)?;
    set_read_ahead(mounted.tree.as_fd())?;
    attach(&mounted, &arguments.directory)?;
    drop(mounted);
    served.wait()?;
    drop(committer);
    volume.close()?;
    Ok(())
}

fn attach(mounted: &Mount, directory: &Path) -> Result<()> {
    let clone = clone_tree(NAME, mounted.device.as_fd(), mounted.tree.as_fd(), Access::ReadWrite)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&clone, "", rustix::fs::CWD, directory, flags).context("attach the mount")
}

fn open(arguments: &Arguments, runtime: &Runtime) -> Result<Volume> {
    let volumes = local::volumes(&arguments.state, runtime)?;
    let (bytes_max, durability) = (arguments.bytes_max, arguments.durability);
    match volumes.create(NAME, &volume::Options { bytes_max, durability, ..volume::Options::default() }) {
        Ok(()) | Err(VolumeError::Exists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(volumes.open(NAME)?)
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut words = std::env::args().skip(1);
        let state = words.next().context("usage: mount STATE DIR [options]")?.into();
        let directory = words.next().context("usage: mount STATE DIR [options]")?.into();
        let (options, durability) = (Options::default(), Durability::Local);
        let mut parsed = Self { state, directory, options, durability, bytes_max: 64 << 30 };
        while let Some(word) = words.next() {
            let mut number = || -> Result<u64> { Ok(words.next().context("a number is missing")?.parse()?) };
            match word.as_str() {
                "--threads" => parsed.options.threads = number()? as usize,
                "--bytes-max" => parsed.bytes_max = number()?,
                "--writeback" => parsed.options.writeback = true,
                "--object" => parsed.durability = Durability::Object,
                other => bail!("no option {other}"),
            }
        }
        Ok(parsed)
    }
}
