//! What makes each sandbox a machine of its own, also after the fork of a program that has read another's: its name and its ids, in files.

use std::{
    fs,
    io::{Read, Write},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, fchmod, mkdirat, open, openat, openat2, unlinkat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{
    attributes::open_dir,
    changes::UPPER,
    error::{Context, Error},
    rootfs::place_of,
    spec::Spec,
    view,
};

/// Files in which every sandbox differs, below its upper directory; only root of the sandbox can change them.
pub(crate) const IDENTITY_FILES: [&str; 8] = [
    "etc/hostname",
    "etc/machine-id",
    "etc/hosts",
    "run/pando/boot_id",
    "run/pando/generation",
    view::FILES[0].0,
    view::FILES[1].0,
    view::FILES[2].0,
];

/// The directories of these, likewise: each sandbox has them of its own, so that its own attributes show.
pub(crate) const IDENTITY_DIRECTORIES: [&str; 3] = ["etc", "run", "run/pando"];

/// Whether `path`, below an upper directory, is one of these.
pub(crate) fn is_one_of(paths: &[&str], path: &[u8]) -> bool {
    paths.iter().any(|own| own.as_bytes() == path)
}

/// What a sandbox is known by beside its id: one that goes on elsewhere keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Content of `/etc/machine-id`.
    pub machine_id: String,
    /// Content of `/run/pando/boot_id`.
    pub boot_id: String,
    /// Content of `/run/pando/generation`.
    pub generation: String,
}

impl Machine {
    /// One that nobody else is.
    pub fn random() -> Self {
        let line = |text: String| format!("{text}\n");
        Self {
            machine_id: line(base::id::random_uuid().replace('-', "")),
            boot_id: line(base::id::random_uuid()),
            generation: line(base::id::random_uuid()),
        }
    }

    /// The same machine, booted anew.
    pub fn rebooted(self) -> Self {
        Self { boot_id: Self::random().boot_id, ..self }
    }

    /// Of the sandbox with these changes. Root of the sandbox may have made anything of the files: what is none of these texts is made anew.
    pub fn read(changes: &Path) -> Self {
        let [_, machine_id, _, boot_id, generation, ..] = IDENTITY_FILES;
        let upper = changes.join(UPPER);
        let other = Self::random();
        let read = |file: &str, other: String| line_of(&upper, file, other.len()).unwrap_or(other);
        Self {
            machine_id: read(machine_id, other.machine_id),
            boot_id: read(boot_id, other.boot_id),
            generation: read(generation, other.generation),
        }
    }
}

/// The content of a file below `root` that is a line of so many bytes of hexadecimal digits and `-`. No link is followed, and nothing waited for.
fn line_of(root: &Path, file: &str, bytes: usize) -> Option<String> {
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = fs::File::from(openat2(root, file, flags, Mode::empty(), resolve).ok()?);
    file.metadata().ok().filter(|found| found.is_file() && found.len() == bytes as u64)?;
    let mut text = String::new();
    file.take(bytes as u64).read_to_string(&mut text).ok()?;
    let digits = text.strip_suffix('\n')?;
    let is_line = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    (is_line && text.len() == bytes).then_some(text)
}

/// Makes the sandbox whose upper directory this is `machine`, with the id, limits and DNS server of `spec`. It may be another one's, whose root may have made anything of the
/// files and of the directories they are in: where it has put something else in a directory's place, that stays, and nothing is written.
pub(crate) fn write(upper: &Path, spec: &Spec, machine: &Machine) -> Result<(), Error> {
    let id = &spec.id;
    let hosts = format!("127.0.0.1 localhost {id}\n::1 localhost ip6-localhost ip6-loopback\n");
    let name = format!("{id}\n");
    let identity = [&name, &machine.machine_id, &hosts, &machine.boot_id, &machine.generation];
    let views = view::contents(&spec.limits);
    let contents = identity.into_iter().map(Some).chain(views.iter().map(Option::as_ref));
    let root = open_dir(CWD, upper).at("open", upper)?;
    // Where an image has a link in their place, a directory there would hide all that it leads to.
    let tops = ["etc", "run"].map(|top| (top, place_of(&spec.layers, top)));
    for (file, content) in IDENTITY_FILES.into_iter().zip(contents) {
        let moved = tops.iter().find_map(|(top, place)| Some(place.join(file.strip_prefix(top)?.strip_prefix('/')?)));
        let place = moved.as_deref().and_then(Path::to_str).unwrap_or(file);
        replace(&root, place, content.map(String::as_str)).at("write", &upper.join(place))?;
    }
    let [(_, etc), _] = tops;
    let resolver = upper.join(etc).join("resolv.conf");
    match (spec.dns, resolver.strip_prefix(upper).ok().and_then(Path::to_str)) {
        // One that it has changed, or its source has, stays.
        (Some(server), Some(place)) if resolver.symlink_metadata().is_err() => {
            replace(&root, place, Some(&format!("nameserver {server}\n"))).at("write", &resolver)
        }
        (Some(_) | None, _) => Ok(()),
    }
}

