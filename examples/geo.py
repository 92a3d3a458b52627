#!/usr/bin/python3
"""Hotel search with an initialisation worth skipping: the Python service of `make demo`.

After hotel-geo of the sigma-criu paper: builds `--nidx` nearest-neighbour indexes (k-d trees) over
generated hotels, then answers queries over HTTP/1.1. Threads tick beside an asyncio loop, so a fork
that loses a thread, a timer or the loop's epoll set shows in GET /state. Standard library only,
one process, no files written. The API is described in examples/README.md.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import random
import signal
import socket
import struct
import threading
import time
import zlib
from operator import itemgetter
from urllib.parse import parse_qsl

PAGE_BYTES = 4096
MIB = 1 << 20
EARTH_RADIUS_KM = 6371.0
REQUEST_BYTES_MAX = 64 * 1024
VALUES_MAX = 1024
VALUE_CHARS_MAX = 256
NEIGHBOURS_MAX = 50
TICK_PERIODS_S = (0.05, 0.1, 0.25)
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large"}


class BadRequest(Exception):
    """The caller's mistake; the text goes into the 400 answer."""


# --- the k-d trees -----------------------------------------------------------------------------
# Hotels are points on the unit sphere: straight-line distance orders them as distance over ground does, also
# across the date line. A node is (x, y, z, hotel number, left, right); depth picks the axis, x first. Every
# tree has its own floats, so `--nidx` scales memory and time alike.


def to_sphere(latitude, longitude):
    latitude, longitude = math.radians(latitude), math.radians(longitude)
    across = math.cos(latitude)
    return across * math.cos(longitude), across * math.sin(longitude), math.sin(latitude)


def to_degrees(x, y, z):
    return math.degrees(math.asin(max(-1.0, min(1.0, z)))), math.degrees(math.atan2(y, x))


def generate_document(generator, count):
    """The JSON text that such a service would read from its file, with `count` generated hotels."""
    uniform = generator.uniform
    return json.dumps(
        [
            {"hotelId": number, "name": f"hotel-{number}", "lat": uniform(-60.0, 70.0), "lon": uniform(-180.0, 180.0)}
            for number in range(count)
        ]
    )


def read_hotels(document):
    return [(*to_sphere(hotel["lat"], hotel["lon"]), hotel["hotelId"]) for hotel in json.loads(document)]


def build_tree(hotels, axis):
    if not hotels:
        return None
    hotels.sort(key=itemgetter(axis))
    middle = len(hotels) // 2
    following = (axis + 1) % 3
    left = build_tree(hotels[:middle], following)
    right = build_tree(hotels[middle + 1 :], following)
    return (*hotels[middle], left, right)


def nearest(tree, point, count):
    """The `count` nearest hotels as (squared straight-line distance in earth radii, node), nearest first."""
    x, y, z = point
    best = []
    worst = math.inf
    pending = [(tree, 0, 0.0)]
    while pending:
        node, axis, plane = pending.pop()
        if node is None or plane >= worst:
            continue
        dx, dy, dz = x - node[0], y - node[1], z - node[2]
        distance = dx * dx + dy * dy + dz * dz
        if distance < worst:
            best.append((distance, node))
            best.sort(key=itemgetter(0))
            del best[count:]
            if len(best) == count:
                worst = best[-1][0]
        offset = point[axis] - node[axis]
        near, far = (node[4], node[5]) if offset < 0 else (node[5], node[4])
        following = (axis + 1) % 3
        pending.append((far, following, offset * offset))
        pending.append((near, following, 0.0))
    return best


def digest_tree(tree, digest):
    """CRC-32 over all nodes in depth-first order: tells whether the indexes are intact."""
    pending = [tree]
    pack = struct.Struct("<dddq").pack
    while pending:
        node = pending.pop()
        if node is not None:
            digest = zlib.crc32(pack(*node[:4]), digest)
            pending += (node[5], node[4])
    return digest


def allocate_ballast(mib, seed):
    """`mib` MiB of touched memory; each page starts with its own number, so no two are equal."""
    block = random.Random(seed + 1).randbytes(MIB)
    ballast = bytearray(mib * MIB)
    for start in range(0, len(ballast), MIB):
        ballast[start : start + MIB] = block
    for page in range(0, len(ballast), PAGE_BYTES):
        struct.pack_into("<Q", ballast, page, page)
    return ballast


