//! The mounts of a sandbox, made by its pid 1 in its own mount namespace: what needs no root filesystem first.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use base::limits::{SHARED_MEMORY_BYTES_MAX, SHARED_MEMORY_FILES_MAX, TERMINALS_MAX};
use rustix::{
    fs::{CWD, Mode, mkdir},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, mount_remount, move_mount,
        open_tree, unmount,
    },
    process::{chdir, pivot_root},
};

use crate::{
    report::{Failure, Step},
    spec::SHARED_MEMORY,
    view,
};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Its file in the root filesystem: a mount shows in /proc/self/mountinfo where it comes from, and the host's paths are
/// none of the program's business.
const OWN_BOOT_ID: &str = "/run/pando/boot_id";
/// Settings and devices of the kernel: to be read only. As in Docker.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// What tells about the host or its other tenants: reads as empty. First what Docker masks, then what programs need as little: how the host was
/// booted, its modules, disks, addresses and physical memory, and counters of what all of it does.
#[rustfmt::skip]
const MASKED_FILES: [&str; 22] = [
    "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug",
    "/proc/interrupts", "/proc/vmallocinfo",
    "/proc/cmdline", "/proc/bootconfig", "/proc/modules", "/proc/kallsyms", "/proc/diskstats", "/proc/partitions", "/proc/mdstat",
    "/proc/swaps", "/proc/iomem", "/proc/ioports", "/proc/softirqs", "/proc/schedstat", "/proc/buddyinfo", "/proc/zoneinfo",
];
/// The same, for directories.
const MASKED_DIRECTORIES: [&str; 5] = ["/proc/acpi", "/proc/asound", "/proc/driver", "/proc/pressure", "/proc/scsi"];
/// What there is of /sys: what programs and runtimes size themselves by, and the sandbox's own network devices. The rest are the host's devices,
/// disks, modules, firmware and slabs.
const SYS: [&str; 4] = ["devices/system", "devices/virtual/net", "class/net", "kernel/mm"];
/// Directories of /sys that are empty, because programs look whether there is anything in them.
const SYS_EMPTY: [&str; 7] = ["block", "bus", "dev", "firmware", "fs/cgroup", "module", "power"];

/// Where the root filesystem is attached before it becomes the root.
const NEW_ROOT: &str = "/root";
/// Where all of sysfs is while a part of it is bound below /sys.
const SYSFS: &str = "/sysfs";
/// Reads as empty, like the host's.
const NULL: &str = "/null";
/// Reads as empty, too. In the same filesystem: one more for each sandbox would take some KiB of the kernel's memory.
const EMPTY: &str = "/empty";

/// The mounts that a root filesystem gets, ready to be moved into it.
pub(super) struct Prepared {
    message_queues: bool,
}

/// Drops all of the host's mounts and makes those that no root filesystem is needed for: they take longer than the rest.
pub(super) fn prepare() -> Result<Prepared, Failure> {
    // First of all: until now mounts made here would appear on the host as well.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).step("make its mounts private")?;
    let no_exec = quiet() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let no_device = no_exec | MountAttrFlags::MOUNT_ATTR_NODEV;
    // While the host's are there: the kernel gives a user namespace no /proc and /sys that show more than those that it sees, and no device
    // file at all.
    let proc = detached("proc", &[], no_exec).step("make /proc")?;
    let sys = detached("sysfs", &[], no_device | MountAttrFlags::MOUNT_ATTR_RDONLY).step("make /sys")?;
    let null = clone("/dev/null").step("find /dev/null")?;
    let own = detached("tmpfs", &[("size", "64k"), ("mode", "0755")], no_exec).step("make a root of its own")?;
    // Any directory would do: the old root is dropped right away, so that nothing of the host is kept busy.
    attach(own.as_fd(), Path::new("/proc")).step("attach a root of its own")?;
    become_root("/proc")?;
    for directory in [NEW_ROOT, "/proc", "/sys", SYSFS, "/pts", "/mqueue"] {
        mkdir(directory, Mode::from_raw_mode(0o755)).step("make a directory")?;
    }
    mkdir(EMPTY, Mode::from_raw_mode(0o555)).step("make a directory")?;
    fs::write(NULL, "").step("make a file")?;
    attach(null.as_fd(), Path::new(NULL)).step("make a device")?;
    prepare_proc(proc.as_fd())?;
    prepare_sys(sys.as_fd()).step("make /sys")?;
    // Each mount of devpts is an instance of its own. Group 5 is tty on every distribution.
    let terminals = TERMINALS_MAX.to_string();
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5"), ("max", terminals.as_str())];
    mount("devpts", "/pts", &options, no_exec).step("mount /dev/pts")?;
    // Kernels without POSIX message queues exist, and few programs need them.
    let message_queues = match mount("mqueue", "/mqueue", &[], no_device) {
        Err(Errno::NODEV) => false,
        result => result.map(|()| true).step("make /dev/mqueue")?,
    };
    MASKED_FILES.iter().try_for_each(|path| optional(bind(NULL, path)).map(drop)).step("mask a file")?;
    MASKED_DIRECTORIES.iter().try_for_each(|path| optional(mask_directory(path)).map(drop)).step("mask a directory")?;
    Ok(Prepared { message_queues })
}

fn prepare_proc(proc: BorrowedFd<'_>) -> Result<(), Failure> {
    attach(proc, Path::new("/proc")).step("make /proc")?;
    // Ports below 1024 belong to this network namespace alone, so its programs may use them. Before /proc/sys is locked.
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0").step("open the low ports")?;
    // Its link has IPv4 only: what could go around a policy is not there. Not each kernel has IPv6.
    match fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        written => written.step("leave IPv6 to the loopback interface")?,
    }
    READ_ONLY.iter().try_for_each(|path| optional(lock(path)).map(drop)).step("lock /proc")
}

