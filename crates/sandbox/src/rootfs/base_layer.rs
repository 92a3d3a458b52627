//! The layer that gives every image what a sandbox's root must have: devices, mount points, scratch directories, a home.

use std::{
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Component, Path, PathBuf},
};

use rustix::fs::getxattr;

use super::layer::{Access, Layer};
use crate::{attributes::OPAQUE, error::Error, spec::PROGRAM_ID};

/// The character devices of a sandbox: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// The older place of the machine's id, often a file of its own.
const MACHINE_ID: &str = "var/lib/dbus";
/// Links that are followed before they count as a circle.
const LINKS_MAX: usize = 10;

/// What a root needs beside its mount points, if its image has none: a directory, and its mode and owner.
const NEEDED: [(&str, Access); 9] = [
    ("run", Access::root(0o755)),
    ("run/lock", Access::root(0o1777)),
    ("tmp", Access::root(0o1777)),
    ("var", Access::root(0o755)),
    ("var/tmp", Access::root(0o1777)),
    ("var/lib", Access::root(0o755)),
    ("etc", Access::root(0o755)),
    ("home", Access::root(0o755)),
    ("home/user", Access { mode: 0o755, uid: PROGRAM_ID, gid: PROGRAM_ID }),
];

/// Makes the topmost layer for an image with these layers, itself topmost first, in the directory `layers`, and gives its path. Images that lack the
/// same share one. Repeating it is harmless.
///
/// /dev, /proc and /sys hide the image's own: mounts and device nodes must land on directories that the image cannot have turned into links. All
/// else of the image stays as it is, also where it is a link.
pub fn prepare_base_layer(layers: &Path, image: &[PathBuf]) -> Result<PathBuf, Error> {
    let mut made: Vec<(&str, Access)> = Vec::new();
    let machine_id = (!has(image, MACHINE_ID)).then_some((MACHINE_ID, Access::root(0o755)));
    for (directory, access) in NEEDED.into_iter().filter(|(directory, _)| !has(image, directory)).chain(machine_id) {
        // It lies in others, which are the image's own, or missing as well.
        let mut above: Vec<&str> = Path::new(directory).ancestors().skip(1).filter_map(Path::to_str).collect();
        above.retain(|above| !above.is_empty() && !made.iter().any(|(made, _)| made == above));
        for above in above.into_iter().rev() {
            made.push((above, found(image, above).map_or(Access::root(0o755), |above| Access::from(&above))));
        }
        made.push((directory, access));
    }
    let mut hash = DefaultHasher::new();
    made.iter().for_each(|(path, Access { mode, uid, gid })| (path, mode, uid, gid).hash(&mut hash));
    let path = layers.join(format!("base-{:016x}", hash.finish()));
    let layer = Layer::open(&path)?;
    for (directory, access) in made {
        if directory == MACHINE_ID { layer.opaque(directory, access) } else { layer.directory(directory, access) }?;
    }
    if machine_id.is_some() {
        layer.symlink("var/lib/dbus/machine-id", "/etc/machine-id")?;
    }
    devices(&layer)?;
    Ok(path)
}

/// For the host's own root: its scratch directories and runtime files are hidden, too.
pub(super) fn write_base(layer: &Layer) -> Result<(), Error> {
    for (directory, access) in NEEDED {
        match directory {
            "run" | "tmp" | "var/tmp" | "home" => layer.opaque(directory, access)?,
            directory => layer.directory(directory, access)?,
        }
    }
    // The older place of the machine's id, often a file of its own: the host's, then.
    machine_id(layer)?;
    devices(layer)
}

fn machine_id(layer: &Layer) -> Result<(), Error> {
    for directory in ["var", "var/lib"] {
        layer.directory(directory, Access::root(0o755))?;
    }
    layer.opaque("var/lib/dbus", Access::root(0o755))?;
    layer.symlink("var/lib/dbus/machine-id", "/etc/machine-id")
}

fn devices(layer: &Layer) -> Result<(), Error> {
    let (plain, scratch) = (Access::root(0o755), Access::root(0o1777));
    for directory in ["dev", "proc", "sys"] {
        layer.opaque(directory, plain)?;
    }
    for (name, major, minor) in DEVICES {
        layer.device(&format!("dev/{name}"), major, minor)?;
    }
    for (name, target) in DEVICE_LINKS {
        layer.symlink(&format!("dev/{name}"), target)?;
    }
    // A mount point, like the next two.
    layer.directory("dev/shm", scratch)?;
    layer.directory("dev/pts", plain)?;
    layer.directory("dev/mqueue", scratch)
}

