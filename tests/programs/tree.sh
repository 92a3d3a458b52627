#!/bin/bash
# A bash with jobs: background jobs with process groups of their own, a coprocess, a pipeline, an orphan. Protocol as in probe.h.
set -u

go=/tmp/go dir=/tmp ready_file=${READY_FILE:-}
while (($# > 1)); do
	case $1 in
	--go) go=$2 ;;
	--dir) dir=$2 ;;
	--ready-file) ready_file=$2 ;;
	*) echo "tree.sh: unknown option $1" >&2; exit 2 ;;
	esac
	shift 2
done

failures=0
check() {
	if [[ $1 == "$2" ]]; then echo "$3: ok"; else echo "$3: FAILED: '$1' is not '$2'"; failures=$((failures + 1)); fi
}

set -m
# What it says of the sleep that ends with it depends on the moment.
(trap 'exit 7' TERM; while :; do sleep 0.05; done) 2>/dev/null &
looping=$!
set +m
coproc upper { while read -r line; do echo "${line^^}"; done; }
mkfifo "$dir/tree-sh.fifo"
{ cat "$dir/tree-sh.fifo" | tr a-z n-za-m | tee "$dir/tree-sh.out" >/dev/null; } &
pipeline=$!
sleep 1000 &
slept=$!
(sleep 1001 & echo $! >"$dir/tree-sh.orphan")
orphan=$(<"$dir/tree-sh.orphan")
echo before >&"${upper[1]}"
exec {into}>"$dir/tree-sh.fifo"
echo uryyb >&"$into"
sleep 0.3
session=$(ps -o sid= -p $$ | tr -d ' ')
# Those of its pipeline, and the orphan.
listed() { ps -s "$session" -o pid=,ppid=,pgid=,args= | sort -n | grep -e ' cat ' -e ' tee ' -e ' sleep 1001' | grep -v grep; }
before=$(listed)

[[ -z $ready_file ]] || : >"$ready_file"
echo ready
until [[ -e $go ]]; do sleep 0.005; done

check "$(listed)" "$before" "the same processes"
read -r -u "${upper[0]}" said
check "$said" BEFORE "what the coprocess had said"
echo after >&"${upper[1]}"
read -r -u "${upper[0]}" said
check "$said" AFTER "the coprocess goes on"
echo jbeyq >&"$into"
exec {into}>&-
wait "$pipeline"
check "$? $(tr '\n' ' ' <"$dir/tree-sh.out")" "0 hello world " "the pipeline"
kill -TERM -- "-$looping"
wait "$looping"
check $? 7 "a job with a group of its own"
kill "$slept"
wait "$slept"
check $? 143 "a job that sleeps"
check "$(awk '/^PPid/ { print $2 }' "/proc/$orphan/status")" 1 "one without a parent"
kill "$orphan"
coprocess=$upper_PID
exec {upper[1]}>&-
wait "$coprocess"
check $? 0 "the coprocess ends"
check "$(jobs -p)" "" "no job is left"
rm -f "$dir/tree-sh.fifo" "$dir/tree-sh.out" "$dir/tree-sh.orphan"
if ((failures)); then echo "done with failures"; exit 1; fi
echo done
