"""What people do in a workspace, with the real programs, in two places by turns: git, npm, pip, cargo, tar, rm, SQLite, PostgreSQL.

usage: volume_tools.py FIRST SECOND WORK ROUNDS [NAME...]
FIRST and SECOND are empty directories on two filesystems; WORK, on a third or on the first, takes what the programs fetch beforehand, so that no
network is measured. Prints for each step the median seconds in both places and their ratio (second to first). Ends with 1 if a program fails, or
leaves other files in one place than in the other.
"""
import hashlib
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
NPM_PACKAGES = ["typescript@5.9", "webpack@5.102", "express@5.1", "eslint@9.38"]
PIP_PACKAGES = ["requests==2.32.5", "flask==3.1.2", "sympy==1.14.0"]
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
TRANSACTIONS = 400


def run(*command, **more):
    """Runs a program; its output is shown only if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed in {more.get('cwd', '.')}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


class Work:
    """What is fetched once, for both places."""

    def __init__(self, root):
        self.npm, self.pip, self.crate = root / "npm", root / "pip", root / "crate"
        self.npm_project = root / "npm-project"

    def fetch_npm(self):
        self.npm_project.mkdir()
        (self.npm_project / "package.json").write_text('{"name": "workspace", "version": "1.0.0", "private": true}\n')
        self.install_npm(self.npm_project, "install", "--package-lock-only", *NPM_PACKAGES)
        # Fills the cache.
        self.install_npm(self.npm_project, "ci")
        shutil.rmtree(self.npm_project / "node_modules")

    def install_npm(self, place, *arguments):
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", "--cache", str(self.npm)]
        run("npm", *arguments, *quiet, cwd=place)

    def fetch_pip(self):
        run("/usr/bin/python3", "-m", "venv", self.pip / "venv")
        run(self.pip / "venv/bin/pip", "download", "-q", "--only-binary", ":all:", "-d", self.pip / "wheels", *PIP_PACKAGES)


def clone(work, place):
    run("git", "clone", "-q", "--no-local", REPOSITORY, place / "clone")


def status(work, place):
    output = run("git", "status", "--porcelain", cwd=place / "clone")
    assert output == "", output


def npm_ci(work, place):
    shutil.copytree(work.npm_project, place / "node")
    work.install_npm(place / "node", "ci")


def remove_node_modules(work, place):
    run("rm", "-rf", place / "node/node_modules")


def pip_install(work, place):
    # Byte code has times in it, and is written by those who run the programs.
    offline = ["--no-index", "--find-links", str(work.pip / "wheels"), "--no-compile", "--target", str(place / "site")]
    run(work.pip / "venv/bin/pip", "install", "-q", *offline, *PIP_PACKAGES)


def cargo_build(work, place):
    environment = {**os.environ, "CARGO_TARGET_DIR": str(place / "target"), "CARGO_NET_OFFLINE": "true"}
    run("cargo", "build", "-q", "--locked", "-p", "pando-base", cwd=place / "clone", env=environment)


def tar(work, place):
    run("tar", "-cf", place / "clone.tar", "-C", place, "clone")
    (place / "unpacked").mkdir()
    run("tar", "-xf", place / "clone.tar", "-C", place / "unpacked")


def sqlite(work, place):
    """Half of the transactions with a rollback journal, half with a write-ahead log; then both are checked."""
    for mode in ("delete", "wal"):
        file = place / f"{mode}.db"
        database = sqlite3.connect(file, isolation_level=None)
        database.execute(f"pragma journal_mode = {mode}")
        database.execute("create table numbers (number integer primary key, text text)")
        for number in range(TRANSACTIONS // 2):
            database.execute("insert into numbers values (?, ?)", (number, "x" * 200))
        database.close()
        database = sqlite3.connect(file)
        rows = database.execute("select count(*) from numbers").fetchone()[0]
        sound = database.execute("pragma integrity_check").fetchone()[0]
        assert (rows, sound) == (TRANSACTIONS // 2, "ok"), (mode, rows, sound)
        database.close()


def postgres(work, place):
    """A data directory: made, written by pgbench, stopped in the middle as by a crash, recovered and counted."""
    data = place / "postgres"
    data.mkdir(mode=0o700)
    shutil.chown(data, "postgres", "postgres")

    def server(program, *arguments):
        return run("setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", POSTGRES[-1] / program, *arguments)

    def control(*arguments):
        # Its socket lies in the data directory: nothing listens elsewhere. With output to a pipe pg_ctl would wait for the server's end.
        options = f"-c listen_addresses= -c unix_socket_directories={data} -c shared_buffers=16MB"
        server("pg_ctl", "-w", "-s", "-D", data, "-l", data / "log", "-o", options, *arguments)

    server("initdb", "-D", data, "-A", "trust", "--no-sync")
    control("start")
    server("pgbench", "-h", data, "-i", "-q", "-s", "1", "postgres")
    server("pgbench", "-h", data, "-t", str(TRANSACTIONS), "-c", "2", "postgres")
    control("stop", "-m", "immediate")
    control("start")
    count = server("psql", "-h", data, "-At", "-c", "select count(*) from pgbench_history", "postgres")
    control("stop")
    assert int(count) == 2 * TRANSACTIONS, count


# Name, body, and the directory in which it leaves the same files everywhere: none if there are times in them.
STEPS = [
    ("git clone", clone, None),
    ("git status", status, None),
    ("npm ci", npm_ci, "node"),
    ("rm -rf node_modules", remove_node_modules, "node"),
    ("pip install", pip_install, "site"),
    ("cargo build", cargo_build, None),
    ("tar and untar", tar, "unpacked/clone/crates"),
    ("sqlite", sqlite, None),
    ("postgres", postgres, None),
]
NEEDS = {"git status": "git clone", "rm -rf node_modules": "npm ci", "cargo build": "git clone", "tar and untar": "git clone"}


def listing(place):
    """Names below it, each with its mode, and its link target or what it holds."""
    found = {}
    for directory, folders, files in os.walk(place):
        for name in folders + files:
            path = Path(directory, name)
            held = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(place))] = (f"{path.lstat().st_mode:o}", held)
    return found


def compare(name, homes):
    one, two = (listing(home) for home in homes)
    differing = sorted(path for path in one.keys() | two.keys() if one.get(path) != two.get(path))
    if differing:
        examples = "\n".join(f"  {path}: {one.get(path)} {two.get(path)}" for path in differing[:10])
        sys.exit(f"{name}: {len(differing)} of {len(one)} files are not the same in both places:\n{examples}")


def main():
    first, second, root = (Path(argument).resolve() for argument in sys.argv[1:4])
    rounds, wanted = int(sys.argv[4]), set(sys.argv[5:])
    wanted |= {NEEDS[name] for name in wanted if name in NEEDS}
    steps = [step for step in STEPS if not wanted or step[0] in wanted]
    work = Work(root)
    names = {name for name, _, _ in steps}
    if "npm ci" in names:
        work.fetch_npm()
    if "pip install" in names:
        work.fetch_pip()
    took = {(name, place): [] for name in names for place in (first, second)}
    for number in range(rounds):
        # By turns also in who comes first, so that neither always finds what the other brought into memory.
        places = (first, second) if number % 2 == 0 else (second, first)
        homes = {place: place / str(number) for place in places}
        for home in homes.values():
            home.mkdir()
            home.chmod(0o755)
        for name, body, same in steps:
            for place in places:
                os.sync()
                began = time.monotonic()
                body(work, homes[place])
                took[name, place].append(time.monotonic() - began)
            if same:
                compare(name, [home / same for home in homes.values()])
        for home in homes.values():
            shutil.rmtree(home)
    print(f"{'STEP':22} {'first':>9} {'second':>9}  ratio   (medians of {rounds})")
    for name, _, _ in steps:
        one, two = (statistics.median(took[name, place]) for place in (first, second))
        print(f"{name:22} {one:7.2f} s {two:7.2f} s  {two / one:.2f}x")


main()
