# `make` alone prints its targets.
.DEFAULT_GOAL := help
GO      ?= go
SQLC    := CGO_ENABLED=0 $(GO) tool -modfile=tools/sqlc.mod sqlc
TEMPL   := $(GO) tool -modfile=tools/templ.mod templ
LINT    := $(GO) tool -modfile=tools/lint.mod
# PG=18 runs on that major version of PostgreSQL, fetched if it is not installed.
PG      ?=
export PG
# The race detector needs a C compiler and cgo; without a compiler tests run without it.
# Nothing else needs cgo, so that each package is compiled twice at most.
RACE    := $(shell command -v cc >/dev/null 2>&1 && echo -race)
CGO     := $(if $(RACE),1,0)
export CGO_ENABLED = 0
# Packages whose goroutines share data run with the race detector, the slowest first, so that none is left alone at the
# end. Those of ./integration build their workers with it; those of ./app run ./schedule.
RACED    = ./dispatcher ./dispatcher/internal/wake ./api ./watch ./relay ./relay/nats ./reaper ./outbox ./listener ./app ./await ./handlers/... ./access ./memory ./relay/nats/rpc
LONG     = ./relay/amqp ./bridge ./integration ./internal/verify/model ./console ./operator ./relay/kafka ./internal/verify/lease ./server ./migrations ./cmd/posthaste ./relay/webhook ./deploy/grafana ./docs/model
OTHERS   = $(filter-out $(shell $(GO) list $(RACED)),$(shell $(GO) list $(LONG)) $(shell $(GO) list ./...))
# These send thousands of requests one after the other, or print every metric: the detector adds minutes, and finds
# nothing new.
IN_TURN  = ^Test(G[0-9]|H2|EveryRouteAsks|AForeignJobAnswers|Bad(Bodies|Parameters)Are|TheExamplesOf|TheDocumentationExplains|WhatTheEncodingLacks|AnActByFilterComes|ReferenceOfMetrics|PromlintOfEvery)
# One Postgres for all packages. AGAIN=1 (CI): if no more than 24 tests fail, each is repeated once, because some
# measure milliseconds on a shared machine; a data race is never repeated. UNTIL=1767225600 (CI): rows of the scorecard
# that have not begun by that time, in seconds since 1970, are skipped by name. $(1): whether cgo is used.
tests    = $(GO) run ./internal/pgtest/withserver -- env CGO_ENABLED=$(1) $(LINT) $(SUM)
SUM      = gotestsum --format pkgname-and-test-fails \
	$(if $(AGAIN),--rerun-fails=1 --rerun-fails-max-failures=24 --rerun-fails-abort-on-data-race)
# Tests wait for timers, locks and other processes more than they compute: six at a time in a package.
# make check has looked at what go test would vet, and nobody debugs these binaries: without DWARF each links in two
# thirds of the time.
QUICK    = -vet=off -ldflags=-w
FLAGS    = $(QUICK) -timeout 20m -p 2 -parallel 6
OURS    := $(shell git ls-files -co --exclude-standard '*.go' 2>/dev/null | grep -v -e '^internal/sqlgen/' -e '_templ\.go$$')

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'
	@echo 'Variables:'
	@echo '  PG=18                    test on this major version of Postgres, 15 to 18; fetched if it is not installed'
	@echo '  ROWS="A2 A5" SEED=7      verify, soak: only these rows; repeat a run (SEED: upgrade-test, too)'
	@echo '  FUZZTIME=60s ONLY=Cron   fuzz: time for each target; only these targets'
	@echo '  STAY=1                   demo: the shop alone, left running'
	@echo '  FRESH=1                  docs: fail if the committed site is not of these pages'
	@echo '  RECORD=FILE              mutants: continue a run that was broken off'
	@echo '  PLATFORMS="linux/amd64 linux/arm64" VERSION=v0.1.0   release, sbom, image, deb'

.PHONY: demo
demo: ## the example shop, a kill -9, and the proof; then its events through NATS
	@$(GO) run ./examples/shop demo $(if $(STAY),--stay)
	@$(if $(STAY),,$(GO) run ./examples/events)

