#!/usr/bin/python3
"""Counts, while `work` is there, in four places of its working directory and its own memory at once: a SQLite database in WAL mode (which
maps a file and holds locks as long as it is open), 8 MiB that are mapped to be shared, a private view of a file, and compares them. Calls
a library that it has loaded from there. Runs `./program` in its own place when `become` is there. Ends with what went wrong. Ready when it
listens on port 8080; opens nothing before."""

import array
import ctypes
import mmap
import os
import shutil
import socket
import sqlite3
import time

PAGE = 4096
# So many that writing them back takes a while.
SHARED_PAGES = 2048
VIEW_PAGES = 16

listener = socket.create_server(("127.0.0.1", 8080))
while not os.path.exists("work"):
    time.sleep(0.002)

database = sqlite3.connect("numbers.db", isolation_level=None)
database.execute("pragma journal_mode = wal")
database.execute("create table numbers (number integer)")
with open("shared", "w+b") as file:
    file.truncate(SHARED_PAGES * PAGE)
    # The first eight bytes of each page.
    shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")[:: PAGE // 8]
with open("view", "w+b") as file:
    file.write(b"view" * (VIEW_PAGES * PAGE // 4))
    file.flush()
    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
ctypes.CDLL("libm.so.6")
with open("/proc/self/maps") as maps:
    original = next(line.split()[-1] for line in maps if "libm.so" in line)
shutil.copy(original, "library.so")
library = ctypes.CDLL(os.path.abspath("library.so"))
library.cos.restype = ctypes.c_double
library.cos.argtypes = [ctypes.c_double]

number = 0
while True:
    time.sleep(0.002)
    if os.path.exists("become"):
        os.execv("./program", ["program", "-c", "import time; time.sleep(1e6)"])
    if not os.path.exists("work"):
        continue
    (rows,) = database.execute("select count(*) from numbers").fetchone()
    found = [rows, int.from_bytes(view[:8]) if number else 0, *set(shared)]
    # One more page of the view is looked at each time.
    looked = view[PAGE * (number % VIEW_PAGES) + 8 :][:4]
    if found != [number] * 3 or looked != b"view" or library.cos(0.0) != 1.0:
        print(f"number {number}: found {found}, {looked}, {library.cos(0.0)}", flush=True)
        raise SystemExit(1)
    number += 1
    database.execute("insert into numbers values (?)", (number,))
    view[:8] = number.to_bytes(8)
    shared[:] = array.array("Q", [number]) * SHARED_PAGES
