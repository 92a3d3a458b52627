//! The images of a node.
//!
//! ```text
//! DIR/layers/DIGEST/    a layer, unpacked; shared by all images that have it; whole, or not there
//! DIR/sizes/DIGEST      how many bytes that were
//! DIR/named/NAME.json   an image: its layers, and what it says of programs ("/" and ":" in a name are "+" and ",")
//! ```
//!
//! An image that lost its name to another one stays as `NAME@sha256:DIGEST`: checkpoints may need it. [`Images::prune`] removes it, and layers that no
//! image names. One that was pulled by the digest of a registry has that digest in its name, which is another one: of the manifest.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    archive::Found,
    digest::Digest,
    error::{Context, Error, refused},
    layout::Layout,
    limits::ARCHIVE_BYTES_MAX,
    manifest::Config,
    unpack::{Kind, make_whole, unpack, unpack_root},
};

/// An image that a node has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// As users call it.
    pub name: String,
    /// Of its configuration, or of its layers if it has none.
    pub digest: String,
    /// When it was made here, in milliseconds since 1970.
    pub created_ms: u64,
    /// Bytes of its layers, as they were unpacked.
    pub bytes: u64,
    /// What it says of its programs.
    pub config: Config,
    /// Digests of its layers, the lowest first.
    layers: Vec<Layer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Layer {
    digest: Digest,
    bytes: u64,
}

impl Kept {
    /// How many layers it has.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// The name of this content, whatever has its name later.
    pub fn pinned(&self) -> String {
        format!("{}@{}", self.name.split('@').next().unwrap_or_default(), self.digest)
    }

    fn has_lost_its_name(&self) -> bool {
        self.name == self.pinned()
    }
}

/// What an image is called that is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By its name, which another one may lose.
    AsAsked,
    /// Only by its digest, as one that has lost its name.
    ByDigest,
}

/// The images below a directory.
#[derive(Debug, Clone)]
pub struct Images {
    root: PathBuf,
}

