#!/usr/bin/env python3
"""Makes the golden files of sealing, segments and manifests from docs/formats, by another implementation (the package cryptography).

Run it in this folder when a format gets a new version; files of old versions stay as they are.
"""
import json
import struct
import zlib

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MASTER = bytes.fromhex("0123456789abcdef" * 4)
DATA_KEY = bytes(range(32))
KEY_ID = bytes(range(0x10, 0x18))
REALM = b"golden"
SEGMENT = b"0123456789abcdef"


def frame(kind, payload, version=1):
    return b"PNDO" + struct.pack("<HHII", kind, version, len(payload), zlib.crc32(payload)) + payload


def seal(number, plain):
    key = HKDF(hashes.SHA256(), 32, SEGMENT, b"pando segment 1" + REALM).derive(DATA_KEY)
    bound = b"pando chunk 1" + bytes([len(REALM)]) + REALM + KEY_ID + SEGMENT + struct.pack("<I", number)
    return KEY_ID + AESGCM(key).encrypt(bytes(8) + struct.pack(">I", number), plain, bound)


def segment(chunks):
    out = frame(17, SEGMENT + KEY_ID + bytes([len(REALM)]) + REALM)
    sealed = [seal(number, plain) for number, plain in enumerate(chunks)]
    out += b"".join(sealed)
    index = frame(18, b"".join(struct.pack("<I", len(chunk)) for chunk in sealed))
    return out + index + frame(19, SEGMENT + struct.pack("<QII", len(out), len(index), len(chunks)))


def wrapped_key():
    nonce = bytes(range(12))
    context = b"pando data key 1 golden %s 3 test" % KEY_ID.hex().encode()
    wrapped = nonce + AESGCM(MASTER).encrypt(nonce, DATA_KEY, context)
    return frame(16, json.dumps({"sequence": 3, "wrapped": wrapped.hex()}).encode())


def manifest_body():
    tree = b"\x02" + b"\xaa" * 16 + struct.pack("<QII", 0x11223344, 0x5566, 7) + b"\xbb" * 32
    body = struct.pack("<HH", 0x0102, 3) + b"\x01" + b"\xcc" * 16
    body += b"\x02" + b"\xdd" * 16 + b"\xee" * 16
    body += b"\x02" + bytes([len(tree)]) + tree + b"\x00"
    body += struct.pack("<I", 2) + b"\x11" * 16 + b"\xaa" * 16 + b"what the client says"
    return frame(26, body, 2)


for name, content in {
    "sealed-chunk-v1.bin": seal(5, b"what was sealed"),
    "segment-v1.bin": segment([b"first chunk", b"", bytes(100)]),
    "wrapped-key-v1.bin": wrapped_key(),
    "manifest-body-v2.bin": manifest_body(),
}.items():
    with open(name, "wb") as file:
        file.write(content)
