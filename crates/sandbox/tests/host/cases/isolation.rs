//! What a program sees and what it cannot do.

use std::{collections::BTreeSet, fs, path::Path};

use crate::host::{Host, at_rest, command, destroy, run, shell, start, wait};

fn line(text: &str, key: &str) -> String {
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
}

pub(crate) fn namespaces(host: &Host) {
    let spec = host.spec();
    let sandbox = pando_sandbox::Sandbox::create(&spec, &host.cgroups).unwrap();
    at_rest(&sandbox);
    let pids = shell(&sandbox, "ls /proc | grep '^[0-9]*$' | wc -l; cat /proc/1/comm").text;
    assert!(pids.ends_with("pando-init\n"), "{pids}");
    assert!(pids.lines().next().unwrap().trim().parse::<u32>().unwrap() <= 5, "{pids}");
    for name in ["pid", "mnt", "net", "ipc", "uts", "cgroup"] {
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
    assert!(options.lines().any(|line| line.starts_with("/ rw,nosuid")), "{options}");
    for masked in ["/proc/kcore", "/proc/keys", "/proc/timer_list"].into_iter().filter(|path| Path::new(path).exists())
    {
        assert_eq!(shell(&sandbox, &format!("cat {masked} | wc -c")).text, "0\n", "{masked}");
    }
    assert_eq!(
        shell(&sandbox, "ls -A /sys/firmware /sys/fs/cgroup 2>/dev/null | grep -v ':$' | grep -c .").text,
        "0\n"
    );
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
    assert!(mounts.trim().parse::<u32>().unwrap() < 30, "{mounts}");
    assert_eq!(shell(&sandbox, "cd /../../..; pwd; ls -d work 2>/dev/null").text.lines().next(), Some("/"));
    destroy(sandbox);
}

pub(crate) fn privileges(host: &Host) {
    let sandbox = host.sandbox();
    let status = shell(&sandbox, "cat /proc/self/status").text;
    assert_eq!(line(&status, "Uid"), "1000\t1000\t1000\t1000");
    assert_eq!(line(&status, "Gid"), "1000\t1000\t1000\t1000");
    assert_eq!(line(&status, "Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(line(&status, set), "0000000000000000", "{set}");
    }
    assert_eq!((line(&status, "NoNewPrivs"), line(&status, "Seccomp")), ("1".to_owned(), "2".to_owned()));
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
