"""Many small files from many threads: N files of SIZE bytes in 50 directories are written, read, and listed with their status.

usage: smallfiles.py DIR N SIZE ROUNDS THREADS
prints the median rates of the rounds: writes, reads, files listed and looked at, a second each. The parent directory is asked for before
each write, as programs that unpack or generate files do.
"""
import os
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

DIRECTORIES = 50


def measure(root, count, data, threads):
    def path(number):
        return f"{root}/{number % DIRECTORIES}/f{number}"

    def write(number):
        os.makedirs(os.path.dirname(path(number)), exist_ok=True)
        with open(path(number), "wb") as file:
            file.write(data)

    def read(number):
        with open(path(number), "rb") as file:
            if file.read() != data:
                sys.exit(f"{path(number)} is not what was written")

    def look():
        return sum(1 for folder, _, names in os.walk(root) for name in names if os.stat(f"{folder}/{name}"))

    times = [time.perf_counter()]
    with ThreadPoolExecutor(threads) as pool:
        for work in (write, read):
            list(pool.map(work, range(count)))
            times.append(time.perf_counter())
    if look() != count:
        sys.exit(f"{root} does not list {count} files")
    times.append(time.perf_counter())
    shutil.rmtree(root)
    return [count / (end - begin) for begin, end in zip(times, times[1:])]


def main():
    place, (count, size, rounds, threads) = sys.argv[1], map(int, sys.argv[2:])
    data = os.urandom(size)
    rates = [measure(f"{place}/round{number}", count, data, threads) for number in range(rounds)]
    writes, reads, looks = (round(statistics.median(column)) for column in zip(*rates))
    print(f"{os.path.basename(place):8} {count} x {size} bytes: {writes:7} writes  {reads:7} reads  {looks:7} listed")


main()
