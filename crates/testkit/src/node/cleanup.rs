//! What a node could leave behind, and its removal whatever happens.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::Node;

/// What stays of a state directory from which everything was removed.
const STATE_FILES: [&str; 23] = [
    "builds",
    "image-store",
    "changes",
    "changes.boot",
    "changes.img",
    "images",
    "egress",
    "layers",
    "lineage",
    "lock",
    "mounts",
    "node.json",
    "paused",
    "sandboxes",
    "store",
    "templates",
    "unseen",
    "commands",
    "volumes",
    "control.db",
    "serve.key",
    "tls",
    "snapshots",
];

/// Removes a case's group and directories when dropped, or when the test program ends in any way.
pub(super) struct Cleanup {
    /// Files of the case.
    pub(super) dir: PathBuf,
    /// Files that sandboxes see.
    pub(super) programs: PathBuf,
    /// The cgroup (v2) that everything runs in.
    pub(super) group: PathBuf,
    watchdog: Child,
}

/// Kills whatever is in the group, then removes all groups with the names of those below it (the v1 hierarchies have them, too)
/// and the directories. It waits for the end of its input: that is when the test program drops it, or dies.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
echo 1 > "$1/cgroup.kill"
groups=$(cd "$1" && ls -d pando-* 2>/dev/null)
tries=0
# A group counts its last process for a moment after that is gone.
while [ $tries -lt 250 ]; do
    left=0
    for group in $groups "${1##*/}"; do
        find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null || left=1
    done
    [ $left = 0 ] && break
    sleep 0.02
    tries=$((tries + 1))