/// Without a content there is no such file.
fn replace(root: &OwnedFd, file: &str, content: Option<&str>) -> std::io::Result<()> {
    let (directories, name) = file.rsplit_once('/').unwrap_or(("", file));
    let mut directory = rustix::io::dup(root)?;
    for part in directories.split('/').filter(|part| !part.is_empty()) {
        let is_new = match mkdirat(&directory, part, Mode::RWXU) {
            Err(Errno::EXIST) => false,
            made => made.map(|()| true)?,
        };
        directory = match open_dir(&directory, part) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            opened => opened?,
        };
        if is_new {
            // Not by mkdir's mode: the caller's umask must not decide what a sandbox can read.
            fchmod(&directory, Mode::from_raw_mode(0o755))?;
        }
    }
    match unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(Errno::ISDIR) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let Some(content) = content else { return Ok(()) };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = fs::File::from(openat(&directory, name, flags, Mode::RUSR)?);
    file.write_all(content.as_bytes())?;
    Ok(fchmod(&file, Mode::from_raw_mode(0o444))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use base::id::SandboxId;

    use super::*;
    use crate::spec::{Limits, Users};

    #[test]
    fn an_identity_replaces_files_only_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::random();
        let spec = Spec {
            id: SandboxId::random(),
            dir: dir.path().to_owned(),
            changes: dir.path().to_owned(),
            from: None,
            layers: Vec::new(),
            limits: Limits { memory_bytes: 1 << 30, pids: 10, cpu_millis: None, disk_bytes: None },
            users: Users::All,
            dns: None,
        };
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("machine-id"), "the host's").unwrap();
        let upper = dir.path().join(UPPER);
        let [_, machine_id, _, boot_id, ..] = IDENTITY_FILES;
        // Links, also to a directory outside; a directory in a file's place; a file in a directory's place.
        fs::create_dir_all(upper.join("etc")).unwrap();
        symlink(outside.join("machine-id"), upper.join(machine_id)).unwrap();
        fs::create_dir(upper.join("etc/hostname")).unwrap();
        symlink(&outside, upper.join("run")).unwrap();
        write(&upper, &spec, &machine).unwrap();
        assert_eq!(fs::read_to_string(upper.join(machine_id)).unwrap(), machine.machine_id);
        assert!(upper.join("etc/hostname").is_dir() && upper.join("run").is_symlink());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "something was made outside");
        fs::remove_file(upper.join("run")).unwrap();
        fs::write(upper.join("run"), "a file").unwrap();
        write(&upper, &spec, &machine).unwrap();
        assert_eq!(fs::read_to_string(upper.join("run")).unwrap(), "a file");
        fs::remove_file(upper.join("run")).unwrap();
        write(&upper, &spec, &machine).unwrap();
        assert_eq!(fs::read_to_string(upper.join(boot_id)).unwrap(), machine.boot_id);
        assert_eq!(fs::read_to_string(outside.join("machine-id")).unwrap(), "the host's");
    }

    #[test]
    fn an_identity_that_is_none_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        fs::create_dir_all(upper.join("etc")).unwrap();
        fs::create_dir_all(upper.join("run/pando")).unwrap();
        let machine = Machine::random();
        let [_, machine_id, _, boot_id, generation, ..] = IDENTITY_FILES;
        let write = || {
            fs::write(upper.join(machine_id), &machine.machine_id).unwrap();
            fs::write(upper.join(boot_id), &machine.boot_id).unwrap();
            fs::write(upper.join(generation), &machine.generation).unwrap();
        };
        write();
        assert_eq!(Machine::read(dir.path()), machine);
        // Links to a secret outside, a pipe, an endless file, a directory, a text that is too long, none at all.
        let secret = dir.path().join("secret");
        fs::write(&secret, &machine.machine_id).unwrap();
        let pipe = |path: &Path| rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        let changes: [&dyn Fn(&Path); 6] = [
            &|path| symlink(&secret, path).unwrap(),
            &|path| pipe(path),
            &|path| symlink("/dev/zero", path).unwrap(),
            &|path| fs::create_dir(path).unwrap(),
            &|path| fs::write(path, format!("{}x", machine.machine_id)).unwrap(),
            &|_| {},
        ];
        for change in changes {
            let path = upper.join(machine_id);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            change(&path);
            let read = Machine::read(dir.path());
            assert_ne!(read.machine_id, machine.machine_id);
            assert_eq!((read.machine_id.len(), read.boot_id), (33, machine.boot_id.clone()));
        }
        fs::remove_dir_all(upper.join("run")).unwrap();
        fs::rename(upper.join("etc"), dir.path().join("etc")).unwrap();
        symlink(dir.path().join("etc"), upper.join("etc")).unwrap();
        assert_eq!(Machine::read(dir.path()).boot_id.len(), 37);
    }
}
