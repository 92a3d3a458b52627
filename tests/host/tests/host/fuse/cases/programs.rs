//! Programs that people run.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::Duration,
};

use procfs::{Filesystem, Idle, Whose};

use crate::fuse::place::{NAME, Place};

pub(super) fn git() {
    let mut place = Place::new();
    place.shell(
        "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; git config --global user.email a@b; git config --global user.name a
         git config --global init.defaultBranch main; git config --global safe.directory '*'
         git init -q one; cd one; for i in $(seq 200); do mkdir -p d$((i % 7)); echo $i > d$((i % 7))/f$i; done
         git add .; git commit -qm first; git checkout -qb other; git rm -q d1/f1; git mv d2 moved; git commit -qm second
         git checkout -q main; git merge -q other; git gc -q; git fsck; cd ..; git clone -q one two; git clone -q --shared one three
         cd two; git log --oneline | wc -l; test -z \"$(git status --porcelain)\"; cd ..; diff -r -x .git one two",
    );
    place.remount();
    place.shell("export HOME=$PWD; cd two; git fsck --full; test -z \"$(git status --porcelain)\"");
}

pub(super) fn tar() {
    let place = Place::new();
    place.shell(
        "mkdir src; cd src; mkfifo fifo; mknod null c 1 3; ln -s dangling link; echo x > file; ln file hard; chown 123:456 file
         chmod 4751 file; touch -d '2001-02-03 04:05:06.789' file; truncate -s 100M sparse; echo end >> sparse; mkdir -m 1777 sticky
         python3 -c \"import os; os.setxattr('file', 'user.x', b'1'); open(b'bad\\xff\\nname', 'w')\"
         cd ..; tar --xattrs --sparse -cf t.tar src; mkdir out; tar --xattrs -xpf t.tar -C out; test $(stat -c %b t.tar) -lt 1000
         tar --xattrs -df t.tar -C out; (cd src; find . -printf '%p %m %U %G %T@ %s %n %l\\n' | sort) > a
         (cd out/src; find . -printf '%p %m %U %G %T@ %s %n %l\\n' | sort) > b; grep -v '^\\. ' a > c; grep -v '^\\. ' b | diff c -
         test $(stat -c %b out/src/sparse) -lt 100; cp -a out again; rm -r src out again",
    );
}

pub(super) fn sqlite() {
    let mut place = Place::new();
    place.python(
        r"
import os, sqlite3, multiprocessing
def work(mode, n):
    db = sqlite3.connect(f'{mode}.db', timeout=60, isolation_level=None)
    for i in range(40):
        db.execute('begin immediate'); db.execute('insert into t values (?, ?)', (n, os.urandom(2000)))
        db.execute('update c set n = n + 1'); db.execute('commit')
for mode in ['wal', 'delete', 'truncate']:
    db = sqlite3.connect(f'{mode}.db'); assert db.execute(f'pragma journal_mode={mode}').fetchone()[0] == mode
    db.execute('create table t (n, b)'); db.execute('create table c (n)'); db.execute('insert into c values (0)'); db.commit()
    workers = [multiprocessing.Process(target=work, args=(mode, n)) for n in range(4)]
    for w in workers: w.start()
    for w in workers: w.join(); assert w.exitcode == 0
    assert db.execute('select n from c').fetchone() == (160,) and db.execute('select count(*) from t').fetchone() == (160,)
    assert db.execute('pragma integrity_check').fetchone() == ('ok',)
",
    );
    place.remount();
    place.python(
        r"
import sqlite3
for mode in ['wal', 'delete', 'truncate']:
    db = sqlite3.connect(f'{mode}.db')
    assert db.execute('select n from c').fetchone() == (160,) and db.execute('pragma integrity_check').fetchone() == ('ok',)
",
    );
}

pub(super) fn mappings() {
    let mut place = Place::new();
    place.python(
        r"
import mmap, multiprocessing, os
SIZE, WORKERS = 4 << 20, 4
def work(n):
    f = os.open('map', os.O_RDWR); m = mmap.mmap(f, SIZE)
    for i in range(n * 8, SIZE, WORKERS * 8): m[i:i + 8] = i.to_bytes(8, 'little')
    m.flush(); os.close(f)
f = os.open('map', os.O_CREAT | os.O_RDWR); os.ftruncate(f, SIZE)
workers = [multiprocessing.Process(target=work, args=(n,)) for n in range(WORKERS)]
for w in workers: w.start()
for w in workers: w.join(); assert w.exitcode == 0
data = os.pread(f, SIZE, 0)
assert all(data[i:i + 8] == i.to_bytes(8, 'little') for i in range(0, SIZE, 8))
m = mmap.mmap(f, SIZE); m[0:4] = b'head'; os.pwrite(f, b'tail', 4); assert m[4:8] == b'tail' and os.pread(f, 4, 0) == b'head'
",
    );
    place.remount();
    place.python(
        r"
data = open('map', 'rb').read()
assert data[:8] == b'headtail' and all(data[i:i + 8] == i.to_bytes(8, 'little') for i in range(8, len(data), 8))
",
    );
}

