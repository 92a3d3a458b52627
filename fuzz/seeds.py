#!/usr/bin/env python3
"""Writes the inputs that fuzzing begins with: fuzz/seeds.py DIRECTORY. They are the golden files without what the targets put around them."""

import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = pathlib.Path(sys.argv[1])
FRAME_BYTES = 16


def golden(crate, name):
    return (ROOT / "crates" / crate / "tests/golden" / name).read_bytes()


def payload(crate, name):
    return golden(crate, name)[FRAME_BYTES:]


def pieces(*parts):
    return b"".join(struct.pack("<H", len(part)) + part for part in parts)


def seed(target, name, content):
    (OUT / target).mkdir(parents=True, exist_ok=True)
    (OUT / target / name).write_bytes(content)


def records(archive):
    """The payloads of an archive's records."""
    found = []
    while archive:
        length = struct.unpack("<I", archive[8:12])[0]
        found.append(archive[FRAME_BYTES:FRAME_BYTES + length])
        archive = archive[FRAME_BYTES + length:]
    return found


def leaf(*runs):
    """Columns of a leaf: runs of gap, pages, kind, chunk, first page in it. Chunks are named by their numbers."""
    chunks = 1 + max((run[3] for run in runs if run[2] == 2), default=-1)
    columns = [struct.pack("<II", len(runs), chunks)]
    columns += [b"".join(struct.pack(form, run[place]) for run in runs) for place, form in enumerate(["<Q", "<I", "<B", "<I", "<H"])]
    return b"".join(columns) + bytes([1] * chunks) + bytes(range(chunks))


def chunk(*clusters, cluster_pages=1):
    """A chunk's payload: clusters of codec, pages and bytes."""
    pages = sum(pages for _, pages, _ in clusters)
    table = b"".join(struct.pack("<BI", codec, len(packed)) for codec, _, packed in clusters)
    return struct.pack("<HH", pages, cluster_pages) + table + b"".join(packed for _, _, packed in clusters)


