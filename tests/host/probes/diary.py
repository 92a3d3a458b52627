#!/usr/bin/python3
"""Appends consecutive numbers to a file that it keeps open: a fork in which the file and the memory are not of the same moment
shows as a gap or a number written twice. Ready when /home/user/diary has its first line."""

import time

with open("/home/user/kept", "w") as kept:
    kept.write("from the template\n")
with open("/home/user/removed", "w") as removed:
    removed.write("to be removed\n")
with open("/home/user/diary", "a", buffering=1) as diary:
    number = 0
    while True:
        diary.write(f"{number}\n")
        number += 1
        time.sleep(0.0005)
