//! The user namespace of a sandbox: who its users are outside, and on the disk.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::PathBuf,
};

use base::limits::{IDS_FIRST, IDS_PER_SANDBOX};
use procfs::IdMaps;
use sandbox::Sandbox;

use crate::sandbox::host::{Host, command, destroy, run, shell, start, wait};

fn root_of(sandbox: &Sandbox) -> u32 {
    IdMaps::of(sandbox.init().pid).unwrap().root_outside().unwrap()
}

pub(crate) fn on_the_disk(host: &Host) {
    let layer = host.state().join("owned");
    fs::create_dir(&layer).unwrap();
    for (name, owner, mode) in
        [("roots", 0, 0o600), ("sevens", 7, 0o644), ("users", 1_000, 0o600), ("strangers", 70_000, 0o606)]
    {
        let path = layer.join(name);
        fs::write(&path, name).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let spec = host.spec_of(vec![layer.clone(), host.mask(), PathBuf::from("/")]);
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let seen = "cd /; stat -c '%u %g %n' roots sevens users strangers; cat roots 2>/dev/null; cat sevens users; echo; cat strangers";
    let expected = "0 0 roots\n7 7 sevens\n1000 1000 users\n65534 65534 strangers\nsevensusers\nstrangers";
    assert_eq!(shell(&sandbox, seen).text, expected);
    // A file that it makes, and one that it changes: the upper directory gets a copy.
    assert_eq!(shell(&sandbox, "echo new > ~/new; echo changed >> /users; id -u; id -g").text, "1000\n1000\n");
    for file in ["home/user/new", "users"] {
        let made = fs::metadata(spec.dir.join("upper").join(file)).unwrap();
        assert_eq!((made.uid(), made.gid()), (1_000, 1_000), "{file}");
    }
    let (program, output) = start(&sandbox, &command(&["sleep", "1000"]));
    let outside = fs::metadata(format!("/proc/{program}")).unwrap();
    let expected = root_of(&sandbox) + 1_000;
    assert_eq!((outside.uid(), outside.gid()), (expected, expected));
    drop(output);
    destroy(sandbox);
    wait(program);
    fs::remove_dir_all(layer).unwrap();
}

pub(crate) fn counts_per_user(host: &Host) {
    let use_up = "import ctypes, resource, signal, sys, time
libc = ctypes.CDLL(None)
instances = 0
while libc.inotify_init1(0) >= 0: instances += 1
resource.setrlimit(resource.RLIMIT_SIGPENDING, (50, 50))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
signals = 0
while libc.sigqueue(libc.getpid(), signal.SIGRTMIN, 0) == 0: signals += 1
print(instances, signals, flush=True)
time.sleep(1000)";
    let sandboxes = [host.sandbox(), host.sandbox()];
    let counts = sandboxes.each_ref().map(|sandbox| {
        let (pid, output) = start(sandbox, &command(&["python3", "-c", use_up]));
        let mut output = BufReader::new(fs::File::from(output));
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        (pid, line)
    });
    let (_, first) = &counts[0];
    let first_numbers: Vec<u32> = first.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(first_numbers.len() == 2 && first_numbers.iter().all(|count| *count >= 10), "{counts:?}");
    assert_eq!(first, &counts[1].1, "the second has as much as the first");
    // In the same sandbox nothing is left.
    let left = "import ctypes; print(ctypes.CDLL(None).inotify_init1(0))";
    assert_eq!(run(&sandboxes[0], &["python3", "-c", left]).text, "-1\n");
    let pids = counts.map(|(pid, _)| pid);
    sandboxes.into_iter().for_each(destroy);
    for pid in pids {
        wait(pid);
    }
}

pub(crate) fn ranges(host: &Host) {
    let sandboxes: Vec<Sandbox> = (0..5).map(|_| host.sandbox()).collect();
    let link = |root: u32| PathBuf::from(format!("/run/pando/ids/{}", (root - IDS_FIRST) / IDS_PER_SANDBOX));
    let owner = |root: u32| fs::read_link(link(root)).ok().map(|owner| owner.display().to_string());
    let roots: BTreeSet<u32> = sandboxes.iter().map(root_of).collect();
    assert_eq!(roots.len(), sandboxes.len());
    for sandbox in sandboxes {
        let (root, init) = (root_of(&sandbox), sandbox.init());
        let name = format!("{}:{}", init.pid, init.start_ticks);
        assert_eq!(owner(root).as_ref(), Some(&name));
        destroy(sandbox);
        assert_ne!(owner(root), Some(name), "it is free, or another sandbox's");
    }
}
