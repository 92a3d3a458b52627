//! A volume whose store is a directory of this machine.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use store::{
    Store,
    heads::Heads,
    keys::{MasterKeys, RealmKeys},
    object::{Objects, RequestOptions},
};
use tokio::runtime::Runtime;
use volume::Volumes;

/// Its volumes, with everything below `state`.
pub(crate) fn volumes(state: &Path, runtime: &Runtime) -> Result<Volumes> {
    let objects = state.join("objects");
    fs::create_dir_all(&objects)?;
    let heads = runtime.block_on(Heads::open_file(&state.join("heads.db")))?;
    let objects = objects.to_str().context("the path is not text")?.parse()?;
    let objects = Objects::open(&objects, RequestOptions::default())?;
    let master = MasterKeys::parse(&format!("local:{}", "42".repeat(32)), "a test")?;
    let keys = RealmKeys::new(objects.clone(), Arc::new(master), "default".parse()?);
    let store = Store::new(objects, keys, None, None);
    Ok(Volumes::new(heads, store, runtime.handle().clone(), state.join("logs")))
}
