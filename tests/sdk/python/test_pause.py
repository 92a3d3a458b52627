"""Pause, resume, what a timeout does, waking on traffic.

Three kinds: a sandbox without processes, one of a warmed program (template `python`), and the filesystem alone.
A sandbox with something that cannot be forked answers the documented error and runs on.
"""

import datetime
import time

import e2b
import pytest

import web
from support import boot_id, eventually, out, serve, state_of

PAUSE = {"on_timeout": "pause"}
WAKE = {"on_timeout": "pause", "auto_resume": True}
INTERPRETER = "http://127.0.0.1:49999/"


def ask(sandbox, code: str) -> str:
    """What the warm interpreter of templates `python` and `node` answers."""
    return out(sandbox, f"curl -sS --data-binary '{code}' {INTERPRETER}")


def test_pause_and_connect(make, api) -> None:
    sandbox = make()
    sandbox.files.write("/home/user/kept", "yes")
    before = boot_id(sandbox)
    assert sandbox.pause() is True
    assert state_of(sandbox) == "paused"
    again = api.Sandbox.connect(sandbox.sandbox_id)
    assert state_of(again) == "running"
    assert again.files.read("/home/user/kept") == "yes"
    assert boot_id(again) == before


def test_pause_of_a_paused_one(sandbox, api) -> None:
    """The SDK answers false to 409."""
    assert sandbox.pause()
    assert not api.Sandbox.pause(sandbox.sandbox_id)


def test_beta_pause(sandbox) -> None:
    assert sandbox.beta_pause()
    assert state_of(sandbox) == "paused"


def test_memory_goes_on(make) -> None:
    """A warmed program has its variables after a pause."""
    sandbox = make("python")
    ask(sandbox, "x = 41")
    assert sandbox.pause()
    sandbox.connect()
    assert ask(sandbox, "x + 1") == "42"


def test_filesystem_only(make) -> None:
    """Check 13: `keep_memory=False` keeps files, ends processes and changes the boot id."""
    sandbox = make()
    sandbox.files.write("/home/user/kept", "yes")
    before = boot_id(sandbox)
    sandbox.commands.run("exec -a survivor sleep 600", background=True, timeout=0)
    assert sandbox.pause(keep_memory=False)
    sandbox.connect()
    assert sandbox.files.read("/home/user/kept") == "yes"
    assert boot_id(sandbox) != before
    assert out(sandbox, "pgrep -f ^survivor || echo none") == "none"


@pytest.mark.new_only("on_resume")
def test_reboot_at_resume(make) -> None:
    sandbox = make()
    before = boot_id(sandbox)
    assert sandbox.pause()
    sandbox.connect(on_resume="reboot")
    assert boot_id(sandbox) != before


@pytest.mark.new_only("strict")
def test_strict_pause(sandbox) -> None:
    assert sandbox.pause(strict=True)


def test_ten_rounds(sandbox) -> None:
    """Check 11: ten rounds lose no file."""
    for number in range(10):
        sandbox.files.write(f"/home/user/f{number}", str(number))
        assert sandbox.pause()
        sandbox.connect()
    assert out(sandbox, "cat f0 f1 f2 f3 f4 f5 f6 f7 f8 f9") == "0123456789"


def test_pause_at_the_timeout(make) -> None:
    """Check 11: the last write that returned before an auto-pause is kept."""
    sandbox = make(timeout=4, lifecycle=PAUSE)
    number = 0
    try:
        while number < 1000:
            sandbox.files.write("/home/user/last", str(number + 1))
            number += 1
            time.sleep(0.05)
    except Exception:  # noqa: BLE001, S110 - it is paused now
        pass
    eventually(lambda: state_of(sandbox) == "paused", 15, "the pause")
    sandbox.connect(timeout=60)
    assert int(sandbox.files.read("/home/user/last")) >= number > 0


def test_pause_survives_connect(make) -> None:
    """Check 12: `on_timeout=pause` holds after a resume, too, and the given timeout counts."""
    sandbox = make(timeout=60, lifecycle=PAUSE)
    assert sandbox.pause()
    sandbox.connect(timeout=3)
    eventually(lambda: state_of(sandbox) == "paused", 15, "the second pause")
    assert "pause" in str(sandbox.get_info().lifecycle)


def test_kill_of_a_paused_one(make) -> None:
    """Check 14."""
    sandbox = make()
    assert sandbox.pause()
    assert sandbox.kill()
    with pytest.raises(e2b.NotFoundException):
        sandbox.get_info()


def test_requests_to_a_paused_one(make) -> None:
    """Check 15: without auto-resume a command fails with the SDK's own error, and the sandbox stays paused."""
    sandbox = make(lifecycle=PAUSE)
    assert sandbox.pause()
    with pytest.raises(e2b.SandboxException):
        sandbox.commands.run("true")
    assert not sandbox.is_running()
    assert state_of(sandbox) == "paused"
    reply = web.get_port(sandbox, 49983, "/health")
    assert reply.status_code == 502
    assert reply.json() == {"sandboxId": sandbox.sandbox_id, "message": "The sandbox was not found", "code": 502}


