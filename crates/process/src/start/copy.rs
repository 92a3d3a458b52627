//! What each process of a copy does: its threads come to life, give up their privileges and go on in the program together.

use base::limits::ROOT_CAPABILITIES;
use sys::{namespace::CLOCK_TEXT_BYTES, xstate};

use super::{
    AT_ONCE, CLONE_ARGS_BYTES, CloneArgs, FIRST_STREAM, Mailbox, PARKED, Transit, attributes,
    carried::{memory_attributes, queue_own, queue_signal, scheduling, thread_attributes, timers},
    clocks, clone_args, is_set_last, is_set_late, set_limit,
};
use crate::{
    image::{Member, ProgramImage, ProtectionKeys, Thread, Tree, attachments},
    script::{Arena, Check, Script, sigframe},
    start::{
        descend::{self, Family},
        files, jobs, kind, memory_files, seal, system_v, terminal, working_set,
    },
};

const ARCH_SET_FS: i32 = 0x1002;
const SECCOMP_SET_MODE_FILTER: i32 = 1;
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;

/// Words through which the threads of a copy wait for each other.
struct Gates {
    /// Threads that have not dropped their privileges.
    arriving: u64,
    /// 1 until all may go on.
    closed: u64,
}

/// What the scripts of a copy's processes are placed with.
#[derive(Clone, Copy)]
pub(super) struct Copy<'a> {
    pub(super) tree: &'a Tree,
    pub(super) seccomp: &'a [u64],
    pub(super) transit: Transit,
    pub(super) mailbox: &'a Mailbox,
    pub(super) working_set: u64,
    /// The page that its processes share while they start.
    pub(super) common: u64,
}

