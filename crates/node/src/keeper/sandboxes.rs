//! The keeper's sandboxes: create, adopt, spawn into, dial, destroy.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use base::id::SandboxId;
use sandbox::{Cgroups, ProcessIdentity, Sandbox};

use super::{
    children::{Children, Role, is_readable, pid_namespace},
    message::Reply,
};

/// How long a killed sandbox's programs may take to end before it is removed without waiting for them:
/// a process in an uninterruptible wait must not keep the request for ever.
const DYING_MAX: Duration = Duration::from_secs(5);

/// Each takes some milliseconds of control groups and files.
const REMOVALS_AT_ONCE: usize = 2;

/// A sandbox whose processes were killed and are being waited for.
#[derive(Debug)]
struct Dying {
    seq: u64,
    id: SandboxId,
    /// Its pid namespace.
    namespace: Option<PathBuf>,
    deadline: Instant,
}

/// All sandboxes of this keeper.
pub(super) struct Sandboxes {
    cgroups: Cgroups,
    by_id: HashMap<SandboxId, Sandbox>,
    dying: Vec<Dying>,
}

impl Sandboxes {
    pub(super) fn new(cgroups: Cgroups) -> Self {
        Self { cgroups, by_id: HashMap::new(), dying: Vec::new() }
    }

    pub(super) fn get(&self, id: &SandboxId) -> Option<&Sandbox> {
        self.by_id.get(id)
    }

    /// Whether `pid` is the pid 1 of a sandbox.
    pub(super) fn is_init(&self, pid: i32) -> bool {
        self.by_id.values().any(|sandbox| sandbox.init().pid == pid)
    }

    pub(super) fn create(&mut self, spec: &sandbox::Spec) -> Reply {
        match Sandbox::create(spec, &self.cgroups) {
            Ok(sandbox) => {
                let init = sandbox.init();
                self.by_id.insert(spec.id.clone(), sandbox);
                Reply::Created { init }
            }
            Err(error) => Reply::failed(&error),
        }
    }

    pub(super) fn adopt(
        &mut self,
        spec: &sandbox::Spec,
        init: ProcessIdentity,
        main: Option<ProcessIdentity>,
        children: &mut Children,
    ) -> Reply {
        let sandbox = match Sandbox::adopt(spec, init, &self.cgroups) {
            Ok(Some(sandbox)) => sandbox,
            Ok(None) => return Reply::Adopted { alive: false, main_alive: false },
            Err(error) => return Reply::failed(&error),
        };
        self.by_id.insert(spec.id.clone(), sandbox);
        // Watch first, then compare identities: the other order could watch a process that took over the number.
        let main_alive = main.is_some_and(|main| {
            let role = Role::Program { id: spec.id.clone(), main: true };
            main.is_alive() && children.watch(main.pid, role).is_ok() && main.is_alive()
        });
        Reply::Adopted { alive: true, main_alive }
    }

    pub(super) fn spawn(
        &self,
        id: &SandboxId,
        command: &sandbox::Command,
        main: bool,
        stdio: &[OwnedFd; 3],
        children: &mut Children,
    ) -> Reply {
        let Some(sandbox) = self.by_id.get(id) else { return Reply::no_sandbox(id) };
        let [stdin, stdout, stderr] = stdio;
        let pid = match sandbox.spawn(command, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]) {
            Ok(pid) => pid,
            Err(error) => return Reply::failed(&error),
        };
        // Until it is reaped, which only we can do, the number cannot be taken over by another process.
        let watched = children.watch(pid, Role::Program { id: id.clone(), main });
        match (watched, super::identity(pid)) {
            (Ok(_), Ok(identity)) => Reply::Spawned { pid: identity },
            (Err(error), _) | (_, Err(error)) => Reply::failed(&error),
        }
    }

    pub(super) fn dial(&self, id: &SandboxId, port: u16) -> (Reply, Option<OwnedFd>) {
        match self.by_id.get(id).map(|sandbox| sandbox.dial(port)) {
            Some(Ok(socket)) => (Reply::Dialed, Some(socket)),
            Some(Err(error)) => (Reply::failed(&error), None),
            None => (Reply::no_sandbox(id), None),
        }
    }

    /// Binds the limits of those that are there; the rest have been removed meanwhile.
    pub(super) fn bind_limits(&self, ids: &[SandboxId]) -> Reply {
        let mut failed = None;
        for sandbox in ids.iter().filter_map(|id| self.by_id.get(id)) {
            if let Err(error) = sandbox.bind_limits() {
                failed.get_or_insert_with(|| Reply::failed(&error));
            }
        }
        failed.unwrap_or(Reply::Done)
    }

    /// Kills the sandbox; [`Self::finish_dying`] answers `seq` when its programs have ended, so that many die side by side.
    pub(super) fn destroy(&mut self, seq: u64, id: SandboxId) -> Option<Reply> {
        let Some(sandbox) = self.by_id.get(&id) else { return Some(Reply::no_sandbox(&id)) };
        if let Err(error) = sandbox.kill() {
            return Some(Reply::failed(&error));
        }
        let namespace = pid_namespace(sandbox.init().pid);
        self.dying.push(Dying { seq, id, namespace, deadline: Instant::now() + DYING_MAX });
        None
    }

    /// Whether some sandbox is being waited for.
    pub(super) fn any_dying(&self) -> bool {
        !self.dying.is_empty()
    }

    /// Removes killed sandboxes whose processes have ended; a few at a time, so that starts are not kept waiting.
    ///
    /// The order matters: pid 1 cannot end before every process of its pid namespace is reaped, and the programs'
    /// parent is the keeper, so waiting for pid 1 first would wait for ourselves. The programs of an adopted sandbox
    /// are reaped by someone else, who may take his time: the others do not wait for that.
    pub(super) fn finish_dying(&mut self, children: &Children) -> Vec<(u64, Reply)> {
        if self.dying.is_empty() {
            return Vec::new();
        }
        self.reap_strays(children);
        let (now, with_programs) = (Instant::now(), children.with_programs());
        let mut waiting = std::mem::take(&mut self.dying);
        let ended = |dying: &mut Dying| {
            now >= dying.deadline || (!with_programs.contains(&dying.id) && self.init_ended(&dying.id))
        };
        let ready: Vec<Dying> = waiting.extract_if(.., ended).take(REMOVALS_AT_ONCE).collect();
        self.dying = waiting;
        ready.into_iter().map(|dying| (dying.seq, self.remove(&dying.id))).collect()
    }

    fn reap_strays(&self, children: &Children) {
        let waiting = self.dying.iter().filter(|dying| !self.init_ended(&dying.id));
        let namespaces: HashSet<PathBuf> = waiting.filter_map(|dying| dying.namespace.clone()).collect();
        if !namespaces.is_empty() {
            let inits: HashSet<i32> = self.by_id.values().map(|sandbox| sandbox.init().pid).collect();
            children.reap_strays_in(&namespaces, |pid| inits.contains(&pid));
        }
    }

    fn init_ended(&self, id: &SandboxId) -> bool {
        self.by_id.get(id).is_none_or(|sandbox| is_readable(sandbox.init_pidfd()))
    }

    fn remove(&mut self, id: &SandboxId) -> Reply {
        match self.by_id.remove(id).map(Sandbox::destroy) {
            Some(Ok(())) => Reply::Done,
            Some(Err(error)) => Reply::failed(&error),
            None => Reply::no_sandbox(id),
        }
    }
}
