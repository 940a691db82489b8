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

// A message that a sink refuses becomes a job, and so does every later message of its key for
// as long as there is such a job. One transaction stores the jobs and moves the cursor past
// them. The jobs of a key are ordered, by their positions in the log; carry.go carries them
// out. Other keys go on by the cursor.
//
// Order of a key. Only the sink's owner makes these jobs, and it knows which there are: it reads
// them when it becomes the owner, adds those that it makes, and leaves out those that a look at
// the database finds closed. A job is closed when its message is stored by the broker, or when
// an operator has decided that it never will be:
//
//	owner        2 of the key: there is job 1, so 2 becomes a job    look: both closed    3 by the cursor
//	job 1, 2                                        1 published, 2 published
//
// A look says something of the jobs that it has seen only. One that is made while it runs stays
// open in the owner's mind until the next look:
//
//	look         begins, sees job 1 closed             ends: forgets job 1, and knows nothing of 2
//	owner                                  makes job 2
//
// An owner that is killed, or whose transaction fails, leaves neither job nor cursor behind: the
// next one publishes the page again, and what is refused is refused again. One that is paused and
// replaced meanwhile stores nothing, because the transaction moves the cursor, too, and so has
// the fence of [ownership]. The transaction has the lock of the sink's row until it commits:
// what the next owner reads after it has got the sink is complete.
//
//	A (paused)   publishes 1..9, 5 is refused                              stores job 5: not ours any more
//	B                                          owns, publishes 1..9, 5 is refused, stores job 5
//
// After a failover the sink goes back, and meets events again that are jobs or were. An event
// becomes a job of a sink once: its ID is the job's idempotency key, which is kept as long as the
// job's history. So what an operator has dismissed does not come back, and a job that is open
// keeps its place. Those of its key that the cursor had published before it may become jobs now:
// they are repeats, and in order before it. An operator who moves the sink back wants it to be
// published again, to a broker that may have lost it, and one who removes the sink may have
// another broker under its name: they free the IDs of closed jobs.
//
// These transactions wait for the disk, which others of the relay do not: a job that a crash
// could lose would leave a key that is blocked without one, and a message that is lost.

// mostLookPause is how much later than usual a look at many held messages may be.
const mostLookPause = 20 * time.Second

// tenantKey is a key of a tenant.
type tenantKey struct {
	tenant outbox.ID
	key    string // not ""
}

// held is which messages of a sink are jobs.
type held struct {
	jobs    map[[16]byte]heldJob
	keys    map[tenantKey]int // how many jobs block it; not 0
	open    int               // jobs that are
	carried time.Time         // when this process has carried one out last
}

type heldJob struct {
	key    tenantKey
	blocks bool // others of the key wait for it
	open   bool // it is to be carried out: it is no dead letter, and waits for none
}

// set adds a job, or changes it.
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

// add adds a job that was just made. Whether one behind others of its key is to be carried out is for the next look:
// they may be dead letters.
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

// heldEvent is an event that is to become a job.
type heldEvent struct {
	*Event
	route *route
}

// job is what is stored of it. It is not validated as a producer's jobs are: what the log has,
// a job can have, and a few headers more.
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
		ID: pgvalue.UUID(outbox.NewID()), TenantID: pgvalue.UUID(e.Tenant), Kind: kind, Queue: kind, MaxAttempts: heldAttempts,
		Payload: e.Payload, ContentType: e.ContentType, Headers: new(string(all)),
	}
	if e.Key != "" {
		row.Key, row.Ordered, row.Position, row.OnDeath = &e.Key, new(true), &e.Position, e.route.OnRefused.onDeath()
	}
	return row, nil
}

// isBlocked reports whether messages of the key have to become jobs, because others of it are.
func (o *ownership) isBlocked(k tenantKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held.keys[k] > 0
}

// isAnyHeld reports whether messages are jobs.
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

// room is how many messages may become jobs.
func (o *ownership) room() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.publisher.maxHeld - len(o.held.jobs)
}

// hold stores that the sink has come to c, with so many messages published, and makes jobs of
// others: all of that or nothing.
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
	s.looks = false
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
			p.complain(ctx, "message passed by: the job that it was is closed", named(e, errors.New("it has been refused, or held, before")))
		}
	}
	o.noteHeld(c, s, made)
	return nil
}

// noteHeld takes what hold has stored: the cursor, the step, and the jobs that messages have become.
func (o *ownership) noteHeld(c cursor, s *step, made []sqlgen.KeepHeldRow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cursor = c
	for _, row := range made {
		o.held.add(row.JobID.Bytes, tenantKey{row.TenantID.Bytes, row.Key})
	}
	o.stored(s)
	o.turn()
	select {
	case o.publisher.heldWake <- struct{}{}:
	default:
	}
}

// lookAtHeld finds out which of the sink's jobs are closed, and which do not block their keys
// any more.
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
	o.turn()
	return nil
}

// lookPause is the time between two looks. A look returns all held messages, and while this process carries out none,
// only people change them.
func (h *held) lookPause() time.Duration {
	if time.Since(h.carried) < 2*lookInterval {
		return lookInterval
	}
	return lookInterval + min(time.Duration(len(h.jobs))*time.Millisecond, mostLookPause)
}

// carried notes that this process has carried out one of the jobs.
func (o *ownership) carried() {
	o.mu.Lock()
	o.held.carried = time.Now()
	o.mu.Unlock()
	o.poke()
}

// lookIfDue is lookAtHeld, at most once a second, and while there are such jobs. An error that
// says nothing of the connection is logged: the next look may do better.
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

// awaitHeld returns nil once the sink has jobs to carry out, or, with false, once it has none, or
// is paused. It fails once ctx has ended.
func (o *ownership) awaitHeld(ctx context.Context, some bool) error {
	for ctx.Err() == nil {
		o.mu.Lock()
		is, turned := o.held.open > 0 && !o.stands(), o.turned
		o.mu.Unlock()
		if is == some {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-turned:
		}
	}
	return ctx.Err()
}