.PHONY: test
test: build ## every test, scorecard and integration stories included, on a real Postgres
	$(GO) run ./internal/pgtest/withserver -- $(MAKE) --no-print-directory tests

.PHONY: tests
tests:
	$(call tests,$(CGO)) --packages="$(RACED)" -- $(FLAGS) $(RACE) -skip '$(IN_TURN)'
	$(call tests,0) --packages="$(OTHERS)" -- $(FLAGS) -p 3 -skip '^TestScorecard$$'
	$(MAKE) --no-print-directory -j 2 test-browser test-in-turn $(MODULES)
	POSTHASTE_SCORECARD_UNTIL=$(UNTIL) $(call tests,0) --packages="./integration" -- $(QUICK) -timeout 30m -run '^TestScorecard$$'

# A browser waits much, and the others compute meanwhile.
.PHONY: test-browser test-in-turn
test-browser:
	cd console/browsertest && $(GO) tool -modfile=../../tools/lint.mod $(SUM) --packages=./... -- $(QUICK) -parallel 6 -timeout 20m
test-in-turn:
	$(call tests,0) --packages="./api ./access ./app" -- $(FLAGS) -run '$(IN_TURN)'

# Modules of their own: what their tests need, the library's users do not. They read files outside their modules, too,
# which go does not look at before it repeats a result.
MODULES = $(addprefix test-in/,bench internal/pgdocker internal/cetest examples/orm examples/migrate/asynq examples/migrate/river)
.PHONY: $(MODULES)
$(MODULES): test-in/%:
	$(GO) test -C $* -count=1 $(QUICK) ./...

.PHONY: test-docker
test-docker: ## some of them on a Postgres in a container (needs a container engine)
	@GO="$(GO)" internal/pgdocker/test.sh

.PHONY: test-quorum
test-quorum: ## what a sink promises, on quorum queues of RabbitMQ that are killed; ten minutes
	POSTHASTE_QUORUM=on POSTHASTE_BROKERS=required $(GO) test -count=1 -timeout 30m -run TestConformance ./relay/amqp

.PHONY: fuzz
fuzz: ## random input for every parser of external input
	@GO="$(GO)" FUZZTIME="$(FUZZTIME)" ONLY="$(ONLY)" .ci/fuzz

.PHONY: zones
zones: ## schedules over every change of the clocks of every zone; some minutes
	POSTHASTE_SCHEDULE_ZONES=on $(GO) test -count=1 -v -run TestTicksAgreeWithAClockThatIsWatched ./schedule

.PHONY: drain
drain: ## ten processes of the API replaced behind a slow proxy, under load
	POSTHASTE_DRAIN=long $(GO) test -count=1 -v -run TestNoRequestFailsWhileProcessesAreReplaced ./cmd/posthaste

.PHONY: model
model: ## every state of the lease protocol, with spin (docs/model)
	$(GO) test -count=1 -v ./docs/model -leases 4 -planted

.PHONY: build
build: ## bin/posthaste and bin/posthaste-proof
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -o bin/ ./cmd/...

.PHONY: check
check: generated-sum fmt-diff vet build ## what every commit passes before its tests: generated code, format, vet, staticcheck

.PHONY: generate
generate: ## internal/sqlgen, the lists of a job's columns, and console/*_templ.go
	$(GO) run ./internal/jobcolumns
	$(SQLC) generate
	$(TEMPL) generate -path console -log-level error
	$(GO) run ./internal/generated

# To compile sqlc and templ takes four minutes of a core. make check compares what make generate has read and written.
.PHONY: generated-sum generate-diff
generated-sum:
	$(GO) run ./internal/jobcolumns -check
	$(GO) run ./internal/generated -check
generate-diff: generate ## generate again, and fail if that changes anything
	@git diff --exit-code --stat -- internal/sqlgen internal/generated/sums migrations/functions 'console/*_templ.go'

.PHONY: assets
assets: ## the files that console/assets/vendor.txt lists, from npm
	console/assets/fetch.sh

