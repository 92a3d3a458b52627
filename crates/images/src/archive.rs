//! Which image a directory or archive holds, and its layers.

use std::path::Path;

use crate::{
    digest::{Digest, Hashed},
    error::{Error, refused},
    limits::LAYERS_MAX,
    manifest::{Config, Descriptor, Document, Manifest, Saved, architecture, parse},
    reader::Files,
};

pub(crate) const INDEX: &str = "index.json";
const MANIFEST: &str = "manifest.json";
/// Where an index says the name of an image: whole, as containerd does, or as its maker likes.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

fn name_of(descriptor: &Descriptor) -> Option<String> {
    let name = NAMES.iter().find_map(|key| descriptor.annotations.get(*key))?;
    let short = name.strip_prefix("docker.io/").unwrap_or(name);
    Some(short.strip_prefix("library/").unwrap_or(short).to_owned())
}

/// An image that was found.
pub(crate) struct Found {
    files: Files,
    /// Of its configuration: what it is known by.
    pub(crate) digest: Digest,
    pub(crate) config: Config,
    /// The lowest first.
    pub(crate) layers: Vec<Layer>,
    /// What it is called where it was found.
    pub(crate) name: Option<String>,
}

/// One layer, by the digest of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) content: Digest,
    file: String,
    /// Of the file as it is stored, if that is known.
    stored: Option<Digest>,
}

impl Found {
    /// None: it is no image, but perhaps a root filesystem. `wanted`: which, of several.
    pub(crate) fn open(path: &Path, aside: &Path, wanted: Option<&str>) -> Result<Option<Self>, Error> {
        let files = Files::open(path, aside)?;
        // Docker writes both; only this one has whole names.
        if files.has(MANIFEST) {
            return Self::of_docker(files, wanted).map(Some);
        }
        if files.has("oci-layout") && files.has(INDEX) {
            return Self::of_layout(files, wanted).map(Some);
        }
        Ok(None)
    }

    fn of_layout(files: Files, wanted: Option<&str>) -> Result<Self, Error> {
        let mut manifest: Manifest = parse(&files.document(INDEX)?, "index")?;
        let mut name = None;
        // An index may name another one: of the platforms of one image.
        for _ in 0..4 {
            if manifest.config.is_some() {
                break;
            }
            let is_ours = |platform: &crate::manifest::Platform| {
                platform.os == "linux" && platform.architecture == architecture()
            };
            let fits = |descriptor: &&Descriptor| descriptor.platform.as_ref().is_none_or(is_ours);
            let all: Vec<Descriptor> = manifest.manifests.unwrap_or_default();
            let fitting: Vec<&Descriptor> = all.iter().filter(fits).collect();
            let named = fitting.iter().find(|descriptor| wanted.is_some() && name_of(descriptor).as_deref() == wanted);
            let descriptor = match (named, &fitting[..]) {
                (Some(descriptor), _) | (None, [descriptor]) => *descriptor,
                (None, []) => return refused(format!("it has no image for linux on {}", architecture())),
                (None, several) => {
                    let names: Vec<String> = several.iter().filter_map(|descriptor| name_of(descriptor)).collect();
                    return refused(format!("it has several images: name one of {}", names.join(", ")));
                }
            };
            name = name.or_else(|| name_of(descriptor));
            let bytes = checked(&files, &descriptor.digest)?;
            manifest = parse(&bytes, "manifest")?;
        }
        let Some(config) = manifest.config else { return refused("its manifest names no configuration") };
        let document = Document::read(&checked(&files, &config.digest)?)?;
        let stored = manifest.layers.iter().map(|layer| (blob(&layer.digest), Some(layer.digest.clone()))).collect();
        let layers = layers(&document, stored)?;
        Ok(Self { files, digest: config.digest, config: document.config(), layers, name })
    }

    fn of_docker(files: Files, wanted: Option<&str>) -> Result<Self, Error> {
        let mut saved: Vec<Saved> = parse(&files.document(MANIFEST)?, "manifest")?;
        let names = |image: &Saved| image.repo_tags.clone().unwrap_or_default();
        if saved.len() > 1 {
            let is_wanted = |image: &Saved| names(image).iter().any(|name| Some(name.as_str()) == wanted);
            let all: Vec<String> = saved.iter().flat_map(names).collect();
            saved.retain(is_wanted);
            if saved.len() != 1 {
                return refused(format!("it has several images: name one of {}", all.join(", ")));
            }
        }
        let Some(Saved { config, repo_tags, layers: stored }) = saved.into_iter().next() else {
            return refused("its manifest names no image");
        };
        let bytes = files.document(&config)?;
        let document = Document::read(&bytes)?;
        let layers = layers(&document, stored.into_iter().map(|file| (file, None)).collect())?;
        let name = repo_tags.into_iter().flatten().next();
        Ok(Self { files, digest: Digest::of(&bytes), config: document.config(), layers, name })
    }

    /// Unpacks a layer with `unpack`, and checks that it was what its digests say.
    pub(crate) fn read_layer<T>(
        &self,
        layer: &Layer,
        unpack: impl FnOnce(&mut dyn std::io::Read) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut stored = Hashed::new(self.files.read(&layer.file)?);
        let mut content = Hashed::new(crate::decompress::content(&mut stored).map_err(Error::Archive)?);
        let unpacked = unpack(&mut content)?;
        let found = content.finish().map_err(Error::Archive)?;
        check(&layer.file, &layer.content, &found)?;
        if let Some(wanted) = &layer.stored {
            check(&layer.file, wanted, &stored.finish().map_err(Error::Archive)?)?;
        }
        Ok(unpacked)
    }
}

fn layers(document: &Document, stored: Vec<(String, Option<Digest>)>) -> Result<Vec<Layer>, Error> {
    let contents = &document.rootfs.diff_ids;
    if contents.len() != stored.len() {
        return refused(format!("it has {} layers, and its configuration names {}", stored.len(), contents.len()));
    }
    if contents.is_empty() || contents.len() > LAYERS_MAX {
        return refused(format!("it has {} layers, and 1 to {LAYERS_MAX} are possible", contents.len()));
    }
    let layer = |(content, (file, stored)): (&Digest, (String, Option<Digest>))| Layer {
        content: content.clone(),
        file,
        stored,
    };
    Ok(contents.iter().zip(stored).map(layer).collect())
}

pub(crate) fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn checked(files: &Files, digest: &Digest) -> Result<Vec<u8>, Error> {
    let name = blob(digest);
    let bytes = files.document(&name)?;
    check(&name, digest, &Digest::of(&bytes))?;
    Ok(bytes)
}

pub(crate) fn check(what: &str, wanted: &Digest, found: &Digest) -> Result<(), Error> {
    if wanted == found {
        return Ok(());
    }
    Err(Error::Digest { what: what.to_owned(), wanted: wanted.to_string(), found: found.to_string() })
}
