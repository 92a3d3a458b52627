"""Terminals."""

import e2b
import pytest

from support import eventually, out, unique

SIZE = e2b.PtySize(rows=24, cols=80)


class Terminal:
    """A terminal, and all that it has shown."""

    def __init__(self, api, sandbox, **options) -> None:
        self.shown = bytearray()
        self.sandbox = sandbox
        if api.mode == "async":
            options["on_data"] = self.shown.extend
        self.handle = sandbox.pty.create(size=SIZE, timeout=0, **options)
        self.watcher = api.thread(self.watch, api)

    def watch(self, api) -> None:
        try:
            if api.mode == "async":
                self.handle.wait()
            else:
                self.handle.wait(on_pty=self.shown.extend)
        except (e2b.SandboxException, Exception):  # noqa: B014 - a killed terminal ends with an error
            return

    def type(self, text: str) -> None:
        self.sandbox.pty.send_stdin(self.handle.pid, text.encode())

    def expect(self, text: str) -> None:
        eventually(
            lambda: text.encode() in self.shown, what=f"{text!r} on the terminal, which shows {bytes(self.shown)!r}"
        )


@pytest.fixture
def terminal(api, box):
    terminal = Terminal(api, box)
    yield terminal
    box.pty.kill(terminal.handle.pid)


def test_create(terminal) -> None:
    terminal.type("echo si''gn; tty; id -un\n")
    terminal.expect("sign")
    terminal.expect("/dev/pts/")
    terminal.expect("user")


def test_environment(api, box) -> None:
    terminal = Terminal(api, box, envs={"MARK": "yes"}, cwd="/tmp")
    terminal.type("echo $MARK-$PWD-$TERM\n")
    terminal.expect("yes-/tmp-xterm-256color")
    assert box.pty.kill(terminal.handle.pid)


def test_resize(box, terminal) -> None:
    """Check 7: resized 20 times during output, `stty size` equals the last one."""
    terminal.type("for i in $(seq 2000); do echo line $i; done\n")
    for step in range(20):
        box.pty.resize(terminal.handle.pid, e2b.PtySize(rows=30 + step, cols=100 + step))
    terminal.type("stty size\n")
    terminal.expect("49 119")


def test_keys(terminal) -> None:
    """Ctrl-C interrupts the foreground program, and the shell goes on."""
    # Before it is in the foreground, the key is the shell's.
    terminal.type("bash -c 'echo star''ted; exec sleep 60'\n")
    terminal.expect("started")
    terminal.type("\x03")
    terminal.type("echo af''ter\n")
    terminal.expect("after")


def test_exit(box, api) -> None:
    terminal = Terminal(api, box)
    terminal.type("exit 4\n")
    terminal.watcher.join(15)
    assert not terminal.watcher.is_alive()


def test_kill_hangs_up(box, api) -> None:
    """Check 3: the session of a killed terminal gets a hang-up."""
    mark = f"/tmp/{unique('hangup')}"
    terminal = Terminal(api, box)
    terminal.type(f"bash -c 'trap \"echo hup > {mark}; exit\" HUP; echo rea''dy; while :; do sleep 0.1; done'\n")
    terminal.expect("ready")
    assert box.pty.kill(terminal.handle.pid)
    eventually(lambda: box.files.exists(mark), what="the hang-up")
    assert not box.pty.kill(terminal.handle.pid)


def test_connect(box, api) -> None:
    """Check 7: a second client sees and types on the terminal of a first that has gone."""
    seen = bytearray()
    # The sync SDK hands the output over in `wait`, the async SDK by a callback.
    shows = {"on_data": seen.extend} if api.mode == "async" else {}
    first = box.pty.create(size=SIZE, timeout=0, **shows)
    box.pty.send_stdin(first.pid, b"MARK=kept\n")
    first.disconnect()
    other = box.pty.connect(first.pid, timeout=0, **shows)
    reader = api.thread(other.wait if api.mode == "async" else lambda: other.wait(on_pty=seen.extend))
    box.pty.send_stdin(first.pid, b"echo $MARK-again; exit\n")
    reader.join(15)
    assert b"kept-again" in seen


@pytest.mark.new_only("Pty.stream_input")
def test_stream_input(box, api, terminal) -> None:
    api.stream_input(box.pty, terminal.handle.pid, [b"echo stre", b"''amed\n"])
    terminal.expect("streamed")


def test_is_listed_as_a_shell(box, terminal) -> None:
    found = next(process for process in box.commands.list() if process.pid == terminal.handle.pid)
    assert found.cmd == "/bin/bash"
    assert out(box, f"ps -o tty= -p {terminal.handle.pid} || true") is not None


def test_many_screens(terminal) -> None:
    """200,000 lines come through a terminal to their end."""
    terminal.type("seq 200000; echo e''nd\n")
    eventually(lambda: b"\nend" in terminal.shown.replace(b"\r", b""), 60, "the end of the output")
