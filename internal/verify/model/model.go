// Package model plays random operations on the jobs of a real database and on a
// model of the state machine in memory, and compares the two after each: every
// row, every column that the design speaks of. It needs no package testing, so
// that a command can run it as well.
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

// Draws is where choices come from: rapid in tests, which makes a failure small;
// a seeded generator elsewhere.
type Draws interface {
	// Below draws one of 0 to n-1; the label names it in reports.
	Below(n int, label string) int
}

// The choices are few, so that operations meet each other often.
var (
	queues     = []string{"mail", "media"}
	kinds      = []string{"known", "unknown"} // the second has no handler in most claims
	workers    = []string{"w1", "w2"}
	priorities = []int16{1, 0, -1}
	keys       = []string{"k1", "k2", "k3"}
)

const maxOpen = 12 // jobs at once

// row is what is stored of a job, and compared.
type row struct {
	Status      outbox.Status
	ClosedFrom  string
	Queue, Kind string
	Priority    int
	Attempt     int
	MaxAttempts int
	LostLeases  int
	Epoch       int64
	Worker      string // who holds or closed it
	Lease       string // held, extended or lapsed while it runs
	Error       string // last_error_code
	Attempts    string // recorded failures: epoch/attempt/code
	Asked       bool   // somebody cancelled it while it ran
	Due         bool   // run_at has come; the model has no clock, it moves rows
	RunAt       int64  // microseconds; 0 in the model until it is learnt
}

type job struct {
	row
	lapsedAt int  // the order in which leases lapsed
	outage   bool // claimed before the server started, as far as the rows tell

	hasDeadline, late bool
}

// lease is what a worker knows. Those that were ever handed out stay in use, as by
// workers that do not know that they lost them.
type lease struct {
	id    outbox.ID
	epoch int64
	place pgtype.TID // where the claim has left the job
}

// Machine is the database and the model of it. Between two operations nobody else
// may write to the database.
type Machine struct {
	Streamed bool      // every job is; set before Reset, as Tenant is
	Tenant   outbox.ID // whose jobs they are

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

// New makes a machine. It is used after Reset.
func New(db *pgxpool.Pool) *Machine {
	return &Machine{Tenant: outbox.RootTenant, db: db, q: sqlgen.New(db), operator: operator.New(db)}
}

// Reset begins anew with an empty outbox. It deletes every job of the database.
func (m *Machine) Reset(ctx context.Context) error {
	m.jobs, m.keys, m.paused = map[outbox.ID]*job{}, map[string]outbox.ID{}, map[string]bool{}
	m.ids, m.leases, m.lapses = nil, nil, 0
	m.resets++
	return empty(ctx, m.db, m.resets, "outbox.jobs", "outbox.history", "outbox.attempts", "outbox.idempotency_keys",
		"outbox.queues", "outbox.events")
}

// empty leaves nothing in the tables. TRUNCATE makes the server plan everything anew,
// and DELETE leaves more behind each time: so it is the former now and then.
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

// Ops is how many operations have been done and compared since New.
func (m *Machine) Ops() int { return m.ops }

// An Operation does one thing to the database and to the model. It reports false
// if there is nothing to do it to.
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
		"claim again":              m.claim, // twice as often as the others: most need a lease
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

// live is the job of a lease that still counts, nil otherwise.
func (m *Machine) live(l lease) *job {
	if j := m.jobs[l.id]; j.Status == outbox.Running && j.Epoch == l.epoch {
		return j
	}
	return nil
}

// where returns the ids of the jobs that satisfy is, in the order of their making.
func (m *Machine) where(is func(*job) bool) []outbox.ID {
	var ids []outbox.ID
	for _, id := range m.ids {
		if is(m.jobs[id]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// leave takes a job out of running.
func (j *job) leave(next outbox.Status) {
	j.Status, j.Worker, j.Lease, j.outage = next, "", "", false
}

// recordFailure is what outbox.attempts gets of the attempt under way.
func (j *job) recordFailure(code string) {
	j.Attempts += fmt.Sprintf("%d/%d/%s ", j.Epoch, j.Attempt, code)
	j.Error = code
}

// due sets a run_at that the model knows only by whether it has come.
func (j *job) due(now bool) { j.Due, j.RunAt = now, 0 }

func pick[T any](d Draws, from []T, label string) T { return from[d.Below(len(from), label)] }

// sameIDs compares what a statement took effect for with what it should have.
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