impl Copy<'_> {
    /// Places the script of the process at place `at`, and those of its descendants. The order is what keeps the program from ever acting with
    /// privileges:
    ///
    /// 1. with all of them: only what needs them, on nothing that the program has a say in;
    /// 2. as the program's user with one capability beyond its own in force, which `set_tid` needs: descriptors, memory, other processes. If it
    ///    clones some, all are permitted still, because each of them has a user and capabilities of its own;
    /// 3. with the same capability beyond its own, and no other one: threads;
    /// 4. with the program's own, if any: signals that waited for one thread, which have to be there before the limit of those that may wait. The
    ///    main thread has one more where `no_new_privs` is not set, without which the kernel takes no filter;
    /// 5. under the seccomp filter, with the program's own: what could make the kernel look at or run the program's code (timers, signals, rseq).
    ///
    /// A copy that parks waits in 2, before its other processes and its threads: a process that has threads cannot enter a time namespace
    /// (`clocks`). No capability beyond the program's is in force until its gate opens. Nothing in it runs against a clock by then.
    ///
    /// No process goes on in the program before all have come to the end of 5. All signals are blocked until the frame restores the program's mask.
    pub(super) fn place(self, arena: &mut Arena, at: usize) -> u64 {
        let image = &self.tree.members[at].image;
        let family = descend::place(self, arena, at);
        let gates = Gates { arriving: arena.words(&[image.threads.len() as u64 - 1]), closed: arena.words(&[1]) };
        let capabilities = Capabilities::place(arena, image, !family.is_empty());
        let threads: Vec<(u64, u64)> =
            image.threads[1..].iter().map(|thread| place_thread(arena, image, thread, &capabilities, &gates)).collect();
        let mut script = Script::default();
        self.become_user(arena, &mut script, at, &capabilities);
        let timers_of_files = self.build(arena, &mut script, at, &capabilities, &family);
        if at != 0 {
            descend::set_layout(self, arena, &mut script, at);
        }
        if !self.tree.is_single() {
            seal(&mut script, image);
        }
        give_up_privileges(&mut script, image, &capabilities);
        for (args, entry) in &threads {
            script.spawn(libc::SYS_clone3, [(*args).into(), CLONE_ARGS_BYTES.into()], *entry);
        }
        self.be_filtered(arena, &mut script, at, &capabilities, &gates);
        script.append(timers_of_files);
        self.go_on(arena, &mut script, at, &gates);
        arena.place(&script)
    }

    /// Adds the first step, and the change to the program's user.
    fn become_user(self, arena: &mut Arena, script: &mut Script, at: usize, capabilities: &Capabilities) {
        let Self { transit, mailbox, .. } = self;
        let image = &self.tree.members[at].image;
        if at == 0 {
            receive_streams(script, transit, mailbox);
            system_v::fill(arena, script, self.tree);
            terminal::set_own(arena, script, image, transit);
            attributes::be_killed_first(arena, script, image);
            clocks::make(arena, script, transit);
            let parked = mailbox.only(script, AT_ONCE);
            clocks::enter(script, transit, mailbox.clocks());
            script.land(parked);
        } else {
            descend::enter(self, arena, script, at);
            capabilities.set(script, capabilities.all);
        }
        let leads_session = attributes::of_group(arena, script, image);
        act_as_user(arena, script, image, capabilities, (at == 0).then_some(mailbox));
        if !leads_session {
            lead(script, image);
        }
        terminal::take(arena, script, image, transit);
    }

    /// Adds what is made as the program's user, and the gate; gives the steps that arm timers.
    fn build(
        self,
        arena: &mut Arena,
        script: &mut Script,
        at: usize,
        capabilities: &Capabilities,
        family: &Family,
    ) -> Script {
        let Self { tree, transit, mailbox, .. } = self;
        let Member { image, kin } = &tree.members[at];
        // Before what may be among them: its working directory, and all that it has open and mapped.
        memory_files::make(arena, script, image);
        let cwd = arena.text(&image.cwd);
        script.call(libc::SYS_chdir, [cwd.into()], Check::Success);
        let mut made = files::Builder::new(arena, script, tree, at, transit).make_all(kin);
        if !image.connections.is_empty() {
            capabilities.set(script, capabilities.network);
            made = files::Builder::resume(arena, script, image, transit, made).connect_all();
            in_force_again(script, capabilities, (at == 0).then_some(mailbox));
            made = files::Builder::resume(arena, script, image, transit, made).set_connections();
        }
        // All that can be on its way is there.
        made = files::Builder::resume(arena, script, image, transit, made).send_passed();
        if attachments(image).next().is_some() {
            capabilities.set(script, capabilities.attach);
            system_v::attach(script, image);
            in_force_again(script, capabilities, (at == 0).then_some(mailbox));
        }
        let none = ProtectionKeys::default();
        let inherited = if at == 0 { &none } else { &tree.members[kin.parent].image.keys };
        memory_attributes(script, image, inherited);
        attributes::of_process(script, image);
        let name = arena.text(&image.threads[0].name);
        script.call(libc::SYS_prctl, [libc::PR_SET_NAME.into(), name.into()], Check::Success);
        request_components(script, image.extended.requested);
        let complete = |arena: &mut Arena, script: &mut Script| {
            let spare = (!tree.is_single()).then(|| descend::spare_number(tree) + at as i32);
            files::Builder::resume(arena, script, image, transit, made).complete(spare)
        };
        if family.is_empty() {
            descend::close_handed_down(self, script);
        }
        // What a parked copy need not do again.
        let mut complete = Some(complete);
        let early = complete.take_if(|_| family.is_empty()).map(|complete| complete(arena, script));
        if at == 0 {
            let at_once = mailbox.only(script, PARKED);
            working_set::touch(script, self.working_set);
            wait_at_gate(script, transit, mailbox, cwd);
            capabilities.set(script, capabilities.both);
            clocks::enter(script, transit, mailbox.clocks());
            capabilities.set(script, capabilities.set_tid);
            script.land(at_once);
            descend::make_common_page(self, script);
            if descend::has_beside(self.tree) {
                attributes::wait_for_helper(arena, script, transit);
            }
        }
        family.begin(self, arena, script, at);
        let late = complete.map(|complete| complete(arena, script));
        early.or(late).unwrap_or_default()
    }

    /// Adds what comes after the threads: the program's own capabilities, and its filter.
    fn be_filtered(
        self,
        arena: &mut Arena,
        script: &mut Script,
        at: usize,
        capabilities: &Capabilities,
        gates: &Gates,
    ) {
        let image = &self.tree.members[at].image;
        let main = &image.threads[0];
        script.call(libc::SYS_arch_prctl, [ARCH_SET_FS.into(), main.registers.fs_base.into()], Check::Success);
        scheduling(arena, script, image, main);
        let late = |resource| is_set_late(resource, self.tree) && !is_set_last(resource, image);
        limits(arena, script, image, late);
        capabilities.set(script, capabilities.filter);
        queue_own(arena, script, image, main);
        script.wait_zero(gates.arriving);
        filter_all_threads(arena, script, self.seccomp);
        if capabilities.filter != capabilities.own {
            capabilities.set(script, capabilities.own);
        }
        script.call(libc::SYS_set_tid_address, [main.tid_address.into()], Check::Ignore);
    }

    /// Adds the last steps, up to the program's own next one.
    fn go_on(self, arena: &mut Arena, script: &mut Script, at: usize, gates: &Gates) {
        let Self { transit, mailbox, .. } = self;
        let image = &self.tree.members[at].image;
        let main = &image.threads[0];
        timers(arena, script, image);
        attributes::deny_write_exec(script, image);
        if at == 0 {
            attributes::wait_for_helper(arena, script, transit);
        }
        thread_attributes(script, main);
        for info in &image.pending {
            queue_signal(arena, script, libc::SYS_rt_sigqueueinfo, &[main.tid.into()], info);
        }
        limits(arena, script, image, |resource| is_set_last(resource, image));
        jobs::prepare(self, arena, script, at);
        descend::meet(self, arena, script, at);
        jobs::meet(self, script, at);
        if at == 0 {
            system_v::let_go(arena, script, self.tree);
            let nothing = arena.words(&[0, 0]);
            mailbox.report(arena, script, kind::READY, nothing);
            let at_once = mailbox.only(script, PARKED);
            wait_until_closed(arena, script, transit);
            script.land(at_once);
        }
        descend::release(self, script, at);
        jobs::forget(self, arena, script, at);
        descend::part(self, script);
        close_all_of_others(script, image, transit);
        script.count_down(gates.closed);
        let stack = place_frame(arena, image, main);
        script.sigreturn(stack);
    }
}

