//! Which system call gets which answer.

/// System-call numbers below this are in the table; all above are unknown.
pub(super) const NUMBERS: usize = 480;

/// What the filter answers to a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// EPERM or ENOSYS cannot be given for a foreign architecture: its numbers mean other calls.
    Kill,
    /// It goes through.
    Allow,
    /// ENOSYS: as on a kernel that does not have it.
    Missing,
    /// EPERM.
    Refuse,
    /// EOPNOTSUPP: as on a kernel that has it and does not use it.
    Unsupported,
    /// EAFNOSUPPORT.
    NoFamily,
    /// EPROTONOSUPPORT: as on a kernel that has the family but not the protocol.
    NoProtocol,
    /// Allowed without namespace flags.
    Clone,
    /// Allowed without namespace flags.
    Unshare,
    /// Allowed for the usual personalities.
    Personality,
    /// Allowed for [`FAMILIES`], with the protocols that programs need.
    Socket,
    /// Allowed but for typing into a terminal.
    Ioctl,
}

impl Answer {
    /// Those that look at an argument first: their tails jump forward to the plain ones.
    pub(super) const ALL: [Self; 12] = [
        Self::Clone,
        Self::Unshare,
        Self::Personality,
        Self::Socket,
        Self::Ioctl,
        Self::Kill,
        Self::Allow,
        Self::Missing,
        Self::Refuse,
        Self::Unsupported,
        Self::NoFamily,
        Self::NoProtocol,
    ];
}

/// Protocols of internet sockets: the default of the type, ICMP (where the kernel lets a program send it), TCP, UDP, ICMPv6.
///
/// The others answer as on a kernel that lacks them. Multipath TCP, which programs try first and do without (Go listens by it), SCTP, DCCP
/// and SMC are large, are not carried into copies, and a mere attempt makes the kernel load their modules.
pub(super) const INTERNET_PROTOCOLS: &[u32] =
    &[0, libc::IPPROTO_ICMP as u32, libc::IPPROTO_TCP as u32, libc::IPPROTO_UDP as u32, libc::IPPROTO_ICMPV6 as u32];

/// Of netlink: addresses and routes, which `getifaddrs` asks for. The kernel tells events of all devices of the host to every network namespace
/// of the host's user namespace (`NETLINK_KOBJECT_UEVENT`); auditing, filtering, IPsec and the generic families need privileges; `ss`
/// reads /proc where there is no `NETLINK_SOCK_DIAG`.
pub(super) const NETLINK_PROTOCOLS: &[u32] = &[libc::NETLINK_ROUTE as u32];

/// The answer to every call.
pub(super) fn table() -> [Answer; NUMBERS] {
    let mut table = [Answer::Missing; NUMBERS];
    // io_uring and clone3 stay "missing": the filter cannot see the operations of the one and the flags of the other. So do
    // - io_setup and its relatives: each context is taken from fs.aio-max-nr, which all of the host share and one program can use up.
    //   Databases and web servers go on without (libaio's users look for ENOSYS: kernels can be built without it);
    // - modify_ldt: only 16-bit programs and some of 32 bits need a table of segments, and copies do not get it;
    // - memfd_secret: memory that no capture can read, and that is locked.
    for (calls, answer) in [
        (ALLOWED, Answer::Allow),
        (NEWER_ALLOWED, Answer::Allow),
        (REFUSED, Answer::Refuse),
        (LANDLOCK, Answer::Unsupported),
        (&[libc::SYS_clone], Answer::Clone),
        (&[libc::SYS_unshare], Answer::Unshare),
        (&[libc::SYS_personality], Answer::Personality),
        // A pair is made of two sockets before the kernel sees whether the family has pairs.
        (&[libc::SYS_socket, libc::SYS_socketpair], Answer::Socket),
        (&[libc::SYS_ioctl], Answer::Ioctl),
    ] {
        for call in calls {
            table[*call as usize] = answer;
        }
    }
    table
}

