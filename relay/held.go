package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// mostLookPause is how much later than usual a look at many held messages may come.
const mostLookPause = 20 * time.Second

// tenantKey is a key of a tenant.
type tenantKey struct {
	tenant outbox.ID
	key    string // never ""
}

// held tracks which messages of a sink are jobs.
type held struct {
	jobs    map[[16]byte]heldJob
	keys    map[tenantKey]int // how many jobs block each key; never 0
	open    int               // how many jobs are open
	lastRun time.Time         // when this process last ran one
}

type heldJob struct {
	key    tenantKey
	blocks bool // later messages of the key wait for it
	open   bool // it is to run: it is not a dead letter, and waits for none
}

// set adds or changes a job.
func (h *held) set(id [16]byte, j heldJob) {
	h.forget(id)
	h.jobs[id] = j
	if j.open {
		h.open++
	}
	if j.blocks {
		h.keys[j.key]++
	}
}

// add adds a newly made job. If other jobs of its key precede it, the next look decides whether it is to run: they may
// be dead letters.
func (h *held) add(id [16]byte, key tenantKey) {
	h.set(id, heldJob{key, key.key != "", h.keys[key] == 0})
}

func (h *held) forget(id [16]byte) {
	was := h.jobs[id]
	delete(h.jobs, id)
	if was.open {
		h.open--
	}
	if !was.blocks {
		return
	}
	if h.keys[was.key]--; h.keys[was.key] == 0 {
		delete(h.keys, was.key)
	}
}

// heldEvent is an event that is about to become a job.
type heldEvent struct {
	*Event
	route *route
}

// job returns the row to store for the job. It does not validate it as a producer's jobs are validated: a job can hold
// what the log holds, and a few more headers.
func (e *heldEvent) job(kind string) (sqlgen.EnqueueJobParams, error) {
	about := engine.HeldEvent{ID: e.ID.String(), Topic: e.Topic, Position: e.Position, At: e.At}
	headers := map[string]string{}
	if e.fault == nil {
		maps.Copy(headers, e.Headers)
	} else {
		about.Fault = e.fault.Error()
	}
	value, err := json.Marshal(about)
	if err != nil {
		return sqlgen.EnqueueJobParams{}, err
	}
	headers[engine.HeaderHeld] = string(value)
	all, err := json.Marshal(headers)
	if err != nil {
		return sqlgen.EnqueueJobParams{}, err
	}
	row := sqlgen.EnqueueJobParams{
		ID: pgvalue.UUID(outbox.NewID()), TenantID: pgvalue.UUID(e.Tenant), Kind: kind, Queue: kind,
		MaxAttempts: heldAttempts,
		Payload:     e.Payload, ContentType: e.ContentType, Headers: new(string(all)),
	}
	if e.Key != "" {
		row.Key, row.Ordered, row.Position, row.OnDeath = &e.Key, new(true), &e.Position, e.route.OnRefused.onDeath()
	}
	return row, nil
}

// isBlocked reports whether messages of the key must become jobs because earlier ones are.
func (o *ownership) isBlocked(k tenantKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held.keys[k] > 0
}

// busiestKey names the key that blocks the most messages, if that is most of those that may be jobs: an operator who
// deals with its first message frees the sink.
func (o *ownership) busiestKey() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var of tenantKey
	for k, n := range o.held.keys {
		if n > o.held.keys[of] {
			of = k
		}
	}
	if n := o.held.keys[of]; n > o.publisher.maxHeld/2 {
		return fmt.Sprintf("; %d of them have the key %q of tenant %s", n, of.key, of.tenant)
	}
	return ""
}

// isAnyHeld reports whether any messages are jobs.
func (o *ownership) isAnyHeld() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held.jobs) > 0
}

func (o *ownership) isAnyBlocked() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.held.keys) > 0
}

// room returns how many more messages may become jobs.
func (o *ownership) room() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.publisher.maxHeld - len(o.held.jobs)
}