/// Adds the leading of a session or process group, as the program does.
fn lead(script: &mut Script, image: &ProgramImage) {
    if image.session_leader {
        script.call(libc::SYS_setsid, [], Check::Success);
    } else if image.process_group_leader {
        script.call(libc::SYS_setpgid, [0u64.into(), 0u64.into()], Check::Success);
    }
}

/// Adds the setting of these resources' limits.
fn limits(arena: &mut Arena, script: &mut Script, image: &ProgramImage, is_wanted: impl Fn(usize) -> bool) {
    for (resource, (soft, hard)) in image.limits.iter().enumerate().filter(|(resource, _)| is_wanted(*resource)) {
        set_limit(arena, script, resource, *soft, *hard);
    }
}

/// Adds the seccomp filter, which all threads get in one step.
fn filter_all_threads(arena: &mut Arena, script: &mut Script, seccomp: &[u64]) {
    let program = arena.words(seccomp);
    let filter = arena.words(&[seccomp.len() as u64, program]);
    let args = [SECCOMP_SET_MODE_FILTER.into(), SECCOMP_FILTER_FLAG_TSYNC.into(), filter.into()];
    script.call(libc::SYS_seccomp, args, Check::Equal(0));
}

/// Adds the closing of what a copy has of others. From then on another process of its user may look into it, if the program allows that.
fn close_all_of_others(script: &mut Script, image: &ProgramImage, transit: Transit) {
    let args = [transit.control.into(), u64::from(u32::MAX).into(), 0u64.into()];
    script.call(libc::SYS_close_range, args, Check::Success);
    // The kernel takes no 2 (`suid_dumpable`).
    script.call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), u64::from(image.dumpable == 1).into()], Check::Success);
}

/// Arguments of `capset`, laid out. All have those of the program, too.
struct Capabilities {
    header: u64,
    /// Whether all of them stay permitted for a while.
    will_clone: bool,
    /// All that there are, in force.
    all: u64,
    /// What `set_tid` needs is in force; the others are permitted.
    set_tid: u64,
    /// The same without any in force.
    later: u64,
    /// What connections need is in force.
    network: u64,
    /// What System V segments of any user need is in force.
    attach: u64,
    /// What `set_tid` and the entering of a time namespace need is in force.
    both: u64,
    /// What `set_tid` needs. What the filter needs is permitted and not in force.
    threads: u64,
    /// What the seccomp filter needs of a program that has not set `no_new_privs`.
    filter: u64,
    /// The program's.
    own: u64,
}

