"""Makes layer-archive-v1.bin from docs/formats/layer-archive.md alone. Needs the module `blake3` (pip)."""

import pathlib
import struct
import zlib

import blake3


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def signed(number):
    return varint(number << 1 if number >= 0 else ~(number << 1))


def text(value):
    return varint(len(value)) + value


def frame(payload):
    return b"PNDO" + struct.pack("<HHII", 0x4C01, 1, len(payload), zlib.crc32(payload)) + payload


def entry(name, mode, node):
    attributes = varint(mode) + varint(1000) + varint(1001) + signed(1_700_000_000) + varint(123_456_789)
    return frame(b"\0" + text(name) + attributes + node)


def link(name, first):
    return frame(b"\1" + text(name) + text(first))


def data(at, value):
    return frame(b"\2" + varint(at) + text(value))


def xattr(name, value):
    return frame(b"\3" + text(name) + text(value))


END = frame(b"\4")
DIRECTORY, FILE, SYMLINK, PIPE, SOCKET, WHITEOUT = (bytes([number]) for number in range(6))

archive = b"".join([
    entry(b"", 0o755, DIRECTORY),
    entry(b"dir", 0o2750, DIRECTORY),
    entry(b"file", 0o4711, FILE + varint(8_196)), data(8_192, b"text"), xattr(b"user.key", b"value"), END,
    xattr(b"trusted.overlay.opaque", b"y"), END,
    entry(b"gone", 0, WHITEOUT), END,
    link(b"link", b"dir/file"),
    entry(b"pipe", 0o600, PIPE), END,
    entry(b"socket", 0o700, SOCKET), END,
    entry(b"symlink", 0o777, SYMLINK + text(b"/away")), END,
    END,
])
archive += frame(b"\5" + varint(8) + varint(4) + blake3.blake3(archive).digest())
pathlib.Path(__file__).with_name("layer-archive-v1.bin").write_bytes(archive)
