//! An image that comes blob by blob: what its documents name, and the oci-layout that is filled with it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    archive::{INDEX, blob, check},
    digest::Digest,
    error::{Context, Error, refused},
    limits::{DOCUMENT_BYTES_MAX, LAYERS_MAX},
    manifest::{Descriptor, Document, Manifest, Platform, architecture, parse},
    store::Images,
};

/// Most platforms that are named when none fits.
const PLATFORMS_SHOWN: usize = 20;

/// Bytes that a document names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Of the bytes.
    pub digest: Digest,
    /// How many there are.
    pub bytes: u64,
}

impl From<&Descriptor> for Blob {
    fn from(descriptor: &Descriptor) -> Self {
        Self { digest: descriptor.digest.clone(), bytes: descriptor.size }
    }
}

/// What a document is that has the name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// A manifest: one image.
    Image {
        /// Its configuration.
        config: Blob,
        /// As they are stored, the lowest first.
        layers: Vec<Blob>,
    },
    /// An index: several images. This is the manifest of the one for this machine.
    Index(Blob),
}

impl Listing {
    /// Reads a manifest or an index.
    pub fn read(document: &[u8]) -> Result<Self, Error> {
        let manifest: Manifest = parse(document, "manifest")?;
        match (manifest.config, manifest.manifests) {
            (Some(config), _) => {
                let foreign = manifest.layers.iter().find(|layer| !is_layer(&layer.media_type));
                if let Some(layer) = foreign {
                    let kind: String = layer.media_type.chars().take(200).collect();
                    return refused(format!("it has a layer of the kind {kind:?}: it may be no image of a container"));
                }
                if manifest.layers.len() > LAYERS_MAX {
                    return refused(format!("it has {} layers, and {LAYERS_MAX} are possible", manifest.layers.len()));
                }
                if config.size > DOCUMENT_BYTES_MAX {
                    return refused(format!("its configuration has more than {DOCUMENT_BYTES_MAX} bytes"));
                }
                Ok(Self::Image { config: (&config).into(), layers: manifest.layers.iter().map(Blob::from).collect() })
            }
            (None, Some(images)) => choose(&images).map(Self::Index),
            (None, None) => refused("its manifest names neither a configuration nor images: it is of an old kind"),
        }
    }
}

/// Archives that may be compressed. Foreign layers are elsewhere, and others are no layers.
fn is_layer(kind: &str) -> bool {
    let kind = kind.split_once('+').map_or(kind, |(kind, _)| kind);
    let docker = kind.strip_prefix("application/vnd.docker.image.rootfs.diff.tar");
    kind == "application/vnd.oci.image.layer.v1.tar" || docker.is_some_and(|end| ["", ".gzip", ".zstd"].contains(&end))
}

/// The image for this machine. The first one: builders put variants for newer processors behind it.
fn choose(images: &[Descriptor]) -> Result<Blob, Error> {
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
    let found = images.iter().find(|image| image.platform.as_ref().is_some_and(fits));
    if let Some(image) = found {
        return Ok(image.into());
    }
    let shown = |platform: &Platform| format!("{}/{}", platform.os, platform.architecture);
    // Beside images there are notes on how they were built, for no platform.
    let known = images.iter().filter_map(|image| image.platform.as_ref()).filter(|found| found.os != "unknown");
    let names: BTreeSet<String> = known.map(shown).collect();
    let names: Vec<String> = names.into_iter().take(PLATFORMS_SHOWN).collect();
    let has = if names.is_empty() { "it names none".to_owned() } else { format!("it has {}", names.join(", ")) };
    refused(format!("it has no image for linux/{}: {has}", architecture()))
}

/// An oci-layout in a directory, with one image. Its blobs come one by one, from where nothing is known of them yet.
#[derive(Debug, Clone)]
pub struct Layout {
    path: PathBuf,
    config: Blob,
    layers: Vec<Blob>,
}

