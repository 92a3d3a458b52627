#!/bin/bash
# Volumes beside other filesystems, mounted in a mount namespace of this script's own. Needs root; leaves nothing but what it builds below target.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PJDFSTEST=0.2.2 FSX=0.3.2
readonly TOOLS=$PWD/target/tools
# dev: for checks, without a build of its own; what is measured is measured in release.
readonly PROFILE=${PROFILE:-release}
readonly BUILT=$PWD/target/${PROFILE/#dev/debug}
readonly EXAMPLES=$BUILT/examples PANDO=$BUILT/pando

say() { printf 'volume: %s\n' "$*" >&2; }
fail() {
	printf 'volume: %s\n' "$*" >&2
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/volume.sh bench | posix | tools [STEP...]

		bench  system calls and a small-file workload on ext4 (or whatever the checkout lies on), on an in-memory FUSE filesystem that
		       does nothing else, and on a volume, and a long file written and read again; then the engine alone: fsync, writing in order,
		       snapshots, forks, restores.
		       FILES (5000), ROUNDS (9), ENGINE_FILES (100000)
		posix  pjdfstest on both; fsx and the file-system stressors of stress-ng, which check what they do, on a volume of a node of its own,
		       whose worker is killed all the while.
		       FSX_OPERATIONS (20000), STRESS_SECONDS (2) for each stressor and 15 times that for all of them at once,
		       KILL_SECONDS (11; 0: nobody is killed. One that dies before its tenth second counts as one that cannot live), PROFILE (release)
		tools  what people do, with the real programs, on ext4 and on a volume: git, npm, pip, cargo, tar, rm, SQLite, PostgreSQL; fetches
		       packages first. ROUNDS (3)
	END
}

# In a namespace of its own no mount outlives it, whatever happens.
enter_namespace() {
	[[ $(id -u) == 0 ]] || fail "mounting needs root"
	[[ -n ${PANDO_VOLUME_NAMESPACE:-} ]] || PANDO_VOLUME_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
}

# begin PACKAGE...: builds what is needed of these.
begin() {
	cargo build --profile "$PROFILE" --locked "$@"
	work=$(mktemp -d "$PWD/target/volume.XXXXXX")
	trap end EXIT
	mkdir "$work/ext4" "$work/ceiling" "$work/volume"
	chmod 755 "$work"
	chmod 777 "$work"/*
}

end() {
	[[ -z ${killer:-} ]] || kill "$killer"
	if [[ -n ${node:-} ]]; then
		# It ends its mounts and processes, and removes its control groups.
		kill -TERM "$node"
		wait "$node" || true
	fi
	umount --lazy "$work"/{ceiling,volume,second} 2>/dev/null || true
	wait
	rm -rf "$work"
}

# serve DIRECTORY COMMAND...: runs it until DIRECTORY is unmounted.
serve() {
	local directory=$1
	shift
	"$@" &
	for _ in {1..200}; do
		! mountpoint -q "$directory" || return 0
		sleep 0.05
	done
	fail "$1 does not mount $directory"
}

readonly EXAMPLES_PACKAGES=(-p pando-fuse -p pando-volume --examples)

pando() { "$PANDO" --socket "$work/node.sock" "$@"; }

# serve_node DIRECTORY: a volume of a node, as users have it.
serve_node() {
	"$PANDO" --socket "$work/node.sock" node --ephemeral --pool 0 --state "$work/node" 2>"$work/node.log" &
	node=$!
	for _ in {1..200}; do
		! pando volume create posix >/dev/null 2>&1 || break
		sleep 0.05
	done
	pando volume mount posix "$1" >/dev/null && chmod 777 "$1" || fail "the node does not mount a volume: $(tail -3 "$work/node.log")"
}

# kill_workers SECONDS: kills the worker of volumes of the node as often, until it is killed itself.
kill_workers() {
	local killed=0 never
	# A sleep of its own would outlive this.
	exec {never}<> <(:)
	while true; do
		read -rt "$1" -u "$never" || true
		! pkill -KILL -f "volumed --state $work/node .*worker" || echo $((killed += 1)) >"$work/killed"
	done
}

bench() {
	begin "${EXAMPLES_PACKAGES[@]}"
	serve "$work/ceiling" "$EXAMPLES/ceiling" "$work/ceiling" 2
	serve "$work/volume" "$EXAMPLES/mount" "$work/state" "$work/volume" --threads 2
	say "load before: $(cut -d ' ' -f 1 /proc/loadavg); operations a second; x: of the directory before it"
	"$EXAMPLES/calls" "${FILES:-5000}" 8 "${ROUNDS:-9}" "$work/ext4" "$work/ceiling" "$work/volume"
	say "small files, 32 Python threads: writes, reads, list and stat a second"
	for load in "1000 4096" "500 256"; do
		for place in ext4 ceiling volume; do
			# shellcheck disable=SC2086 # two words
			/usr/bin/python3 scripts/smallfiles.py "$work/$place" $load 5 32
		done
	done
	say "files of 4 KiB, each synced before the next of its thread, by turns"
	for threads in 1 8 32; do
		for _ in 1 2 3; do
			for place in ext4 volume; do
				/usr/bin/python3 scripts/fsync_files.py "$work/$place" "$threads" $((threads > 1 ? 4000 : 1000))
			done
		done
	done
	say "1 GiB written in order and synced, by turns: MiB/s of each of four"
	for _ in 1 2; do
		for place in ext4 ceiling volume; do
			/usr/bin/python3 scripts/long_file.py "$work/$place"
			sleep 3
		done
	done
	say "512 MiB read from the kernel's pages of the file, each of three times: nobody is asked"
	for place in ext4 ceiling volume; do
		dd if=/dev/zero of="$work/$place/long" bs=1M count=512 status=none
		# A volume seals and stores what was written meanwhile, with both processors.
		sleep 8
		printf '%-24s' "$place"
		for _ in 1 2 3; do
			dd if="$work/$place/long" of=/dev/null bs=1M 2>&1 | sed -n 's/.*, \(.*\)$/\1/p' | tr '\n' ' '
		done
		echo
		rm "$work/$place/long"
	done
	say "the engine alone"
	TMPDIR=$work "$EXAMPLES/speed" "${ENGINE_FILES:-100000}" 4096
}

tools() {
	scripts/setup.sh npm:npm >&2
	begin "${EXAMPLES_PACKAGES[@]}"
	serve "$work/volume" "$EXAMPLES/mount" "$work/state" "$work/volume"
	mkdir "$work/fetched"
	say "load before: $(cut -d ' ' -f 1 /proc/loadavg); first: ext4, second: a volume"
	/usr/bin/python3 scripts/volume_tools.py "$work/ext4" "$work/volume" "$work/fetched" "${ROUNDS:-3}" "$@"
}

# tool NAME VERSION: from crates.io, below target.
tool() {
	[[ -x $TOOLS/bin/$1 ]] || cargo install --debug --quiet --locked --root "$TOOLS" --version "$2" "$1"
}

posix() {
	tool pjdfstest $PJDFSTEST
	tool fsx $FSX
	scripts/setup.sh stress-ng:stress-ng >&2
	# As the tests are built, which use the same binary.
	if [[ $PROFILE == dev ]]; then begin --workspace --lib --bins --tests; else begin -p pando; fi
	serve_node "$work/volume"
	if ((${KILL_SECONDS:=11})); then
		kill_workers "$KILL_SECONDS" &
		killer=$!
	fi
	mkdir "$work/second"
	# Some cases want to see that names do not cross filesystems.
	mount -t tmpfs none "$work/second"
	cat >"$work/pjdfstest.toml" <<-END
		[features]
		posix_fallocate = {}
		rename_ctime = {}
		utimensat = {}
		utime_now = {}
		stat_st_birthtime = {}
		[settings]
		naptime = 0.02
		allow_remount = false
		[dummy_auth]
		entries = [["nobody", "nogroup"], ["games", "games"]]
	END
	for place in ext4 volume; do
		say "pjdfstest on $place"
		"$TOOLS/bin/pjdfstest" -c "$work/pjdfstest.toml" -p "$work/$place" -s "$work/second" >"$work/$place.log" 2>&1 || {
			cat "$work/$place.log"
			fail "pjdfstest fails on $place"
		}
		tail -1 "$work/$place.log"
	done
	cat >"$work/fsx.toml" <<-END
		flen = 1048576
		[opsize]
		# fsx takes the refusal of an allocation of nothing, which ext4 gives too, for a filesystem without allocations.
		min = 1
		max = 200000
		[weights]
		close_open = 1
		invalidate = 1
		truncate = 10
		fsync = 1
		fdatasync = 1
		read = 10
		write = 10
		mapread = 10
		mapwrite = 10
		punch_hole = 10
		posix_fallocate = 5
		copy_file_range = 10
		sendfile = 5
		posix_fadvise = 1
	END
	local seed left=${FSX_OPERATIONS:-20000}
	for ((seed = RANDOM; left > 0; seed++, left -= FSX_AT_MOST)); do
		fsx_once $seed $((left < FSX_AT_MOST ? left : FSX_AT_MOST))
	done
	stress
}

# fsx leaves what it maps for reading mapped, one operation in nine; a process can have 65,530 mappings.
readonly FSX_AT_MOST=50000

fsx_once() {
	say "fsx on volume, seed $1"
	"$TOOLS/bin/fsx" -N "$2" -S "$1" -f "$work/fsx.toml" -P "$work" "$work/volume/fsx" >"$work/fsx.log" 2>&1 || {
		tail -40 "$work/fsx.log"
		fail "fsx fails with seed $1"
	}
	tail -1 "$work/fsx.log"
}

# What stress-ng has for files, alone by two workers each, then all of it at once; afterwards everything goes, and nothing is left of it.
readonly STRESSORS="access chdir chmod chown copy-file dentry dir dirdeep dirmany fallocate fcntl file-ioctl filename flock fpunch fstat getdent
	handle hdd iomix lease link locka lockf lockofd mknod mmap msync open readahead rename revio seek sendfile splice symlink sync-file touch utime xattr"

stress() {
	local stressor seconds=${STRESS_SECONDS:-2} all=()
	mkdir "$work/volume/stress"
	for stressor in $STRESSORS; do
		stress_ng "$stressor" --"$stressor" 2 --timeout "$seconds"
		all+=(--"$stressor" 1)
	done
	stress_ng "all at once" "${all[@]}" --timeout $((seconds * 15))
	rmdir "$work/volume/stress" || fail "stress-ng has left something"
	say "the worker of volumes was killed $(cat "$work/killed" 2>/dev/null || echo 0) times meanwhile"
}

stress_ng() {
	local what=$1
	shift
	# The stressor `open` leaves files where it is started, now and then.
	(cd "$work" && stress-ng --verify --temp-path "$work/volume/stress" "$@") >"$work/stress.log" 2>&1 || {
		tail -40 "$work/stress.log"
		fail "stress-ng, $what: see above"
	}
	say "stress-ng, $what: passed"
}

case ${1:-} in
bench | posix | tools)
	enter_namespace "$@"
	"$@"
	;;
*)
	usage
	exit 2
	;;
esac
