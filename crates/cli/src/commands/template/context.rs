//! The directory whose files a Dockerfile can copy: what `.dockerignore` leaves of it, as one archive.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use hands::CopySource;

/// Bytes of a file that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Files below a directory.
#[derive(Debug)]
pub(super) struct Context {
    root: PathBuf,
    /// Relative, parents before what is in them.
    entries: Vec<PathBuf>,
}

impl Context {
    /// Lists what is there.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let ignored = Ignored::of(root)?;
        let mut context = Self { root: root.to_owned(), entries: Vec::new() };
        context.list(Path::new(""), &ignored)?;
        Ok(context)
    }

    fn list(&mut self, below: &Path, ignored: &Ignored) -> Result<()> {
        let directory = self.root.join(below);
        let entries = fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
        let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = below.join(entry.file_name());
            let is_ignored = ignored.has(&path);
            if !is_ignored {
                self.entries.push(path.clone());
            }
            if entry.file_type()?.is_dir() && (!is_ignored || ignored.has_exceptions) {
                self.list(&path, ignored)?;
            }
        }
        Ok(())
    }

    /// What tells the files of a `COPY` from others: their paths, modes, links and content. Fails if there are none.
    pub(super) fn key(&self, source: &str) -> Result<String> {
        let Some(wanted) = CopySource::parse(source) else {
            bail!(
                "{source} leads out of the context, or has a pattern that is not supported, such as ** before other parts"
            )
        };
        let mut hasher = blake3::Hasher::new();
        let mut found = false;
        for path in self.entries.iter().filter(|path| wanted.below(path).is_some()) {
            found = true;
            let place = self.root.join(path);
            let at = || format!("cannot read {}", place.display());
            let metadata = fs::symlink_metadata(&place).with_context(at)?;
            let name = path.as_os_str().as_bytes();
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name).update(&metadata.mode().to_le_bytes());
            if metadata.is_symlink() {
                hasher.update(fs::read_link(&place).with_context(at)?.as_os_str().as_bytes());
            } else if metadata.is_file() {
                hasher.update(&metadata.len().to_le_bytes());
                let mut file = File::open(&place).with_context(at)?;
                let mut buffer = vec![0; BUFFER_BYTES];
                loop {
                    match file.read(&mut buffer).with_context(at)? {
                        0 => break,
                        length => hasher.update(&buffer[..length]),
                    };
                }
            }
        }
        if !found {
            bail!("{source}: there is nothing of that name in {}, or .dockerignore leaves it out", self.root.display());
        }
        Ok(hasher.finalize().to_string())
    }

    /// Writes all of it as a tar archive.
    pub(super) fn pack(&self, into: File) -> Result<()> {
        let mut archive = tar::Builder::new(io::BufWriter::new(into));
        archive.follow_symlinks(false);
        for path in &self.entries {
            let place = self.root.join(path);
            let kind = fs::symlink_metadata(&place)?.file_type();
            if kind.is_file() || kind.is_dir() || kind.is_symlink() {
                let packed = archive.append_path_with_name(&place, path);
                packed.with_context(|| format!("cannot pack {}", place.display()))?;
            }
        }
        archive.into_inner()?.into_inner()?;
        Ok(())
    }
}

/// What `.dockerignore` says.
#[derive(Debug, Default)]
struct Ignored {
    patterns: Vec<(glob::Pattern, bool)>,
    has_exceptions: bool,
}

impl Ignored {
    fn of(root: &Path) -> Result<Self> {
        let path = root.join(".dockerignore");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut ignored = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (pattern, is_exception) =
                line.strip_prefix('!').map_or((line, false), |pattern| (pattern.trim(), true));
            let pattern = pattern.trim_start_matches("./").trim_matches('/');
            let parsed = glob::Pattern::new(pattern);
            let parsed = parsed.with_context(|| format!("{pattern} in {} is no pattern", path.display()))?;
            ignored.has_exceptions |= is_exception;
            ignored.patterns.push((parsed, is_exception));
        }
        Ok(ignored)
    }

    /// The last pattern counts that matches the path or a directory above it.
    fn has(&self, path: &Path) -> bool {
        let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
        let above = || path.ancestors().filter(|above| !above.as_os_str().is_empty());
        let matches = |pattern: &glob::Pattern| above().any(|path| pattern.matches_path_with(path, options));
        self.patterns.iter().rev().find(|(pattern, _)| matches(pattern)).is_some_and(|(_, is_exception)| !is_exception)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_are_left_out_and_keys_are_of_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a.py", "1");
        write("b.pyc", "1");
        write("deep/er/c.pyc", "1");
        write("out/x", "1");
        write("out/keep", "1");
        write(".dockerignore", "# no\n**/*.pyc\n/out\n!out/keep\n.dockerignore\n");
        let context = Context::of(folder.path()).unwrap();
        let names: Vec<_> = context.entries.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(names, ["a.py", "deep", "deep/er", "out/keep"]);
        let key = context.key("a.py").unwrap();
        write("a.py", "2");
        assert_ne!(context.key("a.py").unwrap(), key);
        assert!(context.key("out/x").is_err() && context.key("../a").is_err() && context.key("*.pyc").is_err());
        let mut packed = tempfile::tempfile().unwrap();
        context.pack(packed.try_clone().unwrap()).unwrap();
        io::Seek::rewind(&mut packed).unwrap();
        assert_eq!(tar::Archive::new(packed).entries().unwrap().count(), 4);
    }
}
