//! Reading a file of an image before a sandbox of it exists.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2},
    io::Errno,
};

use super::base_layer::place_of;

/// The beginning of the regular file `name` in `directory` of a root with these layers, topmost first: `bytes_max` at most. Links above it are
/// followed inside the root. None: it has no such file, or another thing there.
pub fn read_of_image(layers: &[PathBuf], directory: &str, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
    let path = place_of(layers, directory).join(name);
    for layer in layers {
        match open_in(layer, &path) {
            Ok(file) => {
                let is_file = FileType::from_raw_mode(fstat(&file).ok()?.st_mode) == FileType::RegularFile;
                let mut content = Vec::new();
                file.take(bytes_max).read_to_end(&mut content).ok().filter(|_| is_file)?;
                return Some(content);
            }
            Err(Errno::NOENT) => {}
            // A whiteout, a link, or a file in the place of a directory: it hides what lower layers have.
            Err(_) => return None,
        }
    }
    None
}

/// Links are in the way here: those of the root have been followed, and others of the layer must not lead to the host's files.
fn open_in(layer: &Path, path: &Path) -> rustix::io::Result<File> {
    let root = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS)?;
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn the_topmost_file_counts_and_links_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["upper", "lower"].map(|name| dir.path().join(name));
        for path in ["upper/conf", "lower/conf"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        symlink("/conf", layers[1].join("etc")).unwrap();
        fs::write(layers[1].join("conf/passwd"), "lower").unwrap();
        let read = || read_of_image(&layers, "etc", "passwd", 3).map(|content| String::from_utf8(content).unwrap());
        assert_eq!(read().as_deref(), Some("low"));
        fs::write(layers[0].join("conf/passwd"), "upper").unwrap();
        assert_eq!(read().as_deref(), Some("upp"));
        fs::remove_file(layers[0].join("conf/passwd")).unwrap();
        symlink("/etc/passwd", layers[0].join("conf/passwd")).unwrap();
        assert_eq!(read(), None);
        // A directory above a link: the link is not there any more, and what it leads to is the host's.
        fs::create_dir(layers[0].join("etc")).unwrap();
        fs::remove_file(layers[1].join("etc")).unwrap();
        symlink("/etc", layers[1].join("etc")).unwrap();
        assert_eq!(read(), None);
    }
}
