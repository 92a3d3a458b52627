"""Has files of every kind in /dev/shm, opened and mapped, and tells what is there and whether all ways to one file show the same."""

import ctypes, hashlib, http.server, json, mmap, os, random, resource, socket, struct, urllib.parse

HERE = "/dev/shm"
os.umask(0o177)
libc = ctypes.CDLL(None, use_errno=True)


def write(name, content, mode=0o600):
    fd = os.open(f"{HERE}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, content)
    os.fchmod(fd, mode)
    return fd


# uid 1234 may read what else only the owner and the group may: as `setfacl -m u:1234:r` has it.
LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in [(1, 6, 2**32 - 1), (2, 4, 1234), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)]
)
LATER = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in [(1, 7, 2**32 - 1), (2, 1, 1234), (4, 5, 2**32 - 1), (16, 5, 2**32 - 1), (32, 0, 2**32 - 1)]
)

os.mkdir(f"{HERE}/folder")
os.chmod(f"{HERE}/folder", 0o700)
os.mkdir(f"{HERE}/folder/deep")
os.chmod(f"{HERE}/folder/deep", 0o700)
os.close(write("folder/deep/file", b"deep", 0o4755))
os.close(write("plain", random.Random(1).randbytes(5000), 0o640))
os.setxattr(f"{HERE}/plain", "user.note", b"a note")
os.setxattr(f"{HERE}/plain", "system.posix_acl_access", LIST)
os.setxattr(f"{HERE}/folder", "user.of-a-folder", b"\0\1\2")
os.setxattr(f"{HERE}/folder", "system.posix_acl_default", LATER)
os.link(f"{HERE}/plain", f"{HERE}/folder/again")
os.symlink("plain", f"{HERE}/link")
os.symlink("/nowhere", f"{HERE}/folder/dangling")
os.mkfifo(f"{HERE}/fifo")
os.close(write("large", random.Random(2).randbytes(2 << 20)))
sparse = write("sparse", b"begin")
os.ftruncate(sparse, 64 << 20)
os.pwrite(sparse, b"middle", 48 << 20)
os.close(sparse)
stale = socket.socket(socket.AF_UNIX)
stale.bind(f"{HERE}/stale")
stale.close()
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{HERE}/listener")
listener.listen(100)
# Open to it, and to nobody any more by its name.
secret = write("secret", b"only by a descriptor", 0o000)
one, two = write("mapped", bytes(8192), 0o660), os.open(f"{HERE}/mapped", os.O_RDWR)
first, second = mmap.mmap(one, 8192), mmap.mmap(two, 8192)
first[:5] = b"first"
gone = write("gone", bytes(4096))
gone_map = mmap.mmap(gone, 4096)
gone_map[:4] = b"gone"
os.unlink(f"{HERE}/gone")
private = mmap.mmap(os.open(f"{HERE}/plain", os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[:7] = b"private"
os.chdir(f"{HERE}/folder/deep")
os.chmod(f"{HERE}/folder/deep", 0o550)
os.chmod(f"{HERE}/folder", 0o2750)
for name in ["plain", "folder/deep/file", "folder/deep", "folder", "fifo", "link", "large", "secret"]:
    os.utime(f"{HERE}/{name}", ns=(1_000_000_000_123_456_789, 1_100_000_000_987_654_321), follow_symlinks=False)
IN_CREATE, IN_ALL = 0x100, 0xFFF
watch = libc.inotify_init1(0x800)
assert libc.inotify_add_watch(watch, f"{HERE}/folder".encode(), IN_CREATE | 0x4 | 0x200) > 0


def content(path, kept):
    fd = kept if kept is not None else os.open(path, os.O_RDONLY | os.O_NOATIME)
    try:
        return hashlib.sha256(os.pread(fd, 1 << 30, 0)).hexdigest()
    finally:
        if kept is None:
            os.close(fd)


def describe():
    found = {}
    for top, folders, files in os.walk(HERE):
        for name in folders + files:
            path = os.path.join(top, name)
            status = os.lstat(path)
            is_file, is_link = os.path.isfile(path) and not os.path.islink(path), os.path.islink(path)
            entry = [oct(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns]
            if is_link:
                entry.append(os.readlink(path))
            else:
                entry.append({key: os.getxattr(path, key).hex() for key in sorted(os.listxattr(path))})
            if is_file:
                kept = secret if path == f"{HERE}/secret" else None
                entry += [status.st_size, status.st_blocks, content(path, kept)]
                # What is read by other ways here changes the time of these.
                if name not in ("secret", "mapped"):
                    entry.append(status.st_atime_ns)
            found[path] = entry
    return found


def events():
    try:
        return len(os.read(watch, 4096))
    except BlockingIOError:
        return 0


def views():
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(f"{HERE}/listener")
    # A connection that waits is refused.
    listener.accept()[0].close()
    connected.close()
    quiet = events()
    os.close(os.open(f"{HERE}/folder/short", os.O_CREAT | os.O_RDWR, 0o600))
    os.unlink(f"{HERE}/folder/short")
    seen = events()
    os.utime(f"{HERE}/folder", ns=(1_000_000_000_123_456_789, 1_100_000_000_987_654_321))
    events()
    by_path = open(f"{HERE}/mapped", "rb").read(16)
    return {
        "shared": sorted({bytes(view).rstrip(b"\0").decode() for view in
                          [first[:16], second[:16], os.pread(one, 16, 0), os.pread(two, 16, 0), by_path]}),
        "gone": sorted({gone_map[:4].decode(), os.pread(gone, 4, 0).decode()}),
        "private": private[:7].decode(),
        "cwd": os.getcwd() + " " + str(os.path.exists("file")),
        "events": [quiet, seen > 0],
    }


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = urllib.parse.urlparse(self.path)
        if asked.path == "/write":
            value = urllib.parse.parse_qs(asked.query)["value"][0].encode()
            first[:16] = value.ljust(16, b"\0")
            os.utime(f"{HERE}/mapped", ns=(1_000_000_000_000_000_000, 1_100_000_000_000_000_000))
        body = json.dumps({"born": born, "views": views(), "files": describe()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# Less than some files have.
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
views()
born = describe()
server = http.server.HTTPServer(("127.0.0.1", 8080), Service)
server.serve_forever()