/// As in Docker's default profile. What needs a capability the kernel checks: root of a sandbox has it in its own namespaces only. ptrace and its relatives reach only the program's own processes.
#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_open, libc::SYS_close, libc::SYS_stat, libc::SYS_fstat,
    libc::SYS_lstat, libc::SYS_poll, libc::SYS_lseek, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap,
    libc::SYS_brk, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_access, libc::SYS_pipe, libc::SYS_select,
    libc::SYS_sched_yield, libc::SYS_mremap, libc::SYS_msync, libc::SYS_mincore, libc::SYS_madvise, libc::SYS_shmget,
    libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_dup, libc::SYS_dup2, libc::SYS_pause, libc::SYS_nanosleep,
    libc::SYS_getitimer, libc::SYS_alarm, libc::SYS_setitimer, libc::SYS_getpid, libc::SYS_sendfile,
    libc::SYS_connect, libc::SYS_accept, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg,
    libc::SYS_shutdown, libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername,
    libc::SYS_setsockopt, libc::SYS_getsockopt, libc::SYS_fork, libc::SYS_vfork,
    libc::SYS_execve, libc::SYS_exit, libc::SYS_wait4, libc::SYS_kill, libc::SYS_uname, libc::SYS_semget,
    libc::SYS_semop, libc::SYS_semctl, libc::SYS_shmdt, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv,
    libc::SYS_msgctl, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_truncate,
    libc::SYS_ftruncate, libc::SYS_getdents, libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_rename,
    libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_creat, libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink,
    libc::SYS_readlink, libc::SYS_chmod, libc::SYS_fchmod, libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown,
    libc::SYS_umask, libc::SYS_gettimeofday, libc::SYS_getrlimit, libc::SYS_getrusage, libc::SYS_sysinfo,
    libc::SYS_times, libc::SYS_ptrace, libc::SYS_getuid, libc::SYS_getgid, libc::SYS_setuid, libc::SYS_setgid,
    libc::SYS_geteuid, libc::SYS_getegid, libc::SYS_setpgid, libc::SYS_getppid, libc::SYS_getpgrp, libc::SYS_setsid,
    libc::SYS_setreuid, libc::SYS_setregid, libc::SYS_getgroups, libc::SYS_setgroups, libc::SYS_setresuid,
    libc::SYS_getresuid, libc::SYS_setresgid, libc::SYS_getresgid, libc::SYS_getpgid, libc::SYS_setfsuid,
    libc::SYS_setfsgid, libc::SYS_getsid, libc::SYS_capget, libc::SYS_capset, libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack,
    libc::SYS_utime, libc::SYS_mknod, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_getpriority,
    libc::SYS_setpriority, libc::SYS_sched_setparam, libc::SYS_sched_getparam, libc::SYS_sched_setscheduler,
    libc::SYS_sched_getscheduler, libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min,
    libc::SYS_sched_rr_get_interval, libc::SYS_mlock, libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall,
    libc::SYS_prctl, libc::SYS_arch_prctl, libc::SYS_setrlimit, libc::SYS_sync,
    libc::SYS_gettid, libc::SYS_readahead, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr,
    libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr, libc::SYS_tkill,
    libc::SYS_time, libc::SYS_futex, libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity,
    libc::SYS_epoll_create,
    libc::SYS_remap_file_pages, libc::SYS_getdents64, libc::SYS_set_tid_address, libc::SYS_restart_syscall,
    libc::SYS_semtimedop, libc::SYS_fadvise64, libc::SYS_timer_create, libc::SYS_timer_settime,
    libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_exit_group, libc::SYS_epoll_wait,
    libc::SYS_epoll_ctl, libc::SYS_tgkill, libc::SYS_utimes, libc::SYS_mq_open, libc::SYS_mq_unlink,
    libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive, libc::SYS_mq_notify, libc::SYS_mq_getsetattr,
    libc::SYS_waitid, libc::SYS_ioprio_set, libc::SYS_ioprio_get, libc::SYS_inotify_init,
    libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch, libc::SYS_openat, libc::SYS_mkdirat, libc::SYS_mknodat,
    libc::SYS_fchownat, libc::SYS_futimesat, libc::SYS_newfstatat, libc::SYS_unlinkat, libc::SYS_renameat,
    libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat, libc::SYS_fchmodat, libc::SYS_faccessat,
    libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_splice,
    libc::SYS_tee, libc::SYS_sync_file_range, libc::SYS_vmsplice, libc::SYS_utimensat, libc::SYS_epoll_pwait,
    libc::SYS_signalfd, libc::SYS_timerfd_create, libc::SYS_eventfd, libc::SYS_fallocate, libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime, libc::SYS_accept4, libc::SYS_signalfd4, libc::SYS_eventfd2, libc::SYS_epoll_create1,
    libc::SYS_dup3, libc::SYS_pipe2, libc::SYS_inotify_init1, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_rt_tgsigqueueinfo, libc::SYS_recvmmsg, libc::SYS_prlimit64, libc::SYS_name_to_handle_at,
    libc::SYS_syncfs, libc::SYS_sendmmsg, libc::SYS_getcpu, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev,
    libc::SYS_kcmp, libc::SYS_sched_setattr, libc::SYS_sched_getattr, libc::SYS_renameat2, libc::SYS_seccomp,
    libc::SYS_getrandom, libc::SYS_memfd_create, libc::SYS_execveat, libc::SYS_membarrier, libc::SYS_mlock2,
    libc::SYS_copy_file_range, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_pkey_mprotect, libc::SYS_pkey_alloc,
    libc::SYS_pkey_free, libc::SYS_statx, libc::SYS_rseq, libc::SYS_pidfd_send_signal, libc::SYS_pidfd_open,
    libc::SYS_close_range, libc::SYS_openat2, libc::SYS_pidfd_getfd, libc::SYS_faccessat2, libc::SYS_process_madvise,
    libc::SYS_epoll_pwait2, libc::SYS_process_mrelease, libc::SYS_futex_waitv,
    libc::SYS_fchmodat2, libc::SYS_chroot,
];

