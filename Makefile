# All that a contributor needs; make help lists the targets.

GO     ?= go
LINT   := $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint
JARS   := .cache/kafka .cache/pulsar
# A count and not a time: at the end of a time, Go before 1.27 may fail with "context deadline exceeded"
# (go.dev/issue/75804).
FUZZED ?= 60000x
# What fuzzing instruments: go test -fuzz would build all that we depend on again.
MODULE := github.com/dispatchthrottle/throttle
# Random schedules of each sharing mode, N or FROM-TO, in whole thousands: a million, by what one takes.
SEEDS  ?= fair:300000 strict:350000 strict,_in_a_queue:250000 split:50000 groups:50000
# How often soak runs each package.
SOAK   ?= 10
# How long the chaos hour takes, and the seed of its plan.
CHAOS      ?= 1h
CHAOS_SEED ?= 1

# The packages whose tests use real services, those that measure, all others, those whose tests contain an etcd, and
# those with tests that -short shortens.
LISTED    = $(GO) list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...
SERVED    = $$($(LISTED) | grep 'throttle/tests/services ' | cut -d ' ' -f 1)
MEASURING = $$($(LISTED) | grep 'throttle/tests/accuracy ' | cut -d ' ' -f 1)
OTHERS    = $$($(LISTED) | grep -v 'throttle/tests/services ' | cut -d ' ' -f 1)
EMBEDDING = $$($(GO) list -test -f '{{.ForTest}} {{join .Deps " "}}' ./... | grep 'etcd/server/v3/embed ' | cut -d ' ' -f 1 | sort -u)
SHORTENED = $$(grep -rl --include='*_test.go' -E 'testing.Short\(\)|permitstest.Quarter\(' . | xargs -n 1 dirname | sort -u | xargs $(GO) list)

# make test runs with the race detector all but the scenarios in tests/, whose parts have raced tests of their own, and
# what contains an etcd, whose race-enabled build takes minutes: make test-long does. What -short shortens runs without
# it, too, in full. Reversed, those that wait longest begin first.
UNRACED = $$(echo "$(SERVED)" | grep throttle/tests/ | sort -r) $(EMBEDDING) $(SHORTENED)
RACED   = $$({ echo "$(SERVED)" | grep -v throttle/tests/; echo "$(OTHERS)"; } | grep -vxF "$(EMBEDDING)")

# Runs go test with a line for each package, when it ends, and a summary.
SUM := $(GO) tool -modfile=$(CURDIR)/tools/go.mod gotestsum --format pkgname --hide-summary skipped

# Runs a command whose tests share a Kafka and a Pulsar.
SHARE := $(GO) run ./tests/services/cmd/share

# The tests that do more with THROTTLE_LONG.
LONGER := Allocation|BillOfMaterials|Fair|Holders|MovesNeverHang|NoCallerIsStranded|NothingWasted|$\
	Schedules|SchedulesOnEtcd|SchedulesOnRedis|StrictBesideAny|TopicsThatComeAndGo|Twins

# Those that would take too long with the race detector.
SLOW := Schedules|TopicsThatComeAndGo
# Those that crash it, by a "SIGSEGV" in a long bubble of testing/synctest (go.dev/issue/78156), or would take a quarter of
# an hour with it. make test runs them with it, shorter.
UNRACED_LONG := Holders|StrictBesideAny

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## watch two consumer groups share a limit; needs only Go
	$(GO) run ./cmd/throttle-admin demo

