# `make help` lists the targets.
GO       ?= go
PREFIX   ?= /usr/local
FUZZTIME ?= 10s
SOAK     ?= 10
BENCH    ?=

# Linked statically: faster to start, and the jail needs no library of the host. The tags keep look-ups
# of hosts and users in Go, which static glibc cannot do.
TAGS   := seccomp,netgo,osusergo
CHECK  := $(GO) test -tags $(TAGS)
STATIC := bin/staticcheck

# Asked when build runs: deps.sh may have brought git just before.
LDFLAGS = -linkmode external -extldflags -static -X main.version=$$(git describe --tags --always --dirty 2>/dev/null) -X main.commit=$$(git rev-parse HEAD 2>/dev/null)

.PHONY: build stagefs install uninstall deps demo test soak check bench lint fuzz clean help

build: ## build bin/stage
	packaging/deps.sh build
	$(GO) build -tags $(TAGS) -ldflags "$(LDFLAGS)" -o bin/stage ./cmd/stage

stagefs: ## build bin/stagefs, which mounts an overlay for test suites as mount(8) asks for it
	$(GO) build -tags $(TAGS) -o bin/stagefs ./test/stagefs

install: build ## install bin/stage below PREFIX (/usr/local)
	install -D -m 0755 bin/stage $(DESTDIR)$(PREFIX)/bin/stage

uninstall: ## remove what install put below PREFIX
	rm -f $(DESTDIR)$(PREFIX)/bin/stage

deps: ## bring what build and test need: packages as root, Codex from npm
	packaging/deps.sh test

demo: build ## run a Job on a sample workspace, review and apply it; with Codex too where it is
	packaging/demo.sh

test: deps ## vet and all tests; what is missing is skipped, with STAGE_REQUIRE=all it fails
	$(GO) vet -tags $(TAGS) ./...
	$(CHECK) -count 1 -timeout 18m ./...

check: deps lint ## what must be green before a commit: test with the race detector, and lint
	$(CHECK) -race -count 1 -timeout 40m ./...

lint: $(STATIC) ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet -tags $(TAGS) ./...
	$(STATIC) -tags $(TAGS) ./...

$(STATIC): test/tools/go.mod
	cd test/tools && $(GO) build -o ../../$(STATIC) honnef.co/go/tools/cmd/staticcheck

fuzz: deps ## every fuzz target for FUZZTIME (10s)
	FUZZTIME=$(FUZZTIME) test/fuzz.sh

bench: build ## Go benchmarks; start to exit beside bwrap; file work beside a directory and other overlays
	packaging/deps.sh bench
	$(CHECK) -run '^$$' -bench . -benchmem ./...
	$(GO) run ./test/bench start -stage bin/stage
	$(GO) run ./test/bench fs $(BENCH)

soak: deps ## the long rest: random tests and judges for long, tests SOAK (10) times with the race detector, on one processor, longer fuzzing
	STAGE_SOAK=1 $(CHECK) -v -count 1 -timeout 3h ./test/conformance
	GOMAXPROCS=1 $(CHECK) -count 1 -timeout 1h ./fs/... ./test/conformance
	$(CHECK) -race -count $(SOAK) -timeout 6h ./...
	FUZZTIME=2m test/fuzz.sh

clean: ## remove what was built
	rm -rf bin
	rm -f /var/tmp/stage-test-bin-$$(id -u)/stage

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12
