//! The single checks. Each says what it found; none changes anything that outlives it.

use std::{fs, path::Path};

use sandbox::{CgroupSummary, Cgroups};
use serde::Serialize;

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

/// Oldest kernel with everything that is used: overlay layers that are mounted nowhere and timers that keep their numbers
/// (PR_TIMER_CREATE_RESTORE_IDS) both came with 6.15.
const KERNEL_MIN: (u32, u32) = (6, 15);

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
    ];
    checks.extend(cgroups());
    checks.extend([
        pidfds(),
        huge_pages(),
        pagemap(),
        checkpoint_restore(),
        time_namespaces(),
        userfaultfd(),
        memory_nodes(),
        fuse(),
        pids(),
        ptrace_scope(),
        memory_files(),
    ]);
    checks
}

const OVERLAY: &str = "load the module: `modprobe overlay` (CONFIG_OVERLAY_FS)";
const FUSE: &str = "load the module: `modprobe fuse` (CONFIG_FUSE_FS), and give a container the device /dev/fuse; volumes need it, forking does not";

fn check(
    name: &'static str,
    good: bool,
    otherwise: Verdict,
    found: impl Into<String>,
    remedy: impl Into<String>,
) -> Check {
    let verdict = if good { Verdict::Ok } else { otherwise };
    Check { name, verdict, found: found.into(), remedy: (!good).then(|| remedy.into()) }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
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

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let good = version(&release).is_some_and(|version| version >= KERNEL_MIN);
    let remedy = format!("install a kernel of at least {}.{}", KERNEL_MIN.0, KERNEL_MIN.1);
    check("kernel", good, Verdict::Missing, release, remedy)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
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
    let status = read("/proc/self/status").unwrap_or_default();
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let lacking: Vec<_> =
        CAPABILITIES.iter().filter(|(_, bit)| set.unwrap_or(0) & (1 << bit) == 0).map(|(name, _)| *name).collect();
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
    let membership = read("/proc/self/cgroup")?;
    let candidates = membership.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let mount = match controllers {
            "" => "/sys/fs/cgroup",
            "pids" => "/sys/fs/cgroup/pids",
            _ => return None,
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
        "with vm.memfd_noexec=2 the first process of each sandbox keeps a copy of memory of the node's, which nobody in the sandbox can read, and a quarter of a MiB with it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_compare_by_number() {
        assert_eq!(version("6.18.3-1-cloud-amd64"), Some((6, 18)));
        assert!(version("6.100.0").unwrap() > KERNEL_MIN);
        assert!(version("6.7.0").unwrap() < KERNEL_MIN);
        assert_eq!(version("linux"), None);
    }
}
