//! The single checks. Each says what it found; none changes anything that outlives it.

use std::{
    fs, io,
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
};

use procfs::{CgroupPath, CgroupPaths, Fields};
use sandbox::{CgroupSummary, Cgroups};
use serde::Serialize;

use super::users;

/// How it stands with one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// Pando works, with less.
    Reduced,
    /// Pando does not work without.
    Missing,
}

/// One thing that was checked.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What was found.
    pub(super) found: String,
    /// How to get it.
    pub(super) remedy: Option<String>,
}

/// Capabilities that the node cannot do without, with their numbers.
const CAPABILITIES: [(&str, u32); 12] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_FOWNER", 3),
    ("CAP_KILL", 5),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_SETPCAP", 8),
    ("CAP_NET_ADMIN", 12),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_TIME", 25),
];

/// Threads and processes that fifty sandboxes of an ordinary program need.
const PIDS_WANTED: u64 = 16_384;

/// All checks, most basic first.
pub(super) fn all() -> Vec<Check> {
    let mut checks = vec![
        architecture(),
        kernel(),
        root(),
        capabilities(),
        filesystem("overlay", "overlayfs", Verdict::Missing, OVERLAY),
        detached_layers(),
    ];
    checks.extend(users::all(Path::new(node::config::STATE_DIR_DEFAULT)));
    checks.extend(snapshots());
    checks.extend(super::networks::all());
    checks.extend(cgroups());
    checks.extend([
        pidfds(),
        exit_statuses(),
        huge_pages(),
        pagemap(),
        page_scan(),
        guard_pages(),
        timer_numbers(),
        mapping_queries(),
        checkpoint_restore(),
        time_namespaces(),
        userfaultfd(),
        memory_nodes(),
        fuse(),
    ]);
    checks.extend(fuse_features());
    checks.extend([pids(), ptrace_scope(), memory_files()]);
    checks
}

const OVERLAY: &str = "load the module: `modprobe overlay` (CONFIG_OVERLAY_FS)";
const FUSE: &str = "load the module: `modprobe fuse` (CONFIG_FUSE_FS), and give a container the device /dev/fuse; volumes need it, forking does not";

pub(super) fn check(
    name: &'static str,
    good: bool,
    otherwise: Verdict,
    found: impl Into<String>,
    remedy: impl Into<String>,
) -> Check {
    let verdict = if good { Verdict::Ok } else { otherwise };
    Check { name, verdict, found: found.into(), remedy: (!good).then(|| remedy.into()) }
}

pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn architecture() -> Check {
    let found = std::env::consts::ARCH;
    check(
        "processor",
        found == "x86_64",
        Verdict::Missing,
        found,
        "the fork engine is written for x86-64; use such a machine",
    )
}

/// Only told. What matters is what it can do, and that is tried: distributions carry features back.
fn kernel() -> Check {
    check("kernel", true, Verdict::Ok, rustix::system::uname().release().to_string_lossy(), "")
}

/// A feature that was tried: what was found if it is there, or why it is not.
pub(super) fn feature(
    name: &'static str,
    tried: Result<impl Into<String>, impl ToString>,
    otherwise: Verdict,
    remedy: &str,
) -> Check {
    match tried {
        Ok(found) => check(name, true, otherwise, found, remedy),
        Err(error) => check(name, false, otherwise, error.to_string(), remedy),
    }
}

fn yes(good: bool, there: &'static str, not_there: &'static str) -> Result<&'static str, &'static str> {
    if good { Ok(there) } else { Err(not_there) }
}

fn detached_layers() -> Check {
    let tried = yes(sandbox::takes_detached_layers(), "mounted nowhere", "have to be mounted");
    let remedy = "Linux 6.15; without it each sandbox copies the node's mount table for a moment when it is made";
    feature("layers of overlays", tried, Verdict::Reduced, remedy)
}

fn timer_numbers() -> Check {
    let tried = sys::kernel::try_timer_number().map(|()| "chosen");
    let remedy =
        "Linux 6.15; without it a program that has passed over more than 256 numbers of POSIX timers is refused";
    feature("numbers of timers", tried, Verdict::Reduced, remedy)
}

fn page_scan() -> Check {
    let remedy = "use Linux 6.7 or newer (PAGEMAP_SCAN)";
    feature("page scan", sys::remote::try_scan().map(|()| "available"), Verdict::Missing, remedy)
}

