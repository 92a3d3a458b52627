//! Reading a file of an image before a sandbox of it exists.

use std::{
    fs::File,
    io::Read,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2},
    io::Errno,
};

use super::base_layer::{hides_below, place_of};

/// The beginning of the regular file `name` in `directory` of a root with these layers, topmost first: `bytes_max` at most. Links above it are
/// followed inside the root. None: it has no such file, or another thing there.
pub fn read_of_image(layers: &[PathBuf], directory: &str, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
    let path = place_of(layers, directory).join(name);
    for layer in layers {
        match open_in(layer, &path) {
            Ok(file) => {
                let mut content = Vec::new();
                file.take(bytes_max).read_to_end(&mut content).ok()?;
                return Some(content);
            }
            Err(Errno::NOENT) if !hides_below(layer, path.to_str()?) => {}
            // A whiteout, a link, or a file in the place of a directory: it hides what lower layers have.
            Err(_) => return None,
        }
    }
    None
}

/// Opens a regular file. Links are in the way here: those of the root have been followed, and others of the layer must not lead to the host's files. A
/// device of an image would be one of the host's, so it looks before it opens.
fn open_in(layer: &Path, path: &Path) -> rustix::io::Result<File> {
    let root = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS)?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let opened = open(format!("/proc/self/fd/{}", found.as_raw_fd()), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(File::from(opened))
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
        // A pipe would wait for ever, and a device is the host's.
        fs::remove_dir(layers[0].join("etc")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, layers[0].join("passwd"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read_of_image(&layers[..1], "/", "passwd", 3), None);
    }
}