.PHONY: screenshots
screenshots: ## docs/operate/console/*.png: every page of the console in chromium
	POSTHASTE_BROWSER=required $(GO) test -C console/browsertest -count=1 -run TestScreenshots -screenshots $(CURDIR)/docs/operate/console .

.PHONY: dashboards
dashboards: ## deploy/grafana/*.json, and the chart's copies of them and of the alerts
	$(GO) run ./deploy/grafana deploy/grafana
	cp deploy/grafana/*.json deploy/prometheus/posthaste.rules.yml deploy/helm/posthaste/files/

.PHONY: docs
docs: ## the manual as a site, docs/site/site.zip.zst, and its tests
	$(GO) run ./docs/site/build $(if $(FRESH),-fresh)
	$(GO) test ./docs ./docs/site

.PHONY: docs-reference
docs-reference: ## the generated parts of the manual, from the schema and the program
	$(GO) test -count=1 ./docs -run 'Postgres|Picture|Errors|Routes' -update
	$(GO) test -count=1 ./cmd/posthaste -run Reference -update-reference
	$(GO) test -count=1 ./app -run Reference -update-reference

.PHONY: fmt
fmt: ## format
	$(LINT) gofumpt -w $(OURS)

.PHONY: fmt-diff
fmt-diff:
	@out="$$($(LINT) gofumpt -l $(OURS))"; test -z "$$out" || { echo "not formatted, run make fmt:"; echo "$$out"; exit 1; }

# Each module on its own, so that make -j 2 downloads for one while it compiles another. VETTED= (CI) leaves them out, because
# vet looks at everything that they import, too: two minutes of two processors. Their tests compile them.
# A linter collects garbage at a quarter of the usual rate, which takes a quarter less processor.
VETTED = $(addprefix vet-in/,bench internal/pgdocker internal/cetest examples/orm examples/migrate/asynq examples/migrate/river console/browsertest internal/natsdev internal/kafkadev deploy/release deploy/helm)
.PHONY: vet vet-here staticcheck $(VETTED)
vet: vet-here $(VETTED) staticcheck
vet-here:
	$(GO) vet ./...
$(VETTED): vet-in/%:
	$(GO) vet -C $* ./...
staticcheck:
	GOGC=400 $(LINT) staticcheck ./...

.PHONY: mutants
mutants: ## plant bugs one at a time, and write to docs/mutants.md which check catches each
	$(GO) run ./internal/pgtest/withserver -- $(GO) run ./internal/mutants/run -write docs/mutants.md $(if $(RECORD),-record $(RECORD))
	$(GO) run ./internal/pgtest/withserver -- $(GO) test -count=1 ./internal/verify/lease -run '^TestPlantedErrorsAreFound$$' -planted
	POSTHASTE_BROWSER=required $(GO) test -C console/browsertest -count=1 -timeout 30m -parallel 6 -run '^Test(Live|AMachineThatSleeps|EachCheckFindsWhatItLooksFor)$$' -planted .

.PHONY: bench
bench: ## this project and its peers in turns: docs/benchmarks.md (a quiet machine, 15 minutes)
	cd bench && $(GO) run .

.PHONY: verify
verify: build ## every row of the scorecard, small: kill, cut, crash, and check
	bin/posthaste-proof verify $(ROWS) $(if $(SEED),--seed $(SEED))

.PHONY: upgrade-test
upgrade-test: build ## the previous release and this build side by side, under kill -9
	@GO="$(GO)" internal/verify/upgrade.sh $(if $(SEED),--seed $(SEED))

.PHONY: soak
soak: build ## the scorecard at its full size (hours); the records go to bin/soak
	bin/posthaste-proof verify $(ROWS) --tier S --out bin/soak $(if $(SEED),--seed $(SEED))

# What is released is built by the toolchain that has the fixes of the standard library: go fetches it if need be.
# PLATFORMS="linux/amd64 linux/arm64" makes binaries, and an image, of both.
RELEASE   = GOTOOLCHAIN=go1.26.10 $(GO)
# Where text/template is linked, the linker keeps every exported method, a quarter of the program: without it the help
# of urfave/cli is the same text, and the traces that gRPC would keep for a page of its own are shown by nothing here.
# netgo and osusergo change nothing without cgo: with them .ci/run compiles what is released only once.
TAGS      = urfave_cli_no_template,grpcnotrace,netgo,osusergo
PLATFORMS ?= linux/$(shell $(GO) env GOARCH)
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
REVISION  ?= $(shell git rev-parse HEAD 2>/dev/null)

# The tests read files outside their modules, which go does not look at before it repeats a result: hence -count=1.
.PHONY: deploy-check
deploy-check: ## tests of the chart, rules, boards and packaging (with promtool, if it is there)
	$(GO) test -C deploy/release -count=1 -vet=off ./...
	$(GO) test -C deploy/helm -count=1 -vet=off ./...
	$(GO) test -vet=off -skip '^TestLive' ./deploy/... # make test has a minute for the demo under Prometheus

.PHONY: release
release: ## bin/release/OS_ARCH/posthaste as it is released
	@set -e; for p in $(PLATFORMS); do \
		GOOS=$${p%/*} GOARCH=$${p#*/} $(RELEASE) build -trimpath -buildvcs=auto -tags=$(TAGS) -ldflags '-s -w -X main.version=$(VERSION)' \
			-o bin/release/$${p%/*}_$${p#*/}/posthaste ./cmd/posthaste; done

