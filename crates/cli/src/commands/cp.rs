//! `pando cp`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use anyhow::{Context, Result, bail, ensure};
use api::ExitStatus;
use base::text;
use client::{Entry, EntryKind, Event, Inside, Start};

use crate::{
    exit::{self, Failure},
    sandbox_id::{Among, SandboxName},
    target::Target,
    transfer::{self, STANDARD},
};

/// How many levels of a directory of a sandbox are copied. One list has them all, so there must be a bound.
const DEPTH_MAX: u32 = 64;
/// Permissions of files that are written in a sandbox.
const NEW_FILE: u32 = 0o644;
/// The length of a command line is bounded.
const PATHS_AT_ONCE: usize = 100;

const EXAMPLES: &str = "\
Examples:
    pando cp data.csv web:/home/user/
    pando cp web:results ./results                  below the home directory of `user`
    pando cp src web:/workspace                     a directory and all below it
    pando cp web:/var/log/app.log - | less";

/// Copy files and directories into a sandbox, or out of it.
///
/// A path inside a sandbox is written SANDBOX:PATH. If it does not begin with `/`, it is below the user's home. If the
/// target is a directory, or ends with `/`, the copy gets the name of the source in it. `-` is standard input or
/// output. Files that are there are overwritten. Copies of files have the permissions of the source, and the owner who
/// makes them. Symbolic links in a directory are left out.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What is copied.
    #[arg(value_name = "SOURCE")]
    source: Place,
    /// Where to.
    #[arg(value_name = "TARGET")]
    target: Place,
    /// The user of the sandbox whose rights count. Default: `user`.
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
}

