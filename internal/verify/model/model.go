// Package model plays random operations on the jobs of a real database and on a model of the state machine in memory.
// After each operation it compares the two: every row, and every column that is part of the design. It does not need
// package testing, so that a command can run it, too.
package model

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Draws makes choices: rapid in tests, which shrinks a failure; elsewhere a seeded generator.
type Draws interface {
	// Below draws a number from 0 to n-1; the label names it in reports.
	Below(n int, label string) int
}

// There are few choices, so that operations often act on the same jobs.
var (
	queues     = []string{"mail", "media"}
	kinds      = []string{"known", "unknown"} // the second has no handler in most claims
	workers    = []string{"w1", "w2"}
	priorities = []int16{1, 0, -1}
	keys       = []string{"k1", "k2", "k3"}
)

const maxOpen = 12 // jobs at once

// row holds the fields of a job that are stored and compared.
type row struct {
	Status      outbox.Status
	ClosedFrom  string
	Queue, Kind string
	Priority    int
	Attempt     int
	MaxAttempts int
	LostLeases  int
	Epoch       int64
	Worker      string // the worker that holds or closed the job
	Lease       string // held, extended or lapsed while it runs
	Error       string // last_error_code
	Attempts    string // recorded failures: epoch/attempt/code
	Asked       bool   // it was cancelled while it ran
	Due         bool   // run_at has come; the model has no clock, but moves rows
	RunAt       int64  // microseconds; 0 in the model until read from the database
}

type job struct {
	row
	lapsedAt int  // the order in which leases lapsed
	outage   bool // claimed before the server started, by the stored times

	hasDeadline, late bool
}

// lease is what a worker knows of a lease. All leases that were ever granted stay in use, as if by workers that do not
// know that they lost them.
type lease struct {
	id    outbox.ID
	epoch int64
	start pgtype.Timestamptz
	place pgtype.TID // of the job's row after the claim
}

// Machine holds the database and the model of it. Nothing else may write to the database.
type Machine struct {
	Streamed bool      // whether jobs are streamed; set before Reset
	Tenant   outbox.ID // of all jobs; set before Reset

	db       *pgxpool.Pool
	q        *sqlgen.Queries
	operator *operator.Operator

	jobs   map[outbox.ID]*job
	ids    []outbox.ID // in the order of their making
	leases []lease
	keys   map[string]outbox.ID // by kind and idempotency key
	paused map[string]bool
	lapses int
	ops    int
	resets int

	settlements int // of successes
	claims      int
}

// New returns a machine. The caller calls Reset before the first operation.
func New(db *pgxpool.Pool) *Machine {
	return &Machine{Tenant: outbox.RootTenant, db: db, q: sqlgen.New(db), operator: operator.New(db)}
}

// Reset empties the outbox and the model. It deletes every job of the database.
func (m *Machine) Reset(ctx context.Context) error {
	m.jobs, m.keys, m.paused = map[outbox.ID]*job{}, map[string]outbox.ID{}, map[string]bool{}
	m.ids, m.leases, m.lapses = nil, nil, 0
	m.resets++
	return empty(ctx, m.db, m.resets, "outbox.jobs", "outbox.history", "outbox.attempts", "outbox.idempotency_keys",
		"outbox.queues", "outbox.events")
}

// empty empties the tables. TRUNCATE makes the server plan all statements anew, and DELETE leaves dead rows behind, so
// empty truncates only at every 20th reset.
func empty(ctx context.Context, db *pgxpool.Pool, resets int, tables ...string) error {
	if resets%20 == 1 {
		_, err := db.Exec(ctx, `TRUNCATE `+strings.Join(tables, ", "))
		return err
	}
	batch := &pgx.Batch{}
	for _, table := range tables {
		batch.Queue(`DELETE FROM ` + table)
	}
	return db.SendBatch(ctx, batch).Close()
}

// Ops returns how many operations have been done and compared since New.
func (m *Machine) Ops() int { return m.ops }

// An Operation does the same to the database and to the model. It reports false if there is nothing to act on.
type Operation func(context.Context, Draws) (done bool, err error)

// Operations returns the operations by name.
func (m *Machine) Operations() map[string]Operation {
	operations := map[string]Operation{
		"enqueue":                  m.enqueue,
		"enqueue with key":         m.enqueueOnce,
		"enqueue held":             m.enqueueHeld,
		"enqueue with deadline":    m.enqueueWithDeadline,
		"release":                  m.release,
		"cancel":                   m.cancel,
		"a deadline comes":         m.deadlineComes,
		"expire deadlines":         m.expireDeadlines,
		"close what is called off": m.closeCalledOff,
		"claim":                    m.claim,
		"claim again":              m.claim, // twice as likely as the others: most need a lease
		"succeed":                  m.succeed,
		"complete":                 m.complete,
		"fail":                     m.fail,
		"snooze":                   m.snooze,
		"extend":                   m.extend,
		"guard":                    m.guard,
		"zombie":                   m.zombie,
		"return orphans":           m.returnOrphans,
		"leases lapse":             m.lapse,
		"reap":                     m.reap,
		"outage":                   m.restart,
		"retry by hand":            m.retry,
		"dismiss":                  m.dismiss,
		"pause or resume":          m.pause,
		"jobs become due":          m.becomeDue,
		"operator's mistake":       m.mistake,
	}
	for name, do := range operations {
		operations[name] = func(ctx context.Context, d Draws) (bool, error) {
			done, err := do(ctx, d)
			if err == nil && done {
				err = m.compare(ctx)
			}
			if err != nil {
				return false, fmt.Errorf("operation %d, %s: %w", m.ops+1, name, err)
			}
			if done {
				m.ops++
			}
			return done, nil
		}
	}
	return operations
}

// live returns the job of a lease that is still valid, nil otherwise.
func (m *Machine) live(l lease) *job {
	if j := m.jobs[l.id]; j.Status == outbox.Running && j.Epoch == l.epoch {
		return j
	}
	return nil
}

// where returns the ids of the jobs that satisfy is, in the order of creation.
func (m *Machine) where(is func(*job) bool) []outbox.ID {
	var ids []outbox.ID
	for _, id := range m.ids {
		if is(m.jobs[id]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// leave moves a job from running to next.
func (j *job) leave(next outbox.Status) {
	j.Status, j.Worker, j.Lease, j.outage = next, "", "", false
}

// recordFailure adds to the model what outbox.attempts records of the current attempt.
func (j *job) recordFailure(code string) {
	j.Attempts += fmt.Sprintf("%d/%d/%s ", j.Epoch, j.Attempt, code)
	j.Error = code
}

// due sets a run_at of which the model knows only whether it has come.
func (j *job) due(now bool) { j.Due, j.RunAt = now, 0 }

func pick[T any](d Draws, from []T, label string) T { return from[d.Below(len(from), label)] }

// sameIDs compares the jobs for which a statement took effect with those for which it should have.
func sameIDs(got []pgtype.UUID, want []outbox.ID) error {
	tally := map[outbox.ID]int{}
	for _, id := range got {
		tally[id.Bytes]++
	}
	for _, id := range want {
		tally[id]--
	}
	maps.DeleteFunc(tally, func(_ outbox.ID, n int) bool { return n == 0 })
	if len(tally) > 0 {
		wrong := slices.Collect(maps.Keys(tally))
		return fmt.Errorf("the statement took effect for %d jobs, want %d; they differ in %v", len(got), len(want),
			wrong)
	}
	return nil
}
