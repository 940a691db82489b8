// Package integration holds the stories: tests with real processes, a real Postgres, and what happens to both in
// production. A sentence above each test summarizes its story. The package exports nothing.
//
//	         ┌── posthaste serve ──┐
//	story ───┤                     ├── Postgres ── effects, orders, jobs, history
//	         └── worker, worker … ─┴── ledger (a file that survives kill -9)
//
// The worker (internal/verify/probe) has Go handlers that do what their jobs ask for: sleep, fail, block, make an
// effect, kill the process. They also write everything that they do to the ledger, outside the database under test: a
// checker that reads only that database cannot see what it lost. The stories observe processes only from outside: by
// their environment, exit status, admin port and logs.
//
// A failing story prints the tail of its ledger and of every process's log; go test -artifacts keeps both completely.
//
//	PG=18                    the major version of Postgres
//	GOFLAGS=-overlay=FILE    plants a bug in the stories' programs and in the
//	                         stories' own producers: see which of them find it
package integration
