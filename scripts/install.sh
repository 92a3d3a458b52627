#!/bin/bash
# Installs the pando binary with its systemd unit, upgrades both in place, and removes them. `make install` and
# `make uninstall` call it.
set -euo pipefail
cd "$(dirname "$0")/.."

# Seconds until a server that was started must take requests. The first start builds templates.
readonly READY_SECONDS=180
# Seconds until helpers without work have ended: the pager and the volumes stay for a while.
readonly IDLE_SECONDS=90

readonly DESTDIR=${DESTDIR:-} PREFIX=${PREFIX:-/usr/local} BASE=${BASE:-}
# systemd reads units below these prefixes only, and below /etc.
case $PREFIX in
/usr | /usr/local) readonly UNITS=$PREFIX/lib/systemd/system ;;
*) readonly UNITS=/etc/systemd/system ;;
esac
readonly STATE=/var/lib/pando SOCKET=/run/pando/node.sock CONFIG=/etc/pando/serve.env
readonly BINARY=$PREFIX/bin/pando UNIT=$UNITS/pando.service
readonly BASH_COMPLETION=$PREFIX/share/bash-completion/completions/pando
readonly ZSH_COMPLETION=$PREFIX/share/zsh/site-functions/_pando
readonly FISH_COMPLETION=$PREFIX/share/fish/vendor_completions.d/pando.fish
readonly HELPERS=(/sbin/mount.pando /sbin/mount.fuse.pando)

say() { printf 'install: %s\n' "$*" >&2; }
fail() {
	printf 'install: %s\n' "$*" >&2
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/install.sh install BINARY | uninstall

		Environment, also as arguments of make:
		    PREFIX=DIR     where programs go (/usr/local)
		    DESTDIR=DIR    goes before every path; nothing is started then
		    BASE=PATH      root filesystem of the template 'base' (default: the one that scripts/base.sh makes)
		    BASE=none      installs without it: no templates come with the server
		    PURGE=1        'uninstall' also removes $STATE and $CONFIG
	END
}

# systemd before 254 does not know DelegateSubgroup=.
readonly SYSTEMD_MIN=254

# True if there is a systemd to tell.
has_systemd() { [[ -z $DESTDIR && -d /run/systemd/system ]]; }

# Whole or not at all, and never while a reader has half of it: running programs keep the old file.
place() {
	local mode=$1 from=$2 to=$DESTDIR$3
	mkdir -p "$(dirname "$to")"
	install -m "$mode" "$from" "$to.new"
	mv -fT "$to.new" "$to"
}

place_text() {
	local mode=$1 to=$2
	cat >"$scratch/text"
	place "$mode" "$scratch/text" "$to"
}

# Without a value: a line for the administrator to fill in.
base_line() {
	local path=$BASE
	if [[ -z $path && -z $DESTDIR ]]; then
		path=$(scripts/base.sh --print-path)
	fi
	case $path in
	'' | none) printf '#PANDO_BASE=/var/cache/pando/base-ID/root\n' ;;
	*) printf 'PANDO_BASE=%s\n' "$(realpath -m "$path")" ;;
	esac
}

# The administrator's settings stay. The image that scripts/base.sh made is replaced by a newer one of that script.
place_config() {
	local line ours='^#?PANDO_BASE=(/var/cache/pando/base-[^/]*/root)?$'
	line=$(base_line)
	if [[ ! -e $DESTDIR$CONFIG ]]; then
		place_text 600 "$CONFIG" <<-END
			# Settings of the unit pando.service. 'pando serve --help' lists the options.
			# Root filesystem of the templates base, python and node: scripts/base.sh makes one.
			$line
			#PANDO_OPTIONS=--listen 0.0.0.0:7443 --domain example.org --tls-cert /etc/pando/cert.pem --tls-key /etc/pando/key.pem
		END
	elif [[ $line == PANDO_BASE=* ]] && { [[ -n $BASE ]] || grep -qE "$ours" "$DESTDIR$CONFIG"; }; then
		sed -E "s|^#?PANDO_BASE=.*|$line|" "$DESTDIR$CONFIG" | place_text 600 "$CONFIG"
	fi
}

place_files() {
	local from=$1 shell helper
	"$from" --version >/dev/null || fail "$from does not run here"
	place 755 "$from" "$BINARY"
	sed "s|^ExecStart=/usr/local/bin/pando |ExecStart=$BINARY |" packaging/pando.service | place_text 644 "$UNIT"
	for shell in bash zsh fish; do
		"$from" completion "$shell" >"$scratch/$shell"
	done
	place 644 "$scratch/bash" "$BASH_COMPLETION"
	place 644 "$scratch/zsh" "$ZSH_COMPLETION"
	place 644 "$scratch/fish" "$FISH_COMPLETION"
	for helper in "${HELPERS[@]}"; do
		mkdir -p "$DESTDIR$(dirname "$helper")"
		ln -sfn "$BINARY" "$DESTDIR$helper"
	done
	place_config
}