// hold stores in one transaction that the sink has come to c, with the given number of messages published, and the jobs
// made from events.
func (o *ownership) hold(ctx context.Context, c cursor, published int, events []heldEvent) error {
	p := o.publisher
	kind := engine.HeldKind(p.name)
	rows := make([]sqlgen.EnqueueJobParams, len(events))
	chunk, ids := make([]int, len(events)), make([]string, len(events))
	keep := sqlgen.KeepHeldParams{Sink: p.name, Kind: kind}
	for i := range events {
		var err error
		if rows[i], err = events[i].job(kind); err != nil {
			return err
		}
		chunk[i], ids[i] = i, events[i].ID.String()
		keep.TenantIds = append(keep.TenantIds, rows[i].TenantID)
		keep.Positions = append(keep.Positions, events[i].Position)
	}
	keep.EventIds = ids
	jobs := engine.Arrays(rows, chunk)

	o.storing.Lock()
	defer o.storing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	s, _ := o.step()
	s.to(c)
	s.params.Published += int64(published)
	s.params.Lazily = false
	var made []sqlgen.KeepHeldRow
	open := keep.Positions
	err := pgx.BeginFunc(ctx, o.conn, func(tx pgx.Tx) (err error) {
		q := sqlgen.New(tx)
		if err := s.advance(ctx, q); err != nil {
			return err
		}
		if err := q.EnqueueJobsOnce(ctx, jobs.Once(ids)); err != nil {
			return fmt.Errorf("make jobs of messages: %w", err)
		}
		if made, err = q.KeepHeld(ctx, keep); err == nil && len(made) < len(events) {
			open, err = q.HeldAmong(ctx, p.name, keep.Positions)
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := range events {
		if e := events[i].Event; !slices.Contains(open, e.Position) {
			p.complain(ctx, "message skipped: a job was made of it before",
				named(e, errors.New("it has been refused, or held, before")))
		}
	}
	o.noteHeld(c, s, made)
	return nil
}

// noteHeld applies what hold has stored: the cursor, the step, and the jobs made from messages.
func (o *ownership) noteHeld(c cursor, s *step, made []sqlgen.KeepHeldRow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cursor = c
	for _, row := range made {
		o.held.add(row.JobID.Bytes, tenantKey{row.TenantID.Bytes, row.Key})
	}
	o.stored(s)
	o.notifyChange()
	select {
	case o.publisher.heldWake <- struct{}{}:
	default:
	}
}

// lookAtHeld finds out which of the sink's jobs are closed, and which no longer block their keys.
func (o *ownership) lookAtHeld(ctx context.Context) error {
	p := o.publisher
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := sqlgen.New(p.pool).LookAtHeld(ctx, engine.HeldKind(p.name), p.name)
	if err != nil {
		return fmt.Errorf("look at held messages: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, row := range rows {
		if row.IsOver {
			o.held.forget(row.JobID.Bytes)
		} else {
			o.held.set(row.JobID.Bytes, heldJob{tenantKey{row.TenantID.Bytes, row.Key}, row.Blocks, row.IsOpen})
		}
	}
	p.metrics.held(&o.held)
	o.notifyChange()
	return nil
}

// lookPause returns the time between two looks. A look returns all held messages, and while this process runs none,
// only people change them.
func (h *held) lookPause() time.Duration {
	if time.Since(h.lastRun) < 2*lookInterval {
		return lookInterval
	}
	return lookInterval + min(time.Duration(len(h.jobs))*time.Millisecond, mostLookPause)
}

// noteRun records that this process has run one of the jobs.
func (o *ownership) noteRun() {
	o.mu.Lock()
	o.held.lastRun = time.Now()
	o.mu.Unlock()
	o.poke()
}

// lookIfDue calls lookAtHeld at most once a second, and only while there are such jobs. It logs an error that does not
// concern the connection, because the next look may succeed.
func (o *ownership) lookIfDue(ctx context.Context) error {
	o.mu.Lock()
	due := len(o.held.jobs) > 0 && time.Since(o.lookedAtHeld) > o.held.lookPause()
	if due {
		o.lookedAtHeld = time.Now()
	}
	o.mu.Unlock()
	if !due {
		return nil
	}
	err := o.lookAtHeld(ctx)
	if err != nil && pgsession.State(err) != "" {
		o.publisher.complain(ctx, "held messages not looked at", err)
		return nil
	}
	return err
}

// awaitHeld returns nil once the sink has jobs to run, or, if some is false, once it has none or is paused. It fails
// once ctx has ended.
func (o *ownership) awaitHeld(ctx context.Context, some bool) error {
	for ctx.Err() == nil {
		o.mu.Lock()
		is, stateChanged := o.held.open > 0 && !o.isStopped(), o.stateChanged
		o.mu.Unlock()
		if is == some {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-stateChanged:
		}
	}
	return ctx.Err()
}
