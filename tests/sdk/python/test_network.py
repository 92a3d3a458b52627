"""Ports, routing, traffic tokens, what may go out."""

import hashlib
import os
import time

import httpx
import pytest

import web
from support import eventually, out, serve

# Of the metadata service of clouds, and of private ranges.
CLOSED = ("169.254.169.254", "10.0.0.1", "192.168.0.1", "172.16.0.1")

# A service that answers with the Host header it got.
ECHO_HOST = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers["Host"].encode())

HTTPServer(("127.0.0.1", 8015), Handler).serve_forever()
"""

# A service that says yes to an upgrade and answers in capital letters.
UPGRADE = """
import socket
listener = socket.create_server(("127.0.0.1", 8017))
while True:
    client = listener.accept()[0]
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += client.recv(4096)
    client.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n")
    client.sendall(client.recv(4096).upper())
    client.close()
"""

# A service that sends a part, waits, and sends another one.
STREAM = """
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for part in (b"one", b"two"):
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(1)

HTTPServer(("127.0.0.1", 8018), Handler).serve_forever()
"""


def reaches(sandbox, target: str) -> bool:
    return out(sandbox, f"curl -so /dev/null --connect-timeout 4 http://{target}/ && echo yes || echo no") == "yes"


def test_get_host(box, directory) -> None:
    """Check 19: a service on 127.0.0.1 inside answers at `get_host`."""
    box.files.write(f"{directory}/index.html", "hello from inside")
    server = serve(box, 8010, directory)
    reply = web.get_port(box, 8010)
    assert (reply.status_code, reply.text) == (200, "hello from inside")
    server.kill()


def test_get_host_names_the_port(box) -> None:
    assert box.get_host(3000) == f"3000-{box.sandbox_id}.{box.sandbox_domain}"


def test_by_header(box, directory) -> None:
    """Check 19: header routing works without any name."""
    server = serve(box, 8011, directory)
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "8011"}
    base = os.environ.get("E2B_SANDBOX_URL") or "https://sandbox." + os.environ["E2B_DOMAIN"]
    assert web.request("GET", base, headers=headers).status_code == 200
    server.kill()


def test_closed_port(box) -> None:
    reply = web.get_port(box, 9)
    assert reply.status_code == 502
    expected = {
        "sandboxId": box.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 9,
        "code": 502,
    }
    assert reply.json() == expected


def test_closed_port_in_a_browser(box) -> None:
    reply = web.get_port(box, 9, Accept="text/html")
    assert reply.status_code == 502 and "text/html" in reply.headers["content-type"]


def test_absent_sandbox(box) -> None:
    url, headers = web.port_url(box, 80)
    absent = "i" + "0" * (len(box.sandbox_id) - 1)
    reply = web.request(
        "GET", url.replace(box.sandbox_id, absent), headers=headers | ({"E2b-Sandbox-Id": absent} if headers else {})
    )
    assert reply.status_code == 502
    assert reply.json() == {"sandboxId": absent, "message": "The sandbox was not found", "code": 502}


def test_large_bodies(box, directory) -> None:
    box.commands.run(f"head -c 67108864 /dev/urandom > {directory}/big")
    server = serve(box, 8012, directory)
    body = web.get_port(box, 8012, "/big").content
    assert out(box, f"sha256sum {directory}/big")[:64] == hashlib.sha256(body).hexdigest()
    server.kill()


def test_upgrade(box, directory) -> None:
    """After `101 Switching Protocols`, as for WebSockets, bytes go both ways."""
    box.files.write(f"{directory}/upgrade.py", UPGRADE)
    server = box.commands.run(f"python3 {directory}/upgrade.py", background=True, timeout=0)
    box.commands.run("for i in $(seq 100); do ss -Htln sport = :8017 | grep -q . && exit; sleep 0.1; done; exit 1")
    connection, lines = web.connect_port(box, 8017)
    with connection:
        head = f"GET / HTTP/1.1\r\n{lines}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 101")
        connection.sendall(b"ping")
        assert connection.recv(4096) == b"PING"
    server.kill()


def test_streams(box, directory) -> None:
    """A part of an answer arrives before the next one is sent."""
    box.files.write(f"{directory}/stream.py", STREAM)
    server = box.commands.run(f"python3 {directory}/stream.py", background=True, timeout=0)
    box.commands.run("for i in $(seq 100); do ss -Htln sport = :8018 | grep -q . && exit; sleep 0.1; done; exit 1")
    url, headers = web.port_url(box, 8018)
    with httpx.Client(verify=web.context()) as client, client.stream("GET", url, headers=headers) as reply:
        times = [time.monotonic() for _ in reply.iter_raw()]
    assert times[-1] - times[0] > 0.8
    server.kill()


def test_http2(box, directory) -> None:
    server = serve(box, 8013, directory)
    url, headers = web.port_url(box, 8013)
    if url.startswith("http://"):
        pytest.skip("the plain form has no HTTP/2 by negotiation")
    with httpx.Client(http2=True, verify=web.context()) as client:
        reply = client.get(url, headers=headers)
    assert (reply.status_code, reply.http_version) == (200, "HTTP/2")
    server.kill()


def test_traffic_token(make) -> None:
    """Without public traffic, a port needs the token."""
    sandbox = make(network={"allow_public_traffic": False})
    server = serve(sandbox, 8014)
    token = sandbox.traffic_access_token
    assert token
    refused = web.get_port(sandbox, 8014)
    assert refused.status_code == 403
    assert "Token header 'e2b-traffic-access-token' is missing" in refused.text
    assert web.get_port(sandbox, 8014, **{"e2b-traffic-access-token": "wrong"}).status_code == 403
    assert web.get_port(sandbox, 8014, **{"e2b-traffic-access-token": token}).status_code == 200
    server.kill()


def test_masked_host(make) -> None:
    """`maskRequestHost` is what the service inside sees."""
    sandbox = make(network={"mask_request_host": "localhost:${PORT}"})
    sandbox.files.write("/home/user/host.py", ECHO_HOST)
    sandbox.commands.run("python3 host.py", background=True, timeout=0)
    reply = eventually(
        lambda: (answer := web.get_port(sandbox, 8015)).status_code == 200 and answer, what="the service"
    )
    assert reply.text == "localhost:8015"


def test_closed_ranges(box) -> None:
    """Check 19: metadata and private ranges are closed by default."""
    for target in CLOSED:
        assert not reaches(box, target), target


def test_no_internet(make) -> None:
    """Check 19: `allow_internet_access=False` closes names, too."""
    sandbox = make(allow_internet_access=False)
    assert sandbox.get_info().allow_internet_access is False
    assert out(sandbox, "getent hosts example.com || echo none") == "none"
    assert not reaches(sandbox, "1.1.1.1")


@pytest.mark.slow
def test_allow_and_deny(make) -> None:
    """Check 19: what is allowed goes before what is denied. Needs the internet."""
    sandbox = make(network={"deny_out": lambda context: [context.all_traffic], "allow_out": ["1.1.1.1"]})
    assert reaches(sandbox, "1.1.1.1") and not reaches(sandbox, "8.8.8.8")
    other = make(network={"deny_out": ["8.8.8.8"]})
    assert reaches(other, "1.1.1.1") and not reaches(other, "8.8.8.8")


DOMAINS = ["example.com", "*.example.org"]


def test_domains(make) -> None:
    """Names that are not allowed are neither resolved nor reached, whatever address is tried."""
    sandbox = make(network={"deny_out": lambda context: [context.all_traffic], "allow_out": DOMAINS})
    assert sandbox.get_info().network["allow_out"] == DOMAINS
    assert out(sandbox, "getent hosts other.example.net || echo none") == "none"
    # 35: the other side ended the handshake.
    refused = "curl -sk --connect-timeout 4 --resolve other.example.net:443:1.1.1.1 https://other.example.net; echo $?"
    assert out(sandbox, refused) == "35"


def test_domains_need_all_else_denied(make) -> None:
    with pytest.raises(Exception, match="needs all else denied"):
        make(network={"allow_out": DOMAINS})
    sandbox = make()
    with pytest.raises(Exception, match="needs all else denied"):
        sandbox.update_network({"allow_out": DOMAINS})
    sandbox.update_network({"allow_out": DOMAINS, "allow_internet_access": False})
    assert out(sandbox, "getent hosts other.example.net || echo none") == "none"


def test_headers(make) -> None:
    """Rules are taken, and values of headers shown to no one. That they arrive is shown by the cases of tests/host."""
    rules = {"api.example.com": [{"transform": {"headers": {"Authorization": "Bearer s3cret"}}}]}
    shown = {"api.example.com": [{"transform": {"headers": {"Authorization": "***"}}}]}
    network = {"deny_out": lambda context: [context.all_traffic], "allow_out": lambda context: list(context.rules)}
    sandbox = make(network=network | {"rules": rules})
    assert sandbox.get_info().network["rules"] == shown
    assert "s3cret" not in out(sandbox, "env; cat /etc/ssl/certs/ca-certificates.crt")
    assert out(sandbox, "test -s $NODE_EXTRA_CA_CERTS && grep -c BEGIN $NODE_EXTRA_CA_CERTS") == "1"
    sandbox.update_network({"deny_out": ["0.0.0.0/0"]})
    assert not sandbox.get_info().network.get("rules")
    with pytest.raises(Exception, match="cannot be set"):
        sandbox.update_network({"rules": {"a.example": [{"transform": {"headers": {"Host": "b"}}}]}})


def test_headers_of_secrets(make) -> None:
    """A rule can name a secret of the team, and no other placeholder."""
    sandbox = make(allow_internet_access=False)

    def set_to(value: str) -> None:
        sandbox.update_network({"rules": {"api.example.com": [{"transform": {"headers": {"X-Key": value}}}]}})

    name = f"rule-{os.urandom(4).hex()}"
    with pytest.raises(Exception, match="there is no secret"):
        set_to(f"Bearer ${{e2b.secrets.{name}}}")
    assert web.api("POST", "/secrets", json={"name": name, "value": "s3cret"}).status_code == 201
    set_to(f"Bearer ${{e2b.secrets.{name}}}")
    shown = sandbox.get_info().network["rules"]["api.example.com"][0]["transform"]["headers"]
    assert shown == {"X-Key": "***"}
    web.api("DELETE", f"/secrets/{name}")
    with pytest.raises(Exception, match="does not know"):
        set_to("${e2b.identity.tokens.aws}")


@pytest.mark.slow
def test_allowed_domain(make) -> None:
    """Needs the internet."""
    sandbox = make(network={"deny_out": lambda context: [context.all_traffic], "allow_out": ["example.com"]})
    status = "curl -so /dev/null -w '%{http_code}' --connect-timeout 8 https://example.com/"
    assert out(sandbox, status) == "200"
    assert out(sandbox, "curl -so /dev/null --connect-timeout 8 https://www.google.com/ && echo yes || echo no") == "no"


def test_sandboxes_do_not_reach_each_other(make) -> None:
    one, other = make(), make()
    other.commands.run("python3 -m http.server 8016 --bind 0.0.0.0", background=True, timeout=0)
    eventually(lambda: reaches(other, "127.0.0.1:8016"), 15, "the server")
    addresses = ["127.0.0.1", *out(other, "hostname -I || true").split()]
    assert not any(reaches(one, f"{address}:8016") for address in addresses if "." in address)


def test_update_network(make, api) -> None:
    sandbox = make()
    sandbox.update_network({"deny_out": ["203.0.113.0/24"]})
    assert sandbox.get_info().network["deny_out"] == ["203.0.113.0/24"]
    api.Sandbox.update_network(sandbox.sandbox_id, {"allow_internet_access": False})
    assert not reaches(sandbox, "1.1.1.1")


def test_bad_rules_are_refused(make) -> None:
    sandbox = make()
    for rules in ({"denyOut": ["not an address"]}, {"allowOut": ["300.1.1.1/99"]}):
        reply = web.api("PUT", f"/sandboxes/{sandbox.sandbox_id}/network", json=rules)
        assert reply.status_code == 400, rules
