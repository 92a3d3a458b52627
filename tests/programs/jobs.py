#!/usr/bin/python3
"""Stopped jobs: by SIGTSTP, by SIGSTOP, two processes of one group; one whose stop its parent does not know yet. Protocol as in probe.h."""

import mmap
import os
import signal
import struct
import sys
import time

OPTIONS = {"--go": "/tmp/go", "--dir": "/tmp", "--ready-file": os.environ.get("READY_FILE", "")}
LONG = 10


def check(holds: bool, what: str) -> None:
    print(f"{what}: {'ok' if holds else 'FAILED'}")
    FAILURES.append(what) if not holds else None


def wait_until(holds) -> bool:
    end = time.monotonic() + LONG
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    return holds()


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def counted(place: int) -> int:
    return struct.unpack_from("Q", COUNTERS, 8 * place)[0]


def job(place: int, group: int = 0) -> int:
    """A process that counts until SIGTERM."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        os.setpgid(0, group)
        while True:
            struct.pack_into("Q", COUNTERS, 8 * place, counted(place) + 1)
            time.sleep(0.002)
    wait_until(lambda: counted(place) > 0)
    return pid


def waited(pid: int, options: int) -> str:
    found, status = os.waitpid(pid, options)
    if found == 0:
        return "nothing"
    return "stopped" if os.WIFSTOPPED(status) else "continued" if os.WIFCONTINUED(status) else str(os.waitstatus_to_exitcode(status))


def begin(stops: dict[int, int]) -> None:
    """Stops jobs, and knows of it."""
    for pid, by in stops.items():
        os.kill(pid, by)
        if waited(pid, os.WUNTRACED) != "stopped":
            sys.exit(2)


def other_shell(asks: int, answers: int) -> None:
    """Has a job whose stop it asks for when it is told to."""
    own = job(3)
    os.kill(own, signal.SIGSTOP)
    wait_until(lambda: state(own) == "T")
    os.write(answers, b"r")
    os.read(asks, 1)
    stopped = waited(own, os.WUNTRACED | os.WNOHANG)
    os.kill(own, signal.SIGCONT)
    os.kill(own, signal.SIGTERM)
    os.write(answers, f"{stopped} {waited(own, 0)}".encode())
    os._exit(0)


for name, value in zip(sys.argv[1::2], sys.argv[2::2]):
    OPTIONS[name] = value
FAILURES: list[str] = []
COUNTERS = mmap.mmap(-1, 4096)
words = []
signal.signal(signal.SIGCHLD, lambda *_: words.append(None))
first = job(0)
second = job(1)
third = job(2, second)
asks, answers = os.pipe(), os.pipe()
shell = os.fork()
if shell == 0:
    os.setpgid(0, 0)
    other_shell(asks[0], answers[1])
os.read(answers[0], 1)
begin({first: signal.SIGTSTP, second: signal.SIGSTOP, third: signal.SIGTTIN})
before, word = [counted(place) for place in range(4)], len(words)
if OPTIONS["--ready-file"]:
    open(OPTIONS["--ready-file"], "w").close()
print("ready", flush=True)
wait_until(lambda: os.path.exists(OPTIONS["--go"])) or wait_until(lambda: os.path.exists(OPTIONS["--go"]))

jobs = [first, second, third]
check([state(pid) for pid in jobs] == ["T", "T", "T"], "they are stopped")
check([waited(pid, os.WUNTRACED | os.WNOHANG) for pid in jobs] == ["nothing"] * 3, "which is no news")
check(len(words) == word, "no signal says so")
check([counted(place) for place in range(4)] == before, "they have done nothing")
os.kill(first, signal.SIGCONT)
check(waited(first, os.WCONTINUED) == "continued" and wait_until(lambda: counted(0) > before[0]), "one goes on")
os.kill(first, signal.SIGTSTP)
check(waited(first, os.WUNTRACED) == "stopped", "and stops again")
check([counted(1), counted(2), state(second), state(third)] == [*before[1:3], "T", "T"], "the others do not")
os.killpg(second, signal.SIGCONT)
check(wait_until(lambda: counted(1) > before[1] and counted(2) > before[2]), "a whole group goes on")
for pid in jobs:
    os.kill(pid, signal.SIGTERM)
os.kill(first, signal.SIGCONT)
check([waited(pid, 0) for pid in jobs] == ["7", "7", "7"], "they end")
os.write(asks[1], b"?")
check(os.read(answers[0], 64) == b"stopped 7", "another one's parent is told now")
check(waited(shell, 0) == "0", "it ends")
if FAILURES:
    print("done with failures")
    sys.exit(1)
print("done")
