//! Checkpoints as files, out of this node's store and into it.

mod archives;

use std::{
    io::{self, BufWriter},
    sync::Arc,
};

use base::id::TemplateName;
use bytes::Bytes;
use checkpoint::{
    Checkpoint,
    transfer::{self, Arriving, Import, Leaving},
};
use tokio::{runtime::Handle, sync::mpsc};

use self::archives::Carriers;
use super::{Node, check_spec, checkpoints::to_model, images::remove_quietly};
use crate::error::{Context, Result, chain};

/// Parts of a file on their way; each has up to 256 KiB.
const PARTS: usize = 8;
const PART_BYTES: usize = 256 << 10;

/// Parts of a file that come from or go to a client. One that failed is the last.
pub type Parts = mpsc::Receiver<io::Result<Bytes>>;

impl Node {
    /// Begins to write a checkpoint as a file. The first part comes when it is known to exist.
    pub async fn export_checkpoint(self: &Arc<Self>, name: &TemplateName) -> Result<Parts> {
        let (head, lease) = self.hold_checkpoint(name, "export").await?;
        let mut carriers = Carriers::new(self);
        let begin = async {
            let checkpoint = Checkpoint::read(&self.durable, head.manifest).await?;
            // By the checkpoint's name: before a byte is sent, as it may be replaced or removed while that takes its time.
            carriers.take_up(&checkpoint.kept_volumes()?).await?;
            Ok(checkpoint)
        };
        let checkpoint = match begin.await {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                carriers.remove().await;
                self.let_go(lease).await;
                return Err(error);
            }
        };
        let (sender, parts) = mpsc::channel(PARTS);
        let (node, name) = (Arc::clone(self), name.clone());
        tokio::spawn(async move {
            let (durable, runtime, out) = (node.durable.clone(), Handle::current(), Leaving(sender.clone()));
            let out = BufWriter::with_capacity(PART_BYTES, out);
            let mut archives = carriers.clone();
            let export = move || transfer::export(&checkpoint, &durable, &runtime, &mut archives, out);
            let exported = tokio::task::spawn_blocking(export).await.doing("export the checkpoint").flatten();
            if let Err(error) = exported
                && !sender.is_closed()
            {
                tracing::warn!(%name, error = chain(&error), "an export failed");
                // The client sees the answer break off.
                let _ = sender.send(Err(io::Error::other(error))).await;
            }
            carriers.remove().await;
            node.let_go(lease).await;
        });
        Ok(parts)
    }

    /// Takes a checkpoint over from a file.
    pub async fn import_checkpoint(
        self: &Arc<Self>,
        name: Option<TemplateName>,
        replace: bool,
        parts: Parts,
    ) -> Result<model::Checkpoint> {
        let (durable, runtime, point) = (self.durable.clone(), Handle::current(), self.state().claim());
        let directory = self.host.config.sandbox_dir(&point);
        let scratch = directory.clone();
        let carriers = Carriers::new(self);
        let mut archives = carriers.clone();
        let import = move || {
            let import = Import { name, replace, admit: check_spec, scratch: &scratch };
            let mut arriving = Arriving::new(parts);
            let imported = transfer::import(import, &durable, &runtime, &mut archives, &mut arriving);
            arriving.discard_rest();
            imported
        };
        let imported = tokio::task::spawn_blocking(import).await.doing("import the checkpoint").flatten();
        carriers.remove().await;
        remove_quietly(&directory).await;
        self.state().release(&point);
        let imported = imported.and_then(|(checkpoint, manifest)| to_model(&checkpoint, &manifest.to_string()));
        let imported = imported?;
        self.supersede(&imported).await;
        Ok(self.as_seen_here(imported))
    }
}
