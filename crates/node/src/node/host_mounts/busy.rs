//! Who keeps a mount from being taken off: what the kernel's `EBUSY` does not say.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use procfs::Mounts;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Most that are named; how many more there are is said.
const NAMED_MAX: usize = 8;

/// The processes that work in the mount on `path`, or have a file of it open or mapped, as `PID (COMMAND)`, and what is mounted in it. Processes that
/// this one may not look into, and those that end meanwhile, are left out. Blocks for as long as it takes to look at all processes of the host.
pub(super) fn users(path: &str) -> Vec<String> {
    let Some(mount) = mount_of(Path::new(path)) else { return Vec::new() };
    let below = Mounts::read("self").map(|mounts| mounted_in(&mounts, mount)).unwrap_or_default();
    let processes = entries(Path::new("/proc")).filter(|process| is_number(process) && is_user(process, mount));
    let mut users: Vec<String> = processes.map(|process| named(&process)).chain(below).collect();
    let more = users.len().saturating_sub(NAMED_MAX);
    users.truncate(NAMED_MAX);
    if more > 0 {
        users.push(format!("{more} more"));
    }
    users
}

/// The kernel's number of the mount that a path leads into. The filesystem is not asked, which may not answer.
fn mount_of(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID).ok()?;
    Some(found.stx_mnt_id)
}

fn is_user(process: &Path, mount: u64) -> bool {
    let own = ["cwd", "root", "exe"].map(|link| process.join(link)).into_iter();
    let listed = ["fd", "map_files"].into_iter().flat_map(|listed| entries(&process.join(listed)));
    own.chain(listed).any(|link| mount_of(&link) == Some(mount))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(io::Result::ok).map(|entry| entry.path())
}

fn is_number(process: &Path) -> bool {
    process.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok())
}

/// A program chooses its name: what could act on a terminal is replaced.
fn named(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end().replace(char::is_control, "?");
    format!("{} ({name})", process.file_name().unwrap_or_default().to_string_lossy())
}

/// What is mounted in a mount, but not what is mounted in that.
fn mounted_in(mounts: &Mounts, mount: u64) -> Vec<String> {
    let inside = mounts.iter().filter(|inside| inside.parent == mount);
    inside.map(|inside| format!("a mount on {}", inside.at().display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_inside_a_mount_are_named() {
        let mounts = Mounts::of(
            "36 35 98:0 / /mnt/a\\040b rw - fuse.pando ws rw\n37 36 98:0 / /mnt/a\\040b/c rw shared:1 - ext4 /dev/a rw\n",
        );
        assert_eq!(mounted_in(&mounts, 36), ["a mount on /mnt/a b/c"]);
        assert!(mounted_in(&mounts, 37).is_empty());
    }

    #[test]
    fn a_process_is_a_user_of_what_it_works_in() {
        let here = Path::new("/proc/self");
        let root = mount_of(Path::new("/proc/self/root")).unwrap();
        assert!(is_user(here, root) && !is_user(here, u64::MAX));
        assert!(named(here).starts_with("self ("));
    }
}
