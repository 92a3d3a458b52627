//! What POSIX says of files.

use volume::Options;

use crate::fuse::place::Place;

pub(super) fn written_and_read() {
    let mut place = Place::new();
    place.shell(
        "mkdir -p a/b/c; echo hello > a/b/c/file; ln -s b/c/file a/soft; ln a/b/c/file a/hard
         head -c 5000000 /dev/urandom > big; cp big copy; cmp big copy
         dd if=big of=copy bs=1000 skip=7 seek=1234 count=321 conv=notrunc status=none
         sha256sum big copy a/b/c/file > /tmp/sums.$PPID; cp /tmp/sums.$PPID sums; rm /tmp/sums.$PPID",
    );
    place.remount();
    place.shell("sha256sum --quiet -c sums; test $(cat a/soft) = hello; test $(stat -c %h a/hard) = 2");
    place.shell("rm -r a big copy; test \"$(ls)\" = sums");
}

pub(super) fn unlinked_open() {
    Place::new().python(
        r"
import os
f = os.open('file', os.O_CREAT | os.O_RDWR)
os.write(f, b'abc'); os.unlink('file'); os.write(f, b'def')
assert os.pread(f, 10, 0) == b'abcdef' and os.fstat(f).st_nlink == 0
os.ftruncate(f, 4); os.fchmod(f, 0o600); os.utime(f, (1, 2)); os.fsync(f)
assert os.fstat(f).st_size == 4 and os.listdir('.') == []
os.mkdir('d'); d = os.open('d', os.O_RDONLY); os.rmdir('d')
assert os.listdir(d) == []
try: os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=d); assert False
except FileNotFoundError: pass
a = os.open('log', os.O_CREAT | os.O_WRONLY | os.O_APPEND); b = os.open('log', os.O_WRONLY | os.O_APPEND)
for i in range(100): os.write(a, b'a'); os.write(b, b'b')
assert open('log').read() == 'ab' * 100
before = os.statvfs('.')
for i in range(50):
    g = os.open('t', os.O_CREAT | os.O_RDWR); os.write(g, bytes(1 << 20)); os.unlink('t'); os.close(g)
os.close(f)
import time
for i in range(100):
    if os.statvfs('.').f_bfree >= before.f_bfree: break
    time.sleep(0.02)
else: assert False, 'what nobody has open is still there'
",
    );
}

