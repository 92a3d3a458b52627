//! What sandboxes need for users of their own: user namespaces, mounts with mapped ids, and ids that no other runtime gives away.

use std::{
    fs, io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use base::limits::{ID_RANGES_MAX, IDS_FIRST, IDS_PER_SANDBOX};
use procfs::Fields;
use rustix::{
    fs::CWD,
    mount::{OpenTreeFlags, open_tree},
};

use super::checks::{Check, Verdict, check, feature};

pub(super) fn all(state: &Path) -> Vec<Check> {
    let made = sys::namespace::of_users(IDS_FIRST, IDS_PER_SANDBOX);
    let mut checks = vec![made_one(&made), given_away(), gained()];
    if let Ok(namespace) = &made {
        let state = state.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        let needed = "put the state directory and images on ext4, XFS, Btrfs or tmpfs: an overlay (the root of a container) has none";
        checks.push(mapped("owners in the state", state, namespace.as_fd(), Verdict::Missing, needed));
        let host = "use the image of a directory or tarball: sandboxes of image `host` cannot be made here";
        checks.push(mapped("owners in image `host`", Path::new("/"), namespace.as_fd(), Verdict::Reduced, host));
    }
    checks
}

fn made_one(made: &io::Result<OwnedFd>) -> Check {
    let found = match made {
        Ok(_) => Ok(format!("with ids from {IDS_FIRST}")),
        Err(error) => Err(error.to_string()),
    };
    let remedy = "use a kernel with CONFIG_USER_NS, raise user.max_user_namespaces (sysctl), and run as root of the host, not of a user namespace";
    feature("user namespaces", found, Verdict::Missing, remedy)
}

/// Whether programs in sandboxes can gain privileges by the set-user-id bit, as far as this process can tell of a node started like it.
fn gained() -> Check {
    let set = Fields::read("/proc/self/status".into()).and_then(|status| status.number("NoNewPrivs", 10)).unwrap_or(0);
    let found = if set == 0 { "gained in sandboxes, not outside" } else { "no_new_privs is set" };
    let remedy = "start the node without NoNewPrivileges: `sudo` in sandboxes has no effect otherwise";
    check("privileges of sudo", set == 0, Verdict::Reduced, found, remedy)
}

/// Whether other runtimes may give ids of sandboxes to their containers.
fn given_away() -> Check {
    let files = ["/etc/subuid", "/etc/subgid"].map(|path| (path, fs::read_to_string(path).unwrap_or_default()));
    let overlaps: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| text.lines().filter(|line| overlaps(line)).map(move |line| format!("{path}: {line}")))
        .collect();
    let found = if overlaps.is_empty() { "given to no other program".to_owned() } else { overlaps.join(", ") };
    let remedy = format!("give these users others: {:?} are the sandboxes'", ids());
    check("ids of sandboxes", overlaps.is_empty(), Verdict::Reduced, found, remedy)
}

fn ids() -> Range<u64> {
    let first = u64::from(IDS_FIRST);
    first..first + u64::from(ID_RANGES_MAX) * u64::from(IDS_PER_SANDBOX)
}

/// Of a line `name:first:count` (subuid(5)).
fn overlaps(line: &str) -> bool {
    let mut numbers = line.split(':').skip(1).map(|word| word.trim().parse::<u64>().ok());
    let (Some(Some(first)), Some(Some(count))) = (numbers.next(), numbers.next()) else { return false };
    first < ids().end && first.saturating_add(count) > ids().start
}

fn mapped(
    name: &'static str,
    path: &Path,
    namespace: BorrowedFd<'_>,
    otherwise: Verdict,
    remedy: &'static str,
) -> Check {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tried = open_tree(CWD, path, flags).map_err(io::Error::from);
    let tried = tried.and_then(|mount| sys::mount::map_ids(mount, namespace));
    let shown = path.display();
    let found =
        tried.map(|()| format!("mapped below {shown}")).map_err(|error| format!("not mapped below {shown}: {error}"));
    feature(name, found, otherwise, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_share_ids_with_sandboxes_are_found() {
        assert!(overlaps("lxd:1879048192:65536") && overlaps("all:0:4294967294") && overlaps("end:2141192191:1"));
        assert!(
            !overlaps("user:100000:65536") && !overlaps("below:1878982656:65536") && !overlaps("above:2141192192:9")
        );
        assert!(!overlaps("") && !overlaps("# comment") && !overlaps("user:x:1"));
    }
}
