#!/bin/bash
# Boots other kernels and tries Pando on them. Needs root and no KVM, and installs its tools (apt-get); all else that it makes is below target/kernels.
# The guests have cgroup v2 with controllers, whatever the host has.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly HOME_DIR=$PWD/target/kernels
# Seconds for one guest. A minute or two on two processors of 2024.
readonly LIMIT=${LIMIT:-1200}
# Not by KVM, which a virtual machine may have and not be able to use.
readonly ACCEL=${ACCEL:-tcg,thread=multi}
readonly MODULES="overlay fuse unix_diag inet_diag tcp_diag udp_diag netlink_diag veth"
readonly PROFILE=${PROFILE:-dev}

say() { printf 'kernels: %s\n' "$*" >&2; }
fail() {
	printf 'kernels: %s\n' "$*" >&2
	exit 2
}

usage() {
	cat <<-END
		usage: scripts/kernels.sh [SUITE...]

		Boots the kernel of each SUITE of Debian (default: trixie, with 6.12, and sid, with the newest) in QEMU and runs in it: doctor, its
		self-test, a template, forks, a checkpoint, pause and resume, limits, a volume. Prints a table; exits with 1 if a step failed in a guest.
		The packages come from the sources that apt-get of this host has. The guest's programs are those of this host's suite.
		LIMIT (1200): seconds for each guest. ACCEL (tcg,thread=multi): of QEMU; kvm is faster. PROFILE (dev): of the binary. KEEP=1: the kernels that are there are not looked for anew.
	END
}

# The host's own archive and its key, another suite: apt ARGUMENT... with the directories of that suite.
prepare_suite() {
	local suite=$1 place=$HOME_DIR/$1 uri key source
	[[ -z ${KEEP:-} || ! -e $place/vmlinuz ]] || return 0
	say "$suite: looks for its kernel"
	source=$(grep -lsE '^(URIs:|deb ).*debian' /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list | head -n 1) || true
	[[ -n $source ]] || fail "no source of Debian packages in /etc/apt"
	if [[ $source == *.sources ]]; then
		uri=$(awk '/^URIs:/ {print $2; exit}' "$source")
		key=$(awk '/^Signed-By:/ {print $2; exit}' "$source")
	else
		uri=$(awk '$1 == "deb" {for (n = 2; n <= NF; n++) if ($n ~ /^[a-z]+:/) {print $n; exit}}' "$source")
		key=
	fi
	mkdir -p "$place"/{lists/partial,cache/archives/partial,parts}
	printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
		"$uri" "$suite" "${key:-/usr/share/keyrings/debian-archive-keyring.gpg}" >"$place/parts/suite.sources"
	local apt=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$place/parts" -o Dir::State::Lists="$place/lists"
		-o Dir::Cache="$place/cache" -o APT::Sandbox::User=root)
	apt-get "${apt[@]}" -qq update
	local package
	package=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 | awk '/Depends: linux-image-[0-9]/ {print $2; exit}')
	[[ -n $package ]] || fail "$suite has no linux-image-cloud-amd64"
	if [[ ! -e $place/$package ]]; then
		rm -rf "$place"/{deb,vmlinuz,modules} "$place"/linux-image-*
		mkdir -p "$place"/{deb,modules}
		# Newer suites have the kernel and its modules in packages of their own, on which this one depends.
		local parts
		mapfile -t parts < <(apt-cache "${apt[@]}" depends "$package" | awk '/Depends: linux-(binary|modules)-[0-9]/ {print $2}')
		(
			cd "$place/deb"
			apt-get "${apt[@]}" -qq download "$package" "${parts[@]}"
			for deb in *.deb; do dpkg-deb -x "$deb" .; done
		)
		local module
		for module in $MODULES; do
			find "$place/deb" -name "$module.ko*" -exec cp {} "$place/modules/" \;
		done
		cp "$(find "$place/deb" -name 'vmlinuz*' -type f | head -n 1)" "$place/vmlinuz"
		rm -rf "$place/deb"
		touch "$place/$package"
	fi
	rm -rf "$place"/{lists,cache}
}

# The programs of the guests: a small system of the host's own suite, for whose libraries the binary was built.
prepare_system() {
	[[ ! -e $HOME_DIR/system.tar ]] || return 0
	say "makes a small system"
	local suite
	suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mmdebstrap --quiet --variant=minbase --include=python3-minimal,procps,kmod,util-linux \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		"$suite" "$HOME_DIR/system.partial.tar"
	mv "$HOME_DIR/system.partial.tar" "$HOME_DIR/system.tar"
}

build() {
	cargo build --profile "$PROFILE" --locked -p pando
	local tests
	tests=$(cargo test --locked --workspace --test host --no-run --message-format=json 2>/dev/null |
		grep -o '"executable":"[^"]*/host-[^"]*"' | tail -n 1 | cut -d '"' -f 4)
	[[ -x $tests ]] || fail "the host tests cannot be built"
	mkdir -p "$HOME_DIR/programs"
	strip -o "$HOME_DIR/programs/pando" "target/${PROFILE/#dev/debug}/pando"
	strip -o "$HOME_DIR/programs/host-tests" "$tests"
	"${CC:-gcc}" -std=gnu17 -O2 -o "$HOME_DIR/programs/service" scripts/kernels/service.c
}

