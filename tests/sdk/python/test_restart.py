"""Any process of the server is killed, or its binary replaced: sandboxes, commands, output, timeouts and tokens stay.

The server is one of these tests' own. They need root and PANDO, the binary, which `scripts/sdk.sh` names.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import e2b
import pytest

from support import eventually, out, unique

READY_SECONDS = 120
END_SECONDS = 40
# Prints numbers until it may end, and says so with its exit code.
COUNT = "i=0; until [ -e stop ]; do i=$((i + 1)); echo $i; sleep 0.02; done; exit 7"


class Server:
    """`pando serve` from a copy of the binary, always on the same port."""

    def __init__(self, binary: str) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="pando-restart.", dir="/var/tmp"))
        self.source, self.binary = binary, self.dir / "pando"
        shutil.copy(binary, self.binary)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.options: dict[str, str] = {}

    def start(self) -> None:
        self.env_file.unlink(missing_ok=True)
        command = [self.binary, "--socket", self.socket, "serve", "--state", self.state, "--pool", "4"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--env-file", self.env_file]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(self.takes_requests, READY_SECONDS, "the server")
        lines = self.env_file.read_text().splitlines()
        key = next(line.removeprefix("E2B_API_KEY=") for line in lines if line.startswith("E2B_API_KEY="))
        url = f"http://127.0.0.1:{self.port}"
        self.options = {"api_key": key, "api_url": url, "sandbox_url": url}

    def takes_requests(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.env_file.exists()

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(END_SECONDS)

    def replace_binary(self) -> None:
        """As `make install` does it."""
        new = self.dir / "pando.new"
        shutil.copy(self.source, new)
        new.replace(self.binary)

    def pids(self, role: str) -> list[int]:
        """Processes of a role."""
        return sorted(pid for pid in all_pids() if self.has_role(pid, role))

    def has_role(self, pid: int, role: str) -> bool:
        words = words_of(pid)
        if role == "keeper":
            return "keeper" in words and parent_of(pid) == self.process.pid
        if role == "hand":
            return name_of(pid) == "pando-hand" and parent_of(pid) in self.pids("keeper")
        is_ours = str(self.state) in words
        # A spare that takes over keeps its command and changes its name.
        return is_ours and ("guardian" in words if role == "pager" else name_of(pid) == role)

    def remove(self) -> None:
        """Nothing stays: the server stops its helpers when no sandbox is left."""
        if self.process.poll() is None:
            subprocess.run([self.binary, "--socket", self.socket, "rm", "--all"], stdout=subprocess.DEVNULL)
            self.end(signal.SIGTERM)
        left = lambda: [pid for pid in all_pids() if str(self.dir) in " ".join(words_of(pid))]  # noqa: E731
        eventually(lambda: not left(), END_SECONDS, f"the end of {left()}")
        shutil.rmtree(self.dir)

    @property
    def socket(self) -> Path:
        return self.dir / "node.sock"

    @property
    def state(self) -> Path:
        return self.dir / "state"

    @property
    def env_file(self) -> Path:
        return self.dir / "env"

    @property
    def log(self) -> Path:
        return self.dir / "log"


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:
        return ""


def words_of(pid: int) -> list[str]:
    return read(pid, "cmdline").split("\0")


def name_of(pid: int) -> str:
    return read(pid, "comm").strip()


def parent_of(pid: int) -> int:
    fields = read(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    binary = os.environ.get("PANDO")
    if not binary or os.geteuid() != 0:
        pytest.skip("needs root, and PANDO: the binary")
    server = Server(binary)
    try:
        server.start()
        build("base", server)
        build("warm", server, "--ready", "true", "--", "/bin/sleep", "1000000")
        yield server
    finally:
        server.remove()


def build(name: str, server: Server, *program: str) -> None:
    command = [server.binary, "--socket", server.socket, "template", "build", name, "--cwd", "/home/user"]
    subprocess.run([*command, *program], check=True, stdout=subprocess.DEVNULL)


class Known:
    """A sandbox with all that has to stay."""

    def __init__(self, api: Any, server: Server) -> None:
        self.sandbox = api.Sandbox.create(timeout=900, metadata={"a": "b"}, **server.options)
        self.sandbox.files.write("kept", "yes")
        self.pid = self.sandbox.commands.run(COUNT, background=True, timeout=0).pid
        self.end_at = self.sandbox.get_info().end_at

    def is_all_there(self) -> None:
        sandbox = self.sandbox
        info = sandbox.get_info()
        assert info.end_at == self.end_at and info.metadata == {"a": "b"} and info.state.value == "running"
        assert sandbox.files.read("kept") == "yes"
        assert out(sandbox, "cat kept") == "yes"
        assert self.pid in [process.pid for process in sandbox.commands.list()]
        handle = sandbox.commands.connect(self.pid, timeout=0)
        sandbox.files.write("stop", "")
        with pytest.raises(e2b.CommandExitException) as ended:
            handle.wait()
        assert ended.value.exit_code == 7
        numbers = ended.value.stdout.split()
        assert numbers
        assert numbers == [str(number + 1) for number in range(len(numbers))]
        sandbox.kill()


def answers(sandbox: Any) -> bool:
    try:
        return sandbox.is_running() and out(sandbox, "echo yes") == "yes"
    except e2b.SandboxException:
        return False


@pytest.mark.parametrize("victim", ["server", "keeper", "holder", "holder-spare", "hand"])
def test_kill_of_any_process(own: Server, api, victim: str) -> None:
    known = Known(api, own)
    if victim == "server":
        own.end(signal.SIGKILL)
        own.start()
    else:
        pids = own.pids(victim)
        assert pids, f"there is no {victim}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: answers(known.sandbox), 20, "an answer")
    known.is_all_there()


def test_kill_of_the_pager(own: Server, api) -> None:
    """Memory of a resumed sandbox comes from its processes: each may die."""
    sandbox = api.Sandbox.create("warm", timeout=900, **own.options)
    assert sandbox.pause()
    sandbox.connect(timeout=900)
    pids = own.pids("pager")
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: answers(sandbox), 20, "an answer")
        eventually(lambda: own.pids("pager"), 20, "another pager")
    assert sandbox.pause()
    sandbox.connect(timeout=900)
    sandbox.kill()


def test_a_paused_sandbox_outlives_every_process(own: Server, api) -> None:
    sandbox = api.Sandbox.create("warm", timeout=900, **own.options)
    sandbox.files.write("kept", "yes")
    assert sandbox.pause()
    own.end(signal.SIGKILL)
    for role in ("holder", "holder-spare", "pager", "volumed", "volume-guardian"):
        for pid in own.pids(role):
            os.kill(pid, signal.SIGKILL)
    own.start()
    assert sandbox.get_info().state.value == "paused"
    sandbox.connect(timeout=900)
    assert sandbox.files.read("kept") == "yes" and answers(sandbox)
    sandbox.kill()


@pytest.mark.parametrize("victim", ["volumed", "volume-guardian"])
def test_kill_of_a_volume_process(own: Server, api, victim: str) -> None:
    """The mount in a running sandbox goes on, with what was written."""
    options = {"api_key": own.options["api_key"], "api_url": own.options["api_url"]}
    volume = api.Volume.create(unique("vol"), **options)
    sandbox = api.Sandbox.create(timeout=900, volume_mounts={"/mnt/data": volume.name}, **own.options)
    out(sandbox, "echo before > /mnt/data/file")
    pids = own.pids(victim)
    assert pids, f"there is no {victim}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: out(sandbox, "cat /mnt/data/file") == "before", 20, "the file")
    out(sandbox, "echo after >> /mnt/data/file")
    assert out(sandbox, "cat /mnt/data/file") == "before\nafter"
    sandbox.kill()
    eventually(lambda: api.Volume.destroy(volume.volume_id, **options), 20, "the end of the volume")


def test_quotas(own: Server, api) -> None:
    """A team has as much as its operator gives it; what is too much is refused, or a part of a fork."""
    binary = [own.binary, "key", "create", "--state", own.state, "--team", "small"]
    key = subprocess.run(binary, check=True, capture_output=True, text=True).stdout.strip()
    quota = [own.binary, "team", "quota", "--state", own.state, "small", "--sandboxes", "2", "--json"]
    assert '"sandboxes": 2' in subprocess.run(quota, check=True, capture_output=True, text=True).stdout
    options = {**own.options, "api_key": key}
    first = api.Sandbox.create("warm", timeout=900, **options)
    # One of three has room.
    forked = first.fork(count=3)
    made = [result for result in forked if not isinstance(result, Exception)]
    refused = [result for result in forked if isinstance(result, Exception)]
    assert len(made) == 1 and len(refused) == 2
    assert all("2" in str(failure) and "sandboxes" in str(failure) for failure in refused), refused
    with pytest.raises(e2b.RateLimitException, match="sandboxes"):
        api.Sandbox.create("warm", timeout=900, **options)
    made[0].kill()
    second = api.Sandbox.create("warm", timeout=900, **options)
    second.kill()
    first.kill()


def test_an_upgrade_in_place(own: Server, api) -> None:
    known = Known(api, own)
    own.replace_binary()
    own.end(signal.SIGTERM)
    assert own.process.returncode == 0
    assert refuses_connections(own)
    own.start()
    known.is_all_there()


def refuses_connections(server: Server) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", server.port)) != 0


def test_a_timeout_passes_while_no_server_runs(own: Server, api) -> None:
    sandbox = api.Sandbox.create(timeout=2, **own.options)
    own.end(signal.SIGKILL)
    time.sleep(2)
    own.start()
    eventually(lambda: not sandbox.is_running(), 10, "the end of its time")


def test_lost_templates_come_back(own: Server, api) -> None:
    """Before a start needs it. The log says when."""
    says = "a lost template is ready again"
    before = own.log.read_text().count(says)
    own.end(signal.SIGKILL)
    own.start()
    eventually(lambda: own.log.read_text().count(says) > before, 30, "the template")
    sandbox = api.Sandbox.create("warm", timeout=60, **own.options)
    assert answers(sandbox)
    sandbox.kill()