const ELSEWHERE: &str = r"
import ctypes, mmap, os, sys
shared = mmap.mmap(-1, 4096)
root = os.open(f'/proc/{os.getppid()}/root', os.O_PATH | os.O_DIRECTORY)
assert ctypes.CDLL(None).unshare(0x20000) == 0
os.fchdir(root); os.chroot('.')
assert open('/proc/self/mountinfo').read() == ''
print('ready', flush=True); sys.stdin.read()
";
const PROGRAM: &str = r"
import ctypes, mmap, os, threading
def mapped(name, protection=mmap.PROT_READ | mmap.PROT_WRITE):
    with open(name, 'w+b') as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096, prot=protection)
files = {name: mapped(name) for name in ['plain', 'unlinked', 'cannot be written any more']}
os.unlink('unlinked')
libc = ctypes.CDLL(None)
def protect(file, protection):
    page = ctypes.addressof(ctypes.c_char.from_buffer(file))
    assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), protection) == 0
def write():
    while True:
        name = input()
        files[name][0] ^= 1
        if name.startswith('cannot'): protect(files[name], mmap.PROT_READ)
        print('written', flush=True)
for name in files: files[name][0] = 1
threading.Thread(target=write).start()
print('ready', flush=True)
libc.syscall(60, 0)
";

/// A killed program is not waited for if a case beside this one reads what it has mapped at the moment of its end (see `procfs::write_back`).
/// That does not happen each time.
pub(super) fn written_back() {
    assert!((0..3).any(|_| written_back_of_killed()));
}

/// Whether what a killed program has mapped was waited for. All else must be.
///
/// The program has one file of each kind, and writes to that whose name it reads. Its main thread has ended. Another one, which is looked at
/// before, has the same root directory, but in a mount namespace of its own: it sees no mounts there.
fn written_back_of_killed() -> bool {
    let place = Place::new();
    let python = |program: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", program]).current_dir(place.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.spawn().unwrap();
        let mut says = BufReader::new(python.stdout.take().unwrap()).lines();
        assert_eq!(says.next().unwrap().unwrap(), "ready");
        (python, says)
    };
    let (mut elsewhere, _says_no_more) = python(ELSEWHERE);
    let (mut program, mut says) = python(PROGRAM);
    let mut asks = program.stdin.take().unwrap();
    let processes = [elsewhere.id() as i32, program.id() as i32];
    let idle = HashSet::from(processes);
    let child_of = |parent| Whose::Anybody(Some(Idle { parent, children: &idle }));
    let (these, ours, of_init) = (Whose::These(&processes), child_of(std::process::id() as i32), child_of(1));
    let write_back = |whose| {
        let filesystem = Filesystem { kind: fuse::FILESYSTEM, source: NAME };
        procfs::write_back(whose, filesystem).unwrap();
    };
    write_back(these);
    let mut killed_is_waited_for = false;
    for (whose, name, is_killed) in [
        (these, "plain", false),
        (these, "unlinked", false),
        (these, "cannot be written any more", false),
        (of_init, "plain", false),
        (these, "plain", true),
    ] {
        place.stop_server();
        // Nothing is dirty yet.
        write_back(whose);
        writeln!(asks, "{name}").unwrap();
        assert_eq!(says.next().unwrap().unwrap(), "written");
        // They are left out.
        write_back(ours);
        if is_killed {
            program.kill().unwrap();
        }
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || write_back(whose));
            std::thread::sleep(Duration::from_millis(300));
            let has_waited = !writing.is_finished();
            place.continue_server();
            writing.join().unwrap();
            assert!(has_waited || is_killed, "{name}, {whose:?}");
            killed_is_waited_for |= has_waited && is_killed;
        });
    }
    program.wait().unwrap();
    write_back(these);
    // Its input ends.
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
    killed_is_waited_for
}

pub(super) fn locks() {
    Place::new().python(
        r"
import fcntl, multiprocessing, os
open('n', 'w').write('0')
def count(lock):
    for i in range(200):
        with open('lock', 'w') as l:
            lock(l, fcntl.LOCK_EX)
            n = int(open('n').read()); open('n', 'w').write(str(n + 1))
for lock in [fcntl.flock, fcntl.lockf]:
    workers = [multiprocessing.Process(target=count, args=(lock,)) for _ in range(4)]
    for w in workers: w.start()
    for w in workers: w.join(); assert w.exitcode == 0
assert open('n').read() == '1600'
",
    );
}
