package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// keyShape is what the jobs of a key have in common.
type keyShape struct {
	key   string
	limit int // most jobs that may run at once
	rules outbox.Options
	drawn func(Draws) outbox.Options // instead of rules: draws the rules of each job
}

var keyShapes = []keyShape{
	{key: "one", limit: 1},
	{key: "three", limit: 3, rules: outbox.Options{Key: outbox.KeyRules{MaxActive: 3}}},
	{key: "line", limit: 1, rules: outbox.Options{Key: outbox.KeyRules{Ordered: true}}},
	{
		key: "passed over", limit: 1,
		rules: outbox.Options{Key: outbox.KeyRules{Ordered: true, OnDeath: outbox.SkipDead}},
	},
	{key: "parked", limit: 1, rules: outbox.Options{Key: outbox.KeyRules{Ordered: true, OnDeath: outbox.ParkKey}}},
	{
		key: "parked later", limit: 1,
		rules: outbox.Options{Key: outbox.KeyRules{Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: far}},
	},
	{key: "numbered", limit: 1, drawn: func(d Draws) outbox.Options {
		return outbox.Options{Key: outbox.KeyRules{Ordered: true, Sequence: int64(1 + d.Below(20, "sequence"))}}
	}},
	{key: mixedKey, limit: 2, drawn: func(d Draws) outbox.Options {
		return pick(d, []outbox.Options{
			{Key: outbox.KeyRules{Ordered: true}},
			{Key: outbox.KeyRules{MaxActive: 2}},
			{},
		}, "rules")
	}},
}

const (
	maxKeyed = 24 // open jobs at once
	mixedKey = "mixed"
)

// keyedJob holds what is stored of an open job.
type keyedJob struct {
	id        outbox.ID
	key       string
	status    outbox.Status
	limit     int
	ordered   bool
	position  int64
	onDeath   string
	parkAfter bool
	priority  int
	runAt     int64
	createdAt int64
	epoch     int64
	due, late bool
}

func (j *keyedJob) queued() bool {
	return j.status == outbox.Pending || j.status == outbox.Blocked || j.status == outbox.Retrying
}

func (j *keyedJob) dead() bool { return j.status == outbox.Failed || j.status == outbox.Dead }

// inLine reports whether the ordered jobs behind this one wait for it.
func (j *keyedJob) inLine() bool {
	return j.ordered && j.status != outbox.Created && !(j.dead() && j.onDeath == string(outbox.SkipDead))
}

// KeyedMachine plays random operations on the jobs of a few keys, and checks after each what docs/guides/keys.md
// promises. Unlike Machine, it does not predict what is stored: it checks the database against rules that are written
// from the promises, and not from the statements.
type KeyedMachine struct {
	Streamed bool      // whether jobs are streamed; set before Reset
	Tenant   outbox.ID // of all jobs; set before Reset

	db       *pgxpool.Pool
	q        *sqlgen.Queries
	operator *operator.Operator

	known  []outbox.ID // every job that was accepted
	open   map[outbox.ID]*keyedJob
	closed map[outbox.ID]outbox.Status
	parked map[string]bool
	// dirty are the keys in which a process had freed a slot when it died: until the reaper's sweep, their jobs may
	// wait although they could run.
	dirty  map[string]bool
	ops    int
	resets int
}

// NewKeyed returns a machine. The caller calls Reset before the first operation.
func NewKeyed(db *pgxpool.Pool) *KeyedMachine {
	return &KeyedMachine{Tenant: outbox.RootTenant, db: db, q: sqlgen.New(db), operator: operator.New(db)}
}

// Reset empties the outbox and the machine's state. It deletes every job of the database.
func (m *KeyedMachine) Reset(ctx context.Context) error {
	m.known, m.dirty = nil, map[string]bool{}
	m.open, m.closed, m.parked = nil, nil, nil
	m.resets++
	return empty(ctx, m.db, m.resets, "outbox.jobs", "outbox.history", "outbox.attempts", "outbox.keys",
		"outbox.events")
}

// Ops returns how many operations have been done and checked since NewKeyed.
func (m *KeyedMachine) Ops() int { return m.ops }

