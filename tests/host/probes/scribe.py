#!/usr/bin/python3
"""Appends consecutive numbers to `journal` in its working directory, each made durable, for as long as `go` is there. Ends with what went
wrong. Ready when it listens on port 8080; opens nothing before."""

import os
import socket
import time

listener = socket.create_server(("127.0.0.1", 8080))
number = 0
while True:
    time.sleep(0.002)
    try:
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
