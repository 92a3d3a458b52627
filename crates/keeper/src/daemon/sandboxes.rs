//! The keeper's sandboxes: create, adopt, spawn into, destroy.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base::id::SandboxId;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sandbox::{Bare, Cgroups, Machine, ProcessIdentity, Sandbox};

use super::answer::{Answer, Ticket};
use super::children::{Children, Role, pid_namespace};
use crate::protocol::{Adopted, Created, Failed, Forked, MakeMountPoints, Spawn, StartHand};

/// How long the processes of a killed sandbox may take to end. After that the removal fails, and the server waits on its own: a process in an
/// uninterruptible wait must not delay other requests.
const DYING_MAX: Duration = Duration::from_secs(5);

/// Sandboxes removed at a time. Removing the control groups of each takes up to several milliseconds.
const REMOVALS_AT_ONCE: usize = 2;

/// The progress of the removals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dying {
    /// There are none.
    None,
    /// All wait for processes to end.
    Waiting,
    /// More sandboxes may have ended than were removed at once.
    Ready,
}

/// A sandbox whose processes were killed but may not have ended.
#[derive(Debug)]
struct Killed {
    ticket: Ticket<()>,
    id: SandboxId,
    /// Its pid namespace.
    namespace: Option<PathBuf>,
    deadline: Instant,
}

/// All sandboxes of this keeper.
pub(super) struct Sandboxes {
    cgroups: Cgroups,
    by_id: HashMap<SandboxId, Sandbox>,
    /// Sandboxes without a root filesystem.
    bare: HashMap<SandboxId, Bare>,
    killed: Vec<Killed>,
    dying: Dying,
}

impl Sandboxes {
    pub(super) fn new(cgroups: Cgroups) -> Self {
        Self { cgroups, by_id: HashMap::new(), bare: HashMap::new(), killed: Vec::new(), dying: Dying::None }
    }

    pub(super) fn get(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.by_id.get(id)
    }

    /// Whether `pid` is the pid 1 of a sandbox.
    pub(super) fn is_init(&self, pid: i32) -> bool {
        let bare = self.bare.values().map(Bare::init);
        self.by_id.values().map(Sandbox::init).chain(bare).any(|init| init.pid == pid)
    }

    pub(super) fn create(
        &mut self,
        spec: &sandbox::Spec,
        machine: Option<Machine>,
        output: &[OwnedFd; 2],
    ) -> Result<Created, Failed> {
        let machine = machine.unwrap_or_else(Machine::random);
        let created = Sandbox::create_as(spec, &machine, &self.cgroups, Some(self::output(output)));
        self.take_in(spec, created)
    }

    pub(super) fn create_bare(&mut self, id: &SandboxId, dir: &Path) -> Result<Created, Failed> {
        match Bare::create(id, dir, &self.cgroups) {
            Ok(bare) => {
                let init = bare.init();
                self.bare.insert(id.clone(), bare);
                Ok(Created { init })
            }
            Err(error) => Err(Failed::of(&error)),
        }
    }

    pub(super) fn furnish(&mut self, spec: &sandbox::Spec, output: &[OwnedFd; 2]) -> Result<Created, Failed> {
        let Some(bare) = self.bare.remove(&spec.id) else { return Err(Failed::no_sandbox(&spec.id)) };
        let furnished = bare.furnish(spec, &Machine::random(), &self.cgroups, Some(self::output(output)));
        self.take_in(spec, furnished)
    }

    fn take_in(&mut self, spec: &sandbox::Spec, made: Result<Sandbox, sandbox::Error>) -> Result<Created, Failed> {
        match made {
            Ok(sandbox) => {
                let init = sandbox.init();
                self.by_id.insert(spec.id.clone(), sandbox);
                Ok(Created { init })
            }
            Err(error) => Err(Failed::of(&error)),
        }
    }