done
# Of a node that was killed.
sed -n 's/^[^ ]* \([^ ]*\) .*/\1/p' /proc/self/mounts | while read -r mount; do
    case $mount in "$2"/*) umount -l "$mount" ;; esac
done
rm -rf --one-file-system "$2" "$3"
"#;

impl Cleanup {
    pub(super) fn new() -> Result<Self> {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let name = format!("pando-host-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        let (dir, programs) = (Path::new("/var/tmp").join(&name), Path::new("/opt").join(&name));
        let group = unified()?.join(&name);
        for path in [&dir, &programs, &group] {
            fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .args([&group, &dir, &programs])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { dir, programs, group, watchdog })
    }

    /// Fails if a process or group of a stopped node is left.
    pub(super) fn expect_no_process(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut left = self.present()?;
        while !left.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            left = self.present()?;
        }
        ensure!(left.is_empty(), "left behind after the end of the node: {left:?}");
        Ok(())
    }

    /// Fails if anything of a stopped node, from which everything was removed, is left.
    pub(super) fn expect_nothing(&self, state: &Path, socket: &Path, own_mount: bool) -> Result<()> {
        self.expect_no_process()?;
        ensure!(!socket.exists(), "the socket is left behind");
        let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
        let mounts: Vec<&str> = mountinfo.lines().filter(|line| line.contains(&*self.dir.to_string_lossy())).collect();
        ensure!(mounts.is_empty(), "mounts left behind: {mounts:?}");
        if own_mount {
            return Ok(());
        }
        let found = names(state);
        ensure!(found.iter().all(|name| STATE_FILES.contains(&name.as_str())), "unexpected files: {found:?}");
        let held = names(&state.join("commands"));
        ensure!(held.iter().all(|name| name == "holder.lock"), "the holder left: {held:?}");
        for folder in
            ["changes", "sandboxes", "templates", "images", "paused", "mounts", "unseen", "snapshots", "lineage"]
        {
            let found = names(&state.join(folder));
            ensure!(found.is_empty(), "{folder} left behind: {found:?}");
        }
        Ok(())
    }

    /// Processes and groups.
    fn present(&self) -> Result<Vec<String>> {
        let mut found: Vec<String> = processes_in(&self.group).into_iter().map(describe).collect();
        for name in names(&self.group) {
            if self.group.join(&name).is_dir() {
                found.push(format!("cgroup {name}"));
            }
        }
        Ok(found)
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// What should not be there while a node runs from which all sandboxes were removed.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Processes that are neither server, keeper, pager, of the volumes, a zygote nor of a blank sandbox.
    pub processes: Vec<String>,
    /// Groups that are not of a blank sandbox.
    pub groups: Vec<String>,
    /// Entries of the sandboxes directory that are not of a blank sandbox.
    pub directories: Vec<String>,
    /// Network namespaces that server or keeper hold by a descriptor beside their own.
    pub namespaces: Vec<String>,
}

impl Leftovers {
    /// Whether all is as it should be.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.groups.is_empty() && self.directories.is_empty() && self.namespaces.is_empty()
    }
}

pub(super) fn leftovers(node: &Node) -> Result<Leftovers> {
    let info = node.info()?;
    let listed: BTreeSet<String> = node.ps()?.into_iter().map(|sandbox| sandbox.id.to_string()).collect();
    let server = node.server_pid()?;
    let mut expected: BTreeSet<i32> =
        [Some(server), info.keeper_pid.map(|pid| pid as i32)].into_iter().flatten().collect();
    for template in node.json(&["template", "ls", "--json"])?.as_array().context("no list")? {
        expected.extend(template["facts"]["zygote_pid"].as_i64().map(|pid| pid as i32));
    }
    let mut found = Leftovers::default();
    // Which the node holds.
    let router = fs::metadata(format!("/proc/{server}/root{}", node.state.join("router").display()));
    let router = router.map_or_else(|_| String::new(), |router| format!("net:[{}]", router.ino()));
    // A blank sandbox is one directory, one group, one process, and one more if a copy was forked ahead.
    let view = PathBuf::from(format!("/proc/{server}/root{}", node.state.join("sandboxes").display()));
    let known: Vec<String> = names(&view).into_iter().filter(|name| !listed.contains(name)).collect();
    if known.len() != info.pool.ready + info.pool.bare {
        found.directories = known.clone();
        found.directories.push(format!("(the pool says {} and {} bare)", info.pool.ready, info.pool.bare));
    }
    let main = node.cleanup.group.join(format!("pando-{}", info.id));
    for group in names(&main).into_iter().filter(|name| main.join(name).is_dir()) {
        let own = ["daemon", "pager"].contains(&group.as_str());
        if !own && !listed.contains(&group) && !known.contains(&group) {
            found.groups.push(group);
        }
    }
    let mut ahead = Vec::new();
    for pid in processes_in(&node.cleanup.group) {
        let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let listed = listed.iter().any(|id| group.contains(id.as_str()));
        let blank = known.iter().any(|id| group.contains(id.as_str()));
        if blank && comm(pid) != "pando-init" {
            ahead.push(describe(pid));
        } else if !expected.contains(&pid) && !listed && !blank && !is_family(pid) {
            found.processes.push(describe(pid));
        }
    }
    if ahead.len() != info.pool.ahead {
        found.processes.append(&mut ahead);
        found.processes.push(format!("(the pool says {} forked ahead)", info.pool.ahead));
    }
    for pid in [Some(server), info.keeper_pid.map(|pid| pid as i32)].into_iter().flatten() {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
            if target.starts_with("net:[") && target != router && known.is_empty() && listed.is_empty() {
                found.namespaces.push(format!("{target} in {pid}"));
            }
        }
    }
    Ok(found)
}

/// Of the pager, the volumes or the commands. They stay for a while, in case they are needed soon, and end with their node if they have no work.
fn is_family(pid: i32) -> bool {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    ["\0guardian\0", "\0volumed\0", "\0holder\0"].iter().any(|role| command.contains(role))
}

fn describe(pid: i32) -> String {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    let state = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = |name: &str| state.lines().find(|line| line.starts_with(name)).unwrap_or("").replace('\t', " ");
    format!("{pid} {} [{command}] {} {}", comm(pid), line("State"), line("PPid"))
}

fn comm(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Every process in a group and the groups below it.
fn processes_in(group: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    let mut folders = vec![group.to_owned()];
    while let Some(folder) = folders.pop() {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        folders.extend(names(&folder).into_iter().map(|name| folder.join(name)).filter(|path| path.is_dir()));
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The directory of this process's group in the v2 hierarchy.
fn unified() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[2] == "cgroup2");
    let root = root.context("there is no cgroup v2 hierarchy")?[1].to_owned();
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    Ok(PathBuf::from(root).join(own))
}