def test_wakes_on_traffic(make) -> None:
    """Check 15: with auto-resume a command wakes it."""
    sandbox = make(lifecycle=WAKE)
    sandbox.files.write("/home/user/kept", "yes")
    assert sandbox.pause()
    assert sandbox.files.read("/home/user/kept") == "yes"
    assert state_of(sandbox) == "running"


def test_resume_without_a_body(make) -> None:
    """Check 15: the old resume route."""
    sandbox = make()
    assert sandbox.pause()
    assert web.api("POST", f"/sandboxes/{sandbox.sandbox_id}/resume").status_code == 201
    assert state_of(sandbox) == "running"


def begin_unforkable(sandbox):
    """A command with what cannot be forked: a pipe with an end that was opened twice."""
    code = 'import os, time; r, w = os.pipe(); os.open(f"/proc/self/fd/{w}", os.O_WRONLY); time.sleep(600)'
    handle = sandbox.commands.run(f"python3 -c '{code}'; true", background=True, timeout=0)
    eventually(lambda: "pipe" in out(sandbox, "readlink /proc/[0-9]*/fd/5; true"), 10, "its pipe")
    return handle


def test_a_refused_pause_leaves_it_running(make) -> None:
    """Check 14: a sandbox that cannot be paused answers an error and runs on."""
    sandbox = make()
    serve(sandbox)
    handle = begin_unforkable(sandbox)
    reply = web.api("POST", f"/sandboxes/{sandbox.sandbox_id}/pause", json={})
    assert reply.status_code == 503 and {"code", "message"} <= reply.json().keys()
    # Without it the SDKs repeat the request three times.
    assert reply.headers["should-retry"] == "false"
    assert sandbox.is_running() and handle.pid in {process.pid for process in sandbox.commands.list()}


def test_a_refused_pause_at_the_timeout_is_told(make) -> None:
    """A sandbox that cannot be paused runs on, and its log says why."""
    sandbox = make(timeout=60, lifecycle=PAUSE)
    begin_unforkable(sandbox)
    sandbox.set_timeout(2)

    def refusals() -> list:
        reply = web.api("GET", f"/sandboxes/{sandbox.sandbox_id}/logs")
        return [entry for entry in reply.json()["logs"] if "refused" in str(entry)]

    eventually(refusals, 15, "a refusal in the log")
    assert sandbox.is_running() and state_of(sandbox) == "running"


def test_files_only_at_the_timeout(make, api) -> None:
    wanted = {"templateID": "base", "timeout": 3, "autoPause": True, "autoPauseMemory": False}
    made = web.api("POST", "/v2/sandboxes", json=wanted).json()
    sandbox = make.adopt(api.Sandbox.connect(made["sandboxID"], timeout=3))
    before = boot_id(sandbox)
    eventually(lambda: state_of(sandbox) == "paused", 15, "the pause")
    sandbox.connect(timeout=60)
    assert boot_id(sandbox) != before


def test_defaults_without_a_body(make) -> None:
    """Check 12: what a client leaves out. Memory stays, and one child lives 15 s."""
    sandbox = make()
    before = boot_id(sandbox)
    assert web.api("POST", f"/sandboxes/{sandbox.sandbox_id}/pause").status_code == 204
    sandbox.connect(timeout=60)
    assert boot_id(sandbox) == before
    (child,) = web.api("POST", f"/sandboxes/{sandbox.sandbox_id}/fork").json()
    child = web.api("GET", f"/sandboxes/{child['sandbox']['sandboxID']}").json()
    started, ends = (datetime.datetime.fromisoformat(child[name]) for name in ("startedAt", "endAt"))
    assert 14 <= (ends - started).total_seconds() <= 16
    assert web.api("DELETE", f"/sandboxes/{child['sandboxID']}").status_code == 204


def test_commands_go_on_after_a_resume(make) -> None:
    """Check 2: after pause and resume, `connect(pid)` gets every later line."""
    sandbox = make()
    handle = sandbox.commands.run("for i in $(seq 60); do echo $i; sleep 0.2; done", background=True, timeout=0)
    for _ in range(3):
        assert sandbox.pause()
        sandbox.connect()
    result = sandbox.commands.connect(handle.pid, timeout=0).wait()
    assert result.stdout.endswith("59\n60\n") and result.exit_code == 0


def test_a_killed_command_stays_away(make) -> None:
    """Check 3: after kill, pause and resume it is not back."""
    sandbox = make()
    handle = sandbox.commands.run("sleep 100", background=True, timeout=0)
    assert handle.kill()
    assert sandbox.pause()
    sandbox.connect()
    assert handle.pid not in {process.pid for process in sandbox.commands.list()}


def test_clock_goes_on(make) -> None:
    """After a resume the wall clock is right."""
    sandbox = make("python")
    assert sandbox.pause()
    time.sleep(3)
    sandbox.connect()
    ask(sandbox, "import time")
    assert abs(float(ask(sandbox, "time.time()")) - time.time()) < 2