impl Capabilities {
    /// A process that will clone others keeps all until it has: each of them may have a user and capabilities of its own.
    fn place(arena: &mut Arena, image: &ProgramImage, will_clone: bool) -> Self {
        const VERSION_3: u64 = 0x2008_0522;
        const SET_TID: u64 = 1 << 40; // CAP_CHECKPOINT_RESTORE
        const ADMIN: u64 = 1 << 21; // CAP_SYS_ADMIN
        const NETWORK: u64 = 1 << 10 | 1 << 12; // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN
        const IPC: u64 = 1 << 15; // CAP_IPC_OWNER
        let of = &image.privileges;
        let for_filter = if of.may_gain { ADMIN } else { 0 };
        // Two structs of effective, permitted and inheritable: capabilities 0 to 31, and 32 to 63.
        let (low, high) = (|set: u64| set & u64::from(u32::MAX), |set: u64| set >> 32);
        let mut sets = |effective: u64, permitted: u64| {
            let (effective, permitted, inheritable) =
                (effective | of.effective, permitted | of.permitted, of.inheritable);
            let words = [
                low(effective) | low(permitted) << 32,
                low(inheritable) | high(effective) << 32,
                high(permitted) | high(inheritable) << 32,
            ];
            arena.words(&words)
        };
        let every = (2u64 << sys::kernel::last_capability()) - 1;
        let connects = if image.connections.is_empty() { 0 } else { NETWORK };
        let attaches = if attachments(image).next().is_some() { IPC } else { 0 };
        let kept = if will_clone { every } else { SET_TID | ADMIN | connects | attaches };
        let (all, later) = (sets(every, every), sets(0, kept));
        let (network, attach) = (sets(NETWORK, kept), sets(IPC, kept));
        let (set_tid, both) = (sets(SET_TID, kept), sets(SET_TID | ADMIN, kept));
        let threads = sets(SET_TID, SET_TID | for_filter);
        let own = sets(0, 0);
        let filter = if of.may_gain { sets(for_filter, for_filter) } else { own };
        let header = arena.words(&[VERSION_3]);
        Self { header, will_clone, all, set_tid, later, network, attach, both, threads, filter, own }
    }

    fn set(&self, script: &mut Script, sets: u64) {
        script.call(libc::SYS_capset, [self.header.into(), sets.into()], Check::Success);
    }
}

/// The copy becomes the program's user; of what it is still permitted, only what `set_tid` needs is in force beside the program's own, and in one
/// that waits at its gate not even that (capabilities(7), "Effect of user ID changes on capabilities"). All of this counts in the sandbox's user
/// namespace, at whose entry the kernel gives every capability and the whole bounding set.
fn act_as_user(
    arena: &mut Arena,
    script: &mut Script,
    image: &ProgramImage,
    capabilities: &Capabilities,
    mailbox: Option<&Mailbox>,
) {
    let groups: Vec<u8> = image.credentials.groups.iter().flat_map(|group| group.to_le_bytes()).collect();
    let list = arena.data(&groups, 8);
    script.call(libc::SYS_setgroups, [(image.credentials.groups.len() as u64).into(), list.into()], Check::Success);
    script.call(libc::SYS_setresgid, image.credentials.gids.map(|id| u64::from(id).into()), Check::Success);
    if !capabilities.will_clone {
        if image.privileges.inheritable != 0 {
            // The kernel takes none that the bounding set lacks.
            capabilities.set(script, capabilities.all);
        }
        limit_gains(script, image);
    }
    prctl(script, libc::PR_SET_KEEPCAPS, [1, 0]);
    script.call(libc::SYS_setresuid, image.credentials.uids.map(|id| u64::from(id).into()), Check::Success);
    prctl(script, libc::PR_SET_KEEPCAPS, [0, 0]);
    in_force_again(script, capabilities, mailbox);
    // Whatever the kernel makes of a change of user (fs.suid_dumpable): until it is the program it has capabilities, its zygote's socket and a script.
    script.call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 0u64.into()], Check::Success);
}

/// Only what `set_tid` needs is in force beside the program's own, or not even that in one that waits at its gate.
fn in_force_again(script: &mut Script, capabilities: &Capabilities, mailbox: Option<&Mailbox>) {
    let Some(mailbox) = mailbox else { return capabilities.set(script, capabilities.set_tid) };
    for (way, sets) in [(AT_ONCE, capabilities.set_tid), (PARKED, capabilities.later)] {
        let other = mailbox.only(script, way);
        capabilities.set(script, sets);
        script.land(other);
    }
}

/// Of all capabilities the program's own stay, and the one that threads are made with.
fn give_up_privileges(script: &mut Script, image: &ProgramImage, capabilities: &Capabilities) {
    if capabilities.will_clone {
        capabilities.set(script, capabilities.all);
        limit_gains(script, image);
    }
    capabilities.set(script, capabilities.threads);
    for capability in bits(image.privileges.ambient) {
        prctl(script, libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_RAISE as u64, capability]);
    }
}

/// Adds the limits of what it can gain by executing another program.
fn limit_gains(script: &mut Script, image: &ProgramImage) {
    limit_bounding_set(script, image.privileges.bounding & ROOT_CAPABILITIES);
    if !image.privileges.may_gain {
        prctl(script, libc::PR_SET_NO_NEW_PRIVS, [1, 0]);
    }
}

