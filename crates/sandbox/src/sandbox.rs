//! A sandbox and its life: created or adopted, used, destroyed.

mod bare;

use std::{
    fs,
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    event::PollFlags,
    fs::{Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid},
};
use serde::{Deserialize, Serialize};

pub use self::bare::Bare;
use crate::{
    cgroup::{Cgroups, Group},
    deadline::Deadline,
    error::{Context, Error},
    hand,
    identity::{ProcessIdentity, stat},
    ids::{self, Ids},
    init::Output,
    launcher::LauncherSlot,
    mount_point::{self, Hides},
    namespaces::Inside,
    program, snapshot,
    spec::{Command, Spec, User, Users},
};

/// Files in which every sandbox differs, below its upper directory; only root of the sandbox can change them.
pub(crate) const IDENTITY_FILES: [&str; 5] =
    ["etc/hostname", "etc/machine-id", "etc/hosts", "run/pando/boot_id", "run/pando/generation"];

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

    /// Of the sandbox in `dir`. Root of the sandbox may have made anything of the files: what is none of these texts is made anew.
    pub fn read(dir: &Path) -> Self {
        let [_, machine_id, _, boot_id, generation] = IDENTITY_FILES;
        let upper = dir.join("upper");
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

/// Copies everything that the sandbox in `dir` changed in its root filesystem to the new directory `dest`, as
/// [`Sandbox::snapshot_upper`] does.
pub fn copy_changes(dir: &Path, dest: &Path) -> Result<(), Error> {
    snapshot::copy(&dir.join("upper"), dest)
}

/// A killed pid 1 is gone within this many milliseconds of its group being empty.
const INIT_EXIT_MS_MAX: u64 = 1_000;

/// A sandbox that exists: its pid 1 was alive when this was made.
pub struct Sandbox {
    dir: PathBuf,
    init: ProcessIdentity,
    init_pidfd: OwnedFd,
    ids: Ids,
    users: Users,
    group: Group,
    launcher: LauncherSlot,
}

impl Sandbox {
    /// Makes a blank sandbox: directory, cgroup, root filesystem, namespaces, pid 1. A failure leaves nothing behind.
    ///
    /// `spec.dir` may exist already; `upper` and `work` in it must not. The caller must be single-threaded.
    pub fn create(spec: &Spec, cgroups: &Cgroups) -> Result<Self, Error> {
        Self::create_as(spec, &Machine::random(), cgroups, None)
    }

    /// As [`Self::create`], for one that has been there before, or whose pid 1 carries its program's output.
    pub fn create_as(
        spec: &Spec,
        machine: &Machine,
        cgroups: &Cgroups,
        output: Option<Output<'_>>,
    ) -> Result<Self, Error> {
        Bare::create(&spec.id, &spec.dir, machine, cgroups)?.furnish(spec, cgroups, output)
    }

    /// Takes over a sandbox that an earlier keeper made; `None` if its pid 1 is not alive any more.
    pub fn adopt(spec: &Spec, init: ProcessIdentity, cgroups: &Cgroups) -> Result<Option<Self>, Error> {
        let Some(pid) = Pid::from_raw(init.pid).filter(|_| init.is_alive()) else { return Ok(None) };
        let init_pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            pidfd => pidfd.doing("open a sandbox's first process")?,
        };
        // Again: only now does the descriptor say that it cannot become another process.
        if !init.is_alive() {
            return Ok(None);
        }
        let (ids, group) = (Ids::of(init)?, Group::open(cgroups, &spec.id, &spec.limits)?);
        let (dir, users, launcher) = (spec.dir.clone(), spec.users, LauncherSlot::default());
        Ok(Some(Self { dir, init, init_pidfd, ids, users, group, launcher }))
    }

    /// Its directory on the host, which outlives it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its pid 1.
    pub fn init(&self) -> ProcessIdentity {
        self.init
    }

    /// Its pid 1, as the way into its namespaces.
    pub fn init_pidfd(&self) -> BorrowedFd<'_> {
        self.init_pidfd.as_fd()
    }

    fn inside(&self) -> Inside<'_> {
        Inside { init: self.init_pidfd(), ids: self.ids, users: self.users }
    }

    /// The directory of its v2 group, for `CLONE_INTO_CGROUP`.
    pub fn cgroup_fd(&self) -> BorrowedFd<'_> {
        self.group.directory()
    }

    /// All its processes, pid 1 included and zombies not, by host pid.
    pub fn processes(&self) -> Result<Vec<i32>, Error> {
        self.group.processes()
    }

    /// Whether it has processes beside pid 1 and its program: commands, and what they have started.
    pub fn has_others(&self, program: i32) -> Result<bool, Error> {
        Ok(self.processes()?.into_iter().any(|pid| pid != self.init.pid && pid != program))
    }

    /// Starts a program; returns its host pid once it was executed. It is a child of the caller, who reaps it.
    ///
    /// Its limits hold from its first instruction. Pipes and terminals among the streams become the program's user's. `beside` is the pidfd of a process
    /// whose monotonic clocks it shares. The caller must be single-threaded, and the sandbox not frozen ([`Error::Frozen`]).
    pub fn spawn(
        &self,
        command: &Command,
        stdio: [BorrowedFd<'_>; 3],
        beside: Option<BorrowedFd<'_>>,
    ) -> Result<i32, Error> {
        let home = program::Home { inside: self.inside(), beside, group: &self.group, launcher: &self.launcher };
        program::start(command, stdio, &home)
    }

    /// Makes the directory `path`, below the sandbox's root, that a filesystem can be attached to. It belongs to the program's user; what is
    /// missing above it belongs to root. An existing one stays as it is. With `Hides::Nothing` it must be empty. The caller must be single-threaded.
    pub fn make_mount_point(&self, path: &Path, hides: Hides) -> Result<(), Error> {
        mount_point::make(self.inside(), path, hides)
    }

    /// Attaches `mount`, which is attached nowhere, to the directory `path` below the sandbox's root: its programs see it from then on, also
    /// those that run, and nobody else does. It goes with the sandbox's last process. The caller must be single-threaded.
    pub fn attach(&self, mount: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
        mount_point::attach(self.inside(), mount, path)
    }

    /// Starts a process that does `serve` with `socket`, on the files of the sandbox, as `user`; returns its pid. It is a child of the
    /// caller, who reaps it, and keeps the sandbox's mounts alive until it ends: end it before [`Self::destroy`]. The caller must be
    /// single-threaded.
    pub fn start_hand(&self, user: &User, socket: OwnedFd, serve: impl FnOnce(OwnedFd) -> i32) -> Result<i32, Error> {
        hand::start(self.inside(), user, socket, serve)
    }

    /// Makes the limits hold on a host whose controllers are in v1: moves all processes into the v1 groups. The first move
    /// waits for an RCU grace period, some 5 to 15 ms, during which nobody can fork; more right behind it do not. Processes that are born later are born
    /// there, and so are those of [`Self::spawn`]. Copies of zygotes are not: call it after each.
    pub fn bind_limits(&self) -> Result<(), Error> {
        self.group.bind()
    }

    /// Stops all processes; returns when they stand still.
    pub fn freeze(&self) -> Result<(), Error> {
        self.group.freeze()
    }

    /// Lets them go on.
    pub fn thaw(&self) -> Result<(), Error> {
        self.group.thaw()
    }

    /// Kills all processes, pid 1 included; does not wait.
    pub fn kill(&self) -> Result<(), Error> {
        self.group.kill()
    }

    /// Whether nothing of a killed sandbox is left to wait for: then [`Self::destroy`] does not block.
    pub fn has_ended(&self) -> Result<bool, Error> {
        let now = Deadline::after_ms(0);
        if now.poll(self.init_pidfd(), PollFlags::IN).doing("look at a sandbox's first process")? {
            return Ok(true);
        }
        // The kernel ends pid 1 only when all processes of its namespace are reaped. Where that is somebody else's duty
        // it may take seconds, in which nothing of the sandbox is left but their entries in the process table.
        Ok(!self.init_is_child()? && self.group.is_empty()?)
    }

    /// Kills all processes, waits until they are gone and removes the groups. The directory stays: its files may be many,
    /// so the caller removes it ([`crate::remove_directory`]) where nobody waits for that.
    ///
    /// Programs that are children of the caller stay for it to reap, and pid 1 after them (the kernel ends a pid
    /// namespace's init last); without such programs pid 1 is reaped here.
    pub fn destroy(self) -> Result<(), Error> {
        let own = std::process::id() as i32;
        let programs = self.group.processes()?.into_iter().filter(|pid| *pid != self.init.pid);
        let reaped_by_caller = programs.into_iter().any(|pid| stat(pid).is_some_and(|stat| stat.parent() == own));
        self.group.kill()?;
        // It is in the v1 groups, which are removed.
        self.launcher.end();
        self.group.wait_empty()?;
        ids::release(self.ids, self.init);
        self.group.remove()?;
        if reaped_by_caller || !self.init_is_child()? {
            return Ok(());
        }
        let deadline = Deadline::after_ms(INIT_EXIT_MS_MAX);
        deadline.poll(self.init_pidfd(), PollFlags::IN).doing("wait for a sandbox's first process")?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        waitid(WaitId::PidFd(self.init_pidfd()), options).map(drop).doing("reap a sandbox's first process")
    }

    /// An adopted sandbox's pid 1 is the child of somebody else, who reaps it.
    fn init_is_child(&self) -> Result<bool, Error> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::PidFd(self.init_pidfd()), look) {
            Ok(_) => Ok(true),
            Err(Errno::CHILD) => Ok(false),
            Err(error) => Err(error).doing("look at a sandbox's first process"),
        }
    }

    /// Copies everything that the sandbox changed in its root filesystem to the new directory `dest`, as an overlay
    /// layer. The caller keeps the sandbox frozen if the copy has to be of one moment.
    pub fn snapshot_upper(&self, dest: &Path) -> Result<(), Error> {
        copy_changes(&self.dir, dest)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn an_identity_that_is_none_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        fs::create_dir_all(upper.join("etc")).unwrap();
        fs::create_dir_all(upper.join("run/pando")).unwrap();
        let machine = Machine::random();
        let [_, machine_id, _, boot_id, generation] = IDENTITY_FILES;
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
