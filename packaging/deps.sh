#!/bin/sh
# Brings what building or testing stage needs.
#
#   deps.sh build   compiler, libseccomp
#   deps.sh test    the programs that tests run as well, and the Codex CLI from npm
#   deps.sh bench   what stage is measured beside
#   deps.sh codex   the Codex CLI alone; prints where its binary is, nothing when it cannot be had
#
# As root it installs what is missing with apt-get. Otherwise it prints the one command that does,
# and ends with 1 when something to build with is missing, or with STAGE_REQUIRE=all anything.
set -eu

codex_version=0.171.0
build="gcc libc6-dev pkg-config libseccomp-dev git ca-certificates"
test="acl attr btrfs-progs bubblewrap curl e2fsprogs file fio iproute2 make patch procps python3 rsync sqlite3 strace stress-ng tar util-linux xfsprogs"
bench="bubblewrap fuse-overlayfs git ripgrep sqlite3"

say() { echo "deps: $*" >&2; }

die() {
	say "$*"
	exit 1
}

missing() {
	for p in $1; do
		dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || printf ' %s' "$p"
	done
}

# packages LIST KIND installs what LIST names and is not there.
packages() {
	if ! command -v dpkg-query >/dev/null; then
		say "no dpkg here: make sure you have what Debian calls: $1"
		return
	fi
	lacking=$(missing "$1")
	[ -n "$lacking" ] || return 0
	if [ "$(id -u)" = 0 ]; then
		say "installing$lacking"
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $lacking >/dev/null </dev/null ||
			die "apt-get could not install$lacking"
		return
	fi
	say "missing packages; run: sudo apt-get install -y$lacking"
	if [ "$2" = build ] || [ "${STAGE_REQUIRE:-}" = all ]; then exit 1; fi
	say "tests that need them are skipped"
}

go_version() {
	command -v go >/dev/null || die "no Go on PATH; stage needs $(sed -n 's/^go //p' go.mod) or newer: https://go.dev/doc/install"
	go list -m >/dev/null || die "this Go cannot build the module"
}

fuse() {
	if [ ! -e /dev/fuse ]; then
		say "no /dev/fuse; run: sudo modprobe fuse"
	elif [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then
		say "/dev/fuse is closed to you; run: sudo chmod 0666 /dev/fuse"
	elif [ "$(id -u)" = 0 ] && [ "$(stat -c %a /dev/fuse)" != 666 ]; then
		say "/dev/fuse is closed to ordinary users, whose tests are skipped; run: chmod 0666 /dev/fuse"
	fi
}

# codex_dir is where testenv.CodexDir looks: every user can read it when root installs.
codex_dir() {
	if [ "$(id -u)" = 0 ]; then
		echo "/opt/stage-test/codex-$codex_version"
	else
		echo "${XDG_CACHE_HOME:-$HOME/.cache}/stage-test/codex-$codex_version"
	fi
}

codex() {
	[ -z "${STAGE_CODEX:-}" ] || return 0
	dir=$(codex_dir)
	[ ! -d "$dir" ] || return 0
	if ! command -v npm >/dev/null && [ "$(id -u)" = 0 ] && [ "${STAGE_REQUIRE:-}" = all ]; then
		packages npm test
	fi
	if ! command -v npm >/dev/null; then
		say "no npm: tests with the real Codex CLI are skipped"
		return
	fi
	say "installing @openai/codex@$codex_version into $dir"
	mkdir -p "$(dirname "$dir")"
	part=$(mktemp -d "$dir.XXXXXX")
	chmod 755 "$part"
	if (cd "$part" && npm install --prefix "$part" --ignore-scripts --no-audit --no-fund --silent "@openai/codex@$codex_version" </dev/null >&2); then
		mv -T "$part" "$dir" # complete under its final name
		return
	fi
	rm -rf "$part"
	[ "${STAGE_REQUIRE:-}" != all ] || die "npm could not install @openai/codex@$codex_version"
	say "npm could not install it: tests with the real Codex CLI are skipped"
}

# codex_binary prints the native binary below the node_modules folder or file $1.
codex_binary() {
	for f in "$1" "$1"/@openai/codex-linux-*/vendor/*/bin/codex; do
		[ ! -f "$f" ] || echo "$f"
	done
}

cd "$(dirname "$0")/.."
case "${1:-}" in
build)
	packages "$build" build
	go_version
	;;
test)
	packages "$build" build
	go_version
	packages "$test" test
	fuse
	codex
	;;
bench)
	packages "$bench" bench
	fuse
	;;
codex)
	codex
	codex_binary "${STAGE_CODEX:-$(codex_dir)/node_modules}"
	;;
*) die "usage: deps.sh build|test|bench|codex" ;;
esac
