#!/bin/bash
# bash under a fork: variables, arrays, functions, traps, open descriptors, a here-document loop; builtins only, so that
# there never is a second process. Sleeps by `read -t` on a FIFO that nobody writes to.
# Protocol as in probe.h: prints "ready", waits for --go, then prints what it finds.
set -u

go=/tmp/go dir=/tmp ready_file=${READY_FILE:-}
while (($# > 1)); do
	case $1 in
	--go) go=$2 ;;
	--dir) dir=$2 ;;
	--ready-file) ready_file=$2 ;;
	*) echo "probe.sh: unknown option $1" >&2; exit 2 ;;
	esac
	shift 2
done

# A FIFO opened for both directions never ends and never blocks at opening.
fifo=$dir/probe-sh.fifo
[[ -p $fifo ]] || mkfifo "$fifo"
exec {silence}<>"$fifo"
nap() { read -r -t "$1" -u "$silence" || true; }

declare -A squares
declare -a words=(alpha beta gamma)
for ((i = 0; i < 200; i++)); do squares[$i]=$((i * i)); done
RANDOM=42
: "$RANDOM"
count=0
text=$'several\nlines'
readonly constant=unchanged
caught=0
trap 'caught=$((caught + 1))' USR1
exec {lines}<<<$'first line\nsecond line\nthird line'
read -r -u "$lines" first
exec {written}>"$dir/probe-sh.out"
printf 'before ' >&"$written"
twice() { echo $(($1 * 2)); }

[[ -z $ready_file ]] || : >"$ready_file"
echo ready
while [[ ! -e $go ]]; do
	nap 0.01
	count=$((count + 1))
done

echo "counted: $((count > 0))"
echo "squares: ${#squares[@]} ${squares[199]}"
echo "words: ${words[*]^^}"
echo "text: ${text@Q}"
echo "random: $RANDOM $RANDOM"
echo "constant: $constant"
echo "first: $first"
read -r -u "$lines" second
echo "second: $second"
printf 'after' >&"$written"
echo "file: $(<"$dir/probe-sh.out")"
kill -USR1 $$
nap 0.05
echo "caught: $caught"
twice 21
started=$SECONDS
nap 1.2
echo "slept: $((SECONDS - started >= 1))"
(echo "a subshell: $((6 * 7))")
/bin/echo "a command"
echo "done"