.PHONY: sbom
sbom: release ## the parts and licences of each released binary, beside it
	@$(GO) -C deploy/release mod download golang.org/x/crypto/x509roots/fallback # the image's certificates are a part, too
	@set -e; for p in $(PLATFORMS); do d=bin/release/$${p%/*}_$${p#*/}; \
		$(GO) run -C deploy/release ./parts -source $(CURDIR) -out $(CURDIR)/$$d -version $(VERSION) $(CURDIR)/$$d/posthaste; done

.PHONY: licences
licences: sbom ## sbom, and print where the licences are
	@printf '%s\n' $(foreach p,$(PLATFORMS),bin/release/$(subst /,_,$(p))/THIRD_PARTY.txt)

.PHONY: image
image: sbom ## bin/image, an OCI layout, and bin/image.tar for docker load; needs no engine
	@$(GO) run -C deploy/release ./image -out $(CURDIR)/bin/image -version $(VERSION) \
		-revision "$(REVISION)" -doc $(CURDIR)/LICENSE -docs image \
		$(foreach p,$(PLATFORMS),$(p)=$(CURDIR)/bin/release/$(subst /,_,$(p))/posthaste) >bin/image.digest
	@cat bin/image.digest

.PHONY: deb
deb: sbom ## bin/release/posthaste_ARCH.deb: the program, its systemd unit and settings
	@set -e; for p in $(PLATFORMS); do d=$(CURDIR)/bin/release/$${p%/*}_$${p#*/}; \
		$(GO) run -C deploy/release ./deb -source $(CURDIR) -version $(VERSION) -licences $$d/THIRD_PARTY.txt \
			-out $(CURDIR)/bin/release/posthaste_$${p#*/}.deb $${p#*/}=$$d/posthaste; done

.PHONY: deb-test
deb-test: deb ## install, upgrade, remove and purge the package in a folder (needs dpkg, and root)
	@deploy/release/deb/test.sh

# The database of vulnerabilities is a module, too: raise its version to hear of new ones.
VULNDB    = golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018

.PHONY: vuln
vuln: ## check the released program against a pinned Go vulnerability database
	@$(RELEASE) build -trimpath -tags=$(TAGS) -o bin/release/unstripped/posthaste ./cmd/posthaste # the symbols say what is linked
	@db=$$($(GO) mod download -json $(VULNDB) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && test -n "$$db" && \
		$(GO) tool -C deploy/release govulncheck -db "file://$$db/data/osv" -mode binary $(CURDIR)/bin/release/unstripped/posthaste

.PHONY: image-test
image-test: ## the image in a container: read-only, as nobody, 0 after SIGTERM (needs an engine)
	@GO="$(GO)" deploy/release/image/test.sh

.PHONY: clean
clean: ## remove bin/
	rm -rf bin
