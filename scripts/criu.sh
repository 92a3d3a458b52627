#!/bin/bash
# Puts a CRIU that current kernels work with beside the system, for `pando bench start --criu`. Hosts often have an older one or none.
# The packages come from this host's own Debian mirror, from a newer suite, checked with Debian's archive keys. They are only unpacked
# below PREFIX, with their own C library: nothing is installed, and apt's lists and caches are not touched. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# What the bench asks for.
readonly OLDEST=4.1

say() { printf 'criu: %s\n' "$*"; }
fail() {
	printf 'criu: %s\n' "$*" >&2
	exit 1
}

usage() {
	cat <<-END
		usage: scripts/criu.sh [--suite SUITE] [PREFIX]

		Unpacks CRIU $OLDEST or newer of the Debian suite SUITE (forky) into PREFIX (target/criu). If PREFIX has a good one
		already, nothing is done; to get another, remove PREFIX first. Kernels from 6.16 need CRIU 4.2, which the suite
		trixie does not have. Measure with it, as root:

		    pando bench start --criu PREFIX/criu
	END
}

# Prints the version if the criu at $1 starts and is new enough.
good_version() {
	local version
	version=$("$1" --version 2>/dev/null | sed -n 's/^Version: *//p') || return 1
	[[ -n $version ]] && dpkg --compare-versions "$version" ge "$OLDEST" && printf '%s\n' "$version"
}

# The mirror that this host is configured with, whichever way its sources are written.
find_mirror() {
	# shellcheck disable=SC2016 # apt-get fills these in
	apt-get indextargets --format '$(CREATED_BY) $(ORIGIN) $(LABEL) $(REPO_URI)' |
		sed -n '/^Packages Debian Debian /{s///p;q;}'
}

# An apt that shares nothing with the system's but its proxies and credentials.
configure_apt() {
	local mirror=$1 suite=$2
	mkdir -p "$work"/{lists,cache,none}
	# apt downloads as an unprivileged user.
	chmod 755 "$work"
	printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$mirror" "$suite" >"$work/sources.list"
	: >"$work/status"
	cat >"$work/apt.conf" <<-END
		Dir::Etc::SourceList "$work/sources.list";
		Dir::Etc::SourceParts "$work/none";
		Dir::Etc::Preferences "-";
		Dir::Etc::PreferencesParts "$work/none";
		Dir::State::Lists "$work/lists";
		Dir::State::Status "$work/status";
		Dir::Cache "$work/cache";
		APT::Default-Release "";
		APT::Install-Recommends "false";
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
		Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
		Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
		#clear APT::Update::Pre-Invoke;
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
		#clear DPkg::Pre-Invoke;
		#clear DPkg::Post-Invoke;
		#clear DPkg::Pre-Install-Pkgs;
	END
}

# With an empty list of installed packages "install" means the package and everything that it needs.
download() {
	apt-get -c "$work/apt.conf" -qq update </dev/null
	apt-get -c "$work/apt.conf" -qq -y --download-only install criu </dev/null
}

unpack() {
	local into=$1 package
	for package in "$work"/cache/archives/*.deb; do
		dpkg-deb --extract "$package" "$into"
	done
	rm -rf "$into/usr/share/locale" "$into/usr/share/man"
}

# The packages' programs need the packages' own C library and its loader. Absolute paths: resolving would be measured with each start.
write_wrapper() {
	local into=$1 prefix=$2 loader criu
	loader=$(cd "$into" && find usr/lib -path '*-linux-gnu*/ld-linux*.so*' | head -n 1)
	criu=$(cd "$into" && find usr/sbin -name criu)
	[[ -n $loader && -n $criu ]] || fail "the packages hold no loader or no criu"
	printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' \
		"$prefix/$loader" "$prefix/$(dirname "$loader")" "$prefix/$criu" >"$into/criu"
	chmod 755 "$into/criu"
}

clean_up() {
	rm -rf "${work:-}" "${fresh:-}"
}

suite=forky
prefix=target/criu
while [[ $# -gt 0 ]]; do
	case $1 in
	--suite)
		[[ $# -ge 2 ]] || fail "--suite needs a name"
		suite=$2
		shift
		;;
	-h | --help)
		usage
		exit
		;;
	-*) fail "unknown option $1; see --help" ;;
	*) prefix=$1 ;;
	esac
	shift
done
prefix=$(realpath -m "$prefix")

for tool in apt-get dpkg dpkg-deb; do
	command -v "$tool" >/dev/null || fail "needs $tool: this works on Debian only; elsewhere install criu >= $OLDEST by other means"
done
if version=$(good_version "$prefix/criu"); then
	say "$prefix/criu is there: $version"
	exit
fi
[[ ! -e $prefix ]] || fail "$prefix exists but holds no criu >= $OLDEST that starts; remove it first"
[[ -r $KEYRING ]] || fail "$KEYRING is missing: package debian-archive-keyring"
mirror=$(find_mirror)
[[ -n $mirror ]] || fail "this host's apt has no Debian mirror (apt-get update done?)"

trap clean_up EXIT
work=$(mktemp -d)
fresh=$prefix.new.$$
mkdir -p "$fresh"
configure_apt "$mirror" "$suite"
say "fetching criu of $suite and what it needs"
download
unpack "$fresh"
write_wrapper "$fresh" "$prefix"
mv -T "$fresh" "$prefix"
if ! version=$(good_version "$prefix/criu"); then
	rm -rf "$prefix"
	fail "the criu of $suite does not start here or is older than $OLDEST; try another --suite"
fi
say "$prefix/criu is ready: $version"