await_server() {
	local tries
	for ((tries = 0; tries < READY_SECONDS * 5; tries++)); do
		"$BINARY" env >/dev/null 2>&1 && return
		if systemctl is-failed --quiet pando; then
			break
		fi
		sleep 0.2
	done
	journalctl --unit pando --lines 30 --no-pager >&2 || true
	fail "the server takes no requests; the end of its log is above"
}

start() {
	local did=started
	systemctl daemon-reload
	systemctl enable --quiet pando
	if systemctl is-active --quiet pando; then
		did=upgraded
		systemctl restart pando
	else
		systemctl reset-failed --quiet pando 2>/dev/null || true
		systemctl start pando
	fi
	await_server
	say "$did: $("$BINARY" --version), unit pando.service, state in $STATE"
	cat <<-END

		    eval "\$(pando env)"
		    pip install e2b
		    python -c 'from e2b import Sandbox; s = Sandbox.create(); print(s.commands.run("echo hello").stdout); s.kill()'

	END
}

do_install() {
	[[ -n ${1:-} ]] || { usage >&2; exit 2; }
	[[ -n $DESTDIR || $(id -u) == 0 ]] || fail "run this as root, or set DESTDIR"
	if has_systemd && (($(systemctl --version | awk 'NR == 1 { print $2 }') < SYSTEMD_MIN)); then
		say "systemd is older than $SYSTEMD_MIN: on a host with cgroup v2 only, stop sandboxes before each upgrade and restart"
	fi
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	place_files "$1"
	if has_systemd; then
		start
	else
		[[ -n $DESTDIR ]] || say "no systemd runs here: nothing was started. 'pando serve' starts the server by hand"
		say "installed $DESTDIR$BINARY and $DESTDIR$UNIT"
	fi
}

# Processes of the server with this state directory, apart from those in sandboxes.
processes() { pgrep --full -- "--state[ =]$STATE( |/|\$)" || true; }

await_end() {
	local tries
	for ((tries = 0; tries < IDLE_SECONDS * 2; tries++)); do
		[[ -n $(processes) ]] || return 0
		sleep 0.5
	done
	fail "processes still use $STATE: $(processes | tr '\n' ' '); end them, then run this again"
}

stop() {
	if systemctl is-active --quiet pando; then
		say "removing the running sandboxes"
		# With PURGE their state goes, too.
		local which=--running
		[[ -z ${PURGE:-} ]] || which=--force
		"$BINARY" --socket "$SOCKET" kill --all "$which" >/dev/null || fail "'pando kill --all $which' failed: nothing was uninstalled"
	elif [[ -n $(processes) ]]; then
		fail "the server is stopped, and sandboxes run: 'systemctl start pando' lets this remove them"
	fi
	systemctl disable --quiet --now pando
}

do_uninstall() {
	[[ -n $DESTDIR || $(id -u) == 0 ]] || fail "run this as root, or set DESTDIR"
	if has_systemd && [[ -e $UNIT ]]; then
		stop
	fi
	local helper
	for helper in "${HELPERS[@]}"; do
		if [[ $(readlink "$DESTDIR$helper") == "$BINARY" ]]; then
			rm "$DESTDIR$helper"
		fi
	done
	if [[ -n ${PURGE:-} && -z $DESTDIR ]]; then
		await_end
	fi
	rm -f "$DESTDIR$BINARY" "$DESTDIR$UNIT" "$DESTDIR$BASH_COMPLETION" "$DESTDIR$ZSH_COMPLETION" "$DESTDIR$FISH_COMPLETION"
	if has_systemd; then
		systemctl daemon-reload
	fi
	if [[ -z ${PURGE:-} ]]; then
		say "removed. These stay: $DESTDIR$STATE (paused sandboxes, checkpoints, volumes, keys) and $DESTDIR$CONFIG;" \
			"'make uninstall PURGE=1' removes them"
		return
	fi
	rm -rf --one-file-system "$DESTDIR$STATE"
	rm -f "$DESTDIR$CONFIG"
	rmdir --ignore-fail-on-non-empty "$DESTDIR$(dirname "$CONFIG")" 2>/dev/null || true
	say "removed, with its state and settings"
}

case ${1:-} in
install) do_install "${2:-}" ;;
uninstall) do_uninstall ;;
-h | --help) usage ;;
*)
	usage >&2
	exit 2
	;;
esac