/// A copy would run without the restrictions that its program gave itself, and the kernel tells nobody of them. What programs do where
/// Landlock is compiled in and switched off, they do here.
const LANDLOCK: &[i64] =
    &[libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self];

/// Allowed as well, by number because the libc crate has no name for them yet: cachestat, map_shadow_stack, futex_wake,
/// futex_wait, futex_requeue, mseal, and the four *xattrat.
const NEWER_ALLOWED: &[i64] = &[451, 453, 454, 455, 456, 462, 463, 464, 465, 466];

/// Mounts, namespaces, modules, clocks, keys, BPF, tracing of the kernel, memory policy: nothing that root of a
/// sandbox may do, and too close to the host to leave to the kernel's own check.
#[rustfmt::skip]
const REFUSED: &[i64] = &[
    libc::SYS_uselib, libc::SYS_ustat, libc::SYS_sysfs, libc::SYS_vhangup, libc::SYS_pivot_root, libc::SYS__sysctl,
    libc::SYS_adjtimex, libc::SYS_acct, libc::SYS_settimeofday, libc::SYS_mount, libc::SYS_umount2,
    libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_reboot, libc::SYS_sethostname, libc::SYS_setdomainname,
    libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_init_module, libc::SYS_delete_module, libc::SYS_quotactl,
    libc::SYS_nfsservctl, libc::SYS_syslog, libc::SYS_lookup_dcookie, libc::SYS_clock_settime,
    libc::SYS_clock_adjtime, libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_get_mempolicy, libc::SYS_kexec_load,
    libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl, libc::SYS_migrate_pages, libc::SYS_move_pages,
    libc::SYS_perf_event_open, libc::SYS_fanotify_init, libc::SYS_fanotify_mark, libc::SYS_open_by_handle_at,
    libc::SYS_setns, libc::SYS_finit_module, libc::SYS_kexec_file_load, libc::SYS_bpf, libc::SYS_userfaultfd,
    libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount,
    libc::SYS_fspick, libc::SYS_mount_setattr, libc::SYS_quotactl_fd, libc::SYS_set_mempolicy_home_node,
];
