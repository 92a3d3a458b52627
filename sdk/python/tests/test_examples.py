"""The examples of sdk/examples, each run as a user would."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


def run(name: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_code_interpreter_keeps_its_state(tmp_path: Path) -> None:
    target = tmp_path / "chart.svg"
    printed = run("code_interpreter.py", str(target))
    assert "[2] ok: the mean is 0.186\n0.9995736030415051" in printed
    assert "[3] failed: Traceback" in printed and "TypeError" in printed
    assert target.read_text().startswith("<svg")


def test_the_best_of_five_attempts_is_kept(unique: str) -> None:
    import five_attempts

    from pando import Sandbox

    try:
        assert five_attempts.main(unique) == "parabola"
    finally:
        assert Sandbox.delete_checkpoint(unique)


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.skipif(shutil.which("certutil") is None, reason="no certutil: apt-get install libnss3-tools")
@pytest.mark.skipif("E2B_DOMAIN" not in os.environ, reason="names of sandboxes do not resolve here")
def test_a_browser_opens_a_page_of_a_sandbox(tmp_path: Path) -> None:
    import web_server

    assert BROWSER is not None
    sandbox, url = web_server.start()
    try:
        trust(tmp_path)
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        command += ["--virtual-time-budget=5000", "--dump-dom", url]
        environment = os.environ | {"HOME": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    finally:
        sandbox.kill()
    assert "the answer is 42" in done.stdout, done.stderr


def trust(home: Path) -> None:
    """Makes the browser trust our authority, as a user's own browser would."""
    store = home / ".pki" / "nssdb"
    store.mkdir(parents=True)
    for arguments in (
        ["-N", "--empty-password"],
        ["-A", "-n", "pando", "-t", "C,,", "-i", os.environ["NODE_EXTRA_CA_CERTS"]],
    ):
        subprocess.run(["certutil", "-d", f"sql:{store}", *arguments], check=True)