impl Layout {
    /// Makes the directory, or takes the one that is there: with the same manifest.
    pub fn open(path: &Path, manifest: &[u8]) -> Result<Self, Error> {
        let Listing::Image { config, layers } = Listing::read(manifest)? else {
            return refused("its manifest names no configuration");
        };
        let layout = Self { path: path.to_owned(), config, layers };
        let blobs = path.join("blobs/sha256");
        fs::create_dir_all(&blobs).at("create", &blobs)?;
        let digest = Digest::of(manifest);
        let index = serde_json::json!({"manifests": [{"digest": digest.to_string(), "size": manifest.len()}]});
        let version = serde_json::json!({"imageLayoutVersion": "1.0.0"});
        let files = [("oci-layout", version.to_string().into_bytes()), (INDEX, index.to_string().into_bytes())];
        for (name, bytes) in files.into_iter().chain([(&blob(&digest)[..], manifest.to_vec())]) {
            let file = path.join(name);
            fs::write(&file, bytes).at("write", &file)?;
        }
        Ok(layout)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its configuration.
    pub fn config(&self) -> &Blob {
        &self.config
    }

    /// Where the bytes of a blob belong.
    pub fn place(&self, digest: &Digest) -> PathBuf {
        self.path.join(blob(digest))
    }

    /// Its layers that `store` does not have, each once. Its configuration must be there.
    pub fn wanted(&self, store: &Images) -> Result<Vec<Blob>, Error> {
        let place = self.place(&self.config.digest);
        let bytes = fs::read(&place).at("read", &place)?;
        check("configuration", &self.config.digest, &Digest::of(&bytes))?;
        let contents = Document::read(&bytes)?.rootfs.diff_ids;
        if contents.len() != self.layers.len() {
            let (layers, named) = (self.layers.len(), contents.len());
            return refused(format!("it has {layers} layers, and its configuration names {named}"));
        }
        let mut wanted: Vec<Blob> = Vec::new();
        for (content, layer) in contents.iter().zip(&self.layers) {
            let is_known = wanted.iter().any(|known| known.digest == layer.digest);
            if !store.has_layer(content) && !is_known {
                wanted.push(layer.clone());
            }
        }
        Ok(wanted)
    }

    /// Whether all is there, in full length, that `store` needs beside what it has.
    pub fn is_complete(&self, store: &Images) -> Result<bool, Error> {
        let is_there = |layer: &Blob| {
            let found = fs::metadata(self.place(&layer.digest));
            found.is_ok_and(|found| found.len() == layer.bytes)
        };
        Ok(self.wanted(store)?.iter().all(is_there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> String {
        Digest::of(text.as_bytes()).to_string()
    }

    fn named(text: &str, kind: &str) -> serde_json::Value {
        serde_json::json!({"digest": digest(text), "size": text.len(), "mediaType": kind})
    }

    fn read(document: &serde_json::Value) -> Result<Listing, String> {
        Listing::read(document.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    #[test]
    fn a_manifest_names_configuration_and_layers() {
        let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
        let document =
            serde_json::json!({"config": named("c", "x"), "layers": [named("one", LAYER), named("two", docker)]});
        let Ok(Listing::Image { config, layers }) = read(&document) else { panic!("{:?}", read(&document)) };
        assert_eq!((config.bytes, layers.len(), layers[1].bytes), (1, 2, 3));
        let foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
        for kind in [foreign, "application/vnd.cncf.helm.chart.content.v1.tar+gzip", ""] {
            let error =
                read(&serde_json::json!({"config": named("c", "x"), "layers": [named("one", kind)]})).unwrap_err();
            assert!(error.contains(&format!("{kind:?}")), "{error}");
        }
        assert!(read(&serde_json::json!({"schemaVersion": 1, "fsLayers": []})).unwrap_err().contains("old kind"));
    }

    #[test]
    fn an_index_gives_the_image_of_this_machine() {
        let of = |os: &str, machine: &str| {
            let mut named = named(&format!("{os}{machine}"), "x");
            named["platform"] = serde_json::json!({"os": os, "architecture": machine});
            named
        };
        let others = [of("windows", architecture()), of("linux", "s390x"), of("unknown", "unknown")];
        let error = read(&serde_json::json!({ "manifests": others })).unwrap_err();
        assert!(error.contains("it has linux/s390x, windows/") && !error.contains("unknown"), "{error}");
        let all = [&others[..], &[of("linux", architecture())]].concat();
        let Ok(Listing::Index(found)) = read(&serde_json::json!({ "manifests": all })) else { panic!("it has one") };
        assert_eq!(found.digest.to_string(), digest(&format!("linux{}", architecture())));
    }

    #[test]
    fn only_layers_that_the_store_lacks_are_wanted() {
        let place = tempfile::tempdir().unwrap();
        let store = Images::open(&place.path().join("store")).unwrap();
        let config = serde_json::json!({"rootfs": {"diff_ids": [digest("a"), digest("b"), digest("a")]}}).to_string();
        let layers = [named("packed a", LAYER), named("packed b", LAYER), named("packed a", LAYER)];
        let manifest = serde_json::json!({"config": named(&config, "x"), "layers": layers}).to_string();
        let layout = Layout::open(&place.path().join("layout"), manifest.as_bytes()).unwrap();
        fs::write(layout.place(&layout.config.digest), &config).unwrap();
        assert_eq!(layout.wanted(&store).unwrap().len(), 2);
        fs::create_dir(place.path().join("store/layers").join(&digest("a")[7..])).unwrap();
        assert_eq!(
            layout.wanted(&store).unwrap(),
            [(&serde_json::from_value::<Descriptor>(layers[1].clone()).unwrap()).into()]
        );
        assert!(!layout.is_complete(&store).unwrap());
        fs::write(layout.place(&layout.layers[1].digest), "packed b").unwrap();
        assert!(layout.is_complete(&store).unwrap());
        fs::write(layout.place(&layout.config.digest), "{}").unwrap();
        assert!(matches!(layout.wanted(&store), Err(Error::Digest { .. })));
    }
}
