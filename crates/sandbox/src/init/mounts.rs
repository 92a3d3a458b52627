//! The mounts of a sandbox, made by its pid 1 in its own mount namespace.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::CWD,
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, mount_remount, move_mount,
        open_tree, unmount,
    },
    process::{chdir, pivot_root},
};

use crate::report::{Failure, Step};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Its file in the root filesystem: a mount shows in /proc/self/mountinfo where it comes from, and the host's paths are
/// none of the program's business.
const OWN_BOOT_ID: &str = "/run/pando/boot_id";
/// Settings and devices of the kernel: to be read only. As in Docker.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// What tells about the host or its other tenants: reads as empty. As in Docker.
const MASKED_FILES: [&str; 8] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/interrupts",
    "/proc/vmallocinfo",
];
/// The same, for directories.
const MASKED_DIRECTORIES: [&str; 5] =
    ["/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"];

/// Makes `rootfs` the root of this mount namespace and drops everything else from it. `dir` is the sandbox's directory.
pub(super) fn enter_root(dir: &Path, rootfs: BorrowedFd<'_>) -> Result<(), Failure> {
    // First of all: until now mounts made here would appear on the host as well.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).step("make its mounts private")?;
    attach(rootfs, dir).step("attach the root filesystem")?;
    chdir(dir).step("enter the root filesystem")?;
    // The old root ends up on top of the new one, at the same place, and is taken off from there: pivot_root(2).
    pivot_root(".", ".").step("make it the root")?;
    unmount(".", UnmountFlags::DETACH).step("drop the host's mounts")?;
    chdir("/").step("enter the new root")?;
    mount("proc", "/proc", &[], quiet() | MountAttrFlags::MOUNT_ATTR_NOEXEC).step("mount /proc")?;
    // Ports below 1024 belong to this network namespace alone, so its programs may use them. Before /proc/sys is locked.
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0").step("open the low ports")?;
    for path in READ_ONLY {
        optional(lock(path)).step("lock /proc")?;
    }
    let boot_id = clone_mount(CWD, Path::new(OWN_BOOT_ID)).step("find its boot id")?;
    attach(boot_id.as_fd(), Path::new(BOOT_ID)).step("set its boot id")?;
    read_only(BOOT_ID).step("set its boot id")
}

/// Mounts the rest: /sys, terminals, message queues, and the masks.
pub(super) fn populate() -> Result<(), Failure> {
    let no_exec = quiet() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount("sysfs", "/sys", &[], no_exec | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_RDONLY)
        .step("mount /sys")?;
    // Each mount of devpts is an instance of its own. Group 5 is tty on every distribution.
    mount("devpts", "/dev/pts", &[("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")], no_exec)
        .step("mount /dev/pts")?;
    // Kernels without POSIX message queues exist, and few programs need them.
    match mount("mqueue", "/dev/mqueue", &[], no_exec | MountAttrFlags::MOUNT_ATTR_NODEV) {
        Err(Errno::NODEV) => {}
        result => result.step("mount /dev/mqueue")?,
    }
    for path in MASKED_FILES {
        optional(clone_mount(CWD, Path::new("/dev/null")).and_then(|null| attach(null.as_fd(), Path::new(path))))
            .step("mask a file")?;
    }
    mask_directories().step("mask a directory")
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

fn clone_mount(from: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    open_tree(from, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Makes a read-only mount of `path` on itself.
fn lock(path: &str) -> rustix::io::Result<()> {
    attach(clone_mount(CWD, Path::new(path))?.as_fd(), Path::new(path))?;
    read_only(path)
}

fn read_only(path: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount_remount(path, flags, "")
}

/// One empty, read-only filesystem over all of them.
fn mask_directories() -> rustix::io::Result<()> {
    let attributes = quiet() | MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    let empty = detached("tmpfs", &[("size", "4k"), ("mode", "0555")], attributes)?;
    let mut attached: Option<&str> = None;
    for path in MASKED_DIRECTORIES {
        let mask = match attached {
            // Only a mount that is attached can be cloned on kernels before 6.15.
            Some(first) => clone_mount(CWD, Path::new(first))?,
            None => rustix::io::dup(&empty)?,
        };
        if optional(attach(mask.as_fd(), Path::new(path)))? {
            attached = attached.or(Some(path));
        }
    }
    Ok(())
}

/// Whether it was there to be masked: not every kernel has everything.
fn optional(result: rustix::io::Result<()>) -> rustix::io::Result<bool> {
    match result {
        Err(Errno::NOENT) => Ok(false),
        result => result.map(|()| true),
    }
}