pub(super) fn holes() {
    Place::new().python(
        r"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(f, mode, offset, length):
    if libc.fallocate(f, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0: raise OSError(ctypes.get_errno(), 'fallocate')
K = 1 << 10
f = os.open('file', os.O_CREAT | os.O_RDWR)
os.pwrite(f, b'x' * 64 * K, 1 << 20)
assert os.fstat(f).st_blocks * 512 < 128 * K
assert os.lseek(f, 0, os.SEEK_DATA) == 1 << 20 and os.lseek(f, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 64 * K
fallocate(f, 3, (1 << 20) + 16 * K, 16 * K)
assert os.lseek(f, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 16 * K
assert os.pread(f, 4, (1 << 20) + 16 * K - 2) == b'xx\0\0'
fallocate(f, 0x10, (1 << 20) + 60 * K, 8 * K)
assert os.fstat(f).st_size == (1 << 20) + 68 * K and os.pread(f, 2, (1 << 20) + 62 * K) == b'\0\0'
fallocate(f, 0, 0, 4 << 20); assert os.fstat(f).st_size == 4 << 20
fallocate(f, 1, 0, 8 << 20); assert os.fstat(f).st_size == 4 << 20
try: os.lseek(f, 5 << 20, os.SEEK_DATA); assert False
except OSError as e: assert e.errno == 6
try: fallocate(f, 0x20, 0, 4 * K); assert False
except OSError as e: assert e.errno == 95
os.ftruncate(f, 1 << 40); os.pwrite(f, b'end', (1 << 40) - 3); assert os.fstat(f).st_size == 1 << 40
assert os.pread(f, 3, (1 << 40) - 3) == b'end'
",
    );
}

pub(super) fn attributes() {
    let mut place = Place::new();
    place.python(
        r"
import os
open('file', 'w')
os.setxattr('file', 'user.a', b'1'); os.setxattr('file', 'trusted.b', b'\0\xff'); os.setxattr('file', 'user.empty', b'')
def refused(errno, f, *args):
    try: f(*args)
    except OSError as e: assert e.errno == errno, e; return
    assert False
refused(17, os.setxattr, 'file', 'user.a', b'2', os.XATTR_CREATE)
refused(61, os.setxattr, 'file', 'user.c', b'2', os.XATTR_REPLACE)
refused(61, os.getxattr, 'file', 'user.none')
refused(95, os.setxattr, 'file', 'system.posix_acl_access', b'2\0\0\0')
os.setxattr('file', 'user.a', b'x' * 8000, os.XATTR_REPLACE); os.removexattr('file', 'user.empty')
refused(61, os.removexattr, 'file', 'user.empty')
",
    );
    place.remount();
    place.python(
        r"
import os
assert sorted(os.listxattr('file')) == ['trusted.b', 'user.a']
assert os.getxattr('file', 'user.a') == b'x' * 8000 and os.getxattr('file', 'trusted.b') == b'\0\xff'
",
    );
}

pub(super) fn renames() {
    Place::new().python(
        r"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def rename(a, b, flags):
    return 0 if libc.renameat2(-100, a.encode(), -100, b.encode(), flags) == 0 else ctypes.get_errno()
for name in 'abc': open(name, 'w').write(name)
os.mkdir('d'); open('d/x', 'w').write('x')
assert rename('a', 'b', 1) == 17 and rename('a', 'new', 1) == 0
assert rename('new', 'd', 2) == 0 and open('d').read() == 'a' and open('new/x').read() == 'x'
assert rename('c', 'none', 2) == 2 and rename('new', 'new/below', 0) == 22
os.rename('c', 'b'); assert open('b').read() == 'c' and not os.path.exists('c')
os.link('b', 'c'); os.rename('b', 'c'); assert os.path.exists('b') and os.path.exists('c')
os.mkdir('full'); open('full/f', 'w'); os.mkdir('empty')
assert rename('empty', 'full', 0) == 39
os.rename('full', 'empty'); assert os.listdir('empty') == ['f'] and os.stat('.').st_nlink == 4
assert rename('c', 'white', 4) == 0 and os.stat('c').st_rdev == 0 and open('white').read() == 'c'
f = open('d'); os.rename('b', 'd'); assert f.read() == 'a'
",
    );
}

pub(super) fn big_directory() {
    Place::new().python(
        r"
import os
os.mkdir('d')
for i in range(20000): os.close(os.open(f'd/{i}', os.O_CREAT | os.O_WRONLY))
seen = []
with os.scandir('d') as entries:
    for n, entry in enumerate(entries):
        seen.append(entry.name)
        if n % 100 == 0 and n < 20000: open(f'd/new{n}', 'w')
        if n % 100 == 50 and int(entry.name.lstrip('new') or 0) < 20000: os.unlink(f'd/{entry.name}')
old = [name for name in seen if not name.startswith('new')]
assert len(old) == len(set(old)) == 20000, (len(old), len(set(old)))
assert len(os.listdir('d')) == os.stat('d').st_size
import shutil; shutil.rmtree('d')
",
    );
}

pub(super) fn kinds() {
    let mut place = Place::new();
    let program = r"
import os, socket, stat
longest = 'n' * 255
if not os.path.exists(longest):
    open(longest, 'w'); os.mkfifo('fifo', 0o640); os.mknod('char', stat.S_IFCHR | 0o600, os.makedev(10, 229)); os.mknod('block', stat.S_IFBLK, os.makedev(259, 70000))
    s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.close()
    os.symlink('t' * 4000, 'link')
    os.utime('fifo', ns=(-1_200_000_000, -500_000_000)); os.utime(longest, ns=(1 << 61, 12345678912345)); os.utime('link', ns=(5, 6), follow_symlinks=False)
try: open('n' * 256, 'w'); assert False
except OSError as e: assert e.errno == 36
try: os.stat('n' * 256); assert False
except OSError as e: assert e.errno == 36
assert stat.S_ISFIFO(os.stat('fifo').st_mode) and stat.S_ISSOCK(os.stat('socket').st_mode)
assert os.stat('char').st_rdev == os.makedev(10, 229) and os.stat('block').st_rdev == os.makedev(259, 70000)
assert os.readlink('link') == 't' * 4000 and os.lstat('link').st_mtime_ns == 6
assert os.stat('fifo').st_mtime_ns == -500_000_000 and os.stat('fifo').st_atime_ns == -1_200_000_000, os.stat('fifo')
assert os.stat(longest).st_atime_ns == 1 << 61 and os.stat(longest).st_mtime_ns == 12345678912345
try: open('char'); assert False
except OSError as e: assert e.errno == 13, e
";
    place.python(program);
    place.remount();
    place.python(program);
}

pub(super) fn permissions() {
    Place::new().python(
        r"
import os
os.chmod('.', 0o777); os.umask(0)
def as_user(uid, gid, groups=[]):
    def decorate(f):
        pid = os.fork()
        if pid == 0:
            try: os.setgroups(groups); os.setgid(gid); os.setuid(uid); f(); os._exit(0)
            except BaseException as e: print(f.__name__, repr(e), flush=True); os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
    return decorate
open('secret', 'w').write('x'); os.chmod('secret', 0o600)
os.mkdir('shared'); os.chown('shared', 0, 50); os.chmod('shared', 0o2777)
open('tool', 'w').write('x'); os.chmod('tool', 0o6777); os.chown('tool', 7, 7); os.chmod('tool', 0o6777)
@as_user(1000, 1000)
def user():
    for act in [lambda: open('secret'), lambda: os.chmod('secret', 0o666), lambda: os.chown('shared', 1000, 1000)]:
        try: act(); assert False
        except PermissionError: pass
    open('shared/f', 'w'); os.mkdir('shared/d')
    assert os.stat('shared/f').st_gid == 50 and os.stat('shared/d').st_gid == 50
    assert os.stat('shared/d').st_mode & 0o2000 and not os.stat('shared/f').st_mode & 0o2000
    assert os.stat('shared/f').st_uid == 1000
    open('tool', 'r+').write('y'); assert os.stat('tool').st_mode & 0o7777 == 0o777, oct(os.stat('tool').st_mode)
    os.mkdir('own', 0o700)
os.chmod('tool', 0o6777)
open('tool', 'r+').write('z'); assert os.stat('tool').st_mode & 0o7777 == 0o6777, 'root keeps them'
@as_user(1000, 1000)
def truncates(): os.truncate('tool', 0); assert os.stat('tool').st_mode & 0o7777 == 0o777, oct(os.stat('tool').st_mode)
os.chmod('tool', 0o6777); os.chown('tool', 8, 8); assert os.stat('tool').st_mode & 0o7777 == 0o777
@as_user(1001, 1001)
def other():
    try: os.listdir('own'); assert False
    except PermissionError: pass
",
    );
}

pub(super) fn full() {
    let options = Options { bytes_max: 8 << 20, inodes_max: 100, ..Options::default() };
    Place::with(&options).python(
        r"
import os, time
s = os.statvfs('.'); assert s.f_blocks * s.f_frsize == 8 << 20 and s.f_files == 100 and s.f_ffree == 99 and s.f_namemax == 255
f = os.open('big', os.O_CREAT | os.O_WRONLY)
written = 0
try:
    while True: written += os.write(f, bytes(1 << 20))
except OSError as e: assert e.errno == 28
assert 7 << 20 <= written <= 8 << 20 and os.fstat(f).st_size == written
os.ftruncate(f, 1 << 20); assert os.statvfs('.').f_bfree * 4096 == 7 << 20
try:
    for i in range(200): os.close(os.open(f'f{i}', os.O_CREAT))
    assert False
except OSError as e: assert e.errno == 28 and i == 98, (e, i)
os.unlink('f0')
for _ in range(1000):
    # The kernel forgets a file some time after its last name has gone.
    try: open('g', 'w'); break
    except OSError: time.sleep(.01)
else: assert False
",
    );
}

pub(super) fn copies() {
    let mut place = Place::new();
    place.python(
        r"
import os
data = os.urandom(3 << 20); open('a', 'wb').write(data)
a, b = os.open('a', os.O_RDONLY), os.open('b', os.O_CREAT | os.O_RDWR)
assert os.copy_file_range(a, b, 1 << 20, 5, 0) == 1 << 20
os.pwrite(os.open('a', os.O_WRONLY), b'changed', 5)
assert os.pread(b, 1 << 20, 0) == data[5:5 + (1 << 20)]
assert os.copy_file_range(a, b, 100, 5 << 20, 0) == 0
",
    );
    place.remount();
    place.shell("cp --reflink=auto a c; cmp a c; test $(stat -c %s b) = 1048576");
}

/// `fuser` gets the fraction wrong, and `convert::time` puts it right: this fails when `fuser` no longer does and the correction is still there.
pub(super) fn early_times() {
    let mut place = Place::new();
    let program = r"
import os
times = {'tenth': (-1, -100_000_000), 'second': (-1_000_000_000, -1_000_000_001), 'old': (-(1 << 60) - 7, -86_400_123_456_789)}
for name, ns in times.items():
    if not os.path.exists(name):
        open(name, 'w'); os.utime(name, ns=ns)
        f = os.open(name, os.O_RDONLY); os.utime(f, ns=ns); os.close(f)
    found = os.stat(name); assert (found.st_atime_ns, found.st_mtime_ns) == ns, (name, found)
";
    place.python(program);
    place.remount();
    place.python(program);
}

/// What was told of an inode by a mount that is gone: the kernel has nothing but the handle, and asks the server.
pub(super) fn handles() {
    const CALLS: &str = r"
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    done = libc.syscall(number, *args)
    if done < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
def handle(path):
    found, mount = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 136), ctypes.c_int()
    call(303, -100, path.encode(), found, ctypes.byref(mount), 0)
    return found.raw
def opened(handle, flags=os.O_RDONLY):
    top = os.open('.', os.O_RDONLY)
    try: return call(304, top, ctypes.create_string_buffer(handle, 136), flags)
    finally: os.close(top)
";
    let mut place = Place::new();
    place.python(&format!(
        "{CALLS}
os.makedirs('a/b/c'); open('a/b/c/file', 'w').write('data'); open('gone', 'w')
with open('handles', 'wb') as handles:
    for path in ['a/b/c/file', 'a/b/c', 'gone', '.']: handles.write(handle(path))
assert os.read(opened(handle('a/b/c/file')), 9) == b'data'
"
    ));
    place.remount();
    place.python(&format!(
        "{CALLS}
import time
handles = open('handles', 'rb').read()
file, directory, gone, top = [handles[at:at + 136] for at in range(0, 4 * 136, 136)]
assert os.read(opened(file), 9) == b'data'
assert os.readlink('/proc/self/fd/' + str(opened(directory, os.O_DIRECTORY))) == os.getcwd() + '/a/b/c'
assert os.listdir(opened(directory, os.O_DIRECTORY)) == ['file'] and os.stat(opened(top)).st_ino == os.stat('.').st_ino
os.unlink('gone')
for i in range(500):
    # The kernel forgets a file some time after its last name has gone.
    try: os.close(opened(gone)); time.sleep(.01)
    except OSError as e: assert e.errno == 116, e; break
else: assert False
"
    ));
}