fn guard_pages() -> Check {
    let told = sys::remote::guards_here().map(|guards| match guards {
        sys::remote::Guards::None => "none in this kernel: programs do without",
        sys::remote::Guards::Named => "named in the page map",
        sys::remote::Guards::ByEntry => "told by their entries in the page map",
    });
    let remedy = "Linux 6.15, or CAP_SYS_ADMIN; without, programs cannot be captured: guard pages might be lost";
    feature("guard pages", told, Verdict::Missing, remedy)
}

fn mapping_queries() -> Check {
    let tried = fs::File::open("/proc/self/maps").and_then(sys::file::devices_mapped_shared).map(|_| "available");
    let remedy =
        "Linux 6.11 (PROCMAP_QUERY); without it a snapshot of a volume takes longer the more its programs have mapped";
    feature("queries of mappings", tried, Verdict::Reduced, remedy)
}

/// Of a process that was reaped, as a keeper asks for those that its predecessor was the parent of.
fn exit_statuses() -> Check {
    let tried = || {
        let mut child = Command::new("/proc/self/exe").arg("--version").stdout(Stdio::null()).spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        child.wait()?;
        let status = sys::pidfd::exit_status(pidfd.as_fd())?;
        status.map(|_| "told").ok_or_else(|| io::Error::other("not told"))
    };
    let remedy = "Linux 6.15; without it the exit status of a program is unknown if a helper process of the node was killed before";
    feature("exit status by pidfd", tried(), Verdict::Reduced, remedy)
}

/// What volumes need of FUSE, or make up for.
fn fuse_features() -> Vec<Check> {
    // Whether there is any is a check of its own.
    let Ok(found) = fuse::features() else { return Vec::new() };
    let offered = found.lacking.map_or(Ok("all that volumes need"), |lacking| Err(format!("without {lacking}")));
    let needed = "Linux 6.9 (FUSE_HAS_RESEND); without it no volume can be mounted, and forking needs none";
    let names = "Linux 6.16; without it the kernel asks again for each name after a second, and a restore of a mounted volume waits for that";
    let clones = "Linux 6.15; without it a mount of a volume waits for a `sync` of it that is under way";
    vec![
        feature("FUSE requests", offered, Verdict::Reduced, needed),
        feature("FUSE names", yes(found.epochs, "forgotten at once", "not forgotten at once"), Verdict::Reduced, names),
        feature("FUSE mounts", yes(found.clones, "cloned", "made once more"), Verdict::Reduced, clones),
    ]
}

fn root() -> Check {
    let uid = rustix::process::geteuid().as_raw();
    check(
        "user",
        uid == 0,
        Verdict::Missing,
        format!("uid {uid}"),
        "run the node as root; the programs in sandboxes never are",
    )
}

fn capabilities() -> Check {
    let set = Fields::read("/proc/self/status".into()).and_then(|status| status.number("CapEff", 16)).unwrap_or(0);
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(_, bit)| set & (1 << bit) == 0).map(|(name, _)| *name).collect();
    let found =
        if lacking.is_empty() { "all that are needed".to_owned() } else { format!("without {}", lacking.join(", ")) };
    check(
        "capabilities",
        lacking.is_empty(),
        Verdict::Missing,
        found,
        "run as root of the host, or give a container these (docker run --privileged)",
    )
}

