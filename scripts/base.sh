#!/bin/bash
# Builds the root filesystem of the template `base` as a directory, from Debian packages of this machine's apt sources.
# The directory is kept, and its content is checked each time it is used again: that needs no network. Needs root.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

# Raise it when a change of this script changes what is built.
readonly RECIPE=3
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# Debian's npm needs 350 packages: 160 MB and half a minute. npm from its own registry would need a second source.
readonly PACKAGES=(
	bash coreutils python3 python-is-python3 python3-pip python3-venv nodejs npm git curl sudo
	ncurses-bin ncurses-term procps iproute2 ca-certificates less
)
readonly INTERPRETERS=(images/base/interpreter.py images/base/interpreter.js)
readonly ON_FORK=(images/base/on_fork/{on-fork,on_fork.js,on_fork.rb,pando_on_fork.py,openssl.c})
readonly NOT_UNPACKED=(/usr/share/{doc,man,info,locale,lintian,doc-base,bug}/'*')

say() { printf 'base: %s\n' "$*" >&2; }
fail() {
	printf 'base: %s\n' "$*" >&2
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/base.sh [--cache DIR] [--release NAME] [--print-path]

		Builds the root filesystem of the template 'base', or checks the one that is there. Takes about a minute and 500 MB.
		'pando template build NAME --image PATH' takes the directory as an image.

		    --cache DIR      where it is kept: below \$XDG_CACHE_HOME/pando if that is set, else below /var/cache/pando
		    --release NAME   the Debian release, one of apt's sources; default: this machine's
		    --print-path     print the path of the directory, and nothing else, to standard output
	END
}

# Lines for apt: the Debian sources of this machine that belong to the release, whichever way they are written there.
find_sources() {
	local format
	# shellcheck disable=SC2016 # apt-get fills these in
	format='$(CREATED_BY) $(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)'
	apt-get indextargets --format "$format" |
		awk -v keyring="$KEYRING" -v release="$release" '
			$1 == "Packages" && $2 == "Debian" && $4 ~ "^" release "(-updates|-security|/updates)?$" && $5 == "main" {
				print "deb [signed-by=" keyring "] " $3 " " $4 " main"
			}' |
		sort -u
}

# mmdebstrap runs an apt of its own. That gets this machine's proxies and credentials. The image does not keep them.
write_apt_options() {
	apt-config dump | grep -iE '^Acquire::(https?|ftp|Retries)' || true
	printf 'Dir::Etc::netrc "/etc/apt/auth.conf";\nDir::Etc::netrcparts "/etc/apt/auth.conf.d";\n'
	printf 'Acquire::Languages "none";\nAcquire::Retries "3";\n'
}

# Names all that decides what is built, except the versions of the packages.
recipe_checksum() {
	{
		printf '%s\n' "$RECIPE" "$release" "$(dpkg --print-architecture)" "${PACKAGES[@]}" "${NOT_UNPACKED[@]}"
		cat "${INTERPRETERS[@]}" "${ON_FORK[@]}"
	} | sha256sum | cut -c 1-16
}

# Names, owners, modes, times, links, extended attributes and data of every file.
content_checksum() {
	tar --create --directory "$1" --sort=name --numeric-owner --xattrs --xattrs-include='*' \
		--format=posix --pax-option=delete=atime,delete=ctime --file - . | sha256sum | cut -d ' ' -f 1
}

install_packages() {
	local into=$1 path options=()
	for path in "${NOT_UNPACKED[@]}"; do
		options+=(--dpkgopt="path-exclude=$path")
	done
	options+=(--dpkgopt='path-include=/usr/share/doc/*/copyright')
	# Namespaces of its own: however this ends, no process and no mount of it stays.
	setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
		mmdebstrap --mode=root --variant=apt --format=directory --aptopt="$work/apt.conf" "${options[@]}" \
		--include="$(IFS=,; printf '%s' "${PACKAGES[*]}")" "$release" "$into" - <"$work/sources.list" >"$work/log" 2>&1 &
	builder=$!
	wait "$builder" || {
		tail -n 30 "$work/log" >&2
		fail "mmdebstrap failed (its last words are above); does 'apt-get update' work here?"
	}
	builder=''
}

# The user, its rights, and what a Debian system leaves to an administrator.
configure() {
	local root=$1
	chroot "$root" /usr/sbin/useradd --create-home --uid 1000 --user-group --groups sudo --shell /bin/bash user
	printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/user"
	chmod 440 "$root/etc/sudoers.d/user"
	cat >"$root/etc/profile.d/base.sh" <<-'END'
		export LANG="${LANG:-C.UTF-8}"
		case ":$PATH:" in *":$HOME/.local/bin:"*) ;; *) PATH="$HOME/.local/bin:$PATH" ;; esac
	END
	# Each command of an SDK begins with this file: `id` took more than a third of the shell's time.
	sed -i 's/"$(id -u)" -eq 0/"${EUID:-$(id -u)}" -eq 0/' "$root/etc/profile"
	grep -q 'EUID:-' "$root/etc/profile" || fail "/etc/profile of $release is not the one that this script knows"
	install -D --mode=755 --target-directory="$root/usr/local/lib/pando" "${INTERPRETERS[@]}"
	install_on_fork "$root"
	# Debian's pip refuses to install beside Debian's packages. In a sandbox that protects nothing.
	printf '[global]\nbreak-system-packages = true\nroot-user-action = ignore\n' >"$root/etc/pip.conf"
	printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
	printf 'sandbox\n' >"$root/etc/hostname"
	: >"$root/etc/machine-id"
	: >"$root/etc/resolv.conf"
	# No proxy, no credentials of this machine.
	rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
	printf 'Acquire::Languages "none";\n' >"$root/etc/apt/apt.conf.d/99base"
	sed -E 's#(://)[^/@ ]*@#\1#' "$work/sources.list" >"$root/etc/apt/sources.list"
	find "$root/var/log" -type f -delete
	rm -f "$root"/etc/{passwd,group,shadow,gshadow,subuid,subgid}-
}