# A page of one letter: as it is, and as an LZ4 block (a literal, a match of all the rest at distance 1, five literals).
RAW = (0, 1, b"r" * 4096)
LENGTH = 4096 - 1 - 5 - 4 - 15
LZ4 = (1, 1, b"\x1fl\1\0" + b"\xff" * (LENGTH // 255) + bytes([LENGTH % 255]) + b"\x50lllll")

seed("frame", "wrapped-key", golden("store", "wrapped-key-v1.bin"))
seed("frame", "piece", golden("checkpoint", "checkpoint-file-v1.bin")[:18])

segment = golden("store", "segment-v1.bin")
seed("segment", "footer", b"\0" + segment[-32:])
seed("segment", "index", b"\1" + segment[-32 - FRAME_BYTES - 12:-32 - FRAME_BYTES])
seed("segment", "header", b"\2" + segment[FRAME_BYTES:FRAME_BYTES + 31])
seed("manifest", "body", payload("store", "manifest-body-v1.bin"))
seed("tree_node", "leaf", payload("store", "tree-leaf-v1.bin"))
seed("tree_node", "branch", payload("store", "tree-branch-v1.bin"))
seed("references_and_keys", "wrapped", payload("store", "wrapped-key-v1.bin"))
seed("references_and_keys", "masters", b"first:" + b"0f" * 32 + b"\nsecond:" + b"1e" * 32)
seed("references_and_keys", "chunk", b"0123456789abcdef" + struct.pack("<QII", 57, 4000, 1))

for name in ["page-image-v1.root", "page-image-delta-v1.root"]:
    seed("image_root", name, payload("memory", name))
chunks = [chunk(RAW, LZ4), chunk(LZ4, LZ4)]
seed("page_image", "kinds", pieces(leaf((10, 3, 0, 0, 0), (0, 2, 2, 0, 0), (7, 1, 2, 1, 1)), *chunks))
seed("page_image", "parent", pieces(leaf((10, 3, 1, 0, 0))))
for name in ["page-image-v1.chunk", "page-image-lz4-v1.chunk", "page-image-delta-v1.chunk"]:
    seed("chunk", name, payload("memory", name))
seed("cluster", "raw", b"\0\0" + RAW[2])
seed("cluster", "lz4", b"\0\1" + LZ4[2])
zstd = payload("memory", "page-image-v1.chunk")
seed("cluster", "zstd", b"\x0f\2" + zstd[zstd.find(b"\x28\xb5\x2f\xfd"):])
seed("hot_set", "golden", pieces(struct.pack("<Q", 4) + b"\1\0", payload("memory", "hot-set-v1.chunk")))

seed("contents", "golden", pieces(payload("memory", "contents-v1.list"), b"", payload("memory", "contents-v1.piece")))

STATE = subprocess.run(["zstd", "-dc"], input=payload("process", "program-state-v1.bin"), capture_output=True, check=True).stdout
seed("program_state", "golden", STATE)

layer = records(golden("sandbox", "layer-archive-v1.bin"))
seed("layer_archive", "golden", pieces(*layer))
seed("layer_archive", "empty", pieces(layer[0], b"\4", b"\5\1\0" + bytes(32)))

SPEC = b"""{"name":"warm","image":"host","command":["/bin/true"],"env":[],"cwd":"/","ready":"listening","ready_timeout_ms":1000,
"limits":{"memory_bytes":4294967296,"pids":4096,"cpu_millis":null}}"""
seed("requests", "spec", SPEC)
seed("requests", "run", b'{"template":"warm","count":3}')
seed("requests", "fork", b'{"count":2}')
seed("requests", "exec", b'{"argv":["ls"],"env":[],"cwd":null,"tty":null}')
seed("requests", "checkpoint", b'{"name":"warm","replace":false}')
seed("requests", "error", b'{"code":"not_found","message":"x","details":[]}')

small = pieces(layer[0], b"\4", b"\5\1\0" + bytes(32))
small_bytes = sum(FRAME_BYTES + len(record) for record in [layer[0], b"\4", b"\5\1\0" + bytes(32)])


def description(state, layers):
    counts = b'{"pause_us":1,"pages":2,"zero_pages":0,"duplicate_pages":0,"memory_bytes":3,"layer_bytes":4}'
    numbers = b",".join(b"%d" % layer for layer in layers)
    return b'\0{"spec":%s,"created_ms":1,"counts":%s,"base":0,"state":%d,"layers":[%s]}' % (SPEC, counts, state, numbers)


EMPTY_ROOT = struct.pack("<6QI", 0, 0, 0, 0, 0, 0, 0)
LEAF_ROOT = struct.pack("<6QI", 0, 0, 2, 0, 1, 9, 1) + struct.pack("<QQBI", 10, 12, 1, 8) + bytes(8)
named = leaf((10, 2, 2, 0, 0))[:-2] + b"\x08" + bytes(8)
seed("checkpoint_file", "no-state", pieces(description(0, []), b"\4" + EMPTY_ROOT))
seed("checkpoint_file", "layer", pieces(description(0, [small_bytes]), b"\4" + EMPTY_ROOT, b"\5" + small))
seed("checkpoint_file", "memory", pieces(description(0, []), b"\2" + chunks[0], b"\3" + named, b"\4" + LEAF_ROOT))
seed("checkpoint_file", "state", pieces(description(8548, []), b"\6" + STATE, b"\4" + EMPTY_ROOT))

STREAM = b"".join(struct.pack("<BI", kind, len(body)) + body for kind, body in [
    (0, b"input"), (1, b"output"), (2, b"error"), (3, b""), (4, b"\x18\0\x50\0"), (5, b"\0\0\0\0\0"), (5, b"\1\x09\0\0\0"), (5, b"\2\0\0\0\0")])
seed("exec_stream", "all", b"\6" + STREAM)

for name, host in [("name", "8080-s0123456789ab.pando.localhost:7443"), ("api", "API.pando.localhost."), ("v6", "[::1]:80")]:
    seed("route", name, host.encode() + b"\ns0123456789ab\n49983")

seed("pager_client", "serve", b'{"Serve":{"name":"warm","pid":7,"ranges":1,"image_bytes":10}}')
seed("pager_client", "working-set", b'{"WorkingSet":{"name":"warm"}}')
seed("pager_client", "status", b'"Status"')
seed("pager_client", "ranges", struct.pack("<4Q", 0x1000, 0x3000, 0x8000, 0x9000))
seed("keeper", "start", b'{"seq":3,"request":{"Start":{"zygote":1,"id":"s0123456789ab","start":2,"stepping":false}}}')
seed("keeper", "event", b'{"Event":{"Exited":{"id":"s0123456789ab","pid":7,"main":true,"status":{"Signal":9}}}}')
seed("keeper", "parcel", b"\3abc" + b"\1\x80\x20\x80\x40")
seed("records", "node", b'{"id":"n1"}')
seed("records", "sandbox", b'{"id":"s0123456789ab","template":"geo","parent":null,"layers":["/a","/"],"limits":{"memory_bytes":4294967296,'
     b'"pids":4096,"cpu_millis":null},"init":{"pid":10,"start_ticks":11},"main":{"pid":12,"start_ticks":13},"arena":[4096,8192],'
     b'"created_ms":1,"start_us":2,"state":{"exited":{"code":3}}}')

seed("names", "template", b"team/base:v1")
seed("names", "token", b"desc.1700000000000.s0123456789ab".hex().encode())
seed("names", "time", b"2026-11-26T12:00:00.123Z")
seed("names", "query", b"state=running,paused&metadata=a%3Db&limit=7&order=asc&startedAfter=2026-11-26T12:00:00Z")
seed("bodies", "new", b'{"templateID":"base","timeout":60,"autoPause":true,"autoResume":{"enabled":true},"metadata":{"a":"b"},'
     b'"network":{"allowOut":["1.1.1.1"],"rules":{"a.b":[{"transform":{"headers":{"x":"y"}}}]}},"volumeMounts":[{"name":"v","path":"/v"}]}')
seed("paths", "path", b"~/a/../b")
seed("paths", "user", b"Basic dXNlcjo=")


def envelope(message):
    return b"\0" + struct.pack(">I", len(message)) + message


START = b'{"process":{"cmd":"/bin/bash","args":["-l","-c","true"],"envs":{"A":"b"},"cwd":"/"},"tag":"t","stdin":true}'
seed("connect", "start", bytes([1 | 1 << 6]) + envelope(START))
seed("connect", "stat", bytes([7]) + b'{"path":"/home/user"}')
seed("connect", "list", bytes([192 + (14 - 192 % 14) % 14]) + b"")
seed("connect", "proto", bytes([133]) + b"\x0a\x02/a\x10\x01")

FORM = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a b\"\r\n\r\nhello\r\n--XX\r\n\r\n\r\n--X\r\n--XX--\r\n"
seed("form", "two", b"\7" + FORM)
seed("form", "longest-head", b"\1--XX\r\nA: " + b"a" * (16384 - 5) + b"\r\n\r\nhello\r\n--XX--")
seed("form", "byte-by-byte", b"\1a preamble\r\n" + FORM)
for number, text in enumerate([b"bytes=0-9", b"bytes=-3", b"bytes=5-", b"multipart/form-data; boundary=\"X X\"", b"/mnt/a\n/mnt/b"]):
    seed("headers", str(number), text)
for number, text in enumerate([b"metadata=a%3Db%26c%3Dd&state=running,paused&limit=5", b"a%2520b=c%2526d",
    b"path=%2Fhome%2Fuser%2Fa&username=root&signature=v1_x&signature_expiration=1795800000"]):
    seed("queries", str(number), text)
