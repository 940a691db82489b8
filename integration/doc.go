// Package integration holds the stories: real processes, a real Postgres, and
// what happens to both in production. Each test tells one in a sentence; there is
// nothing to import here.
//
//	         ┌── posthaste serve ──┐
//	story ───┤                     ├── Postgres ── effects, orders, jobs, history
//	         └── worker, worker … ─┴── ledger (a file that survives kill -9)
//
// The worker (folder worker) has Go handlers that do as their jobs say: sleep,
// fail, block, make an effect, kill the process. Whatever they do they also write
// to the ledger, outside of the database under test: a checker that reads only
// that database cannot see what it lost. The stories know processes by their
// environment, their exit status, their admin port and their logs, and nothing
// from within.
//
// A failing story prints the tail of its ledger and of every process's log; with
// go test -artifacts the whole of both is kept.
//
//	PG=18                    the major version of Postgres
//	GOFLAGS=-overlay=FILE    plants a bug in the stories' programs and in the
//	                         stories' own producers: see which of them find it
package integration
