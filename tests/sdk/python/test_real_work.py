"""What people do on a machine, with packages of Debian, PyPI and npm.

The registries must be reachable: scripts/sdk.sh hands sandboxes what this machine needs for that."""

import socket
from collections.abc import Iterator

import e2b
import httpx
import pytest
from conftest import IS_NEW

pytestmark = pytest.mark.skipif(not IS_NEW, reason="the SDK's part is small: the newest one will do")

HOSTS = ["deb.debian.org", "pypi.org", "registry.npmjs.org"]
# Seconds that a command may take.
LONG = 120

TRACED = """
#include <stdio.h>
static int twice(int n) { return 2 * n; }
int main(void) { printf("%d\\n", twice(21)); return 0; }
"""


@pytest.fixture(scope="module")
def machine(server: None) -> Iterator[e2b.Sandbox]:
    for host in HOSTS:
        try:
            socket.create_connection((host, 443), 10).close()
        except OSError as error:
            pytest.skip(f"this machine does not reach {host}: {error}")
    box = e2b.Sandbox.create("base", timeout=600)
    yield box
    box.kill()


@pytest.fixture(scope="module")
def lists(machine: e2b.Sandbox) -> None:
    """The lists of Debian's packages."""
    run(machine, "apt-get update -qq", user="root")


def run(box: e2b.Sandbox, command: str, **options: str) -> str:
    try:
        return box.commands.run(command, timeout=LONG, **options).stdout.strip()
    except e2b.CommandExitException as error:
        pytest.fail(f"{command}: {error.exit_code}: {error.stdout}{error.stderr}")


def install(box: e2b.Sandbox, packages: str) -> None:
    run(box, f"sudo DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends {packages}")


def page(box: e2b.Sandbox, port: int) -> str:
    """What a browser gets of a port."""
    url = f"{'http' if box.connection_config.debug else 'https'}://{box.get_host(port)}"
    answer = httpx.get(url, timeout=30)
    answer.raise_for_status()
    return answer.text


def test_a_web_server_is_installed_and_started(machine: e2b.Sandbox, lists: None) -> None:
    """nginx: its workers give up root's rights."""
    install(machine, "nginx-light")
    run(machine, "sudo nginx")
    assert "Welcome to nginx" in page(machine, 80)
    assert run(machine, "ps -o user= -C nginx | sort -u") == "root\nwww-data"


def test_own_processes_are_traced(machine: e2b.Sandbox, lists: None) -> None:
    """A compiler; strace and gdb of an own program."""
    install(machine, "gcc libc6-dev strace gdb")
    machine.files.write("traced.c", TRACED)
    run(machine, "gcc -g -o traced traced.c")
    assert 'write(1, "42\\n", 3)' in run(machine, "strace -o calls -e trace=write ./traced && cat calls")
    assert "n = 21" in run(machine, "gdb -batch -ex 'break twice' -ex run -ex 'info args' ./traced")
    sleeping = machine.commands.run("sleep 60", background=True)
    attach = f"strace -o calls -f -p {sleeping.pid} & sleep 0.5; kill {sleeping.pid}; wait; cat calls"
    assert "SIGTERM" in run(machine, attach)


def test_cron_runs_what_it_is_told(machine: e2b.Sandbox, lists: None) -> None:
    install(machine, "cron")
    machine.files.write("/etc/cron.d/at-begin", "@reboot root id -un > /tmp/by-cron\n", user="root")
    run(machine, "cron", user="root")
    assert run(machine, "for n in $(seq 50); do [ -s /tmp/by-cron ] && break; sleep 0.2; done; cat /tmp/by-cron") == "root"


def test_a_package_of_pypi_is_used(machine: e2b.Sandbox) -> None:
    """numpy: native code."""
    run(machine, "python3 -m venv env && env/bin/pip install -q numpy")
    assert run(machine, "env/bin/python -c 'import numpy; print(numpy.arange(5).sum())'") == "10"


def test_a_new_project_is_served(machine: e2b.Sandbox) -> None:
    """`npm create`, and its development server behind the gateway."""
    run(machine, "npm create --yes vite@5 app -- --template vanilla && cd app && npm install --no-audit --no-fund")
    machine.commands.run("cd app && npx vite --host --port 5173", background=True)
    run(machine, "for n in $(seq 100); do curl -sf localhost:5173 >/dev/null && exit 0; sleep 0.1; done; exit 1")
    assert '"/@vite/client"' in page(machine, 5173)


def test_a_repository_is_cloned(machine: e2b.Sandbox) -> None:
    """git over HTTP, from a server in the sandbox."""
    run(machine, "git init -q -b main repo && cd repo && git config user.email a@b && git config user.name a && echo x > x && git add . && git commit -qm x")
    run(machine, "git clone -q --bare repo served.git && git -C served.git update-server-info")
    machine.commands.run("python3 -m http.server 8000", background=True)
    run(machine, "for n in $(seq 100); do curl -sf localhost:8000/served.git/HEAD >/dev/null && break; sleep 0.1; done; git clone -q http://localhost:8000/served.git clone")
    assert run(machine, "cat clone/x") == "x"