// Operations returns the operations by name.
func (m *KeyedMachine) Operations() map[string]Operation {
	operations := map[string]Operation{
		"enqueue":         m.enqueue,
		"enqueue again":   m.enqueue,
		"submit":          m.submit,
		"release":         m.release,
		"claim":           m.claim,
		"claim again":     m.claim, // most need a lease
		"succeed":         m.succeed,
		"fail":            m.fail,
		"snooze":          m.snooze,
		"leases lapse":    m.lapse,
		"cancel":          m.cancel,
		"retry by hand":   m.retry,
		"dismiss":         m.dismiss,
		"unblock":         m.unblock,
		"deadlines come":  m.expire,
		"jobs become due": m.becomeDue,
		"heads grow cold": m.parkLater,
		"sweep":           m.sweep,
		"everything ends": m.drain,
	}
	for name, do := range operations {
		operations[name] = func(ctx context.Context, d Draws) (bool, error) {
			err := m.look(ctx) // for the first operation; check has looked for the others
			done := false
			if err == nil {
				done, err = do(ctx, d)
			}
			if err == nil && done {
				err = m.check(ctx)
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

const (
	openKeyed = `
		SELECT id, key, status::text, coalesce(max_active, 1), coalesce(ordered, false), coalesce(line_position, 0), coalesce(on_death, ''),
		       park_after IS NOT NULL, priority, (extract(epoch FROM run_at) * 1000000)::bigint, (extract(epoch FROM created_at) * 1000000)::bigint,
		       epoch, run_at <= now(), coalesce(deadline <= now(), false)
		FROM outbox.jobs`
	closedKeyed = `SELECT id, status::text FROM outbox.history`
	parkedKeys  = `SELECT key FROM outbox.keys WHERE parked_at IS NOT NULL`
)

// look reads the whole database, in one round trip.
func (m *KeyedMachine) look(ctx context.Context) error {
	m.open, m.closed, m.parked = map[outbox.ID]*keyedJob{}, map[outbox.ID]outbox.Status{}, map[string]bool{}
	batch := &pgx.Batch{}
	batch.Queue(openKeyed).Query(func(rows pgx.Rows) error {
		var j keyedJob
		_, err := pgx.ForEachRow(rows, []any{
			&j.id, &j.key, (*string)(&j.status), &j.limit, &j.ordered, &j.position, &j.onDeath, &j.parkAfter,
			&j.priority,
			&j.runAt, &j.createdAt, &j.epoch, &j.due, &j.late,
		}, func() error {
			copied := j
			m.open[j.id] = &copied
			return nil
		})
		return err
	})
	batch.Queue(closedKeyed).Query(func(rows pgx.Rows) error {
		var id outbox.ID
		var status outbox.Status
		_, err := pgx.ForEachRow(rows, []any{&id, (*string)(&status)}, func() error {
			if m.closed[id] != "" {
				return fmt.Errorf("job %s closed twice", id)
			}
			m.closed[id] = status
			return nil
		})
		return err
	})
	batch.Queue(parkedKeys).Query(func(rows pgx.Rows) error {
		var key string
		_, err := pgx.ForEachRow(rows, []any{&key}, func() error { m.parked[key] = true; return nil })
		return err
	})
	return m.db.SendBatch(ctx, batch).Close()
}

// where returns the open jobs that satisfy is, in the order of creation.
func (m *KeyedMachine) where(is func(*keyedJob) bool) []*keyedJob {
	var jobs []*keyedJob
	for _, id := range m.known {
		if j := m.open[id]; j != nil && is(j) {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

func (m *KeyedMachine) of(key string) []*keyedJob {
	return m.where(func(j *keyedJob) bool { return j.key == key })
}

// head returns the first ordered job of a key, nil if there is none.
func head(jobs []*keyedJob) *keyedJob {
	var first *keyedJob
	for _, j := range jobs {
		if j.inLine() && (first == nil || before(j, first)) {
			first = j
		}
	}
	return first
}

func before(a, b *keyedJob) bool {
	if a.position != b.position {
		return a.position < b.position
	}
	return slices.Compare(a.id[:], b.id[:]) < 0
}

func count(jobs []*keyedJob, is func(*keyedJob) bool) (n int) {
	for _, j := range jobs {
		if is(j) {
			n++
		}
	}
	return n
}

func running(j *keyedJob) bool { return j.status == outbox.Running }