# initrd SUITE: packs the guest's first filesystem. The kernel cannot pivot away from it, so a tmpfs takes its place.
initrd() {
	local root=$work/root
	rm -rf "$root"
	mkdir "$root"
	tar -C "$root" -xf "$HOME_DIR/system.tar" --exclude='./dev/*'
	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/usr/share/{doc,man,locale}
	mkdir -p "$root/opt" "$root/lib/modules"
	cp "$HOME_DIR/$1"/modules/* "$root/lib/modules/"
	install -m 755 "$HOME_DIR/programs/pando" "$root/usr/bin/pando"
	install -m 755 "$HOME_DIR/programs/service" "$HOME_DIR/programs/host-tests" "$root/opt/"
	install -m 755 scripts/kernels/guest.sh "$root/guest.sh"
	cat >"$root/init" <<-'END'
		#!/bin/sh
		mkdir /newroot
		mount -t tmpfs -o size=3g,mode=755 tmpfs /newroot
		for x in bin sbin lib lib64 usr etc opt var home root mnt guest.sh init2; do [ -e /$x ] && cp -a /$x /newroot/; done
		cd /newroot
		mkdir -p proc sys dev run tmp
		mount -t devtmpfs dev /dev
		exec switch_root /newroot /init2
	END
	cat >"$root/init2" <<-'END'
		#!/bin/sh
		export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		mkdir -p /var/log /var/tmp
		chmod 1777 /tmp /var/tmp
		mount -t proc proc /proc
		mount -t sysfs sys /sys
		mount -t devtmpfs dev /dev
		mkdir -p /dev/pts /dev/shm
		mount -t devpts devpts /dev/pts
		mount -t tmpfs tmpfs /dev/shm
		mount -t cgroup2 cgroup /sys/fs/cgroup
		echo '+cpu +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
		mount -t tmpfs tmpfs /run
		mount -t tmpfs tmpfs /tmp
		for m in /lib/modules/*.ko*; do insmod "$m" 2>/dev/null || echo "module $m cannot be loaded"; done
		echo 1 >/proc/sys/vm/overcommit_memory
		sh /guest.sh
		echo "END $?"
		echo o >/proc/sysrq-trigger
		sleep 9
	END
	chmod 755 "$root/init" "$root/init2"
	(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
	rm -rf "$root"
}

# boot SUITE: its output goes to target/kernels/SUITE.log.
boot() {
	initrd "$1"
	say "$1: boots (log: target/kernels/$1.log)"
	timeout "$LIMIT" qemu-system-x86_64 -accel "$ACCEL" -cpu max -smp 2 -m 6G -kernel "$HOME_DIR/$1/vmlinuz" -initrd "$work/initrd" \
		-append "console=ttyS0 panic=-1 quiet rdinit=/init" -nographic -no-reboot </dev/null >"$HOME_DIR/$1.log" 2>&1 || say "$1: QEMU ended with $?"
	tr -d '\r' <"$HOME_DIR/$1.log" >"$work/$1"
}

# Names of all steps in the order in which guest.sh has them.
steps() { cat "$@" | awk '$1 == "RESULT" && !seen[$2]++ {print $2}'; }

table() {
	local suite step found
	printf '\n%-18s' step
	for suite in "${suites[@]}"; do printf '%-28s' "$(awk '$1 == "KERNEL" {print $2; exit}' "$work/$suite")"; done
	printf '\n'
	for step in $(cd "$work" && steps "${suites[@]}"); do
		printf '%-18s' "$step"
		for suite in "${suites[@]}"; do
			found=$(awk -v step="$step" '$1 == "RESULT" && $2 == step {print $3; exit}' "$work/$suite")
			printf '%-28s' "${found:-not reached}"
			[[ $found == ok ]] || failed=1
		done
		printf '\n'
	done
}

main() {
	[[ ${1:-} != -h && ${1:-} != --help ]] || {
		usage
		exit
	}
	[[ $(id -u) == 0 ]] || fail "a system of its own needs root"
	suites=("$@")
	((${#suites[@]})) || suites=(trixie sid)
	scripts/setup.sh qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap cpio:cpio
	mkdir -p "$HOME_DIR"
	work=$(mktemp -d "$HOME_DIR/work.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	build
	prepare_system
	local suite
	failed=0
	for suite in "${suites[@]}"; do
		prepare_suite "$suite"
		boot "$suite"
		sed -n '/^KERNEL/,$p' "$work/$suite"
		grep -q '^END' "$work/$suite" || {
			say "$suite: the guest did not come to its end in $LIMIT s"
			failed=1
		}
	done
	table
	((failed == 0)) || say "not everything works on these kernels"
	exit "$failed"
}

main "$@"