/// A file or directory, of this machine or of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Here(PathBuf),
    There(SandboxName, String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text.is_empty() => Err("give a path".to_owned()),
            // As with scp, a path of this machine that has a colon needs a slash before it.
            Some((name, path)) if !name.contains('/') => {
                let name = name.parse().map_err(|error: crate::sandbox_id::InvalidName| error.to_string())?;
                Ok(Self::There(name, if path.is_empty() { "." } else { path }.to_owned()))
            }
            Some(_) | None => Ok(Self::Here(text.into())),
        }
    }
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    match (args.source, args.target) {
        (Place::Here(from), Place::There(name, to)) => {
            Inner::open(&name, args.user, target).await?.put(&from, &to).await
        }
        (Place::There(name, from), Place::Here(to)) => {
            Inner::open(&name, args.user, target).await?.get(&from, &to).await
        }
        (Place::Here(_), Place::Here(_)) | (Place::There(..), Place::There(..)) => {
            let message = "one of both must be in a sandbox, and the other one here: SANDBOX:PATH".to_owned();
            Err(Failure::Usage(message).into())
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The sandbox, and whose rights count.
struct Inner {
    inside: Inside,
    user: Option<String>,
}

impl Inner {
    async fn open(name: &SandboxName, user: Option<String>, target: &dyn Target) -> Result<Self> {
        let id = name.find(Among::Node, target).await?;
        Ok(Self { inside: target.inside(&id).await?, user })
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    async fn put(&self, from: &Path, to: &str) -> Result<()> {
        if from == Path::new(STANDARD) {
            ensure!(!to.ends_with('/'), Failure::Usage("standard input needs the name of a file".to_owned()));
            return self.upload(from, to).await;
        }
        let found = fs::metadata(from).with_context(|| format!("cannot read {}", from.display()))?;
        // `.` and `..` have the names of what they are.
        let named = if from.file_name().is_some() { from.to_owned() } else { from.canonicalize().unwrap_or_default() };
        let to = self.inside_of(to, named.file_name()).await?;
        let mut modes = Modes::default();
        if found.is_dir() {
            self.put_directory(from, &to, &mut modes).await?;
        } else {
            self.upload(from, &to).await?;
            modes.note(&found, to);
        }
        modes.set(self).await
    }

    /// The path itself, or the name below it if it is a directory.
    async fn inside_of(&self, to: &str, name: Option<&std::ffi::OsStr>) -> Result<String> {
        let there = self.inside.stat(self.user(), to).await?;
        let is_directory = there.is_some_and(|entry| entry.kind == EntryKind::Directory);
        if !is_directory && !to.ends_with('/') {
            return Ok(to.to_owned());
        }
        let name = name.and_then(|name| name.to_str()).context("the source has no name to copy it under")?;
        Ok(format!("{}/{name}", to.trim_end_matches('/')))
    }

    async fn put_directory(&self, from: &Path, to: &str, modes: &mut Modes) -> Result<()> {
        let mut waiting = vec![(from.to_owned(), to.to_owned())];
        while let Some((from, to)) = waiting.pop() {
            self.inside.make_directory(self.user(), &to).await?;
            let at = || format!("cannot read {}", from.display());
            for entry in fs::read_dir(&from).with_context(at)? {
                let entry = entry.with_context(at)?;
                let name = entry.file_name();
                let Some(name) = name.to_str() else { bail!("{} has a name that is no text", entry.path().display()) };
                let to = format!("{to}/{name}");
                let kind = entry.file_type().with_context(at)?;
                if kind.is_dir() {
                    waiting.push((entry.path(), to));
                } else if kind.is_file() {
                    self.upload(&entry.path(), &to).await?;
                    modes.note(&entry.metadata().with_context(at)?, to);
                } else {
                    errln!("pando: {} is no file and no directory: it is left out", entry.path().display());
                }
            }
        }
        Ok(())
    }

    async fn upload(&self, from: &Path, to: &str) -> Result<()> {
        let content = transfer::read(from)?;
        Ok(self.inside.write(self.user(), to, content).await?)
    }

    async fn get(&self, from: &str, to: &Path) -> Result<()> {
        let found = self.inside.stat(self.user(), from).await?.ok_or_else(|| missing(from))?;
        let name = found.path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("root");
        let to = match to {
            to if to == Path::new(STANDARD) => to.to_owned(),
            to if to.is_dir() => to.join(name),
            to => to.to_owned(),
        };
        match found.kind {
            EntryKind::Directory if to != Path::new(STANDARD) => self.get_directory(&found.path, &to).await,
            EntryKind::Directory => bail!(Failure::Usage(format!("{from} is a directory"))),
            EntryKind::File | EntryKind::Other => self.download(&found, &to).await,
        }
    }

    async fn get_directory(&self, from: &str, to: &Path) -> Result<()> {
        let make = |path: &Path| fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()));
        make(to)?;
        let entries = self.inside.list(self.user(), from, DEPTH_MAX).await?;
        let parents: BTreeSet<&str> = entries.iter().filter_map(|entry| Some(entry.path.rsplit_once('/')?.0)).collect();
        for entry in &entries {
            let Some(below) = below(&entry.path, from) else { bail!("the sandbox has a path {:?} there", entry.path) };
            match entry.kind {
                _ if entry.is_link => errln!("pando: {} is a symbolic link: it is left out", entry.path),
                // Its content was not listed.
                EntryKind::Directory if below.components().count() >= DEPTH_MAX as usize => {
                    bail!("{from} has more than {DEPTH_MAX} levels: copy {} by itself", entry.path)
                }
                EntryKind::Directory => {
                    make(&to.join(below))?;
                    // A list leaves out what the user may not read, and this says so.
                    if !parents.contains(entry.path.as_str()) {
                        self.inside.list(self.user(), &entry.path, 1).await?;
                    }
                }
                EntryKind::File => self.download(entry, &to.join(below)).await?,
                EntryKind::Other => errln!("pando: {} is no file and no directory: it is left out", entry.path),
            }
        }
        Ok(())
    }

    async fn download(&self, from: &Entry, to: &Path) -> Result<()> {
        let (length, mut answer) = self.inside.read(self.user(), &from.path).await?;
        if to == Path::new(STANDARD) {
            return transfer::to_stdout(&mut answer, Some(length)).await;
        }
        // A file behind a link is replaced, and not the link.
        let to = &to.canonicalize().unwrap_or_else(|_| to.to_owned());
        let failed = || format!("cannot write {}", to.display());
        if to.metadata().is_ok_and(|there| !there.is_file()) {
            // A device or a FIFO is written to, and stays what it is.
            let mut there = fs::OpenOptions::new().write(true).open(to).with_context(failed)?;
            return transfer::copy(&mut answer, Some(length), &mut there).await.map(drop);
        }
        let folder = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A part of a file never has its name.
        let mut file =
            tempfile::Builder::new().permissions(permissions(from.mode)).tempfile_in(folder).with_context(failed)?;
        transfer::copy(&mut answer, Some(length), file.as_file_mut()).await?;
        file.as_file_mut().flush().with_context(failed)?;
        file.persist(to).map_err(|error| error.error).with_context(failed)?;
        Ok(())
    }
}

/// Of a new file: the umask takes some away. A sandbox cannot make set-user-id files here.
fn permissions(mode: u32) -> fs::Permissions {
    let known = if mode == 0 { 0o666 } else { mode };
    fs::Permissions::from_mode(known & 0o777)
}

/// The permissions of files that were copied into a sandbox, if they differ from what new files have there.
#[derive(Debug, Default)]
struct Modes(BTreeMap<u32, Vec<String>>);

impl Modes {
    fn note(&mut self, source: &fs::Metadata, path: String) {
        let mode = source.permissions().mode() & 0o777;
        if mode != NEW_FILE {
            self.0.entry(mode).or_default().push(path);
        }
    }

    /// The API for files knows no permissions, so a command in the sandbox sets them.
    async fn set(&self, inner: &Inner) -> Result<()> {
        for (mode, paths) in &self.0 {
            for paths in paths.chunks(PATHS_AT_ONCE) {
                let mut command = vec!["chmod".to_owned(), format!("{mode:o}"), "--".to_owned()];
                command.extend_from_slice(paths);
                let start = Start { command, user: inner.user.clone(), ..Start::default() };
                run_to_end(&inner.inside, &start)
                    .await
                    .context("the files are copied, and their permissions are not")?;
            }
        }
        Ok(())
    }
}

/// Runs a command that must succeed.
async fn run_to_end(inside: &Inside, start: &Start) -> Result<()> {
    let (_, mut events) = inside.start(start).await?;
    let mut said = Vec::new();
    while let Some(event) = events.next().await? {
        match event {
            Event::Stderr(bytes) => said.extend_from_slice(&bytes),
            Event::Ended(ExitStatus::Code(0)) => return Ok(()),
            _ => {}
        }
    }
    bail!("{} failed: {}", start.command[0], text::one_line(&String::from_utf8_lossy(&said)))
}

/// The rest of a path below a directory. What leads out of it is refused: programs in the sandbox choose names.
fn below<'a>(path: &'a str, directory: &str) -> Option<&'a Path> {
    let rest = path.strip_prefix(directory.trim_end_matches('/'))?.strip_prefix('/')?;
    let rest = Path::new(rest);
    rest.components().all(|part| matches!(part, std::path::Component::Normal(_))).then_some(rest)
}

fn missing(path: &str) -> anyhow::Error {
    exit::missing(format!("there is no {path} in the sandbox"), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_tells_where_a_path_is() {
        let there = |name: &str, path: &str| Ok(Place::There(name.parse().unwrap(), path.to_owned()));
        assert_eq!("web:/a:b".parse(), there("web", "/a:b"));
        assert_eq!("web:".parse(), there("web", "."));
        assert_eq!("./web:a".parse(), Ok(Place::Here("./web:a".into())));
        assert_eq!("-".parse(), Ok(Place::Here("-".into())));
        assert!("".parse::<Place>().is_err() && ":a".parse::<Place>().is_err());
    }

    #[test]
    fn nothing_is_written_beside_the_target() {
        assert_eq!(below("/home/user/a/b", "/home/user/"), Some(Path::new("a/b")));
        assert_eq!(below("/a", "/"), Some(Path::new("a")));
        for wrong in ["/home/user/../x", "/home/users/x", "/etc", "/home/user"] {
            assert_eq!(below(wrong, "/home/user"), None, "{wrong}");
        }
    }
}
