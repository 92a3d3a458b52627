#!/usr/bin/python3
"""Appends consecutive numbers to `journal` in its working directory, each made durable, for as long as `go` is there. Ends with what went
wrong. Maps the journal while `map` is there. Ready when it listens on port 8080; opens nothing before."""

import mmap
import os
import socket
import time

listener = socket.create_server(("127.0.0.1", 8080))
number, mapped = 0, None
while True:
    time.sleep(0.002)
    try:
        if not os.path.exists("map"):
            mapped = None
        elif mapped is None:
            with open("journal", "rb") as journal:
                mapped = mmap.mmap(journal.fileno(), 0, prot=mmap.PROT_READ)
        if not os.path.exists("go"):
            continue
        with open("journal", "a") as journal:
            journal.write(f"{number}\n")
            journal.flush()
            os.fsync(journal.fileno())
    except OSError as error:
        print(f"number {number}: {error}", flush=True)
        raise SystemExit(1)
    number += 1
