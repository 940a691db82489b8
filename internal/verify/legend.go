package verify

import (
	"fmt"
	"slices"
	"strings"
)

// introduction begins the page.
const introduction = `# Proof

Written by ` + "`posthaste-proof verify --write-proof`" + ` from the records of runs; do not edit it.

Posthaste promises that a committed job is executed, that a job has one live lease at a time, that an effect in a job's
own transaction happens exactly once, and that events are published in order. This page reports how these promises held
under injected faults. Each row:

1. starts its own Postgres server and real producer, worker and relay processes (B5, B6, B8 and C8: many connections of
   one process);
2. injects its fault on a schedule that a seed decides: kill -9, cut connections, crashes, partitions, wrong clocks, full disks;
3. ends the fault and waits until every job is done;
4. compares the database with ledgers, which are files outside of it in which each process notes what it did, and with
   a history of every change of a job, which a trigger records.

A run fails if a check fails, if a process crashes, or if fewer faults were injected than the row demands. To run a row:
` + "`make build && bin/posthaste-proof verify A2`" + `. Add ` + "`--seed N`" + ` to repeat a schedule of faults, ` + "`--tier S`" + ` for the soak.

## Groups

`

// group describes the rows whose names begin with a letter.
type group struct{ letter, about string }

// groups lists no I and no J: no row has such a name.
var groups = []group{
	{"A", "Nothing is lost: an acknowledged job is executed, whatever is killed, crashes or fills up."},
	{"B", "Leases and fencing: a job has one live lease, and a worker that lost its lease cannot write (no split brain)."},
	{"C", "Wake-ups: notifications are only hints, and jobs start in time when notifications are lost, forged or late."},
	{"D", "Overload: a slow, full or busy system costs no job, nor does stopping a worker."},
	{"E", "Events: every committed event is published, each key in order, through failures of relay, broker and database."},
	{"F", "Replayed requests: a message or an idempotency key that arrives many times has one effect."},
	{"G", "Access: tenants are isolated, roles and tokens give what they grant and no more, the audit is tamper-evident."},
	{"H", "Bad input and abuse: unusual input, slow clients and too many requests."},
	{"K", "Rules for jobs: concurrency limits, order, rates, schedules, deadlines, cancellation."},
}

const invariants = `
## Terms and invariants

- **L1**: a job has at most one live lease. A lease is taken from a worker only after it ended, by the database's clock, and
  a worker gives a lease back only after its handler has returned.
- **L2**: two executions of a job overlap only if an injected fault (a stopped process, a partition, a stepped clock) kept
  the first worker from learning that it had lost its lease. Fencing then refuses what that worker writes.
- **L3**: the effect of each succeeded job, a row that its handler writes, is in the database exactly once.
- **Lost**: a job that was acknowledged to a producer and never completed. **Unexpected**: a job that completed and was
  never enqueued. **Orphan**: a business row without the job of its transaction, or the reverse.
- **Epoch**: the fencing token of a lease. Each claim of a job raises it, and writes under an older one are refused.
- **Outcome unknown**: the connection broke during COMMIT, so that the client does not know whether it committed.
- **Tiers**: P takes seconds, S is a soak. Texts give the numbers of tier P, and those of S in parentheses.
- **Counts**: attempted, acknowledged and outcome unknown are enqueues as the producers saw them; completed are jobs whose
  handler returned without an error; claims, leases expired and recorded changes are those of the recorded history.
- **Measured**: production_s is how long the producers ran, drain_s how long it took from then until every job was closed;
  pickup is the time from the commit of a job to its start; _s, _ms and _per_s are units.

## Shared checks

Many rows make these checks. Each counts violations and holds if there are none. In the results they are named by their set.

| set | compares | checks |
| --- | --- | --- |
`

// checkSet is a set of checks that are always made together.
type checkSet struct {
	name, compares string
	checks         []string
}

const noCrashes = "processes that crashed, raced or ended by themselves"

var checkSets = []checkSet{
	{"ledgers", "what producers and workers noted, with the tables", []string{
		"lost jobs: acknowledged to a producer, never completed",
		"unexpected jobs: completed, never enqueued",
		"orphans: business rows without their job",
		"orphans: jobs without their business row",
		"business rows with two jobs",
		"effects whose COMMIT was acknowledged, missing from the database",
		"L3: succeeded jobs without their effect",
		"L3: jobs whose effect was applied twice",
		"effects of jobs that did not succeed",
	}},
	{"history", "every recorded change of a job, with the allowed ones", []string{
		"illegal status changes",
		"status changes of closed jobs",
		"claims that did not raise the epoch",
		"L1: leases taken from a worker before they ended",
		"jobs still open at the end",
	}},
	{"executions", "start and end of each execution, with leases and injected faults", []string{
		"L2: overlapping executions of a job that no fault explains",
		"executions that share one lease (job and epoch)",
		"L1: leases given back while the handler was still running",
		"executions whose end is not known",
		noCrashes,
	}},
	{
		"events", "the messages that the broker or sink accepted, with outbox.events and the publishers' acknowledgements",
		[]string{
			"lost events: acknowledged to a publisher, not in outbox.events",
			"missing messages: events committed, never published",
			"unexpected messages: published, never committed",
			"out of order: messages published after a newer one of their key",
			"repeated messages with another id than the first time",
			noCrashes,
		},
	},
}

// listLegend writes the part of the page that precedes the results.
func listLegend(b *strings.Builder) {
	b.WriteString(introduction + "| group | what its rows show |\n| --- | --- |\n")
	for _, g := range groups {
		fmt.Fprintf(b, "| %s | %s |\n", g.letter, g.about)
	}
	b.WriteString(invariants)
	for _, s := range checkSets {
		fmt.Fprintf(b, "| %s | %s | %s |\n", s.name, s.compares, strings.Join(s.checks, "; "))
	}
}

// foundNothing names the given checks, which count violations and found none. It names a set by the set's name if all
// its checks are given, and every other check once.
func foundNothing(checks []string) string {
	var sets, rest []string
	inSet := map[string]bool{}
	for _, s := range checkSets {
		if slices.ContainsFunc(s.checks, func(c string) bool { return !slices.Contains(checks, c) }) {
			continue
		}
		sets = append(sets, s.name)
		for _, c := range s.checks {
			inSet[c] = true
		}
	}
	for _, c := range checks {
		if !inSet[c] && !slices.Contains(rest, c) {
			rest = append(rest, c)
		}
	}
	if len(sets) > 0 {
		rest = slices.Insert(rest, 0, "all of "+strings.Join(sets, ", ")+" ([shared checks](#shared-checks))")
	}
	return strings.Join(rest, "; ")
}
