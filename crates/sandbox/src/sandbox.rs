//! A sandbox and its life: created or adopted, used, destroyed.

mod bare;

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use procfs::{ProcessIdentity, Stat};
use rustix::{
    event::PollFlags,
    io::Errno,
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid},
};

pub use self::bare::Bare;
use crate::{
    cgroup::{Cgroups, Group},
    changes::Capture,
    deadline::Deadline,
    error::{Context, Error},
    hand,
    ids::{self, Ids},
    init::Output,
    launcher::LauncherSlot,
    machine::Machine,
    mount_point::{self, Hides},
    namespaces::Inside,
    processors::Processors,
    program,
    spec::{Command, Spec, User, Users},
};

/// A killed pid 1 is gone within this many milliseconds of its group being empty.
const INIT_EXIT_MS_MAX: u64 = 1_000;

/// A sandbox that exists: its pid 1 was alive when this was made.
pub struct Sandbox {
    dir: PathBuf,
    changes: PathBuf,
    init: ProcessIdentity,
    init_pidfd: OwnedFd,
    ids: Ids,
    users: Users,
    processors: Option<Processors>,
    group: Group,
    launcher: LauncherSlot,
}

impl Sandbox {
    /// Makes a blank sandbox: directory, cgroup, root filesystem, namespaces, pid 1. A failure leaves nothing behind.
    ///
    /// `spec.dir` may exist already, `spec.changes` only if it is the same; `upper` and `work` in it must not. The caller must be single-threaded.
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
        Bare::create(&spec.id, &spec.dir, cgroups)?.furnish(spec, machine, cgroups, output)
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
        let (dir, changes, users) = (spec.dir.clone(), spec.changes.clone(), spec.users);
        let (processors, launcher) = (Processors::of(&spec.id, &spec.limits), LauncherSlot::default());
        Ok(Some(Self { dir, changes, init, init_pidfd, ids, users, processors, group, launcher }))
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
        Inside { init: self.init_pidfd(), ids: self.ids, users: self.users, processors: self.processors }
    }

    /// The directory of its v2 group, for `CLONE_INTO_CGROUP`.
    pub fn cgroup_fd(&self) -> BorrowedFd<'_> {
        self.group.directory()
    }

    /// All its processes, pid 1 included and zombies not, by host pid.
    pub fn processes(&self) -> Result<Vec<i32>, Error> {
        self.group.processes()
    }

    /// Whether it has processes beside pid 1 and its `program`: commands, and what they have started.
    pub fn has_others(&self, program: &[i32]) -> Result<bool, Error> {
        Ok(self.processes()?.into_iter().any(|pid| pid != self.init.pid && !program.contains(&pid)))
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
    ///
    /// It also binds copies to this sandbox's processors: until then they run on as many, those of their source.
    pub fn bind_limits(&self) -> Result<(), Error> {
        if let Some(processors) = self.processors {
            self.processes()?.into_iter().for_each(|process| processors.bind(process));
        }
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
        let reaped_by_caller =
            programs.into_iter().any(|pid| Stat::read(&pid.to_string()).is_ok_and(|stat| stat.parent() == own));
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

    /// Prepares the capture of everything that it changed in its root filesystem, as an overlay layer. The caller keeps it frozen when the capture is
    /// finished, if it has to be of one moment.
    pub fn capture_changes(&self, layer: &Path) -> Result<Capture, Error> {
        // Those of a group that cannot be read are not there.
        Capture::prepare(&self.changes, layer, &|| self.processes().unwrap_or_default())
    }
}
