//! What a program sees and what it cannot do.

use std::{collections::BTreeSet, fs, os::fd::AsFd, path::Path};

use base::limits::ROOT_CAPABILITIES;

use crate::sandbox::host::{Host, at_rest, command, destroy, run, shell, start, wait};

fn line(text: &str, key: &str) -> String {
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
}

pub(crate) fn namespaces(host: &Host) {
    let spec = host.spec();
    let sandbox = sandbox::Sandbox::create(&spec, &host.cgroups).unwrap();
    at_rest(&sandbox);
    let pids = shell(&sandbox, "ls /proc | grep '^[0-9]*$' | wc -l; cat /proc/1/comm").text;
    assert!(pids.ends_with("pando-init\n"), "{pids}");
    assert!(pids.lines().next().unwrap().trim().parse::<u32>().unwrap() <= 5, "{pids}");
    for name in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let inside = run(&sandbox, &["readlink", &format!("/proc/self/ns/{name}")]).text;
        let outside = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_ne!(inside.trim(), outside.to_str().unwrap(), "{name}");
    }
    assert_eq!(shell(&sandbox, "ls /sys/class/net").text, "lo\n");
    let address = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 80)); s.listen(); c = socket.create_connection(s.getsockname()); print('up')";
    assert_eq!(run(&sandbox, &["python3", "-c", address]).text, "up\n");
    assert_eq!(shell(&sandbox, "hostname; cat /etc/hostname").text, format!("{id}\n{id}\n", id = spec.id));
    let boot_id = fs::read_to_string(spec.dir.join("upper/run/pando/boot_id")).unwrap();
    assert_eq!(shell(&sandbox, "cat /proc/sys/kernel/random/boot_id").text, boot_id);
    assert_ne!(boot_id, fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap());
    assert_eq!(shell(&sandbox, "cat /etc/machine-id").text.trim().len(), 32);
    assert_eq!(shell(&sandbox, "cat /run/pando/generation").text.trim().len(), 36);
    let groups = shell(&sandbox, "cat /proc/self/cgroup").text;
    assert!(groups.lines().any(|line| line == "0::/"), "{groups}");
    let mounts = shell(&sandbox, "cat /proc/self/mountinfo").text;
    assert!(!mounts.contains("/var/lib/pando-test-") || mounts.matches("pando-test-").count() == 1, "{mounts}");
    destroy(sandbox);
}

pub(crate) fn hidden(host: &Host) {
    let sandbox = host.sandbox();
    let state = host.state().display();
    let output = shell(
        &sandbox,
        &format!("ls -a {state} | wc -l; ls {state}/secret /etc/shadow /etc/gshadow 2>&1 >/dev/null | wc -l"),
    );
    // The directory may not even be listed: it is root's, mode 0700, and empty.
    assert!(output.text.ends_with("3\n"), "{output:?}");
    for empty in ["/mnt", "/media", "/srv", "/tmp", "/var/log"] {
        assert_eq!(shell(&sandbox, &format!("ls -A {empty}")).text, "", "{empty}");
    }
    let output = shell(
        &sandbox,
        "ls /root; ls -A /run; ls -A /home; id -un; echo ~; ls /etc/sudoers /etc/ssh/* 2>&1 | grep -vc 'No such'",
    );
    assert!(output.text.contains("Permission denied"), "{output:?}");
    assert!(output.text.contains("lock\npando\nuser\nuser\n/home/user\n0"), "{output:?}");
    assert_eq!(
        shell(&sandbox, "stat -c '%a %u' / /etc /var /var/lib /tmp /home/user /root").text,
        "755 0\n755 0\n755 0\n755 0\n1777 0\n755 1000\n700 0\n"
    );
    destroy(sandbox);
}

pub(crate) fn kernel_files(host: &Host) {
    let sandbox = host.sandbox();
    for path in [
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/random/boot_id",
        "/proc/sys/net/ipv4/ip_forward",
    ] {
        let output = shell(&sandbox, &format!("echo 1 > {path}"));
        assert_ne!(output.code, 0, "{path}");
    }
    let options = shell(&sandbox, "awk '{print $5, $6}' /proc/self/mountinfo").text;
    let paths = ["/proc/sys", "/proc/irq", "/proc/sysrq-trigger", "/sys", "/proc/sys/kernel/random/boot_id"];
    for read_only in paths.into_iter().filter(|path| Path::new(path).exists()) {
        assert!(options.lines().any(|line| line.starts_with(&format!("{read_only} ro,"))), "{read_only}: {options}");
    }
    assert!(options.lines().any(|line| line.starts_with("/ rw,nodev")), "{options}");
    for masked in ["/proc/kcore", "/proc/keys", "/proc/timer_list"].into_iter().filter(|path| Path::new(path).exists())
    {
        assert_eq!(shell(&sandbox, &format!("cat {masked} | wc -c")).text, "0\n", "{masked}");
    }
    assert_eq!(shell(&sandbox, "ls -A /sys/firmware 2>/dev/null | grep -c .").text, "0\n");
    // Its own control group, with nothing above it.
    let group = "test ! -e /sys/fs/cgroup/cgroup.procs || grep -qx 1 /sys/fs/cgroup/cgroup.procs; cat /proc/self/cgroup | grep ^0:";
    assert_eq!(shell(&sandbox, group).text, "0::/\n");
    destroy(sandbox);
}

