//! Makes or opens a volume in a directory, and mounts it: `mount STATE DIR [--threads N] [--writeback] [--object] [--bytes-max N]`.
//! Ends when DIR is unmounted. For tests and measurements of programs on a volume; people have `pando volume mount`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use fuse::{Access, Options, Served, clone_tree, mount};
use rustix::mount::{MoveMountFlags, move_mount};
use store::{
    Store,
    heads::Heads,
    keys::{MasterKeys, RealmKeys},
    object::{Objects, RequestOptions},
};
use tokio::runtime::Runtime;
use volume::{Committer, Durability, Volume, VolumeError, Volumes};

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
    let runtime = Runtime::new()?;
    let volume = Arc::new(open(&arguments, &runtime)?);
    let committer = Committer::start(volume.clone(), Duration::from_secs(2))?;
    let mounted = mount(NAME)?;
    let served = Served::start(volume.clone(), mounted.device, arguments.options)?;
    attach(&mounted.tree, &arguments.directory)?;
    drop(mounted.tree);
    served.wait()?;
    drop(committer);
    volume.commit()?;
    Ok(())
}

fn attach(tree: &impl std::os::fd::AsFd, directory: &Path) -> Result<()> {
    let clone = clone_tree(tree.as_fd(), Access::ReadWrite)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&clone, "", rustix::fs::CWD, directory, flags).context("attach the mount")
}

fn open(arguments: &Arguments, runtime: &Runtime) -> Result<Volume> {
    let state = &arguments.state;
    let objects = state.join("objects");
    fs::create_dir_all(&objects)?;
    let heads = runtime.block_on(Heads::open_file(&state.join("heads.db")))?;
    let objects = objects.to_str().context("the path is not text")?.parse()?;
    let objects = Objects::open(&objects, RequestOptions::default())?;
    let master = MasterKeys::parse(&format!("example:{}", "42".repeat(32)), "the example")?;
    let keys = RealmKeys::new(objects.clone(), Arc::new(master), "default".parse()?);
    let store = Store::new(objects, keys, None, None);
    let volumes = Volumes::new(heads, store, runtime.handle().clone(), state.join("logs"));
    match volumes.create(NAME, &volume::Options { bytes_max: arguments.bytes_max, ..volume::Options::default() }) {
        Ok(()) | Err(VolumeError::Exists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(volumes.open(NAME, arguments.durability)?)
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