impl Images {
    /// Makes the directories that are missing.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let images = Self { root: root.to_owned() };
        for directory in [images.layers(), images.sizes(), images.named()] {
            fs::create_dir_all(&directory).at("create", &directory)?;
        }
        Ok(images)
    }

    fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    fn sizes(&self) -> PathBuf {
        self.root.join("sizes")
    }

    fn named(&self) -> PathBuf {
        self.root.join("named")
    }

    /// Of one without a name of its own, the digest is in the name of its file.
    fn record(&self, name: &str) -> PathBuf {
        let name = name.split_once('@').map_or(name, |(_, digest)| digest);
        self.named().join(format!("{}.json", name.replace('/', "+").replace(':', ",")))
    }

    fn layer(&self, digest: &Digest) -> PathBuf {
        self.layers().join(digest.hex())
    }

    /// Whether it has this layer, by the digest of its content.
    pub(crate) fn has_layer(&self, content: &Digest) -> bool {
        self.layer(content).is_dir()
    }

    /// Where the bytes of a layer are noted.
    fn size_of(&self, digest: &Digest) -> PathBuf {
        self.sizes().join(digest.hex())
    }

    /// All of them, by name.
    pub fn list(&self) -> Result<Vec<Kept>, Error> {
        let directory = self.named();
        let mut found = Vec::new();
        for entry in fs::read_dir(&directory).at("list", &directory)? {
            let path = entry.at("list", &directory)?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                found.extend(read(&path)?);
            }
        }
        found.sort_by(|one: &Kept, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// One of them, by its name, or as `NAME@sha256:DIGEST`: with this content, also if it has another name by now.
    pub fn find(&self, name: &str) -> Result<Kept, Error> {
        let (called, digest) = name.split_once('@').map_or((name, None), |(called, digest)| (called, Some(digest)));
        check_name(called)?;
        let has = |image: &Kept, digest| image.digest == digest || image.name.ends_with(&format!("@{digest}"));
        let is_wanted = |image: &Kept| digest.is_none_or(|digest| has(image, digest));
        let found = match read(&self.record(called))?.filter(&is_wanted) {
            None if digest.is_some() => self.list()?.into_iter().find(is_wanted),
            found => found,
        };
        found.ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Directories of its layers, topmost first.
    pub fn layers_of(&self, image: &Kept) -> Vec<PathBuf> {
        let mut layers: Vec<PathBuf> = Vec::new();
        for layer in image.layers.iter().rev().map(|layer| self.layer(&layer.digest)) {
            // The kernel takes none twice; a second one below shows nothing that the first does not.
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
        layers
    }

    /// Takes in an image: an oci-layout or an archive of `docker save`, as directory or archive, or the tarball of a root filesystem. One with the
    /// same name loses it. `progress` is told how many layers are there, of how many. A failure leaves nothing.
    pub fn import(
        &self,
        from: &Path,
        name: Option<&str>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Kept, Error> {
        let found = Found::open(from, &self.layers(), name)?;
        let called = name.map(str::to_owned).or_else(|| found.as_ref().and_then(|found| found.name.clone()));
        let Some(called) = called else {
            return Err(Error::NoImage(format!("{} says no name of its image: give it one", from.display())));
        };
        check_name(&called)?;
        self.take(from, (&called, Naming::AsAsked), found, progress)
    }

    /// Takes in an image that came from a registry. Its name may be `NAME@sha256:DIGEST`, with the registry's digest.
    pub fn import_pulled(
        &self,
        from: &Layout,
        name: &str,
        naming: Naming,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Kept, Error> {
        if !model::is_image_reference(name) {
            return Err(Error::Name(name.to_owned()));
        }
        let found = Found::open(from.path(), &self.layers(), Some(name))?;
        self.take(from.path(), (name, naming), found, progress)
    }

    fn take(
        &self,
        from: &Path,
        (name, naming): (&str, Naming),
        found: Option<Found>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Kept, Error> {
        let made = match &found {
            Some(found) => self.take_layers(found, progress),
            None if from.is_dir() => {
                let why = format!("{} is no oci-layout: a directory is an image as it is, by its path", from.display());
                Err(Error::NoImage(why))
            }
            None => self.take_root(from, progress),
        };
        let (digest, config, layers) = made?;
        let bytes = layers.iter().map(|layer| layer.bytes).sum();
        let mut kept = Kept { name: name.to_owned(), digest, created_ms: now_ms(), bytes, config, layers };
        if naming == Naming::ByDigest {
            kept.name = kept.pinned();
        }
        if let Some(mut earlier) = read(&self.record(&kept.name))?.filter(|earlier| earlier.digest != kept.digest) {
            earlier.name = earlier.pinned();
            self.write(&earlier)?;
        }
        self.write(&kept)?;
        Ok(kept)
    }

    fn take_layers(
        &self,
        found: &Found,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(String, Config, Vec<Layer>), Error> {
        let (mut layers, mut made) = (Vec::new(), Vec::new());
        let taken = self.take_each(found, progress, (&mut layers, &mut made));
        if taken.is_err() {
            made.iter().for_each(|path| drop(sys::tree::remove(path)));
        }
        taken.map(|()| (found.digest.to_string(), found.config.clone(), layers))
    }

    fn take_each(
        &self,
        found: &Found,
        progress: &mut dyn FnMut(usize, usize),
        (layers, made): (&mut Vec<Layer>, &mut Vec<PathBuf>),
    ) -> Result<(), Error> {
        let mut unpacked_bytes = 0;
        for (number, layer) in found.layers.iter().enumerate() {
            progress(number, found.layers.len());
            let path = self.layer(&layer.content);
            // One that is there is whole, and may be what templates stand on.
            if !self.has_layer(&layer.content) {
                let unpacked = make_whole(&path, |partial| {
                    found.read_layer(layer, |content| unpack(content, partial, Kind::Layer))
                })?;
                let size = self.size_of(&layer.content);
                made.push(path);
                unpacked_bytes += unpacked.bytes;
                if unpacked_bytes > ARCHIVE_BYTES_MAX {
                    return refused(format!("its layers have more than {} GiB", ARCHIVE_BYTES_MAX >> 30));
                }
                fs::write(&size, unpacked.bytes.to_string()).at("write", &size)?;
            }
            let size = fs::read_to_string(self.size_of(&layer.content)).ok();
            let bytes = size.and_then(|size| size.trim().parse().ok()).unwrap_or(0);
            layers.push(Layer { digest: layer.content.clone(), bytes });
        }
        progress(found.layers.len(), found.layers.len());
        Ok(())
    }

    fn take_root(
        &self,
        from: &Path,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(String, Config, Vec<Layer>), Error> {
        progress(0, 1);
        // Its digest is known when all of it is read. A crash may have left one.
        let aside = self.layers().join("root");
        sys::tree::remove(&aside).at("remove", &aside)?;
        let (unpacked, content) = make_whole(&aside, |partial| unpack_root(from, partial))?;
        // The same archive as a layer would have another tree: there, some names hide what is below.
        let digest = Digest::of(format!("root {content}").as_bytes());
        let path = self.layer(&digest);
        if path.is_dir() {
            sys::tree::remove(&aside).at("remove", &aside)?;
        } else {
            fs::rename(&aside, &path).at("complete", &path)?;
        }
        progress(1, 1);
        let layer = Layer { digest: digest.clone(), bytes: unpacked.bytes };
        Ok((digest.to_string(), Config::default(), vec![layer]))
    }

    fn write(&self, kept: &Kept) -> Result<(), Error> {
        let path = self.record(&kept.name);
        let new = path.with_extension("new");
        let text = serde_json::to_vec(kept).map_err(std::io::Error::from).at("write", &new)?;
        let mut file = File::create(&new).at("write", &new)?;
        file.write_all(&text).and_then(|()| file.sync_all()).at("write", &new)?;
        fs::rename(&new, &path).at("replace", &path)
    }

    /// Forgets an image. Its layers stay until [`Self::prune`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.record(&self.find(name)?.name);
        fs::remove_file(&path).at("remove", &path)
    }

    /// Removes images that lost their names, and the layers that no image names, unless they are in use. Gives how many layers there were.
    pub fn prune(&self, is_used: &dyn Fn(&Path) -> bool) -> Result<usize, Error> {
        for image in self.list()?.iter().filter(|image| image.has_lost_its_name()) {
            if !self.layers_of(image).iter().all(|layer| is_used(layer)) {
                let path = self.record(&image.name);
                fs::remove_file(&path).at("remove", &path)?;
            }
        }
        let named: BTreeSet<PathBuf> = self.list()?.iter().flat_map(|image| self.layers_of(image)).collect();
        let directory = self.layers();
        let mut removed = 0;
        for entry in fs::read_dir(&directory).at("list", &directory)? {
            let path = entry.at("list", &directory)?.path();
            if !named.contains(&path) && !is_used(&path) {
                sys::tree::remove(&path).at("remove", &path)?;
                let _ = fs::remove_file(self.sizes().join(path.file_name().unwrap_or_default()));
                removed += 1;
            }
        }
        Ok(removed)
    }
}

fn read(path: &Path) -> Result<Option<Kept>, Error> {
    match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        bytes => serde_json::from_slice(&bytes.at("read", path)?).map_err(std::io::Error::from).at("read", path),
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if model::is_image_name(name) { Ok(()) } else { Err(Error::Name(name.to_owned())) }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