    pub(super) fn adopt(
        &mut self,
        spec: &sandbox::Spec,
        init: ProcessIdentity,
        main: Option<ProcessIdentity>,
        children: &mut Children,
    ) -> Result<Adopted, Failed> {
        let sandbox = match Sandbox::adopt(spec, init, &self.cgroups) {
            Ok(Some(sandbox)) => sandbox,
            Ok(None) => return Ok(Adopted::Gone),
            Err(error) => return Err(Failed::of(&error)),
        };
        self.by_id.insert(spec.id.clone(), sandbox);
        // Watch first, then compare identities: in the other order, another process could have taken over the pid.
        let main_alive = main.is_some_and(|main| {
            let role = Role::Program { id: spec.id.clone(), main: true };
            main.is_alive() && children.watch(main.pid, role).is_ok() && main.is_alive()
        });
        Ok(if main_alive { Adopted::WithProgram } else { Adopted::WithoutProgram })
    }

    pub(super) fn spawn(
        &self,
        Spawn { sandbox: id, command, main }: &Spawn,
        [stdin, stdout, stderr]: &[OwnedFd; 3],
        children: &mut Children,
    ) -> Result<(Forked, OwnedFd), Failed> {
        let sandbox = self.by_id.get(id).ok_or_else(|| Failed::no_sandbox(id))?;
        let program = children.program_of(id);
        let pid = sandbox.spawn(command, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()], program);
        let pid = pid.map_err(|error| Failed::not_spawned(&error))?;
        // Only the keeper can reap it: until then no other process gets its pid.
        let watched = children.watch(pid, Role::Program { id: id.clone(), main: *main });
        let process = watched.and_then(|_| super::identity(pid)).map_err(|error| Failed::of(&error))?;
        let number = Pid::from_raw(pid).ok_or_else(|| Failed::step("it has no pid"))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|error| Failed::of(&error))?;
        Ok((Forked::alone(process, pid_inside(pid)), pidfd))
    }

    /// Starts a hand. Its end is reported as that of a command.
    pub(super) fn start_hand(
        &self,
        StartHand { sandbox: id, user }: &StartHand,
        socket: OwnedFd,
        children: &mut Children,
    ) -> Result<Forked, Failed> {
        // One that is being removed has lost its hands: another one would hold its mounts.
        let dies = self.killed.iter().any(|killed| killed.id == *id);
        let sandbox = self.by_id.get(id).filter(|_| !dies).ok_or_else(|| Failed::no_sandbox(id))?;
        let pid = sandbox.start_hand(user, socket, hands::serve::run).map_err(|error| Failed::of(&error))?;
        // The keeper is its parent and reaps it later: until then no other process gets its pid.
        let watched = children.watch(pid, Role::Hand(id.clone()));
        let process = watched.and_then(|_| super::identity(pid)).map_err(|error| Failed::of(&error))?;
        Ok(Forked::alone(process, 0))
    }

    pub(super) fn make_mount_points(
        &self,
        MakeMountPoints { sandbox, paths, hides }: &MakeMountPoints,
    ) -> Result<(), Failed> {
        let make =
            |sandbox: &Sandbox| paths.iter().try_for_each(|path| sandbox.make_mount_point(Path::new(path), *hides));
        self.with(sandbox, make)
    }

    pub(super) fn attach(&self, id: &SandboxId, paths: &[String], mounts: &[OwnedFd]) -> Result<(), Failed> {
        if paths.len() != mounts.len() {
            return Err(Failed::step("the request came without its files"));
        }
        self.with(id, |sandbox| {
            paths.iter().zip(mounts).try_for_each(|(path, mount)| sandbox.attach(mount.as_fd(), Path::new(path)))
        })
    }

    pub(super) fn thaw(&self, id: &SandboxId) -> Result<(), Failed> {
        self.with(id, Sandbox::thaw)
    }

    /// Works on a sandbox, if the keeper has it.
    fn with(&self, id: &SandboxId, work: impl FnOnce(&Sandbox) -> Result<(), sandbox::Error>) -> Result<(), Failed> {
        let sandbox = self.by_id.get(id).ok_or_else(|| Failed::no_sandbox(id))?;
        work(sandbox).map_err(|error| Failed::of(&error))
    }

    /// Binds the limits of the sandboxes that still exist. The first failure is reported after all were tried.
    pub(super) fn bind_limits(&self, ids: &[SandboxId]) -> Result<(), Failed> {
        let mut bound = Ok(());
        for sandbox in ids.iter().filter_map(|id| self.by_id.get(id)) {
            bound = bound.and(sandbox.bind_limits());
        }
        bound.map_err(|error| Failed::of(&error))
    }

    /// Kills the sandbox. [`Self::finish_dying`] answers when its programs have ended, so that many sandboxes die side by side.
    pub(super) fn destroy(&mut self, ticket: Ticket<()>, id: SandboxId) -> Vec<Answer> {
        if let Some(bare) = self.bare.remove(&id) {
            self.by_id.insert(id.clone(), bare.give_up());
        }
        let Some(sandbox) = self.by_id.get(&id) else { return vec![ticket.fail(Failed::no_sandbox(&id))] };
        if let Err(error) = sandbox.kill() {
            return vec![ticket.fail(Failed::of(&error))];
        }
        let namespace = pid_namespace(sandbox.init().pid);
        self.killed.push(Killed { ticket, id, namespace, deadline: Instant::now() + DYING_MAX });
        self.dying = Dying::Ready;
        Vec::new()
    }

    /// The progress of the removals.
    pub(super) fn dying(&self) -> Dying {
        self.dying
    }

    /// Removes killed sandboxes whose processes have ended. It removes a few at a time: starts must not wait.
    ///
    /// The keeper reaps the programs before it waits for pid 1. The kernel ends pid 1 only after every process of its pid namespace was reaped, and
    /// the keeper is the parent of the programs.
    pub(super) fn finish_dying(&mut self, children: &Children) -> Vec<Answer> {
        if self.killed.is_empty() {
            return Vec::new();
        }
        self.reap_strays(children);
        let (now, with_programs) = (Instant::now(), children.with_programs());
        let mut waiting = std::mem::take(&mut self.killed);
        let ended = |killed: &mut Killed| {
            now >= killed.deadline || (!with_programs.contains(&killed.id) && self.has_ended(&killed.id))
        };
        let ready: Vec<Killed> = waiting.extract_if(.., ended).take(REMOVALS_AT_ONCE).collect();
        self.dying = match (waiting.len(), ready.len()) {
            (0, _) => Dying::None,
            (_, REMOVALS_AT_ONCE) => Dying::Ready,
            (_, _) => Dying::Waiting,
        };
        self.killed = waiting;
        ready.into_iter().map(|killed| killed.ticket.answer(self.remove(&killed.id))).collect()
    }

    fn reap_strays(&self, children: &Children) {
        let waiting = self.killed.iter().filter(|killed| !self.has_ended(&killed.id));
        let namespaces: HashSet<PathBuf> = waiting.filter_map(|killed| killed.namespace.clone()).collect();
        if !namespaces.is_empty() {
            let inits: HashSet<i32> = self.by_id.values().map(|sandbox| sandbox.init().pid).collect();
            children.reap_strays_in(&namespaces, |pid| inits.contains(&pid));
        }
    }

    /// A sandbox that cannot be examined counts as ended. Its removal then reports the error.
    fn has_ended(&self, id: &SandboxId) -> bool {
        self.by_id.get(id).is_none_or(|sandbox| sandbox.has_ended().unwrap_or(true))
    }

    fn remove(&mut self, id: &SandboxId) -> Result<(), Failed> {
        let ended = self.has_ended(id);
        let sandbox = self.by_id.remove(id).ok_or_else(|| Failed::no_sandbox(id))?;
        if !ended {
            let seconds = DYING_MAX.as_secs();
            return Err(Failed::step(format!("its processes did not end within {seconds} s of being killed")));
        }
        sandbox.destroy().map_err(|error| Failed::of(&error))
    }
}

/// The pid of a process, or of a zombie, in its own pid namespace; 0: unknown.
fn pid_inside(pid: i32) -> i32 {
    let status = procfs::Fields::read(format!("/proc/{pid}/status"));
    status.ok().and_then(|status| status.get("NSpid")?.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(0)
}

fn output([pipe, file]: &[OwnedFd; 2]) -> sandbox::Output<'_> {
    sandbox::Output { pipe: pipe.as_fd(), file: file.as_fd() }
}