/// Adds the dropping of all but these from the bounding set: no program that is executed can gain any other.
pub(crate) fn limit_bounding_set(script: &mut Script, kept: u64) {
    for capability in bits(!kept).take_while(|capability| *capability <= u64::from(sys::kernel::last_capability())) {
        prctl(script, libc::PR_CAPBSET_DROP, [capability, 0]);
    }
}

fn bits(set: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| set >> bit & 1 == 1)
}

fn prctl(script: &mut Script, option: i32, [first, second]: [u64; 2]) {
    let args = [option.into(), first.into(), second.into(), 0u64.into(), 0u64.into()];
    script.call(libc::SYS_prctl, args, Check::Success);
}

/// Streams, and the gate of a copy that parks, move above the program's numbers, which are then all free.
fn receive_streams(script: &mut Script, transit: Transit, mailbox: &Mailbox) {
    let args = [transit.cgroup_namespace().into(), libc::CLONE_NEWCGROUP.into()];
    script.call(libc::SYS_setns, args, Check::Success);
    let move_up = |script: &mut Script, from: i32, to: i32| {
        let args = [from.into(), to.into(), libc::O_CLOEXEC.into()];
        script.call(libc::SYS_dup3, args, Check::Equal(i64::from(to)));
    };
    for n in 0..transit.streams {
        move_up(script, FIRST_STREAM + n, transit.streams() + n);
    }
    // Without a gate something else has its number: what the program's descriptors are made with comes above, in both kinds of start.
    move_up(script, FIRST_STREAM, transit.gate());
    let at_once = mailbox.only(script, PARKED);
    move_up(script, FIRST_STREAM + transit.streams, transit.gate());
    script.land(at_once);
    script.call(libc::SYS_close_range, [0u64.into(), (transit.control - 1).into(), 0u64.into()], Check::Success);
}

/// A copy that parks goes on when the offsets of its clocks come through its gate. If the gate ends, the process that could send them is gone, and the
/// copy fails. Until then a volume may have been mounted where its working directory `cwd` is.
fn wait_at_gate(script: &mut Script, transit: Transit, mailbox: &Mailbox, cwd: u64) {
    const BYTES: u64 = CLOCK_TEXT_BYTES as u64;
    let args = [transit.gate().into(), mailbox.clocks().into(), BYTES.into()];
    script.call(libc::SYS_read, args, Check::Equal(BYTES as i64));
    script.call(libc::SYS_chdir, [cwd.into()], Check::Success);
}

/// The gate may be held when it is open: the copy, complete by now, goes on when it is closed.
fn wait_until_closed(arena: &mut Arena, script: &mut Script, transit: Transit) {
    let nothing = arena.words(&[0]);
    script.call(libc::SYS_read, [transit.gate().into(), nothing.into(), 1u64.into()], Check::Success);
}

/// Permission to use more registers than every program may (AMX tiles) is the process's. Threads get room for them at their first use.
fn request_components(script: &mut Script, requested: u64) {
    for component in (0..u64::BITS).filter(|component| requested >> component & 1 == 1) {
        let args = [xstate::ARCH_REQ_XCOMP_PERM.into(), u64::from(component).into()];
        script.call(libc::SYS_arch_prctl, args, Check::Success);
    }
}

fn place_frame(arena: &mut Arena, image: &ProgramImage, thread: &Thread) -> u64 {
    let registers = sigframe::user_registers(&thread.registers);
    sigframe::place(arena, &registers, (&thread.xsave, &image.extended.format), thread.mask, &thread.alternate)
}

/// Places one thread's script and the arguments of its clone.
fn place_thread(
    arena: &mut Arena,
    image: &ProgramImage,
    thread: &Thread,
    capabilities: &Capabilities,
    gates: &Gates,
) -> (u64, u64) {
    let shared = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let flags = (shared | libc::CLONE_SETTLS | libc::CLONE_CHILD_CLEARTID) as u64;
    let tls = thread.registers.fs_base;
    let args = clone_args(
        arena,
        CloneArgs { flags, child_tid: thread.tid_address, tls, tid: Some(thread.tid), ..CloneArgs::default() },
    );
    let mut script = Script::default();
    scheduling(arena, &mut script, image, thread);
    capabilities.set(&mut script, capabilities.own);
    queue_own(arena, &mut script, image, thread);
    script.count_down(gates.arriving);
    script.wait_zero(gates.closed);
    thread_attributes(&mut script, thread);
    let stack = place_frame(arena, image, thread);
    script.sigreturn(stack);
    (args, arena.place(&script))
}