.PHONY: test
test: services ## is the code correct? on real services, whatever the machine's speed
	@mkdir -p .cache; rm -f .cache/*raced.json; \
		$(SHARE) $(MAKE) --no-print-directory --keep-going -j 2 unraced raced-once raced unraced-once peers; failed=$$?; \
		cat .cache/unraced.json .cache/raced.json | $(GO) run ./internal/flaky && exit $$failed

# Without vet, which make lint runs. Only tests of packages that use services are repeated: no other has a reason to
# fail once. Those wait and the others compute, so that they run side by side.
FLAGS  := -vet=off -timeout 15m -p 2 -parallel 8 -skip '^TestAccuracy'
REPEAT  = --rerun-fails=2 --rerun-fails-max-failures=4 --rerun-fails-abort-on-data-race --jsonfile .cache/$@.json

.PHONY: unraced unraced-once raced raced-once peers
unraced unraced-once: PACKAGES = $(UNRACED)
raced raced-once: PACKAGES = $(RACED)
raced raced-once: FLAGS += -race -short
raced: FLAGS += -p 3 # beside unraced-once, whose tests compute, these wait
unraced raced:
	@$(SUM) $(REPEAT) --packages "$$(printf '%s\n' $(PACKAGES) | grep -xF "$(SERVED)")" -- $(FLAGS)
unraced-once raced-once:
	@$(SUM) --packages "$$(printf '%s\n' $(PACKAGES) | grep -vxF "$(SERVED)")" -- $(FLAGS)
peers: # other limiters, in a module of its own
	@cd tests/bench && $(SUM) -- $(FLAGS) ./...

.PHONY: accuracy
accuracy: services ## how exact is it in real time? measures on an idle machine, and writes docs/accuracy.md
	@mkdir -p .cache; rm -f .cache/accuracy.jsonl; export THROTTLE_ACCURACY=$(CURDIR)/.cache/accuracy.jsonl; \
		$(SHARE) $(SUM) -- -timeout 30m -count=1 -p 1 -parallel 4 -run '^TestAccuracy' $(MEASURING); failed=$$?; \
		$(GO) run ./tests/accuracy/cmd/table .cache/accuracy.jsonl docs/accuracy.md && exit $$failed

.PHONY: test-console
test-console: services ## drive the console in a browser, over a real etcd and Redis; make test does, too
	$(GO) test -count=1 -timeout 5m -v -run '^Test(Browser|Accessible)$$' ./cmd/throttle-admin/internal/console

.PHONY: behaviours
behaviours: services ## run the suite of all adapters, and write its table to docs/reference/adapters.md
	@rm -f .cache/behaviours; THROTTLE_BEHAVIOURS=$(CURDIR)/.cache/behaviours \
		$(GO) test -count=1 -timeout 10m -p 1 -run '^TestBehaviours$$' ./adapters/franz ./adapters/kafka ./adapters/pulsar; \
		$(GO) run ./adapters/internal/adaptertest/cmd/table < .cache/behaviours > docs/reference/adapters.md

.PHONY: pictures
pictures: services ## draw the pictures of the console and of top in docs/pictures; needs tmux, and three minutes
	THROTTLE_PICTURES=$(CURDIR)/docs/pictures THROTTLE_PICTURES_OTHERS=$(CURDIR)/.cache/pictures $(GO) test -count=1 -timeout 10m -run '^TestPictures$$' ./cmd/throttle-admin/internal/console

.PHONY: test-long
test-long: services ## random schedules, fuzzing and repetitions; a rerun of the same files goes on
	@mkdir -p .cache/long; tree=$$(export GIT_INDEX_FILE=.cache/long/index; git add -A && git write-tree) || exit 1; \
	step() { \
		if [ -e .cache/long/$$1.$$tree ]; then echo "$$1: done before"; return; fi; \
		name=$$1; shift; echo "$$name: $$*"; "$$@" && touch .cache/long/$$name.$$tree; \
	}; \
	export THROTTLE_LONG=1; \
	step virtual $(GO) test -race -timeout 20m -p 2 -run '^Test($(LONGER))$$' -skip '^Test($(SLOW)|$(UNRACED_LONG))$$' $(OTHERS) && \
	step unraced $(GO) test -timeout 20m -skip '^Test($(SLOW))$$' ./dispatch && \
	step services $(GO) test -race -timeout 20m -p 2 -run '^Test($(LONGER))$$' $(SERVED) && \
	step embedding $(GO) test -race -short -timeout 20m -p 2 $(EMBEDDING) && \
	THROTTLE_SEEDS=24-2024 step schedules $(GO) test -timeout 20m -run '^Test($(SLOW))$$' ./dispatch && \
	unset THROTTLE_LONG && step fuzz $(MAKE) --no-print-directory fuzz

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZED=60000x
	@mkdir -p .cache; grep -REo --include='*_test.go' '^func Fuzz\w*' * | while IFS=: read -r file func; do \
		dir=$$(dirname $$file); echo "$${func#func } of $$dir"; \
		[ "$$dir" = "$$built" ] || $(GO) test -c -o .cache/fuzz.test -gcflags='$(MODULE)/...=-d=libfuzzer' ./$$dir || exit 1; \
		built=$$dir; (cd $$dir && $(CURDIR)/.cache/fuzz.test -test.run '^$$' -test.fuzz "^$${func#func }$$" \
			-test.fuzztime $(FUZZED) -test.fuzzcachedir $(CURDIR)/.cache/fuzz/$$dir) || exit 1; \
	done

.PHONY: chaos-matrix
chaos-matrix: services ## break permit stores in all known ways, and write the table of docs/proof.md
	THROTTLE_MATRIX=$(CURDIR)/docs/proof.md $(GO) test -count=1 -timeout 20m -parallel 3 -run '^TestMatrix$$' ./tests/chaos

.PHONY: size
size: services ## compare what throttle-admin size says with what fleets of many shapes need
	@mkdir -p .cache; rm -f .cache/size.jsonl; \
		THROTTLE_SIZE=1 THROTTLE_ACCURACY=$(CURDIR)/.cache/size.jsonl $(GO) test -count=1 -timeout 30m -v -run '^TestAccuracySize$$' ./tests/scale

.PHONY: chaos
chaos: services ## break everything that consumers depend on for CHAOS=1h, by CHAOS_SEED=1; needs root
	THROTTLE_CHAOS=$(CHAOS) THROTTLE_CHAOS_SEED=$(CHAOS_SEED) THROTTLE_CHAOS_REPORT=$(CURDIR)/docs/proof.md \
		$(GO) test -count=1 -timeout 3h -v -run '^TestHour$$' ./tests/chaos/hour

.PHONY: schedules
schedules: ## a million random schedules, SEEDS, and the table of docs/proof.md; a rerun goes on
	mkdir -p .cache
	$(GO) test -c -o .cache/schedules.test ./dispatch
	@export THROTTLE_TALLIES=$(CURDIR)/.cache/schedules.jsonl GOMAXPROCS=1; cd dispatch; \
	run() { THROTTLE_SEEDS=$${1#*:} ../.cache/schedules.test -test.timeout 0 -test.run "^TestSchedules$$/^$${1%:*}$$"; }; \
	for part in $(SEEDS); do run $$part & parts="$$parts $$!"; done; trap "kill $$parts 2>/dev/null" EXIT; \
	for part in $$parts; do wait $$part || failed=1; done; \
	THROTTLE_TABLE=$(CURDIR)/docs/proof.md run $(firstword $(SEEDS)) && exit $$failed # it has all its tallies by now

.PHONY: histories
histories: services ## 1,000 histories of allocations under faults, of Redis and of etcd, are linearizable; or THROTTLE_SEEDS
	THROTTLE_SEEDS=$${THROTTLE_SEEDS:-1000} $(GO) test -count=1 -timeout 5h -p 1 -v -run '^TestHistories$$' \
		./dispatch/permits/redis ./dispatch/permits/etcd

.PHONY: soak
soak: services ## make test, by package, SOAK=10 times beside two busy loops; a rerun of the same files goes on
	@{ printf '%s\n' $(UNRACED); printf '%s -race -short\n' $(RACED); } | $(SHARE) tests/soak.sh $(SOAK)

.PHONY: bench
bench: services ## compare with other limiters, and write the tables of docs/benchmarks.md
	$(GO) run -C tests/bench ./cmd/table

.PHONY: bench-pulsar
bench-pulsar: services ## compare with the limit of a real Pulsar, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^BenchmarkPulsar' -skip '^$$' -target bench-pulsar -benchtime 1ms

.PHONY: bench-franz
bench-franz: services ## compare franz-go clients with and without a limit on a real Kafka, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^BenchmarkFranz' -skip '^$$' -target bench-franz -benchtime 1ms

.PHONY: bench-numaflow
bench-numaflow: services ## measure vertices under a simulated Numaflow data plane, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^BenchmarkNumaflow' -skip '^$$' -target bench-numaflow -benchtime 1ms

.PHONY: bench-busy
bench-busy: ## measure how limiters slow down for a busy server, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^Benchmark(BusyServer|ReportOutcome|Decide)' -skip '^$$' -target bench-busy -rounds 3

.PHONY: lint
lint: ## golangci-lint with all of vet, and a check of words and line lengths
	$(LINT) run
	cd tests/bench && $(LINT) run
	$(GO) run ./internal/words

.PHONY: sbom
sbom: ## write bin/throttle-admin and what it consists of, in CycloneDX: bin/throttle-admin.cdx.json
	$(GO) build -trimpath -o bin/throttle-admin ./cmd/throttle-admin
	$(GO) tool -modfile=tools/go.mod cyclonedx-gomod bin -json -std -noserial -output bin/throttle-admin.cdx.json bin/throttle-admin

.PHONY: examples
examples: ## build the examples
	$(GO) build ./examples/...

.PHONY: requirements
requirements: # at once, before anything is built
	@missing=; \
	command -v java >/dev/null || missing="default-jdk-headless"; \
	[ -e .cache/kafka -a -e .cache/pulsar ] || command -v mvn >/dev/null || missing="$$missing maven"; \
	[ -z "$$missing" ] || { \
		echo "The tests need Kafka and Pulsar, which need Java and, to be fetched, Maven. With Debian or Ubuntu:" >&2; \
		echo "    sudo apt-get install -y $$missing" >&2; \
		exit 1; }

.PHONY: services
services: requirements $(JARS) ## get what the tests need: gcc, Redis, etcdctl and ip with apt-get, Kafka and Pulsar with Maven, etcd
	@missing=; \
	command -v gcc >/dev/null || missing="gcc libc6-dev"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v etcdctl >/dev/null || missing="$$missing etcd-client"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	if [ -n "$$missing" ]; then \
		command -v apt-get >/dev/null || { echo "no apt-get: install $$missing" >&2; exit 1; }; \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy $$missing; \
	fi
	$(GO) build -o .cache/etcd go.etcd.io/etcd/server/v3

# Maven compares with checksums of the same server; sha256sums has those of the files when they were chosen.
$(JARS): .cache/%: tests/services/%/pom.xml
	rm -rf $@ $@.part
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$@.part
	cd $@.part && sha256sum *.jar | diff $(CURDIR)/tests/services/$*/sha256sums - || { rm -rf $(CURDIR)/$@.part; exit 1; }
	mv $@.part $@
	touch $@
