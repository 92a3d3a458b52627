#!/bin/sh
# Runs in a guest of scripts/kernels.sh, as root: each step prints one line `RESULT STEP ok|FAILED`, and its output if it failed.
LOG=/var/log/step
# Without KVM everything takes tens of times as long.
PATIENCE=180

# Without a bound of its own nothing that hangs would be told.
pando() { timeout "$PATIENCE" /usr/bin/pando "$@"; }

say() { echo "RESULT $1 $2"; }

# step NAME COMMAND...
step() {
	name=$1
	shift
	if "$@" >$LOG 2>&1; then
		say "$name" ok
	else
		echo "--- $name failed:"
		tail -n 20 $LOG
		say "$name" FAILED
	fi
}

# expect WANTED COMMAND...: the last line of what the command prints.
expect() {
	wanted=$1
	shift
	got=$("$@" 2>&1 </dev/null | tail -n 1)
	[ "$got" = "$wanted" ] || { echo "wanted: $wanted"; echo "got:    $got"; return 1; }
}

# Asks the program in a sandbox: ask ID QUESTION
ask() { printf '%s\n' "$2" | pando connect "$1" 8080; }

# The identifiers that a command prints.
started() { "$@" 2>>/var/log/errors | grep -o 's[0-9a-f]\{12\}' | head -n 1; }

timers() { expect 'timer 3 ticks' ask "$1" timer; }

echo "KERNEL $(uname -r)"
pando doctor >$LOG 2>&1
doctor=$?
sed 's/^/    /' $LOG
[ $doctor = 0 ] && say doctor ok || say doctor FAILED
pando doctor --self-test >$LOG 2>&1
self_test=$?
sed 's/^/    /' $LOG
[ $self_test = 0 ] && say self-test ok || say self-test FAILED

/usr/bin/pando node --log warn >/var/log/node 2>&1 &
node=$!
for _ in $(seq $PATIENCE); do [ -S /run/pando/node.sock ] && pando ls >/dev/null 2>&1 && break; sleep 1; done
step node pando ls

build() {
	pando template build svc --port 8080 --mount-point /workspace --memory 64M --pids 24 --cpus 0.3 --ready-timeout 3m -- /opt/service
}
step template build
id=$(started pando create svc)
step run timers "$id"
step connect expect 'count 1' ask "$id" count
step exec expect hello pando exec "$id" -- /bin/echo hello
status() {
	pando exec "$1" -- /bin/sh -c 'exit 7'
	[ $? = 7 ]
}
step exit-status status "$id"

judge_fork() {
	copy=$(started pando fork "$1") || return 1
	expect 'count 2' ask "$copy" count && timers "$copy" && expect 'count 2' ask "$1" count
}
step fork judge_fork "$id"

judge_checkpoint() { pando checkpoint "$1" --name warm && pando checkpoint verify warm; }
step checkpoint judge_checkpoint "$id"
judge_restore() {
	copy=$(started pando create warm) || return 1
	expect 'count 3' ask "$copy" count && timers "$copy"
}
step restore judge_restore
judge_pause() { pando pause "$1" && pando ls --paused -q | grep -q "$1"; }
step pause judge_pause "$id"
judge_resume() { pando resume "$1" && expect 'count 3' ask "$1" count && timers "$1"; }
step resume judge_resume "$id"

pando kill --all --force >/dev/null 2>&1
id=$(started pando create svc)
# Of a limit of 24 processes some are there; of 30 % of a processor somewhat more is given, because it is given in slices.
limit_pids() { got=$(pando exec "$1" -- /opt/service breed 100 | tail -n 1); echo "children: $got"; [ "$got" -gt 0 ] && [ "$got" -lt 24 ]; }
step limit-pids limit_pids "$id"
limit_cpu() { got=$(pando exec "$1" -- /opt/service burn | tail -n 1); echo "percent: $got"; [ "$got" -gt 5 ] && [ "$got" -lt 50 ]; }
step limit-cpu limit_cpu "$id"
limit_memory() {
	pando exec "$1" -- /opt/service fill 16 || return 1
	! pando exec "$1" -- /opt/service fill 512
}
step limit-memory limit_memory "$id"
pando kill --all --force >/dev/null 2>&1
step host-tests env PANDO_TEST_SECONDS=600 /opt/host-tests sandbox::limits

step volume-create pando volume create ws --size 1G
id=$(started pando create svc --volume ws:/workspace)
write_volume() { expect written ask "$1" 'write /workspace/note one' && expect one ask "$1" 'read /workspace/note'; }
step volume-write write_volume "$id"
mkdir -p /mnt/ws
mount_volume() { pando volume mount ws /mnt/ws && expect one cat /mnt/ws/note; }
step volume-mount mount_volume
snapshot() { pando volume snapshot ws before && expect written ask "$1" 'write /workspace/note two' && expect two cat /mnt/ws/note; }
step volume-snapshot snapshot "$id"
# The kernel has the name and the data of the file; both have to be forgotten.
restore_volume() {
	expect written ask "$1" 'write /workspace/later there' && cat /mnt/ws/later && pando volume restore ws before &&
		expect one cat /mnt/ws/note && expect one ask "$1" 'read /workspace/note' && [ ! -e /mnt/ws/later ]
}
step volume-restore restore_volume "$id"
fork_with_volume() {
	copy=$(started pando fork "$1") || return 1
	expect one ask "$copy" 'read /workspace/note' && expect written ask "$copy" 'write /workspace/note copy' && expect one cat /mnt/ws/note
}
step volume-fork fork_with_volume "$id"
# The next process of volumes gets what the killed one has not answered.
kill_worker() {
	worker=$(pgrep -f 'volumed.* worker' | tail -n 1)
	[ -n "$worker" ] && kill -9 "$worker" && expect one cat /mnt/ws/note && expect written ask "$1" 'write /workspace/note three' && expect three cat /mnt/ws/note
}
step volume-adopted kill_worker "$id"
step volume-unmount pando volume unmount ws /mnt/ws

# Sandboxes and commands outlive the node; the next one is told how they ended.
kill -9 $node
/usr/bin/pando node --log warn >>/var/log/node 2>&1 &
node=$!
for _ in $(seq $PATIENCE); do pando ls >/dev/null 2>&1 && break; sleep 1; done
step node-killed timers "$id"
pando kill --all --force >/dev/null 2>&1
echo "--- the node's log:"
tail -n 30 /var/log/node
tail -n 10 /var/log/errors
kill -TERM $node
