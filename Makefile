# All that a contributor needs; make help lists the targets.

GO     ?= go
LINT   := $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint
JARS   := .cache/kafka .cache/pulsar
# A count and not a time: at the end of a time, Go before 1.27 may fail with "context deadline exceeded"
# (go.dev/issue/75804).
FUZZED ?= 60000x

# Tests that measure rates in real time run one package at a time, so that two cores suffice. Most of
# the time they wait, as the others do: -p and -parallel are higher than the number of cores.
TIMED    := -e /tests/kafka -e /tests/numaflow -e /tests/processes -e /tests/pulsar -e /tests/quotas -e /tests/shapes
TIMELY    = $$($(GO) list ./tests/... | grep $(TIMED))
OTHERS    = $$($(GO) list ./... | grep -v $(TIMED))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## watch two consumer groups share a limit; needs only Go
	$(GO) run ./cmd/throttle-admin demo

.PHONY: test
test: services ## all tests, on real services; with the race detector where it is not too slow
	$(GO) vet ./...
	$(GO) test -timeout 5m ./dispatch ./configstore/file
	$(GO) test -timeout 5m -run '^Test(Scripts|MoreThanEtcdTakes)$$' ./cmd/throttle-admin ./cmd/throttle-admin/internal/files
	$(GO) test -race -short -timeout 5m -p 3 $(OTHERS)
	$(GO) test -race -timeout 5m -p 1 -parallel 4 $(TIMELY)
	$(GO) test -C tests/bench ./...

.PHONY: test-long
test-long: services ## the same with more random schedules, longer runs and fuzzing
	THROTTLE_LONG=1 $(GO) test -race -timeout 20m -p 2 $(OTHERS)
	THROTTLE_LONG=1 $(GO) test -race -timeout 20m -p 1 $(TIMELY)
	THROTTLE_SEEDS=10000 $(GO) test -timeout 20m -run 'TestSchedules$$' ./dispatch
	$(MAKE) fuzz

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZED=60000x
	@grep -REo --include='*_test.go' '^func Fuzz\w+' * | while IFS=: read -r file func; do \
		$(GO) test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZED) "./$$(dirname $$file)" || exit 1; \
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

.PHONY: examples
examples: ## build the examples
	$(GO) build ./examples/...

.PHONY: services
services: ## install what the tests need: gcc and Redis with apt-get, Kafka and Pulsar with Maven
	@missing=; \
	command -v gcc >/dev/null || missing="gcc libc6-dev"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	if [ -n "$$missing" ]; then \
		command -v apt-get >/dev/null || { echo "no apt-get: install $$missing" >&2; exit 1; }; \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy $$missing; \
	fi
	@[ -n "$$THROTTLE_TEST_KAFKA" ] || $(MAKE) --no-print-directory .cache/kafka
	@[ -n "$$THROTTLE_TEST_PULSAR" ] || $(MAKE) --no-print-directory .cache/pulsar

$(JARS): .cache/%: tests/services/%/pom.xml
	@command -v java >/dev/null || { echo "no java: install a JDK, or set THROTTLE_TEST_KAFKA and THROTTLE_TEST_PULSAR to running brokers" >&2; exit 1; }
	@command -v mvn >/dev/null || { echo "no mvn: install Maven, or set THROTTLE_TEST_KAFKA and THROTTLE_TEST_PULSAR to running brokers" >&2; exit 1; }
	rm -rf $@ $@.part
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$@.part
	mv $@.part $@
	touch $@
