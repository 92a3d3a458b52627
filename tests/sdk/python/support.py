"""Small helpers of the cases."""

import time
import uuid
from collections.abc import Callable
from typing import Any


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def eventually(condition: Callable[[], Any], seconds: float = 10, what: str = "the condition") -> Any:
    """Waits until `condition` is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not become true within {seconds} s"
        time.sleep(0.1)


def out(sandbox: Any, command: str, **options: Any) -> str:
    """What a command printed, without the last line's end."""
    return sandbox.commands.run(command, **options).stdout.rstrip("\n")


def state_of(sandbox: Any) -> str:
    return sandbox.get_info().state.value


def boot_id(sandbox: Any) -> str:
    return out(sandbox, "cat /proc/sys/kernel/random/boot_id")


def serve(sandbox: Any, port: int = 8000, directory: str = "/home/user") -> Any:
    """Starts a web server in the sandbox and waits until it answers there."""
    server = sandbox.commands.run(
        f"python3 -m http.server {port} --bind 127.0.0.1 --directory {directory}", background=True, timeout=0
    )
    check = f"for i in $(seq 100); do curl -so /dev/null http://127.0.0.1:{port}/ && exit; sleep 0.1; done; exit 1"
    sandbox.commands.run(check)
    return server
