#!/usr/bin/env bash
# Tests on a Postgres in a container, which testcontainers starts. Exits with 3
# where that is not possible. GO and RACE are those of the Makefile.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go}

official="postgres:${PG:-18}-alpine" # some 100 MB
ours="posthaste-postgres:test-$$"

not_possible() { echo "test-docker: not possible here: $1" >&2; exit 3; }

# Whoever gets no Postgres image gets no Ryuk either: what that would clear away is left to us.
clear_away() {
	left=$(docker ps -aq --filter "ancestor=$ours")
	if [ -n "$left" ]; then docker rm -fv $left >/dev/null; fi
	docker rmi "$ours" >/dev/null 2>&1 || true # it may not have been made
	if [ -n "$left" ]; then echo "test-docker: left behind:" $left >&2; exit 1; fi
}

docker version >/dev/null 2>&1 || not_possible "no container engine answers (docker version)"
if [ -z "${POSTHASTE_PG_IMAGE:-}" ] && ! timeout 60 docker pull -q "$official" >/dev/null 2>&1; then
	echo "test-docker: $official cannot be pulled, an image is made of this machine's Postgres"
	trap clear_away EXIT
	internal/pgdocker/image.sh "$ours" || not_possible "nor can an image be made"
	export POSTHASTE_PG_IMAGE=$ours TESTCONTAINERS_RYUK_DISABLED=true
fi

unset POSTHASTE_TEST_DATABASE_URL
export CGO_ENABLED=0
mkdir -p bin
$go build -C internal/pgdocker -o ../../bin/ ./withcontainer
flags="-count=1 -vet=off -ldflags=-w" # with which make test has compiled most of it
$go test -C internal/pgdocker $flags ./...
$go test $flags -run TestContainerOfARealEngine ./internal/pgdev
bin/withcontainer $go test $flags ./inbox ./await
bin/withcontainer $go test $flags -run 'TestEnqueueWakesAWorker|TestServeIsKilledAndAnotherTakesOver' ./integration
