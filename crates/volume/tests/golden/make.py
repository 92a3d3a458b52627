"""Writes the golden files of version 1 from docs/formats/volume.md and volume-log.md, independently of the crate."""

import pathlib
import struct
import zlib


def number(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def signed(value):
    return number(value * 2 if value >= 0 else -value * 2 - 1)


def text(value):
    return number(len(value)) + value


def time(seconds, nanos):
    return signed(seconds) + number(nanos)


def frame(kind, payload):
    return b"PNDO" + struct.pack("<HHII", kind, 1, len(payload), zlib.crc32(payload)) + payload


def inode():
    out = number(2) + number(0o777) + number(1000) + number(100) + number(1) + number(6) + number(0) + number(0)
    out += time(-1, 999_999_999) + time(1_700_000_000, 5) + time(1_700_000_001, 6) + time(0, 0)
    return out + number(300) + number(1 << 62 | 8) + text(b"target")


def window():
    chunk = b"0123456789abcdef" + struct.pack("<QII", 4096, 70_000, 3)
    pieces = [(0, 100, chunk, 7), (4096, 126_976, chunk, 200)]
    return number(len(pieces)) + b"".join(number(a) + number(b) + c + number(d) for a, b, c, d in pieces)


def superblock():
    return bytes(range(32)) + b"epoch of 16 byte" + b"".join(
        map(number, [300, 77, 1 << 40, 65, 10 << 30, 10 << 20, 1])) + time(1_700_000_000, 7) + b"sixteen bytes it"


def operations():
    now = time(1_700_000_000, 123)
    new = number(1) + number(0o755) + number(1) + number(2) + number(0) + text(b"")
    none = b"\0"
    changes = b"\1" + number(0o600) + none + none + b"\1" + number(5) + none + b"\1" + time(9, 9) + b"\1"
    return [
        number(0) + number(1) + text(b"name") + new + now,
        number(1) + number(7) + number(1) + text(b"name") + now,
        number(2) + number(1) + text(b"name") + now,
        number(3) + number(1) + text(b"name") + now,
        number(4) + number(1) + text(b"a") + number(2) + text(b"b") + number(2) + now,
        number(5) + number(7),
        number(6) + number(7) + changes + now,
        number(7) + number(7) + number(4096) + text(b"data") + b"\1" + now,
        number(8) + number(7) + number(1) + number(2) + now,
        number(9) + number(7) + number(1) + number(8) + number(2) + number(3) + now,
        number(10) + number(7) + text(b"user.a") + text(b"v") + number(1) + now,
        number(11) + number(7) + text(b"user.a") + now,
        number(12) + number(1) + new + now,
        number(13) + number(7) + number(1) + text(b"name") + now,
        number(4) + number(1) + text(b"a") + number(2) + text(b"b") + number(3) + now,
        number(14),
    ]


def record(operation):
    return struct.pack("<I", len(operation) + 2) + number(300) + operation


FILES = {
    "inode-v1": inode(),
    "xattrs-v1": number(2) + text(b"user.a") + text(b"1") + text(b"user.b") + text(b""),
    "window-v1": window(),
    "entry-v1": number(300) + number(1) + text(b"name"),
    "superblock-v1": superblock(),
    "log-header-v1": frame(0x5601, b"0123456789abcdef" + b"keyidkey" + b"epoch of 16 byte" + struct.pack("<Q", 12)),
    "log-records-v1": b"".join(map(record, operations())),
    "log-answered-v1": b"".join(
        record(operations()[2] + outcome) for outcome in [b"\0" + number(0), b"\1" + number(300) + number(70_000)]
    ),
}

for name, content in FILES.items():
    (pathlib.Path(__file__).parent / f"{name}.bin").write_bytes(content)
