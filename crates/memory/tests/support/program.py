"""Fills memory in every way, then does as told: prints addresses, forks a stopped twin, writes again."""
import ctypes, os, random, signal, sys

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = libc.mprotect.argtypes
READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, NO_HUGE_PAGES, DROP = 3, 0x4022, 15, 4


def area(name, length):
    address = libc.mmap(None, length, READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    libc.madvise(address, length, NO_HUGE_PAGES)
    print(name, address, length, flush=True)
    return address


def write(address, data):
    ctypes.memmove(address, data, len(data))


noise = random.Random(1)
mixed = area("mixed", 512 * PAGE)
for page in range(512):
    kinds = [bytes(PAGE), b"seven777" * 512, noise.randbytes(PAGE), (b"line %d\n" % page * 600)[:PAGE]]
    write(mixed + page * PAGE, kinds[page % 4])
# Pages that the program may not read: a whole run, and every third one.
hidden = area("hidden", 64 * PAGE)
write(hidden, noise.randbytes(64 * PAGE))
libc.mprotect(hidden, 64 * PAGE, 0)
barred = area("barred", 300 * PAGE)
write(barred, noise.randbytes(300 * PAGE))
for page in range(0, 300, 3):
    libc.mprotect(barred + page * PAGE, PAGE, 0)
sparse = area("sparse", 4 << 30)
for page in range(0, 1 << 20, 4099):
    write(sparse + page * PAGE, b"here %d" % page)
print("ready", 0, 0, flush=True)

sys.stdin.readline()
twin = os.fork()
if twin == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
for page in range(0, 64):
    write(mixed + page * PAGE, b"changed!" * 512)
libc.madvise(mixed + 100 * PAGE, 20 * PAGE, DROP)
write(sparse + 5 * PAGE, b"new")
print("twin", twin, 0, flush=True)
while True:
    signal.pause()