fn is_known(filesystem: &str) -> bool {
    let known = read("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.split_ascii_whitespace().last() == Some(filesystem))
}

fn filesystem(name: &'static str, shown: &'static str, otherwise: Verdict, remedy: &str) -> Check {
    let good = is_known(name);
    check(shown, good, otherwise, if good { "available" } else { "not in /proc/filesystems" }, remedy)
}

/// What snapshots of changed files need.
fn snapshots() -> [Check; 3] {
    let without = "; without it forks copy the files that a sandbox has changed";
    let mkfs = Command::new("mkfs.btrfs").arg("--version").stdin(Stdio::null()).output();
    let mkfs = mkfs.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
    let devices = fs::File::options().read(true).write(true).open("/dev/loop-control");
    [
        filesystem(
            "btrfs",
            "btrfs",
            Verdict::Reduced,
            &format!("load the module: `modprobe btrfs` (CONFIG_BTRFS_FS){without}"),
        ),
        feature("mkfs.btrfs", mkfs, Verdict::Reduced, &format!("install it: `apt-get install btrfs-progs`{without}")),
        feature(
            "loop devices",
            devices.map(|_| "available").map_err(|error| format!("/dev/loop-control: {error}")),
            Verdict::Reduced,
            &format!(
                "load the module: `modprobe loop`, and give a container /dev/loop-control and the devices{without}"
            ),
        ),
    ]
}

fn fuse() -> Check {
    let known = is_known("fuse");
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    let found = match (known, &opened) {
        (true, Ok(_)) => "available".to_owned(),
        (false, _) => "not in /proc/filesystems".to_owned(),
        (true, Err(error)) => format!("/dev/fuse: {error}"),
    };
    check("FUSE", known && opened.is_ok(), Verdict::Reduced, found, FUSE)
}

fn cgroups() -> Vec<Check> {
    let node_id = format!("doctor-{}", std::process::id());
    let groups = match Cgroups::open(&node_id) {
        Ok(groups) => groups,
        Err(error) => {
            let found = node::chain(&error);
            let remedy = "mount cgroup v2 and delegate a group to the node (systemd: Delegate=yes)";
            return vec![check("control groups", false, Verdict::Missing, found, remedy)];
        }
    };
    let checks = group_checks(groups.summary());
    if let Err(error) = groups.remove_all() {
        tracing::warn!(error = node::chain(&error), "the groups of this check could not be removed");
    }
    checks
}

fn group_checks(summary: &CgroupSummary) -> Vec<Check> {
    let place = if summary.mounted_privately { "v2, mounted privately" } else { "v2" };
    let parent = summary.group.parent().unwrap_or(&summary.group).display();
    let mut checks = vec![check("control groups", true, Verdict::Missing, format!("{place}, below {parent}"), "")];
    let homes =
        [("memory limit", &summary.memory), ("process limit", &summary.pids), ("processor limit", &summary.cpu)];
    checks.extend(homes.map(|(name, home)| limit(name, home)));
    checks
}

fn limit(name: &'static str, home: &sandbox::ControllerHome) -> Check {
    match home {
        sandbox::ControllerHome::V2 => check(name, true, Verdict::Ok, "by cgroup v2", ""),
        sandbox::ControllerHome::V1(_) => check(
            name,
            false,
            Verdict::Reduced,
            "by cgroup v1: bound some milliseconds after a start",
            "boot with systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all) to have it in v2",
        ),
        sandbox::ControllerHome::Missing(reason) => check(
            name,
            false,
            Verdict::Reduced,
            reason.clone(),
            "enable the controller for the node's group; without it this limit does not hold",
        ),
    }
}

fn pidfds() -> Check {
    let own = rustix::process::getpid();
    let opened = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
    let found = opened.as_ref().map_or_else(|error| error.to_string(), |_| "available".to_owned());
    check(
        "pidfd",
        opened.is_ok(),
        Verdict::Missing,
        found,
        "use a newer kernel, or a container runtime whose seccomp profile allows pidfd_open",
    )
}

fn huge_pages() -> Check {
    let modes = read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let mode =
        modes.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("not in this kernel", |(mode, _)| mode);
    let good = matches!(mode, "always" | "madvise");
    check(
        "transparent huge pages",
        good,
        Verdict::Reduced,
        mode,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; without them a start takes longer the larger the program is",
    )
}

fn pagemap() -> Check {
    let opened = fs::File::open("/proc/self/pagemap");
    let found = opened.as_ref().map_or_else(ToString::to_string, |_| "readable".to_owned());
    check("page map", opened.is_ok(), Verdict::Missing, found, "mount /proc and run as root (CONFIG_PROC_PAGE_MONITOR)")
}

fn checkpoint_restore() -> Check {
    // The kernel has this file only with the option, which also brings PR_SET_MM_MAP and kcmp.
    let good = Path::new("/proc/self/timers").exists();
    let found = if good { "available" } else { "not in this kernel" };
    check("checkpoint support", good, Verdict::Missing, found, "use a kernel with CONFIG_CHECKPOINT_RESTORE")
}

fn time_namespaces() -> Check {
    let good = Path::new("/proc/self/timens_offsets").exists();
    let found = if good { "available" } else { "not in this kernel" };
    let remedy = "use a kernel with CONFIG_TIME_NS: every copy has clocks of its own";
    check("time namespaces", good, Verdict::Missing, found, remedy)
}

fn userfaultfd() -> Check {
    let device = Path::new("/dev/userfaultfd").exists();
    let sysctl = read("/proc/sys/vm/unprivileged_userfaultfd").is_some();
    let found = match (device, sysctl) {
        (true, _) => "/dev/userfaultfd",
        (false, true) => "by system call",
        (false, false) => "not in this kernel",
    };
    check(
        "userfaultfd",
        device || sysctl,
        Verdict::Reduced,
        found,
        "use a kernel with CONFIG_USERFAULTFD; starting checkpoints needs it, forking does not",
    )
}

fn memory_nodes() -> Check {
    let nodes = sys::numa::nodes().unwrap_or_default();
    let numbers: Vec<String> = nodes.iter().map(u32::to_string).collect();
    let found = if nodes.is_empty() { "none".to_owned() } else { numbers.join(", ") };
    check(
        "NUMA nodes with memory",
        !nodes.is_empty(),
        Verdict::Reduced,
        found,
        "use a kernel with CONFIG_NUMA; only `pando node --memory-node` needs it",
    )
}

fn pids() -> Check {
    let limit = |path: &str| read(path).and_then(|text| text.parse::<u64>().ok());
    let most = [limit("/proc/sys/kernel/pid_max"), limit("/proc/sys/kernel/threads-max"), own_pids_max()];
    let least = most.into_iter().flatten().min().unwrap_or(0);
    let remedy = "raise kernel.pid_max and kernel.threads-max (sysctl), and the pids limit of the node's control group";
    check("processes and threads", least >= PIDS_WANTED, Verdict::Reduced, format!("at most {least}"), remedy)
}

/// The limit of the group that this process is in, where a `pids` controller says one.
fn own_pids_max() -> Option<u64> {
    let groups = CgroupPaths::read("self").ok()?;
    let candidates = groups.iter().filter_map(|CgroupPath { controllers, path }| {
        let mount = match controllers {
            None => "/sys/fs/cgroup",
            Some("pids") => "/sys/fs/cgroup/pids",
            Some(_) => return None,
        };
        read(format!("{mount}{path}/pids.max"))?.parse().ok()
    });
    candidates.min()
}

fn ptrace_scope() -> Check {
    let scope = read("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_else(|| "no Yama".to_owned());
    check(
        "ptrace",
        scope != "3",
        Verdict::Missing,
        scope.clone(),
        "kernel.yama.ptrace_scope=3 forbids tracing to everyone; it can only be lowered by a reboot",
    )
}

fn memory_files() -> Check {
    let noexec = read("/proc/sys/vm/memfd_noexec").unwrap_or_else(|| "0".to_owned());
    check(
        "memory files",
        noexec != "2",
        Verdict::Reduced,
        format!("vm.memfd_noexec is {noexec}"),
        "with vm.memfd_noexec=2 the first process of each sandbox keeps a quarter of a MiB of the node's memory, which no process in the sandbox can read",
    )
}

/// Names of sandboxes, as clients of the system's resolver see them.
pub(super) async fn names() -> Check {
    let tried = match gateway::domain::DOMAIN_DEFAULT.parse() {
        Ok(domain) => gateway::env::resolve(&domain).await.map(|()| "resolve").map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let remedy = format!("{}; without it SDKs get plain addresses", gateway::env::NAMES_HINT);
    feature("names of sandboxes", tried, Verdict::Reduced, &remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels of the list in docs/kernels.md have these checks, whatever they find.
    #[test]
    fn each_feature_of_the_kernel_is_tried() {
        let tried =
            [detached_layers(), timer_numbers(), page_scan(), guard_pages(), mapping_queries(), exit_statuses()];
        for check in tried {
            assert!(!check.found.is_empty(), "{check:?}");
            assert_eq!(check.remedy.is_some(), check.verdict != Verdict::Ok, "{check:?}");
        }
    }

    #[test]
    fn no_version_of_a_kernel_is_a_reason() {
        assert_eq!(kernel().verdict, Verdict::Ok);
    }

    #[test]
    fn what_is_not_there_says_what_is_lost() {
        let lost = feature("thing", Err::<&str, _>("not in this kernel"), Verdict::Reduced, "without it less");
        assert_eq!((lost.verdict, lost.found.as_str()), (Verdict::Reduced, "not in this kernel"));
        assert_eq!(lost.remedy.as_deref(), Some("without it less"));
        assert_eq!(feature("thing", Ok::<_, &str>("there"), Verdict::Reduced, "-").remedy, None);
    }
}
