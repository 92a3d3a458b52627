//! Set-user-id and set-group-id bits, which go where what the file is or holds changes.

use crate::fuse::place::Place;

/// Each way to change a file, by an ordinary user who owns it, and by root, who keeps the bits where a local filesystem lets root keep them.
/// A new size is the exception: there nobody keeps them. The kernel believes the new mode at once, without asking (AT_STATX_DONT_SYNC).
pub(super) fn taken_away() {
    Place::new().python(
        r"
import ctypes, mmap, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    done = libc.syscall(number, *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args))
    if done < 0: raise OSError(ctypes.get_errno(), f'system call {number}')
def known():
    found = ctypes.create_string_buffer(256)
    call(332, -100, b'tool', 0x4000, 2, found)
    return struct.unpack_from('H', found, 28)[0] & 0o7777
def allocate(mode, offset, length): call(285, file(), mode, offset, length)
os.chmod('.', 0o777); os.umask(0)
open('source', 'wb').write(bytes(8192)); os.chmod('source', 0o666)
page = mmap.mmap(-1, 4096); address = ctypes.addressof(ctypes.c_char.from_buffer(page))
def file(flags=0): return os.open('tool', os.O_RDWR | flags)
def asynchronous():
    ring, event = ctypes.c_ulong(), (ctypes.c_int64 * 4)()
    call(206, 1, ctypes.byref(ring))
    block = ctypes.create_string_buffer(struct.pack('=QIiHhIQQqQII', 0, 0, 0, 1, 0, file(os.O_DIRECT), address, 4096, 0, 0, 0, 0), 64)
    call(209, ring, 1, ctypes.byref(ctypes.pointer(block)))
    call(208, ring, 1, 1, ctypes.byref(event), None)
    assert event[2] == 4096
KEPT, GONE = 0o6777, 0o777
ways = [
    (KEPT, 'write', lambda: os.pwrite(file(), b'x', 0)),
    (KEPT, 'direct write', lambda: os.pwrite(file(os.O_DIRECT), page, 0)),
    (KEPT, 'asynchronous direct write', asynchronous),
    (KEPT, 'longer by fallocate', lambda: allocate(0, 0, 16384)),
    (KEPT, 'fallocate inside', lambda: allocate(0, 0, 4096)),
    (KEPT, 'fallocate, size kept', lambda: allocate(1, 0, 16384)),
    (KEPT, 'hole', lambda: allocate(3, 0, 4096)),
    (KEPT, 'zeros', lambda: allocate(0x10, 0, 4096)),
    (KEPT, 'copy', lambda: os.copy_file_range(os.open('source', os.O_RDONLY), file(), 4096, 0, 0)),
    (GONE, 'truncate', lambda: os.truncate('tool', 5)),
    (GONE, 'truncate by open', lambda: file(os.O_TRUNC)),
    (GONE, 'chown', lambda: os.chown('tool', -1, os.getgid())),
    (GONE, 'chown to nobody', lambda: os.chown('tool', -1, -1)),
    (GONE, 'fchown to nobody', lambda: os.fchown(file(), -1, -1)),
]
def mode_after(uid, way):
    f = os.open('tool', os.O_RDWR | os.O_CREAT); os.pwrite(f, bytes(8192), 0)
    os.fchown(f, uid, uid); os.fchmod(f, 0o6777); os.close(f)
    assert os.stat('tool').st_mode & 0o7777 == KEPT
    pid = os.fork()
    if pid == 0:
        try: os.setgroups([]); os.setgid(uid); os.setuid(uid); way(); os._exit(0)
        except BaseException as error: print(repr(error), flush=True); os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    modes = known(), os.stat('tool').st_mode & 0o7777
    assert modes[0] == modes[1], [oct(mode) for mode in modes]
    return modes[0]
wrong = [(uid, name) for of_root, name, way in ways for uid, right in [(1000, GONE), (0, of_root)] if mode_after(uid, way) != right]
assert not wrong, wrong
# A group that may not execute it has no set-group-id bit, but a mark, which stays.
os.chmod('tool', 0o6767); os.chown('tool', -1, -1); assert os.stat('tool').st_mode & 0o7777 == 0o2767
os.mkdir('d'); os.chmod('d', 0o2777); os.chown('d', -1, -1); assert os.stat('d').st_mode & 0o7777 == 0o2777
",
    );
}
