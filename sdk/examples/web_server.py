"""A web server in a sandbox, which a browser on this machine opens.

    eval "$(pando env)" && python sdk/examples/web_server.py

Each port of a sandbox has a host name. The browser has to trust the certificate authority of the server: `pando env`
names it in NODE_EXTRA_CA_CERTS.
"""

import time
import urllib.request

from pando import Sandbox

PORT = 8000
PAGE = """<!doctype html>
<title>From a sandbox</title>
<p id="text">waiting</p>
<script>
  fetch("answer.json").then((reply) => reply.json()).then((answer) => {
    document.getElementById("text").textContent = `the answer is ${answer.value}`;
  });
</script>
"""


def start() -> tuple[Sandbox, str]:
    """A sandbox with a web server, and the address of its page."""
    sandbox = Sandbox.create(timeout=300)
    sandbox.files.write("site/index.html", PAGE)
    sandbox.files.write("site/answer.json", '{"value": 42}')
    # Without a timeout the server outlives this program.
    sandbox.commands.run(f"python3 -m http.server {PORT} --directory site", background=True, timeout=0)
    url = f"https://{sandbox.get_host(PORT)}/"
    wait(url)
    return sandbox, url


def wait(url: str, seconds: float = 20) -> None:
    """Returns when the page is there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> None:
    sandbox, url = start()
    try:
        input(f"open {url} in a browser; Enter ends the sandbox ")
    finally:
        sandbox.kill()


if __name__ == "__main__":
    main()
