//! The user namespace of a sandbox: who its users are outside, and on the disk.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt, chown},
    },
    path::PathBuf,
};

use base::limits::{IDS_FIRST, IDS_PER_SANDBOX};
use procfs::IdMaps;
use sandbox::{Command, ProcessIdentity, Sandbox, Spec, User, Users};

use crate::sandbox::host::{Host, Output, at_rest, command, destroy, run, shell, start, wait};

fn root_of(sandbox: &Sandbox) -> u32 {
    IdMaps::of(sandbox.init().pid).unwrap().user_outside(0).unwrap()
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
    // How many it gets of each: inotify instances, waiting signals, queues, pipes of the usual size, processes.
    let use_up = "import ctypes, fcntl, os, resource, signal, time
libc = ctypes.CDLL(None)
def most(get):
    count = 0
    while get(count): count += 1
    return count
def pipe(count):
    return fcntl.fcntl(os.pipe()[0], fcntl.F_GETPIPE_SZ) >= 65536
def process(count):
    try: pid = os.fork()
    except OSError: return False
    if pid == 0: time.sleep(1000)
    return True
resource.setrlimit(resource.RLIMIT_SIGPENDING, (50, 50))
resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
print(most(lambda count: libc.inotify_init1(0) >= 0),
      most(lambda count: libc.sigqueue(libc.getpid(), signal.SIGRTMIN, 0) == 0),
      most(lambda count: libc.mq_open(b'/%d' % count, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0),
      most(pipe), most(process), flush=True)
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
    assert!(first_numbers.len() == 5 && first_numbers.iter().all(|count| *count >= 5), "{counts:?}");
    println!("       inotify, signals, queues, pipes, processes: {}", first.trim_end());
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

/// A command of root.
fn as_root(sandbox: &Sandbox, script: &str) -> Output {
    let script = format!("PATH=/usr/sbin:/usr/bin:/sbin:/bin; {script}");
    let mut command = command(&["sh", "-c", &script]);
    command.user = User::ROOT;
    let (pid, reader) = start(sandbox, &command);
    let text = std::io::read_to_string(fs::File::from(reader)).unwrap();
    Output { code: wait(pid), text }
}

pub(crate) fn root(host: &Host) {
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let who =
        as_root(&sandbox, "id -u; id -G; grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status | sort -u -k2 | wc -l").text;
    assert_eq!(who, "0\n0\n1\n");
    // What a package manager does.
    let work = "set -e; mkdir /opt/p; echo x > /opt/p/f; chown 33:33 /opt/p/f; chmod 6755 /opt/p/f; touch /etc/new; mkdir -p /root/d; \
        mknod /opt/p/pipe p; ln /opt/p/f /opt/p/g; chroot / true; setpriv --reuid 1000 --regid 1000 --clear-groups id -u; stat -c '%u %a' /opt/p/f";
    assert_eq!(as_root(&sandbox, work).text, "1000\n33 6755\n");
    let made = fs::metadata(spec.dir.join("upper/opt/p/f")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o7777), (33, 0o6755));
    let secret = "echo s > /root/secret; chmod 600 /root/secret";
    assert_eq!(as_root(&sandbox, secret).code, 0);
    assert!(shell(&sandbox, "cat /root/secret").text.contains("Permission denied"));
    destroy(sandbox);
}

pub(crate) fn escapes(host: &Host) {
    let sandbox = host.sandbox();
    at_rest(&sandbox);
    // Each must fail, and say so; a line that is printed is a way out.
    let tries = [
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sys/kernel/hostname",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo b > /proc/sysrq-trigger",
        "echo 0 > /sys/kernel/mm/transparent_hugepage/enabled",
        "mknod /tmp/sda b 8 0",
        "mknod /tmp/mem c 1 1",
        "unshare -U true",
        "unshare -m true",
        "nsenter -t 1 -m true",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "readlink /proc/1/exe",
        "readlink /proc/1/cwd",
        "dd if=/proc/1/mem of=/dev/null count=1",
        "echo -1000 > /proc/self/oom_score_adj",
        "echo 0 0 1 > /proc/self/uid_map",
        "echo 1 > /sys/fs/cgroup/cgroup.procs",
        "echo 1 > /sys/fs/cgroup/cgroup.kill",
        "mkdir /sys/fs/cgroup/own",
        "mount -o remount,rw /sys/fs/cgroup",
        "ls /sys/fs/cgroup/../cgroup/system.slice",
        "ip link add x type dummy",
        "ip addr add 10.0.0.1/8 dev lo",
        "cat /proc/modules | grep .",
        "cat /proc/keys | grep .",
        "python3 -c \"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(175, 0, 0, 0) < 0)\"",
        "python3 -c \"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(442, -100, b'/', 0, 0, 0) < 0)\"",
        "python3 -c \"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(428, -100, b'/', 1) < 0)\"",
        "cat /proc/kcore | head -c 1 | grep .",
        "chown 70000 /tmp",
        "python3 -c \"import resource; resource.prlimit(1, resource.RLIMIT_FSIZE, (0, 0))\"",
        "python3 -c \"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(250, 0, 0) < 0)\"",
        "python3 -c \"import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(304, -100, b'', 0) < 0)\"",
        "python3 -c \"import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) < 0)\"",
        "python3 -c \"import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\"",
        "python3 -c \"import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)\"",
        "python3 -c \"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 30, 1 << 30))\"",
    ];
    for attempt in tries {
        let found = as_root(&sandbox, &format!("{attempt} 2>/dev/null"));
        assert_ne!(found.code, 0, "{attempt}: {found:?}");
    }
    // Its first process lives on.
    as_root(&sandbox, "kill -9 1; kill -TERM 1; kill -STOP 1");
    assert_eq!(shell(&sandbox, "cat /proc/1/comm").text, "pando-init\n");
    // Links that root made lead nowhere outside.
    as_root(
        &sandbox,
        "rm -rf /run/pando; ln -s /proc/1/root/etc /run/pando; ln -s ../../../../../../../../etc /opt/up",
    );
    assert!(as_root(&sandbox, "cat /opt/up/shadow").text.contains("No such file"));
    destroy(sandbox);
}

pub(crate) fn set_user_id(host: &Host) {
    let sandbox = host.sandbox();
    let made = "cp /usr/bin/id /usr/bin/dd /usr/local/bin/ && cd /usr/local/bin && chmod 4755 id && install -m 600 /dev/null /root-only && \
        python3 -c \"import os; os.setxattr('dd', 'security.capability', bytes([1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))\"";
    assert_eq!(as_root(&sandbox, made).text, "");
    assert_eq!(shell(&sandbox, "/usr/local/bin/id -u; /usr/bin/id -u").text, "0\n1000\n");
    // A capability of the file, DAC_OVERRIDE, and a copy of the program without it.
    let read = |program: &str| shell(&sandbox, &format!("{program} if=/root-only of=/dev/null 2>/dev/null")).code;
    assert_eq!((read("/usr/local/bin/dd"), read("/usr/bin/dd")), (0, 1));
    destroy(sandbox);
}

/// What a program without other users beside it shows.
const ALONE: &str = "id -u; /usr/local/bin/id -u; grep -E 'CapBnd|NoNewPrivs' /proc/self/status";
const ALONE_SHOWS: &str = "1000\n1000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n";

pub(crate) fn program_only(host: &Host) {
    let layer = host.state().join("set-user-id");
    fs::create_dir_all(layer.join("usr/local/bin")).unwrap();
    fs::copy("/usr/bin/id", layer.join("usr/local/bin/id")).unwrap();
    fs::set_permissions(layer.join("usr/local/bin/id"), fs::Permissions::from_mode(0o4755)).unwrap();
    let layers = vec![layer.clone(), host.mask(), PathBuf::from("/")];
    assert_eq!((Users::of(&layers), Users::of(std::slice::from_ref(&layer))), (Users::ProgramOnly, Users::All));
    let spec = Spec { users: Users::ProgramOnly, ..host.spec_of(layers) };
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    assert_eq!(shell(&sandbox, ALONE).text, ALONE_SHOWS);
    let mut root = command(&["true"]);
    root.user = User::ROOT;
    let null = fs::File::open("/dev/null").unwrap();
    let refused = sandbox.spawn(&root, [null.as_fd(); 3], None).unwrap_err();
    assert!(refused.to_string().contains("another user"), "{refused}");
    let hand = sandbox.start_hand(&User::ROOT, sys::seqpacket::pair().unwrap().0, |_| 0).unwrap_err();
    assert!(hand.to_string().contains("another user"), "{hand}");
    destroy(sandbox);
    fs::remove_dir_all(layer).unwrap();
}

/// A sandbox whose pid 1 is in the host's user namespace, as one that an earlier version has made: its root would be the host's.
pub(crate) fn of_before(host: &Host) {
    let spec = host.spec();
    let sandbox = Sandbox::create(&spec, &host.cgroups).unwrap();
    let mut init = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let identity = ProcessIdentity::of(init.id() as i32).unwrap();
    let old = Sandbox::adopt(&spec, identity, &host.cgroups).unwrap().unwrap();
    let mut shown = command(&["sh", "-c", "id -u; grep -E 'CapBnd|NoNewPrivs' /proc/self/status"]);
    shown.cwd = "/".to_owned();
    let (pid, output) = start(&old, &shown);
    let text = std::io::read_to_string(fs::File::from(output)).unwrap();
    assert_eq!((wait(pid), text.as_str()), (0, "1000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n"));
    let null = fs::File::open("/dev/null").unwrap();
    let refused = old.spawn(&Command { user: User::ROOT, ..shown }, [null.as_fd(); 3], None).unwrap_err();
    assert!(refused.to_string().contains("another user"), "{refused}");
    drop(old);
    init.kill().unwrap();
    init.wait().unwrap();
    destroy(sandbox);
}

/// Root stops all that it can see: who starts commands must not wait for that.
pub(crate) fn stops(host: &Host) {
    let sandbox = host.sandbox();
    let stop = "import os, signal
print('on', flush=True)
while True:
    try: os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError: pass";
    let mut stopper = command(&["python3", "-c", stop]);
    stopper.user = User::ROOT;
    let (pid, output) = start(&sandbox, &stopper);
    BufReader::new(fs::File::from(output)).read_line(&mut String::new()).unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let began = std::time::Instant::now();
    let mut stopped = 0;
    for _ in 0..20 {
        match sandbox.spawn(&command(&["true"]), [null.as_fd(); 3], None) {
            Ok(_) => {}
            Err(error) => {
                assert!(error.to_string().contains("stopped"), "{error}");
                stopped += 1;
            }
        }
    }
    println!("       {stopped} of 20 commands were stopped before they began; {:?} for all", began.elapsed());
    assert!(began.elapsed() < std::time::Duration::from_secs(15), "{:?}", began.elapsed());
    destroy(sandbox);
    wait(pid);
    crate::sandbox::host::reap_all();
}

pub(crate) fn changed_root(host: &Host) {
    let sandbox = host.sandbox();
    let change = "import os, time
os.mkdir('/opt/jail'); os.chroot('/opt/jail'); print('on', flush=True); time.sleep(1000)";
    let mut jailed = command(&["python3", "-c", change]);
    jailed.user = User::ROOT;
    let (pid, output) = start(&sandbox, &jailed);
    BufReader::new(fs::File::from(output)).read_line(&mut String::new()).unwrap();
    let refusals: Vec<String> =
        process::examine(&process::Examined::process(pid).unwrap()).unwrap().iter().map(ToString::to_string).collect();
    assert!(refusals.iter().any(|refusal| refusal.contains("/opt/jail its root directory")), "{refusals:?}");
    destroy(sandbox);
    wait(pid);
}