/// Whether an image has something at a path, or a link above it.
fn has(image: &[PathBuf], path: &str) -> bool {
    Path::new(path)
        .ancestors()
        .filter_map(Path::to_str)
        .filter(|path| !path.is_empty())
        .any(|above| found(image, above).is_some_and(|found| above == path || !found.is_dir()))
}

/// What an image has at a path, without following links.
pub(super) fn found(image: &[PathBuf], path: &str) -> Option<fs::Metadata> {
    for layer in image {
        match fs::symlink_metadata(layer.join(path)) {
            Ok(found) if found.file_type().is_char_device() && found.rdev() == 0 => return None,
            Ok(found) => return Some(found),
            Err(_) if hides_below(layer, path) => return None,
            Err(_) => {}
        }
    }
    None
}

/// Whether a layer has something in the place of a directory above `path`, or hides what is below it in others.
pub(super) fn hides_below(layer: &Path, path: &str) -> bool {
    Path::new(path).ancestors().skip(1).any(|above| {
        let above = layer.join(above);
        let is_opaque = || getxattr(&above, OPAQUE, &mut [0u8; 1][..]).is_ok_and(|length| length == 1);
        fs::symlink_metadata(&above).is_ok_and(|found| !found.is_dir() || is_opaque())
    })
}

/// Where a directory of the root with these layers is, topmost first: another place if the image has a link there, or below the root's own if it
/// cannot be told.
pub(crate) fn place_of(layers: &[PathBuf], directory: &str) -> PathBuf {
    let (mut place, mut links) = (PathBuf::new(), 0);
    // Part by part: what comes behind a link is looked for where that leads to.
    let mut left: Vec<OsString> = parts(Path::new(directory));
    while let Some(part) = left.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        let next = place.join(&part);
        match link_of(layers, &next) {
            Some(_) if links == LINKS_MAX => return PathBuf::from(directory),
            Some(target) => {
                links += 1;
                if target.is_absolute() {
                    place.clear();
                }
                left.extend(parts(&target));
            }
            None => place = next,
        }
    }
    place
}

/// The last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(part).collect()
}

fn link_of(layers: &[PathBuf], path: &Path) -> Option<PathBuf> {
    let text = path.to_str()?;
    found(layers, text).filter(fs::Metadata::is_symlink)?;
    layers.iter().find_map(|layer| fs::read_link(layer.join(path)).ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_an_image_has_stays_as_it_is() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (upper, lower) = (dir.path().join("upper"), dir.path().join("lower"));
        for path in ["upper", "lower/conf", "lower/home/app", "lower/var/tmp"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        symlink("/conf", lower.join("etc")).unwrap();
        symlink("var/tmp", lower.join("tmp")).unwrap();
        let image = [upper, lower];
        let base = prepare_base_layer(dir.path(), &image).unwrap();
        let made: Vec<bool> =
            ["etc", "tmp", "home", "var/tmp"].iter().map(|path| base.join(path).symlink_metadata().is_ok()).collect();
        // The home of the program's user is missing, and the directory above it is as in the image.
        assert_eq!(made, [false, false, true, false]);
        assert!(base.join("home/user").is_dir() && base.join("run/lock").is_dir() && base.join("dev/null").exists());
        assert_eq!(prepare_base_layer(dir.path(), &image).unwrap(), base);
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let other = prepare_base_layer(dir.path(), &[empty]).unwrap();
        assert!(other != base && other.join("etc").is_dir() && other.join("var/tmp").is_dir());
        assert_eq!(place_of(&image, "etc"), Path::new("conf"));
        assert_eq!((place_of(&image, "tmp"), place_of(&image, "run")), ("var/tmp".into(), "run".into()));
    }

    #[test]
    fn links_of_images_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let image = [dir.path().to_owned()];
        for (target, place) in [("../../x/./y", "x/y"), ("etc", "etc"), ("/", ""), ("b", "etc")] {
            let _ = fs::remove_file(dir.path().join("etc"));
            let _ = fs::remove_file(dir.path().join("b"));
            symlink(target, dir.path().join("etc")).unwrap();
            symlink("etc", dir.path().join("b")).unwrap();
            assert_eq!(place_of(&image, "etc"), Path::new(place), "{target}");
        }
    }
}
