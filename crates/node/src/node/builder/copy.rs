//! Bringing files out of an archive into a sandbox, by a hand with root's rights inside.

use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::id::SandboxId;
use hands::Copying;
use sandbox::User;
use tokio::sync::mpsc;

use crate::{
    error::{Context as _, Error, Result},
    node::Node,
};

/// Bytes that are read of an archive at once, and how many of such pieces wait for the hand.
const PIECE_BYTES: usize = 256 << 10;
const PIECES: usize = 4;

/// What is copied.
pub(super) struct Copied<'a> {
    pub(super) archive: &'a Path,
    pub(super) source: &'a str,
    pub(super) target: &'a str,
    pub(super) owner: Option<&'a str>,
    pub(super) mode: Option<u32>,
}

impl Copied<'_> {
    pub(super) async fn bring(&self, node: &Arc<Node>, id: &SandboxId) -> Result<()> {
        // As with Docker, a number alone is that of the group, too.
        let owner = self.owner.map(|owner| match owner.parse::<u32>() {
            Ok(number) => format!("{number}:{number}"),
            Err(_) => owner.to_owned(),
        });
        let User { uid, gid, .. } = node.account(id, owner.as_deref()).await?.ids;
        let copying = Copying { source: self.source.to_owned(), uid, gid, mode: self.mode };
        unpack(node, id, self.target, copying, Some(self.archive.to_owned())).await
    }
}

/// Makes a directory, unless it is there.
pub(super) async fn make_directory(node: &Arc<Node>, id: &SandboxId, target: &str, user: Option<&str>) -> Result<()> {
    let User { uid, gid, .. } = node.account(id, user).await?.ids;
    unpack(node, id, target, Copying { source: String::new(), uid, gid, mode: None }, None).await
}

async fn unpack(
    node: &Arc<Node>,
    id: &SandboxId,
    target: &str,
    copying: Copying,
    archive: Option<PathBuf>,
) -> Result<()> {
    let hand = node.files(id, Some("root")).await?;
    let failed = |error: hands::Error| Error::Copy { source: error };
    let mut writer = hand.unpack(Path::new(target), copying).await.map_err(failed)?;
    if let Some(archive) = archive {
        let (pieces, mut received) = mpsc::channel::<Vec<u8>>(PIECES);
        let read = tokio::task::spawn_blocking(move || read(&archive, &pieces));
        while let Some(piece) = received.recv().await {
            writer.write(&piece).await.map_err(failed)?;
        }
        read.await.doing("read the archive").flatten()?;
    }
    writer.finish().await.map_err(failed).map(drop)
}

/// Blocks.
fn read(archive: &Path, pieces: &mpsc::Sender<Vec<u8>>) -> Result<()> {
    let mut content = images::open_archive(archive)?;
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let length = content.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece);
        if length.at("read", archive)? == 0 || pieces.blocking_send(piece).is_err() {
            return Ok(());
        }
    }
}
