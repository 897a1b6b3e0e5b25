# make check   the quick tests, for daily work
# make test    everything that counts, with what it needs installed (what .ci/run calls)
# make soak    the long forms: SOAK_SECONDS a test, SOAK_PREFIXES mounts of a past in each of 60 random runs, CISTERN_ROUNDS kills,
#              CISTERN_SEED to repeat a run
# make demo    a database on a bucket, lost and found again
# make bench   load tests and comparisons: SUITE (io; go run ./bench list names them), BENCH_FLAGS for its flags

SHELL := /bin/bash
GO ?= go
SOAK_SECONDS ?= 600
SOAK_PREFIXES ?= 170
CISTERN_ROUNDS ?= 100
BENCH_FLAGS ?=
SUITE ?= io
REVISION := $(shell git describe --always --dirty --abbrev=12 2>/dev/null)

.PHONY: build check static test soak demo bench clean

build:
	$(GO) build -ldflags "-X main.buildRevision=$(REVISION)" -o bin/cistern ./cmd/cistern

static:
	@files="$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))"; \
	if [ -n "$$files" ]; then echo "not formatted (gofmt -w mends it):"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(GO) test -count 1 ./internal/lint

check: static
	CI= $(GO) test -short -timeout 5m ./...

test:
	scripts/install-deps.sh tests
	$(MAKE) static
	@mkdir -p bin && rm -f bin/not-tested
	CI=true CISTERN_NOT_TESTED=$(CURDIR)/bin/not-tested $(GO) test -p 2 -timeout 30m ./...; \
	status=$$?; [ ! -s bin/not-tested ] || cat bin/not-tested; exit $$status

soak:
	scripts/install-deps.sh tests
	CI=true SOAK_SECONDS=$(SOAK_SECONDS) SOAK_PREFIXES=$(SOAK_PREFIXES) CISTERN_ROUNDS=$(CISTERN_ROUNDS) $(GO) test -count 1 -p 1 -timeout 0 ./...

demo:
	scripts/demo.sh

bench:
	scripts/install-deps.sh
	$(GO) run ./bench $(SUITE) $(BENCH_FLAGS)

clean:
	rm -rf bin
	$(GO) clean -testcache
