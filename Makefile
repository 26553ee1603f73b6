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
SOAK   ?= 20
# How long the chaos hour takes, and the seed of its plan.
CHAOS      ?= 1h
CHAOS_SEED ?= 1

# Tests that measure rates in real time run one package at a time, so that two cores suffice. Most of
# the time they wait, as the others do: -p and -parallel are higher than the number of cores.
TIMED    := -e /tests/chaos -e /tests/kafka -e /tests/numaflow -e /tests/processes -e /tests/pulsar -e /tests/quotas -e /tests/shapes
TIMELY    = $$($(GO) list ./tests/... | grep $(TIMED))
OTHERS    = $$($(GO) list ./... | grep -v $(TIMED) -e /tests/scale)

# The tests that do more with THROTTLE_LONG.
LONGER := Allocation|Backlogs|BillOfMaterials|Fair|Gaps|Histories|Hour|LargePools|Matrix|MovesNeverHang|NoCallerIsStranded|$\
	NothingWasted|Schedules|SchedulesOnEtcd|SchedulesOnRedis|Size|SplitOverProcesses|StoppedProcess|TagsShareASink|TenantsShareASink|$\
	ThousandReplicas|TopicsThatComeAndGo|Twins

# Those that would take too long with the race detector.
UNRACED := Schedules|TopicsThatComeAndGo

# Those of which -short leaves something out, outside ./dispatch and ./configstore/file.
COMPLETE := Histories|ManyBackends|MoreThanEtcdTakes|NoCallerIsStranded|Scripts|StoodStill|WorstPatterns

# Those in which a busy etcd starves with the race detector, on two slow cores: they wait for it in real time.
STARVED := Demo|LargeReports|Roles|SchedulesOnEtcd

# Those that are timed, and whose stores take all of two slow cores with the race detector in their long form.
LOADED := Matrix|SplitOverProcesses

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## watch two consumer groups share a limit; needs only Go
	$(GO) run ./cmd/throttle-admin demo

.PHONY: test
test: services ## all tests, on real services; with the race detector where it is not too slow
	$(GO) vet ./...
	$(GO) test -timeout 10m ./dispatch ./configstore/file
	$(GO) test -timeout 10m -run '^Test($(COMPLETE)|$(STARVED))$$' ./cmd/throttle-admin ./cmd/throttle-admin/internal/files \
		./cmd/throttle-admin/internal/rights ./dispatch/internal/engine ./dispatch/internal/sharing ./dispatch/permits/etcd ./dispatch/permits/redis ./dispatch/ratekeeper ./policy
	$(GO) test -race -short -timeout 10m -p 2 -skip '^Test($(STARVED))$$' $(OTHERS)
	$(GO) test -race -timeout 10m -p 1 -parallel 4 $(TIMELY)
	$(GO) test -timeout 10m ./tests/scale
	$(GO) test -C tests/bench ./...

.PHONY: test-long
test-long: services ## what make test leaves out: longer runs, more random schedules, faults and fuzzing
	THROTTLE_LONG=1 $(GO) test -race -timeout 20m -p 2 -run '^Test($(LONGER))$$' -skip '^Test($(UNRACED)|$(STARVED))$$' $(OTHERS)
	THROTTLE_LONG=1 $(GO) test -race -timeout 20m -p 1 -run '^Test($(LONGER))$$' -skip '^Test($(LOADED))$$' $(TIMELY)
	THROTTLE_LONG=1 $(GO) test -timeout 20m -p 1 -parallel 2 -run '^Test($(LOADED))$$' ./tests/chaos ./tests/processes
	THROTTLE_LONG=1 THROTTLE_SEEDS=40-2040 $(GO) test -timeout 20m -run '^Test($(UNRACED))$$' ./dispatch
	THROTTLE_LONG=1 $(GO) test -timeout 20m -run '^TestSchedulesOnEtcd$$' ./dispatch/permits/etcd
	THROTTLE_LONG=1 $(GO) test -timeout 15m ./tests/scale
	$(MAKE) fuzz

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
	THROTTLE_LONG= $(GO) test -count=1 -timeout 15m -v -run '^TestSize$$' ./tests/scale
	THROTTLE_LONG=1 $(GO) test -count=1 -timeout 15m -v -run '^TestSize$$' ./tests/scale

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
soak: services ## each package's tests SOAK=20 times beside two busy loops; a rerun of the same files goes on
	@mkdir -p .cache/soak; tree=$$(export GIT_INDEX_FILE=.cache/soak/index; git add -A && git write-tree) || exit 1; \
	for i in 1 2; do (while :; do :; done) & busy="$$busy $$!"; done; trap "kill $$busy" EXIT; \
	for package in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
		flags="-race -short"; echo $$package | grep -q $(TIMED) && flags=-race; [ $${package%/tests/scale} = $$package ] || flags=; \
		log=.cache/soak/$$(echo $$package | tr / .); green=$$log.$$tree; n=$$(cat $$green 2>/dev/null || echo 0); \
		while [ $$n -lt $(SOAK) ]; do \
			$(GO) test $$flags -count=1 -timeout 15m $$package >$$log.log 2>&1 || { cat $$log.log; rm -f $$green; exit 1; }; \
			n=$$((n + 1)); echo $$n >$$green; \
		done; echo "$$package: $$n times green"; \
	done