pub(crate) fn host_is_out_of_reach(host: &Host) {
    let sandbox = host.sandbox();
    assert_eq!(
        shell(&sandbox, "echo x > /tmp/pando-test-written; echo y > /home/user/f; cat /home/user/f").text,
        "y\n"
    );
    assert!(!Path::new("/tmp/pando-test-written").exists());
    assert_ne!(shell(&sandbox, "echo x > /etc/passwd").code, 0);
    assert_ne!(shell(&sandbox, "touch /usr/bin/new").code, 0);
    // Only the sandbox's own mounts, and no way up.
    let mounts = shell(&sandbox, "wc -l < /proc/self/mountinfo").text;
    assert!(mounts.trim().parse::<u32>().unwrap() < 50, "{mounts}");
    assert_eq!(shell(&sandbox, "cd /../../..; pwd; ls -d work 2>/dev/null").text.lines().next(), Some("/"));
    destroy(sandbox);
}

pub(crate) fn privileges(host: &Host) {
    let sandbox = host.sandbox();
    let status = shell(&sandbox, "cat /proc/self/status").text;
    assert_eq!(line(&status, "Uid"), "1000\t1000\t1000\t1000");
    assert_eq!(line(&status, "Gid"), "1000\t1000\t1000\t1000");
    assert_eq!(line(&status, "Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(line(&status, set), "0000000000000000", "{set}");
    }
    // What a program with the set-user-id bit can gain.
    assert_eq!(line(&status, "CapBnd"), format!("{ROOT_CAPABILITIES:016x}"));
    assert_eq!((line(&status, "NoNewPrivs"), line(&status, "Seccomp")), ("0".to_owned(), "2".to_owned()));
    assert_eq!(line(&status, "SigBlk"), "0000000000000000");
    assert_eq!(line(&status, "SigIgn"), "0000000000000000");
    assert_eq!(shell(&sandbox, "umask; ulimit -c; ls -1 /proc/self/fd | wc -l").text, "0022\n0\n4\n");
    let calls = "import ctypes, errno, socket, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    ctypes.set_errno(0); libc.syscall(*args); return errno.errorcode.get(ctypes.get_errno())
print(call(425, 1, 0), call(435, 0, 0), call(321, 0, 0, 0), call(165, 0, 0, 0, 0, 0), call(272, 0x10000000), call(0x40000000 + 39), call(444, 0, 0, 1), call(446, 0, 0))
try: socket.socket(40, 1, 0)
except OSError as e: print(errno.errorcode[e.errno])
import threading, subprocess, multiprocessing
t = threading.Thread(target=lambda: None); t.start(); t.join()
print(subprocess.run(['echo', 'child'], capture_output=True).stdout)";
    let output = run(&sandbox, &["python3", "-c", calls]);
    assert_eq!(output.text, "ENOSYS ENOSYS EPERM EPERM EPERM ENOSYS ENOTSUP ENOTSUP\nEAFNOSUPPORT\nb'child\\n'\n");
    destroy(sandbox);
}

/// It has no memory but one page of code, a stack and what the kernel gives each process.
fn nothing_of_its_maker(init: i32) {
    let maps = fs::read_to_string(format!("/proc/{init}/maps")).unwrap();
    let names = maps.lines().map(|line| line.split_whitespace().skip(5).collect::<Vec<_>>().join(" "));
    let names: BTreeSet<String> = names.collect();
    let expected = ["/memfd:pando-rest (deleted)", "[stack]", "[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]"];
    assert!(names.iter().all(|name| expected.contains(&name.as_str())), "{names:?}");
    assert_eq!(fs::read_to_string(format!("/proc/{init}/environ")).unwrap(), "");
    let rollup = fs::read_to_string(format!("/proc/{init}/smaps_rollup")).unwrap();
    println!("       pid 1: {} private dirty", line(&rollup, "Private_Dirty"));
}

pub(crate) fn pid_one(host: &Host) {
    let sandbox = host.sandbox();
    at_rest(&sandbox);
    let init = sandbox.init().pid;
    assert_eq!(fs::read_dir(format!("/proc/{init}/fd")).unwrap().count(), 0);
    let status = fs::read_to_string(format!("/proc/{init}/status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(line(&status, set), "0000000000000000", "{set}");
    }
    let output = shell(
        &sandbox,
        "kill -9 1; kill -STOP 1; cat /proc/1/environ; ls /proc/1/root/ /proc/1/fd; tr '\\0' ' ' < /proc/1/cmdline",
    );
    assert!(output.text.contains("not permitted") && output.text.contains("Permission denied"), "{output:?}");
    assert_eq!(output.text.lines().last().unwrap().trim_end(), "pando-init");
    assert!(sandbox.init().is_alive());
    nothing_of_its_maker(init);
    let (pid, _out) = start(&sandbox, &command(&["sh", "-c", "exit 3"]));
    assert_eq!(wait(pid), 3);
    destroy(sandbox);
}

/// What could take from all of the host, or needs nothing that programs have: closed with the error of a kernel that lacks it.
pub(crate) fn closed_doors(host: &Host) {
    let sandbox = host.sandbox();
    let script = "import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    ctypes.set_errno(0)
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(*args) == -1 else 'allowed'
def attempt(family, kind, protocol):
    try: socket.socket(family, kind, protocol).close()
    except OSError as error: return errno.errorcode[error.errno]
    return 'allowed'
context = ctypes.c_ulong(0)
segment = (ctypes.c_uint * 4)(0, 0, 0xfffff, 0x51)
print('io_setup', call(206, 8, ctypes.byref(context)))
print('modify_ldt', call(154, 1, segment, 16))
print('memfd_secret', call(447, 0))
for name, *kind in [('multipath TCP', 2, 1, 262), ('multipath TCP 6', 10, 1, 262), ('SCTP', 2, 1, 132), ('uevents', 16, 3, 15),
                    ('audit', 16, 3, 9), ('generic', 16, 3, 16), ('diagnosis', 16, 3, 4), ('packets', 17, 3, 0), ('TIPC', 30, 5, 0)]:
    print(name, attempt(*kind))
pair = (ctypes.c_int * 2)()
print('pair', call(53, 2, 1, 262, pair), call(53, 30, 5, 0, pair))
for kind in [(1, 1, 0), (2, 1, 6), (10, 2, 0), (10, 2, 17), (16, 3, 0)]: print(*kind, attempt(*kind))
print([name for _, name in socket.if_nameindex()])";
    let expected = "io_setup ENOSYS
modify_ldt ENOSYS
memfd_secret ENOSYS
multipath TCP EPROTONOSUPPORT
multipath TCP 6 EPROTONOSUPPORT
SCTP EPROTONOSUPPORT
uevents EPROTONOSUPPORT
audit EPROTONOSUPPORT
generic EPROTONOSUPPORT
diagnosis EPROTONOSUPPORT
packets EAFNOSUPPORT
TIPC EAFNOSUPPORT
pair EPROTONOSUPPORT EAFNOSUPPORT
1 1 0 allowed
2 1 6 allowed
10 2 0 allowed
10 2 17 allowed
16 3 0 allowed
['lo']
";
    assert_eq!(run(&sandbox, &["python3", "-c", script]).text, expected);
    // Tools that ask by a closed family first find another way.
    let listening = "import socket, subprocess
s = socket.create_server(('127.0.0.1', 4711))
print('4711' in subprocess.run(['ss', '-tln'], capture_output=True, text=True).stdout)
print('127.0.0.1' in subprocess.run(['ip', 'addr'], capture_output=True, text=True).stdout)";
    if ["/usr/bin/ss", "/usr/sbin/ip"].iter().all(|tool| Path::new(tool).exists()) {
        let mut command = command(&["python3", "-c", listening]);
        command.env[0].1 = "/usr/sbin:/usr/bin:/bin".to_owned();
        let (pid, output) = start(&sandbox, &command);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut fs::File::from(output), &mut text).unwrap();
        assert_eq!((wait(pid), text.as_str()), (0, "True\nTrue\n"));
    } else {
        println!("       ss and ip are not tried: they are not installed");
    }
    destroy(sandbox);
}

/// Terminals are counted over all of the host; nobody gets more than a share.
pub(crate) fn terminals(host: &Host) {
    let (sandbox, neighbour) = (host.sandbox(), host.sandbox());
    let script = "import errno, os, sys
held = []
try:
    while len(held) < int(sys.argv[1]): held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
    print('all')
except OSError as error: print(len(held), errno.errorcode[error.errno])
sys.stdout.flush()
if sys.argv[2:]: sys.stdin.read()";
    let (input, hold) = rustix::pipe::pipe().unwrap();
    let (output, errors) = rustix::pipe::pipe().unwrap();
    let holder = command(&["python3", "-c", script, "100000", "hold"]);
    let pid = sandbox.spawn(&holder, [input.as_fd(), errors.as_fd(), errors.as_fd()], None).unwrap();
    drop((input, errors));
    let mut text = [0; 100];
    let length = rustix::io::read(&output, &mut text).unwrap();
    let expected = format!("{} ENOSPC\n", base::limits::TERMINALS_MAX);
    assert_eq!(String::from_utf8_lossy(&text[..length]), expected);
    let most = base::limits::TERMINALS_MAX.to_string();
    assert_eq!(run(&neighbour, &["python3", "-c", script, &most]).text, "all\n");
    drop(hold);
    assert_eq!(wait(pid), 0);
    destroy(sandbox);
    destroy(neighbour);
}

/// What of the host neither programs nor their libraries need.
pub(crate) fn host_facts(host: &Host) {
    let sandbox = host.sandbox();
    for path in
        ["/proc/cmdline", "/proc/modules", "/proc/kallsyms", "/proc/diskstats", "/proc/partitions", "/proc/iomem"]
    {
        if fs::read(path).is_ok_and(|content| !content.is_empty()) {
            assert_eq!(shell(&sandbox, &format!("cat {path} | wc -c")).text, "0\n", "{path}");
        }
    }
    let sys = "cd /sys; ls -1d * */* devices/virtual/*; cat class/net/lo/ifindex; ls devices/system/cpu | grep -c cpu0";
    let expected = "block bus class class/net dev devices devices/system devices/virtual devices/virtual/net firmware fs fs/cgroup kernel kernel/mm module power 1 1";
    assert_eq!(shell(&sandbox, sys).text.split_whitespace().collect::<BTreeSet<_>>(), expected.split(' ').collect());
    // What runtimes size themselves by is there.
    for path in ["/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu/online"] {
        assert_ne!(shell(&sandbox, &format!("cat {path} | wc -c")).text, "0\n", "{path}");
    }
    let ids = shell(&sandbox, "cat /etc/machine-id /var/lib/dbus/machine-id").text;
    let (first, second) = ids.split_once('\n').unwrap();
    assert_eq!((first.len(), first), (32, second.trim_end()), "{ids}");
    destroy(sandbox);
}

/// A directory image may have device files anywhere: it was unpacked by root.
pub(crate) fn devices_of_images(host: &Host) {
    let image = host.state().join("image-with-devices");
    fs::create_dir_all(image.join("etc")).unwrap();
    for directory in ["usr", "bin", "lib", "lib64"] {
        let link = fs::read_link(Path::new("/").join(directory));
        match link {
            Ok(target) => std::os::unix::fs::symlink(target, image.join(directory)).unwrap(),
            Err(_) => fs::create_dir(image.join(directory)).unwrap(),
        }
    }
    let (mode, device) = (rustix::fs::Mode::from_raw_mode(0o666), rustix::fs::makedev(1, 5));
    let (cwd, kind) = (rustix::fs::CWD, rustix::fs::FileType::CharacterDevice);
    rustix::fs::mknodat(cwd, image.join("zero"), kind, mode, device).unwrap();
    fs::set_permissions(image.join("zero"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let spec = host.spec_of(vec![host.base(&image), image.clone()]);
    let sandbox = sandbox::Sandbox::create(&spec, &host.cgroups).unwrap();
    // The image has no shell: a visitor with the program's rights would see no more than this.
    let root = format!("/proc/{}/root", sandbox.init().pid);
    let opened = |path: &str| fs::File::open(format!("{root}{path}")).err().and_then(|error| error.raw_os_error());
    assert_eq!(opened("/zero"), Some(libc::EACCES));
    assert_eq!((opened("/dev/zero"), opened("/dev/null")), (None, None));
    destroy(sandbox);
    fs::remove_dir_all(image).unwrap();
    // Image host as well, and what the sandbox has itself works.
    let sandbox = host.sandbox();
    let mounts = shell(&sandbox, "awk '{print $5, $6}' /proc/self/mountinfo").text;
    assert!(mounts.lines().any(|line| line.starts_with("/ rw,nodev,")), "{mounts}");
    assert_eq!(
        shell(&sandbox, "head -c 3 /dev/zero | wc -c; : > /dev/null; : < /dev/tty; ls /dev/pts /dev/shm")
            .text
            .lines()
            .next(),
        Some("3")
    );
    destroy(sandbox);
}