class Service:
    """Everything that a fork must carry over: indexes, ballast, counters, ticking threads."""

    def __init__(self, options):
        self.options = options
        self.started = time.monotonic()
        generator = random.Random(options.seed)
        documents = (generate_document(generator, options.hotels) for _ in range(options.nidx))
        self.trees = [build_tree(read_hotels(document), 0) for document in documents]
        self.ballast = allocate_ballast(options.mb, options.seed)
        self.digest = self.compute_digest()
        self.init_ms = int((time.monotonic() - self.started) * 1000)
        self.requests = 0
        self.writes = 0
        self.values = {}
        self.ticks = [0] * len(TICK_PERIODS_S)
        self.stopping = threading.Event()

    def compute_digest(self):
        digest = zlib.crc32(self.ballast)
        for tree in self.trees:
            digest = digest_tree(tree, digest)
        return f"{digest:08x}"

    def start_tickers(self):
        for number, period_s in enumerate(TICK_PERIODS_S):
            name = f"ticker-{number}"
            threading.Thread(target=self.tick, args=(number, period_s), name=name, daemon=True).start()

    def tick(self, number, period_s):
        while not self.stopping.wait(period_s):
            self.ticks[number] += 1

    def nearby(self, query):
        latitude = number_of(query, "lat", -90.0, 90.0)
        longitude = number_of(query, "lon", -180.0, 180.0)
        index = int(number_of(query, "index", 0, len(self.trees) - 1, 0))
        count = int(number_of(query, "count", 1, NEIGHBOURS_MAX, 5))
        hotels = []
        for squared, node in nearest(self.trees[index], to_sphere(latitude, longitude), count):
            hotel_latitude, hotel_longitude = to_degrees(*node[:3])
            distance_km = 2 * EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(squared) / 2))
            hotels.append(
                {"id": f"hotel-{node[3]}", "lat": hotel_latitude, "lon": hotel_longitude, "distance_km": distance_km}
            )
        return {"index": index, "hotels": hotels}

    def write(self, query):
        key, value = query.get("key", ""), query.get("value", "")
        if not key or len(key) > VALUE_CHARS_MAX or len(value) > VALUE_CHARS_MAX:
            raise BadRequest(f"key and value: 1 to {VALUE_CHARS_MAX} characters")
        if key not in self.values and len(self.values) >= VALUES_MAX:
            raise BadRequest(f"more than {VALUES_MAX} keys")
        self.values[key] = value
        self.writes += 1
        return {"writes": self.writes, "key": key, "value": value}

    def state(self, _query):
        return {
            "service": "geo",
            "pid": os.getpid(),
            "threads": thread_count(),
            "ticks": sum(self.ticks),
            "requests": self.requests,
            "writes": self.writes,
            "values": self.values,
            "hostname": socket.gethostname(),
            "uptime_ms": int((time.monotonic() - self.started) * 1000),
            "init_ms": self.init_ms,
            "seed": self.options.seed,
            "digest": self.digest,
        }

    def verify(self, _query):
        digest = self.compute_digest()
        return {"intact": digest == self.digest, "digest": digest}

    def health(self, _query):
        return {"ok": True}


def number_of(query, name, least, most, default=None):
    text = query.get(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise BadRequest(f"{name}: a number from {least} to {most}") from None
    if not least <= value <= most:
        raise BadRequest(f"{name}: a number from {least} to {most}")
    return value


def thread_count():
    """The kernel's count, not Python's: a thread that a fork lost is missing here."""
    with open("/proc/self/status", "rb") as status:
        return int(status.read().split(b"\nThreads:", 1)[1].split(b"\n", 1)[0])


# --- HTTP/1.1 ----------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One client; answers in order, keeps the connection unless asked not to."""

    def __init__(self, service, routes):
        self.service = service
        self.routes = routes
        self.received = b""
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        while not self.transport.is_closing():
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                if len(self.received) > REQUEST_BYTES_MAX:
                    self.answer(413, {"error": "request too large"}, keep=False)
                return
            head = self.received[:end].decode("latin-1")
            start, *fields = head.split("\r\n")
            headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
            if "transfer-encoding" in headers or not headers.get("content-length", "0").isdecimal():
                self.answer(400, {"error": "a body needs a Content-Length"}, keep=False)
                return
            body_bytes = int(headers.get("content-length", "0"))
            if body_bytes > REQUEST_BYTES_MAX:
                self.answer(413, {"error": "request too large"}, keep=False)
                return
            if len(self.received) < end + 4 + body_bytes:
                return
            self.received = self.received[end + 4 + body_bytes :]
            self.serve(start, headers)

    def serve(self, start, headers):
        parts = start.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            self.answer(400, {"error": "not an HTTP/1 request"}, keep=False)
            return
        method, target, version = parts
        asked = headers.get("connection", "").lower()
        keep = asked != "close" if version == "HTTP/1.1" else asked == "keep-alive"
        path, _, query = target.partition("?")
        self.service.requests += 1
        route = self.routes.get(path)
        if route is None:
            self.answer(404, {"error": "no such path"}, keep)
        elif method != route[0]:
            self.answer(405, {"error": f"use {route[0]}"}, keep)
        else:
            try:
                self.answer(200, route[1](dict(parse_qsl(query, keep_blank_values=True))), keep)
            except BadRequest as mistake:
                self.answer(400, {"error": str(mistake)}, keep)

    def answer(self, status, value, keep):
        body = json.dumps(value).encode()
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if not keep:
            self.transport.close()


async def serve(service):
    routes = {
        "/nearby": ("GET", service.nearby),
        "/state": ("GET", service.state),
        "/verify": ("GET", service.verify),
        "/health": ("GET", service.health),
        "/write": ("POST", service.write),
    }
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    port = service.options.port
    server = await loop.create_server(lambda: Connection(service, routes), "127.0.0.1", port, backlog=512)
    print(f"geo: ready on 127.0.0.1:{port} after {service.init_ms} ms, pid {os.getpid()}", flush=True)
    await stop.wait()
    server.close()
    service.stopping.set()


def parse_options():
    parser = argparse.ArgumentParser(description="hotel search over k-d trees")
    parser.add_argument("--port", type=int, default=8080, help="TCP port on 127.0.0.1 (default 8080)")
    parser.add_argument("--nidx", type=int, default=64, help="number of indexes (default 64)")
    parser.add_argument("--hotels", type=int, default=6000, help="hotels per index (default 6000)")
    parser.add_argument("--mb", type=int, default=0, help="extra touched memory in MiB (default 0)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all generated data (default 1)")
    options = parser.parse_args()
    if options.nidx < 1 or options.hotels < 1 or options.mb < 0:
        parser.error("--nidx and --hotels start at 1, --mb at 0")
    return options


def main():
    # The trees have no cycles: scanning them again and again would only slow their building down.
    gc.disable()
    service = Service(parse_options())
    gc.enable()
    # Keeps later collections from writing to the headers of all objects, which would un-share every page.
    gc.freeze()
    service.start_tickers()
    asyncio.run(serve(service))


if __name__ == "__main__":
    main()
