//! From an image to overlay layers.

use std::path::{Path, PathBuf};

use model::{Image, TemplateSpec};

use super::Node;
use crate::error::{Context, Error, Result};

impl Node {
    /// The layers of the template's image, topmost first. A tarball is unpacked to a directory of its own for each build,
    /// because sandboxes of an earlier build may still stand on the earlier one.
    pub(super) async fn prepare_image(&self, spec: &TemplateSpec) -> Result<Vec<PathBuf>> {
        let path = match &spec.image {
            Image::Host => return Ok(vec![self.host.config.host_mask(), PathBuf::from("/")]),
            Image::Path(path) => path.clone(),
        };
        let found = std::fs::metadata(&path).at("open the image", &path)?;
        if found.is_dir() {
            return self.on_base(vec![path]);
        }
        if !found.is_file() {
            let message = format!("the image {} is neither a directory nor a tarball", path.display());
            return Err(Error::Invalid { message, hint: None });
        }
        let into = self.host.config.images_dir().join(format!("{}-{}", spec.name, random_suffix()));
        // Whole or not at all, so a failure leaves nothing here.
        unpack(path, into.clone()).await?;
        self.on_base(vec![into])
    }

    /// An image's layers, topmost first, with what a root needs beside them.
    fn on_base(&self, mut layers: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
        let bases = self.host.config.layers_dir();
        std::fs::create_dir_all(&bases).at("create", &bases)?;
        let base = sandbox::prepare_base_layer(&bases, &layers)?;
        layers.insert(0, base);
        Ok(layers)
    }
}

/// Eight hexadecimal digits that make a name unique.
pub(super) fn random_suffix() -> String {
    let mut bytes = [0; 4];
    base::id::fill_random(&mut bytes);
    base::id::hex(&bytes)
}

async fn unpack(tarball: PathBuf, into: PathBuf) -> Result<()> {
    let unpacked = tokio::task::spawn_blocking(move || images::unpack_tarball(&tarball, &into));
    unpacked.await.doing("unpack the image")??;
    Ok(())
}

/// Removes what a failure left; the failure itself is what the user hears of.
pub(super) async fn remove_quietly(path: &Path) {
    let of = path.to_owned();
    let remove = move || Ok(sandbox::remove_directory(&of)?);
    if let Err(error) = tokio::task::spawn_blocking(remove).await.doing("remove a leftover").flatten() {
        tracing::warn!(path = %path.display(), error = crate::chain(&error), "a leftover could not be removed");
    }
}