.PHONY: bench
bench: services ## compare with other limiters, and write the tables of docs/benchmarks.md
	$(GO) run -C tests/bench ./cmd/table

.PHONY: bench-pulsar
bench-pulsar: services ## compare with the limit of a real Pulsar, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^BenchmarkPulsar' -skip '^$$' -target bench-pulsar -benchtime 1ms

.PHONY: bench-numaflow
bench-numaflow: services ## measure vertices under a simulated Numaflow data plane, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^BenchmarkNumaflow' -skip '^$$' -target bench-numaflow -benchtime 1ms

.PHONY: bench-busy
bench-busy: ## measure how limiters slow down for a busy server, and write that table
	$(GO) run -C tests/bench ./cmd/table -bench '^Benchmark(BusyServer|ReportOutcome|Decide)' -skip '^$$' -target bench-busy -rounds 3

.PHONY: lint
lint: ## go vet, golangci-lint, go fix -diff, and a check of words and line lengths
	$(GO) vet ./...
	$(GO) vet -C tests/bench ./...
	$(LINT) run
	cd tests/bench && $(LINT) run
	$(GO) fix -diff ./...
	$(GO) run ./internal/words

.PHONY: sbom
sbom: ## write bin/throttle-admin and what it consists of, in CycloneDX: bin/throttle-admin.cdx.json
	$(GO) build -trimpath -o bin/throttle-admin ./cmd/throttle-admin
	$(GO) tool -modfile=tools/go.mod cyclonedx-gomod bin -json -std -noserial -output bin/throttle-admin.cdx.json bin/throttle-admin

.PHONY: examples
examples: ## build the examples
	$(GO) build ./examples/...

.PHONY: services
services: ## install what the tests need: gcc, Redis, etcdctl and ip with apt-get, Kafka and Pulsar with Maven
	@missing=; \
	command -v gcc >/dev/null || missing="gcc libc6-dev"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v etcdctl >/dev/null || missing="$$missing etcd-client"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	if [ -n "$$missing" ]; then \
		command -v apt-get >/dev/null || { echo "no apt-get: install $$missing" >&2; exit 1; }; \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy $$missing; \
	fi
	@[ -n "$$THROTTLE_TEST_KAFKA" ] || $(MAKE) --no-print-directory .cache/kafka
	@[ -n "$$THROTTLE_TEST_PULSAR" ] || $(MAKE) --no-print-directory .cache/pulsar

# Maven compares with checksums of the same server; sha256sums has those of the files when they were chosen.
$(JARS): .cache/%: tests/services/%/pom.xml
	@command -v java >/dev/null || { echo "no java: install a JDK, or set THROTTLE_TEST_KAFKA and THROTTLE_TEST_PULSAR to running brokers" >&2; exit 1; }
	@command -v mvn >/dev/null || { echo "no mvn: install Maven, or set THROTTLE_TEST_KAFKA and THROTTLE_TEST_PULSAR to running brokers" >&2; exit 1; }
	rm -rf $@ $@.part
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$@.part
	cd $@.part && sha256sum *.jar | diff $(CURDIR)/tests/services/$*/sha256sums - || { rm -rf $(CURDIR)/$@.part; exit 1; }
	mv $@.part $@
	touch $@
