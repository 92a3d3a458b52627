"""Commands: output, exit codes, input, background, signals."""

import time

import e2b
import pytest

from support import eventually, out, unique


def pids(sandbox) -> set[int]:
    return {process.pid for process in sandbox.commands.list()}


def test_run(box) -> None:
    result = box.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_exit_code(box) -> None:
    """Each code arrives, with the output, in the SDK's error."""
    for code in (1, 2, 126, 127, 255):
        with pytest.raises(e2b.CommandExitException) as raised:
            box.commands.run(f"echo out; echo err >&2; exit {code}")
        assert raised.value.exit_code == code
        assert (raised.value.stdout, raised.value.stderr) == ("out\n", "err\n")


def test_killed_by_a_signal(box) -> None:
    with pytest.raises(e2b.CommandExitException) as raised:
        box.commands.run("kill -9 $$")
    assert raised.value.exit_code != 0


def test_environment(make) -> None:
    """The sandbox's variables, the command's over them, and those of a login."""
    sandbox = make(envs={"A": "sandbox", "B": "sandbox"})
    assert (
        out(sandbox, "echo $A $B $HOME $USER $LOGNAME", envs={"B": "command"}) == "sandbox command /home/user user user"
    )
    assert out(sandbox, "echo $B") == "sandbox"


def test_directory(box) -> None:
    assert out(box, "pwd", cwd="/tmp") == "/tmp"
    with pytest.raises(e2b.SandboxException):
        box.commands.run("pwd", cwd="/absent")


def test_user(box) -> None:
    """Root inside is nobody outside."""
    assert out(box, "id -un", user="user") == "user"
    assert out(box, "id -un", user="root") == "root"


def test_unknown_user(box) -> None:
    with pytest.raises((e2b.SandboxException, e2b.AuthenticationException)):
        box.commands.run("true", user="absent")


def test_callbacks(box) -> None:
    """Output arrives while the command runs, in order."""
    seen: list[tuple[str, float]] = []
    box.commands.run(
        "for i in 1 2 3; do echo $i; sleep 0.4; done", on_stdout=lambda text: seen.append((text, time.monotonic()))
    )
    assert "".join(text for text, _ in seen) == "1\n2\n3\n"
    assert seen[-1][1] - seen[0][1] > 0.5


def test_unicode_and_bytes(box) -> None:
    """Check 6: UTF-8 that is cut at a chunk's end comes out whole."""
    text = "x" + "日本語" * 40_000
    box.files.write("/tmp/letters", text)
    assert box.commands.run("cat /tmp/letters").stdout == text


def test_a_burst_at_exit(box) -> None:
    """Check 6: of 1 MiB in one burst at exit nothing is lost."""
    for _ in range(5):
        result = box.commands.run("head -c 1048576 /dev/zero | tr '\\0' a; echo -n end >&2")
        assert len(result.stdout) == 1048576 and result.stderr == "end"


def test_large_output(box) -> None:
    """32 MiB, more than the server keeps, reach a client that reads."""
    assert len(box.commands.run("head -c 33554432 /dev/zero | tr '\\0' b", timeout=120).stdout) == 33554432


def test_command_timeout(box) -> None:
    """The caller's timeout ends the command, too."""
    mark = unique("sleep")
    with pytest.raises(e2b.TimeoutException):
        box.commands.run(f"exec -a {mark} sleep 60", timeout=1)
    eventually(lambda: mark not in out(box, "ps -eo args | grep '^sleep-' || true"), what="the end of the command")


def test_background(box) -> None:
    handle = box.commands.run("echo first; sleep 0.5; echo second", background=True)
    assert handle.pid in pids(box)
    result = handle.wait()
    assert (result.stdout, result.exit_code) == ("first\nsecond\n", 0)
    eventually(lambda: handle.pid not in pids(box), what="the end of the command")


def test_list(box) -> None:
    handle = box.commands.run("sleep 30", background=True, cwd="/tmp", envs={"MARK": "yes"})
    found = next(process for process in box.commands.list() if process.pid == handle.pid)
    assert found.cmd == "/bin/bash" and found.args == ["-l", "-c", "sleep 30"]
    assert found.cwd == "/tmp" and found.envs["MARK"] == "yes"
    assert handle.kill()


def test_connect(box) -> None:
    """A second client gets what follows, and the exit code."""
    handle = box.commands.run("echo early; sleep 1; echo late; exit 7", background=True)
    other = box.commands.connect(handle.pid)
    with pytest.raises(e2b.CommandExitException) as raised:
        other.wait()
    assert raised.value.exit_code == 7 and raised.value.stdout.endswith("late\n")
    with pytest.raises(e2b.CommandExitException):
        handle.wait()


def test_connect_to_nothing(box) -> None:
    with pytest.raises(e2b.NotFoundException):
        box.commands.connect(999_999).wait()