# What has copies of a sandbox draw random numbers of their own.
install_on_fork() {
	local root=$1 lib=$1/usr/local/lib/pando packages=$1/usr/lib/python3/dist-packages config=$1/etc/ssl/openssl.cnf
	install --mode=755 --target-directory="$lib" images/base/on_fork/on-fork
	install --mode=644 --target-directory="$lib" images/base/on_fork/on_fork.{js,rb}
	install --mode=644 --target-directory="$packages" images/base/on_fork/pando_on_fork.py
	printf 'import pando_on_fork\n' >"$packages/pando_on_fork.pth"
	cc -O2 -fPIC -shared -fvisibility=hidden -o "$lib/openssl.so" images/base/on_fork/openssl.c
	# What is said of a section later counts. Node.js begins with a name of its own.
	sed -i '1i nodejs_conf = openssl_init' "$config"
	cat >>"$config" <<-'END'

		[openssl_init]
		providers = pando_providers
		random = pando_random

		[pando_providers]
		default = pando_default
		pando = pando_kernel

		[pando_default]
		activate = 1

		[pando_kernel]
		module = /usr/local/lib/pando/openssl.so
		activate = 1

		[pando_random]
		random = KERNEL
	END
	chroot "$root" openssl list -random-instances | grep -q 'KERNEL @ pando' ||
		fail "$config of $release is not the one that this script knows"
}

# True if the directory is there and as it was built.
is_good() {
	[[ -d $base/root && -s $base/content ]] || return 1
	[[ $(content_checksum "$base/root") == "$(<"$base/content")" ]]
}

build() {
	local sources started=$SECONDS
	for tool in mmdebstrap apt-get unshare setpriv cc; do
		command -v "$tool" >/dev/null || fail "needs $tool: 'make setup' installs it on Debian"
	done
	[[ -r $KEYRING ]] || fail "$KEYRING is missing: install the package debian-archive-keyring"
	sources=$(find_sources)
	[[ $sources == *" $release main"* ]] ||
		fail "apt has no source of Debian $release here: run 'apt-get update', or name a release of /etc/apt with --release"
	printf '%s\n' "$sources" >"$work/sources.list"
	write_apt_options >"$work/apt.conf"
	say "installing ${#PACKAGES[@]} packages of Debian $release and what they need (about a minute)"
	install_packages "$work/root"
	say "configuring it"
	configure "$work/root"
	content_checksum "$work/root" >"$work/content"
	rm -f "$work/log" "$work/apt.conf"
	# Whole or not at all, also if the machine fails.
	sync --file-system "$work"
	mv -T "$work" "$base"
	say "built in $((SECONDS - started)) s"
}

# What an interrupted run has left. The lock is held, so no run of this script uses it.
remove_leftovers() {
	local path
	for path in "$cache"/base-*.new; do
		rm -rf --one-file-system "$path"
	done
}

clean_up() {
	local status=$?
	trap - EXIT INT TERM HUP
	if [[ -n $builder ]]; then
		kill -TERM "$builder" 2>/dev/null || true
		wait "$builder" 2>/dev/null || true
	fi
	if [[ -n $work ]]; then
		rm -rf --one-file-system "$work"
	fi
	exit "$status"
}

# Relative paths are those of the caller.
caller=$OLDPWD
cache=${XDG_CACHE_HOME:-/var/cache}/pando release='' print_path='' builder='' work=''
while (($# > 0)); do
	case $1 in
	--cache | --release)
		(($# >= 2)) && [[ -n $2 ]] || fail "$1 needs a value"
		[[ $1 == --cache ]] && cache=$2 || release=$2
		shift
		;;
	--print-path) print_path=yes ;;
	-h | --help)
		usage
		exit
		;;
	*) fail "unknown argument $1; see --help" ;;
	esac
	shift
done
[[ $(id -u) == 0 ]] || fail "run this as root: the files of the image have owners"
command -v dpkg >/dev/null || fail "this works on Debian only: elsewhere give 'pando' another image"
# shellcheck source=/dev/null
release=${release:-$(. /etc/os-release && printf '%s' "${VERSION_CODENAME-}")}
[[ $release =~ ^[a-z]+$ ]] || fail "'$release' is not the name of a Debian release, like 'bookworm'; use --release"
cache=$(cd "$caller" && realpath -m "$cache")
mkdir -p "$cache"
base=$cache/base-$(recipe_checksum)

exec 9>"$cache/base.lock"
flock --nonblock 9 || {
	say "waiting for another run of this script"
	flock 9
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
remove_leftovers
if [[ -e $base ]] && ! is_good; then
	# Sandboxes may still run on it.
	damaged=$base.damaged-$(date +%s)
	say "$base was changed or damaged; building it again. The old one is now $damaged: remove it when no sandbox uses it"
	mv -T "$base" "$damaged"
fi
if [[ ! -e $base ]]; then
	work=$base.new
	mkdir "$work"
	build
	work=''
fi
for path in "$cache"/base-*/; do
	[[ ${path%/} == "$base" ]] || say "${path%/} is an older one: remove it when no sandbox uses it"
done
say "$base/root is ready: $(du -sm "$base/root" | cut -f 1) MB"
if [[ -n $print_path ]]; then
	printf '%s\n' "$base/root"
fi
