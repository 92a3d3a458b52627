//! What the kernel has of files, while they change.

use crate::fuse::place::Place;

/// Another process reads the file all the time. What was written is read at once, and nothing of it is lost when a byte is written through a mapping after it.
pub(super) fn never_stale() {
    Place::new().python(
        r"
import ctypes, mmap, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
SIZE, ROUNDS = 640 << 10, 60
def call(number, *args):
    done = libc.syscall(number, *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args))
    if done < 0: raise OSError(ctypes.get_errno(), f'system call {number}')
    return done
def opened(name, flags=0): return os.open(name, os.O_RDWR | os.O_CREAT | flags)
ring, data = ctypes.c_ulong(), mmap.mmap(-1, SIZE)
call(206, 1, ctypes.byref(ring)); address = ctypes.addressof(ctypes.c_char.from_buffer(data))
direct, buffered, other = opened('file', os.O_DIRECT), opened('file'), opened('other')
os.pwrite(buffered, data, 0); mapping = mmap.mmap(buffered, SIZE)
def asynchronous():
    block = ctypes.create_string_buffer(struct.pack('=QIiHhIQQqQII', 0, 0, 0, 1, 0, direct, address, SIZE, 0, 0, 0, 0), 64)
    event = (ctypes.c_int64 * 4)()
    call(209, ring, 1, ctypes.byref(ctypes.pointer(block)))
    assert call(208, ring, 1, 1, ctypes.byref(event), None) == 1 and event[2] == SIZE, list(event)
def at_once(): assert os.pwrite(direct, data, 0) == SIZE
def buffered_write(): assert os.pwrite(buffered, data, 0) == SIZE
def copied():
    os.pwrite(other, data, 0)
    assert os.copy_file_range(other, buffered, SIZE, 0, 0) == SIZE
def spliced():
    r, w = os.pipe()
    for at in range(0, SIZE, 1 << 16):
        os.write(w, data[at:at + (1 << 16)]); left = 1 << 16
        while left: left -= os.splice(r, buffered, left, offset_dst=at + (1 << 16) - left)
    os.close(r); os.close(w)
def hole(): data[:] = bytes(SIZE); call(285, buffered, 3, 0, SIZE)
def zeros(): data[:] = bytes(SIZE); call(285, buffered, 0x10, 0, SIZE)
def truncated(): data[:] = bytes(SIZE); os.ftruncate(buffered, 0); os.ftruncate(buffered, SIZE)
def mapped(): mapping[:] = data[:]
def mapped_before_direct(): mapping[:] = bytes(SIZE); at_once()
reader = os.fork()
if reader == 0:
    while True: os.pread(buffered, SIZE, 0)
stale = {}
try:
    for way in [asynchronous, at_once, buffered_write, copied, spliced, hole, zeros, truncated, mapped, mapped_before_direct]:
        for round in range(ROUNDS):
            os.pwrite(buffered, b'before' * (SIZE // 6), 0)
            data[:] = bytes([round]) * SIZE
            way()
            if os.pread(buffered, SIZE, 0) != data[:]: stale[way.__name__] = round
            mapping[17] = data[17] = 99; mapping.flush()
            if os.pread(buffered, SIZE, 0) != data[:]: stale[way.__name__ + ', then mapped'] = round
finally: os.kill(reader, signal.SIGKILL)
assert not stale, stale
",
    );
}