def test_disconnect_leaves_it_running(box) -> None:
    """Check 4: after `disconnect()` the command runs on, and a later client's `wait()` has the exit code."""
    handle = box.commands.run("sleep 1; echo done; exit 3", background=True)
    handle.disconnect()
    assert handle.pid in pids(box)
    with pytest.raises(e2b.CommandExitException) as raised:
        box.commands.connect(handle.pid).wait()
    assert raised.value.exit_code == 3


def test_a_stream_ends_before_its_command(box) -> None:
    """Check 1: the client goes away, the command runs on, and a connection by its pid gets the rest."""
    handle = box.commands.run("for i in $(seq 8); do echo $i; sleep 0.5; done", background=True, timeout=0)
    handle.disconnect()
    time.sleep(1)
    assert box.commands.connect(handle.pid, timeout=0).wait().stdout.endswith("7\n8\n")


@pytest.mark.slow
def test_three_minutes(make) -> None:
    """Check 1: a command of three minutes gives its output and its exit code to a client that comes late."""
    sandbox = make(timeout=400)
    handle = sandbox.commands.run("for i in $(seq 190); do echo $i; sleep 1; done; exit 5", background=True, timeout=0)
    handle.disconnect()
    time.sleep(180)
    with pytest.raises(e2b.CommandExitException) as raised:
        sandbox.commands.connect(handle.pid, timeout=0).wait()
    assert raised.value.exit_code == 5 and raised.value.stdout.endswith("190\n")


def test_kill(box) -> None:
    """The first kill is true; of what is gone, false."""
    handle = box.commands.run("sleep 60", background=True)
    assert box.commands.kill(handle.pid)
    with pytest.raises(e2b.CommandExitException):
        handle.wait()
    eventually(lambda: handle.pid not in pids(box), what="the end of the command")
    assert not box.commands.kill(handle.pid)
    assert not box.commands.kill(999_999)


def test_kill_ends_the_children(box) -> None:
    """Check 3: the whole tree of the command ends, also what has left its session."""
    mark = unique("child")
    handle = box.commands.run(
        f"(exec -a {mark} sleep 60) & (setsid bash -c 'exec -a {mark} sleep 60') & wait", background=True
    )
    count = f"ps -eo args | grep -c '^{mark}' || true"
    eventually(lambda: out(box, count) == "2", what="the start of the children")
    assert handle.kill()
    eventually(lambda: out(box, count) == "0", what="the end of the children")


def test_no_stdin_is_end_of_file(box) -> None:
    """Check 4: without `stdin=True` a command reads the end of its input at once."""
    assert out(box, "cat; echo over", timeout=10) == "over"


def test_send_stdin(box) -> None:
    """Check 4: `send_stdin`, then `close_stdin` ends `cat`."""
    handle = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "one ")
    box.commands.send_stdin(handle.pid, "two")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one two"


def test_handle_stdin(box) -> None:
    handle = box.commands.run("wc -c", background=True, stdin=True)
    handle.send_stdin("12345")
    handle.close_stdin()
    assert handle.wait().stdout.strip() == "5"


@pytest.mark.new_only("Commands.stream_input")
def test_stream_input(box, api) -> None:
    handle = box.commands.run("sha256sum", background=True, stdin=True)
    api.stream_input(box.commands, handle.pid, ["a" * 100_000, "b"])
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.startswith(
        out(box, "(head -c 100000 /dev/zero | tr '\\0' a; echo -n b) | sha256sum")[:64]
    )


def test_stdin_of_nothing(box) -> None:
    with pytest.raises(e2b.SandboxException):
        box.commands.send_stdin(999_999, "x")


def test_a_slow_reader_blocks_nobody(box) -> None:
    """One client does not read; another command answers meanwhile."""
    handle = box.commands.run("yes | head -c 20000000", background=True, timeout=0)
    assert out(box, "echo quick", timeout=10) == "quick"
    handle.kill()


def test_cancelled_starts_block_nothing(box) -> None:
    """Check 5: clients that go away at the start do not block later ones."""
    for _ in range(10):
        with pytest.raises(e2b.TimeoutException):
            box.commands.run("sleep 20", timeout=0.2)
    assert out(box, "echo after", timeout=10) == "after"


def test_many_at_once(box, api) -> None:
    found: list[str] = []
    threads = [api.thread(lambda i=i: found.append(out(box, f"sleep 0.2; echo {i}"))) for i in range(20)]
    for thread in threads:
        thread.join(60)
    assert sorted(map(int, found)) == list(range(20))


@pytest.mark.new_only("retain_output")
def test_without_retained_output(box) -> None:
    seen: list[str] = []
    result = box.commands.run("echo seen", on_stdout=seen.append, retain_output=False)
    assert result.stdout is None and "".join(seen) == "seen\n"


def test_a_sandbox_killed_meanwhile(make, api) -> None:
    """Check 5: a stream that broke off is an error, never a success."""
    sandbox = make()
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(sandbox.commands.run("sleep 30"))
        except Exception as error:
            ends.append(error)

    thread = api.thread(run)
    eventually(lambda: len(pids(sandbox)) == 1, what="the start of the command")
    sandbox.kill()
    thread.join(20)
    assert len(ends) == 1 and isinstance(ends[0], Exception), ends
