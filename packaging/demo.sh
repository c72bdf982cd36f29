#!/bin/sh
# Shows one Job after the other: run, review, apply. Everything happens in a folder of its own, with
# a home and a state directory of its own, which is removed at the end (DEMO_KEEP=1 keeps it).
set -eu
cd "$(dirname "$0")/.."

demo=$(mktemp -d /var/tmp/stage-demo.XXXXXX)
mock=
finish() {
	status=$?
	[ -z "$mock" ] || kill "$mock" 2>/dev/null || true
	if [ -n "${DEMO_KEEP:-}" ]; then
		echo "kept: $demo"
	elif grep -qF " $demo/" /proc/self/mountinfo; then
		echo "demo: something is still mounted below $demo; not removed" >&2
		status=1
	else
		chmod -R u+rwX "$demo" && rm -rf "$demo"
	fi
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

cp bin/stage "$demo/stage"
go build -o "$demo/mockmodel" ./test/mockmodel/cmd/mockmodel
codex=$(packaging/deps.sh codex)
export HOME="$demo/home" PATH="$demo:$PATH"
unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_CACHE_HOME CODEX_HOME
mkdir -p "$HOME"

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	bold=$(printf '\033[1m') plain=$(printf '\033[0m')
fi
title() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

# show prints a command as one would type it, then runs it.
show() {
	printf '\n$'
	for word in "$@"; do
		case $word in
		*[!A-Za-z0-9_./=:,+-]*) printf " '%s'" "$word" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
	echo
	"$@"
}

# workspace NAME makes a small git repository and goes there.
workspace() {
	mkdir "$HOME/$1"
	cd "$HOME/$1"
	git init -q
	git config user.name Demo
	git config user.email demo@example.org
	echo hello >hello.txt
	echo "nobody needs this" >old.txt
	echo "a good text" >draft.txt
	git add .
	git commit -q -m start
}

# unchanged ends the demo when the Job reached the workspace before apply.
unchanged() {
	show git status --short
	[ -z "$(git status --short)" ] || {
		echo "demo: the workspace changed before apply" >&2
		exit 1
	}
	echo "(nothing: the workspace is as it was)"
}

review_and_apply() {
	title "The workspace before apply"
	unchanged
	title "What the Job would change"
	show stage review last
	show stage review last --diff
	title "Publish it"
	show stage apply
	show git status --short
}

title "A Job that edits, deletes and renames"
workspace project
show stage run -- sh -c 'echo "hello, world" > hello.txt; rm old.txt; mkdir docs; mv draft.txt docs/final.txt; echo tries to leave > /etc/stage-demo || echo "(and so it stays out of /etc)"'
review_and_apply
[ "$(cat hello.txt)" = "hello, world" ] && [ ! -e old.txt ] && [ -e docs/final.txt ] && [ ! -e /etc/stage-demo ]

title "A Job that is thrown away"
show stage run -- sh -c 'rm -r docs; echo broken > hello.txt; exit 3' || echo "(exit status $?)"
show stage drop
[ "$(cat hello.txt)" = "hello, world" ]

if [ -z "$codex" ]; then
	title "No Codex CLI here, and no npm to bring it: that is all"
	exit 0
fi

title "The same with Codex, whose model is played by a script"
workspace codex-project
"$demo/mockmodel" -codex-home "$HOME/.codex" -script edit >"$demo/mock.log" 2>&1 &
mock=$!
tries=0
until [ -e "$HOME/.codex/config.toml" ]; do
	tries=$((tries + 1))
	[ "$tries" -le 100 ] || {
		cat "$demo/mock.log" >&2
		exit 1
	}
	sleep 0.1
done
PATH=$(dirname "$codex"):$PATH
case $codex in
/opt/* | /usr/*) show stage run -- codex exec "go" </dev/null ;;
*) show stage run --read "${codex%/bin/codex}" -- codex exec "go" </dev/null ;; # not in the default view
esac
review_and_apply
[ "$(cat hello.txt)" = "hello, world" ] && [ -e docs/notes.md ] && [ -e made.txt ]
title "Done"