/// Makes /sys of directories of this root, with those of sysfs that a sandbox has bound on them.
fn prepare_sys(sys: BorrowedFd<'_>) -> rustix::io::Result<()> {
    attach(sys, Path::new(SYSFS))?;
    bind("/sys", "/sys")?;
    SYS_EMPTY.iter().try_for_each(|directory| make_below_sys(directory))?;
    for directory in SYS {
        make_below_sys(directory)?;
        optional(bind(&format!("{SYSFS}/{directory}"), &format!("/sys/{directory}")))?;
    }
    mount_groups()?;
    read_only("/sys")?;
    unmount(SYSFS, UnmountFlags::DETACH)
}

/// Shows the sandbox its own control group, of version 2 alone: the limits that runtimes look for are there where v2 has the controllers.
fn mount_groups() -> rustix::io::Result<()> {
    let attributes = quiet()
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    match mount("cgroup2", "/sys/fs/cgroup", &[], attributes) {
        // An older kernel, or one that has it for itself.
        Err(Errno::NODEV | Errno::PERM | Errno::BUSY) => Ok(()),
        mounted => mounted,
    }
}

fn make_below_sys(directory: &str) -> rustix::io::Result<()> {
    let mut path = "/sys".to_owned();
    for name in directory.split('/') {
        path = format!("{path}/{name}");
        match mkdir(&path, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
    }
    Ok(())
}

/// Makes `rootfs` the root of this mount namespace, with the mounts that are prepared.
pub(super) fn enter_root(prepared: &Prepared, rootfs: BorrowedFd<'_>) -> Result<(), Failure> {
    attach(rootfs, Path::new(NEW_ROOT)).step("attach the root filesystem")?;
    chdir(NEW_ROOT).step("enter the root filesystem")?;
    // No device file of an image can be opened, but those of /dev, which are the sandbox's own: a mount of its own, and before what comes on it.
    bind("dev", "dev").step("mount /dev")?;
    mount_remount("dev", MountFlags::BIND | MountFlags::NOSUID, "").step("mount /dev")?;
    let message_queues = prepared.message_queues.then_some(("/mqueue", "dev/mqueue", "mount /dev/mqueue"));
    let always =
        [("/proc", "proc", "mount /proc"), ("/sys", "sys", "mount /sys"), ("/pts", "dev/pts", "mount /dev/pts")];
    for (from, to, step) in always.into_iter().chain(message_queues) {
        move_mount(CWD, from, CWD, to, MoveMountFlags::empty()).step(step)?;
    }
    mount_shared_memory().step("mount /dev/shm")?;
    become_root(".")?;
    bind(OWN_BOOT_ID, BOOT_ID).step("set its boot id")?;
    read_only(BOOT_ID).step("set its boot id")?;
    for (file, shown) in view::FILES {
        // Not each sandbox has each, and not each kernel what it would hide.
        let file = format!("/{file}");
        // Root of an earlier copy may have made anything of it.
        let is_plain = fs::symlink_metadata(&file).is_ok_and(|found| found.is_file());
        if is_plain && optional(bind(&file, shown)).step("show its limits")? {
            read_only(shown).step("show its limits")?;
        }
    }
    Ok(())
}

/// Makes /dev/shm a filesystem in memory, below the working directory. Where a layer has files there, because the program comes from a node on
/// which it was none, it stays what it was.
fn mount_shared_memory() -> io::Result<()> {
    let directory = SHARED_MEMORY.trim_start_matches('/');
    if fs::read_dir(directory)?.next().is_some() {
        return Ok(());
    }
    // One more for the directory itself.
    let (size, files) = (SHARED_MEMORY_BYTES_MAX.to_string(), (SHARED_MEMORY_FILES_MAX + 1).to_string());
    let options = [("size", size.as_str()), ("nr_inodes", files.as_str()), ("mode", "1777")];
    Ok(mount("tmpfs", directory, &options, quiet() | MountAttrFlags::MOUNT_ATTR_NODEV)?)
}

/// Makes the mount at `path` the root, and drops the one before with all that is in it.
fn become_root(path: &str) -> Result<(), Failure> {
    chdir(path).step("enter the new root")?;
    // The old root ends up on top of the new one, at the same place, and is taken off from there: pivot_root(2).
    pivot_root(".", ".").step("make it the root")?;
    unmount(".", UnmountFlags::DETACH).step("drop the old root")?;
    chdir("/").step("enter the new root")
}

fn quiet() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID
}

fn mount(kind: &str, at: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> rustix::io::Result<()> {
    attach(detached(kind, options, attributes)?.as_fd(), Path::new(at))
}

fn detached(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn attach(mount: BorrowedFd<'_>, at: &Path) -> rustix::io::Result<()> {
    move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn bind(from: &str, at: &str) -> rustix::io::Result<()> {
    attach(clone(from)?.as_fd(), Path::new(at))
}

/// What is at a path, as a mount of its own.
fn clone(path: &str) -> rustix::io::Result<OwnedFd> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Makes a read-only mount of `path` on itself.
fn lock(path: &str) -> rustix::io::Result<()> {
    bind(path, path)?;
    read_only(path)
}

fn read_only(path: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount_remount(path, flags, "")
}

fn mask_directory(path: &str) -> rustix::io::Result<()> {
    bind(EMPTY, path)?;
    read_only(path)
}

/// Whether it was there to be masked: not every kernel has everything.
fn optional(result: rustix::io::Result<()>) -> rustix::io::Result<bool> {
    match result {
        Err(Errno::NOENT) => Ok(false),
        result => result.map(|()| true),
    }
}
