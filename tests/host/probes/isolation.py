#!/usr/bin/python3
"""Tries what a program in a sandbox must not be able to do, and prints what became of each try as JSON: name -> "allowed"
(with what was found) or the name of the error. Arguments: a directory that must be hidden, a TCP port and an abstract socket of
the host."""

import ctypes
import errno
import json
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
hidden, host_port, host_abstract = sys.argv[1], int(sys.argv[2]), sys.argv[3]
found = {}


def attempt(name, action):
    try:
        result = action()
        found[name] = "allowed" if result is None else f"allowed: {result}"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, str(error))


def call(number, *arguments):
    def action():
        ctypes.set_errno(0)
        if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]) < 0:
            raise OSError(ctypes.get_errno(), "")

    return action


def write(path, text):
    def action():
        with open(path, "w") as file:
            file.write(text)

    return action


def read(path):
    def action():
        with open(path, "rb") as file:
            return len(file.read(4096))

    return action


def connect(family, address, kind=socket.SOCK_STREAM):
    def action():
        with socket.socket(family, kind) as connection:
            connection.settimeout(2)
            connection.connect(address)

    return action


def new_socket(family, kind, protocol=0):
    return lambda: socket.socket(family, kind, protocol).close()


# Files of the host.
attempt("list /root", lambda: os.listdir("/root") or None)
for name in ("/home", "/tmp", "/var/tmp", "/var/log", "/mnt", "/media", "/srv", "/boot"):
    found[f"entries of {name}"] = sorted(entry for entry in os.listdir(name) if entry != "user" and entry != "isolation.json")
found["hidden directory"] = os.path.exists(hidden)
attempt("read /etc/shadow", read("/etc/shadow"))
attempt("write /etc", write("/etc/pando-probe", ""))
attempt("write /usr", write("/usr/bin/pando-probe", ""))

# Kernel interfaces.
for path in ("/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
             "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/proc/sys/kernel/random/boot_id"):
    attempt(f"write {path}", write(path, "1"))
for path in ("/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/dev/mem", "/dev/vda", "/dev/sda", "/proc/1/environ", "/proc/1/maps", "/proc/1/mem"):
    attempt(f"read {path}", read(path))
for path in ("/proc/keys", "/proc/timer_list", "/proc/interrupts", "/proc/vmallocinfo"):
    found[f"bytes of {path}"] = os.path.exists(path) and len(open(path, "rb").read())
attempt("list /proc/1/root", lambda: os.listdir("/proc/1/root"))
attempt("list /proc/1/fd", lambda: os.listdir("/proc/1/fd"))
for name in ("cgroup.procs", "cgroup.freeze", "cgroup.kill", "../cgroup.procs"):
    attempt(f"write /sys/fs/cgroup/{name}", write(f"/sys/fs/cgroup/{name}", "1"))
attempt("make a control group", lambda: os.mkdir("/sys/fs/cgroup/own"))
found["block devices"] = [name for name in os.listdir("/dev") if os.path.exists(f"/dev/{name}") and (os.stat(f"/dev/{name}").st_mode & 0o170000) == 0o060000]
found["mountinfo"] = hidden in open("/proc/self/mountinfo").read()

# Processes.
found["processes"] = sorted(
    (int(pid), open(f"/proc/{pid}/comm").read().strip()) for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid()
)
attempt("kill 1", lambda: os.kill(1, 9))
attempt("ptrace 1", call(101, 16, 1, 0, 0))
vector = ctypes.create_string_buffer(id(libc).to_bytes(8, "little") + (8).to_bytes(8, "little"))
attempt("process_vm_readv 1", call(310, 1, vector, 1, vector, 1, 0))
attempt("pidfd_getfd 1", lambda: call(438, os.pidfd_open(1), 0, 0)())

# Privileges.
attempt("setuid 0", lambda: os.setuid(0))
attempt("setgid 0", lambda: os.setgid(0))
attempt("mknod block", lambda: os.mknod("/tmp/block", 0o060600, os.makedev(254, 0)))
attempt("mknod mem", lambda: os.mknod("/tmp/mem", 0o020600, os.makedev(1, 1)))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("mount", lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0)())
attempt("umount /proc/sys", call(166, b"/proc/sys", 2))
attempt("open_tree", call(428, -100, b"/", 1))
attempt("fsopen", call(430, b"tmpfs", 0))
for name, flag in (("user", 0x10000000), ("mnt", 0x20000), ("net", 0x40000000), ("pid", 0x20000000), ("ipc", 0x8000000), ("uts", 0x4000000), ("cgroup", 0x2000000)):
    attempt(f"unshare {name}", call(272, flag))
attempt("clone3 newuser", call(435, ctypes.create_string_buffer((0x10000000).to_bytes(8, "little") + bytes(80)), 88))
attempt("setns", lambda: call(308, os.open("/proc/self/ns/net", os.O_RDONLY), 0)())
attempt("sethostname", lambda: socket.sethostname("evil"))
attempt("bpf", call(321, 0, 0, 0))
attempt("perf_event_open", call(298, 0, 0, -1, -1, 0))
attempt("io_uring_setup", call(425, 8, ctypes.create_string_buffer(256)))
attempt("userfaultfd", call(323, 0))
attempt("keyctl", call(250, 0, -3, 1))
attempt("add_key", call(248, b"user", b"probe", b"x", 1, -3))
attempt("init_module", call(175, 0, 0, b""))
attempt("finit_module", call(313, 0, b"", 0))
attempt("kexec_load", call(246, 0, 0, 0, 0))
attempt("reboot", call(169, 0xFEE1DEAD, 672274793, 0, 0))
attempt("swapon", call(167, b"/tmp/x", 0))
attempt("settimeofday", call(164, ctypes.create_string_buffer(16), 0))
attempt("iopl", call(172, 3))
attempt("open_by_handle_at", call(304, -100, ctypes.create_string_buffer(64), 0))
attempt("syslog", call(103, 3, ctypes.create_string_buffer(64), 64))

# Networks.
found["interfaces"] = sorted(name for _, name in socket.if_nameindex())
attempt("host TCP port", connect(socket.AF_INET, ("127.0.0.1", host_port)))
attempt("host abstract socket", connect(socket.AF_UNIX, "\0" + host_abstract))
attempt("host unix socket", connect(socket.AF_UNIX, hidden + "/node.sock"))
attempt("outside", connect(socket.AF_INET, ("192.0.2.1", 80)))
attempt("raw socket", new_socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet socket", new_socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("vsock", new_socket(40, socket.SOCK_STREAM))
attempt("alg socket", new_socket(38, socket.SOCK_SEQPACKET))

print(json.dumps(found))
