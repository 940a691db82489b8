// Package report stores what running handlers report: progress, lines of a log, checkpoints and results of steps.
//
// Reports belongs to one attempt and keeps only the newest of what the database does not have yet. The Recorder of a
// process stores all of them with one statement at a time: every quarter of a second, or at once if a handler waits for
// it. Every statement names the epoch of the claim, so that an attempt whose lease is lost stores nothing.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Owner is the attempt that makes the reports.
type Owner interface {
	LeaseLost() bool
	LoseLease()                                        // ends the context of the handler
	Attrs(event string, more ...slog.Attr) []slog.Attr // for its log lines
}

// Reports collects what one attempt reports. It is the [engine.Recorder] of its job.
type Reports struct {
	Owner    Owner
	job      *outbox.Claimed
	recorder *Recorder

	mu     sync.Mutex
	record *record // nil if there is nothing yet
	phase  phase
}

// phase says how far an attempt has come. It only moves on.
type phase int

const (
	running phase = iota
	over          // no more reports are accepted, and the recorder stores the last ones
	gone          // no more reports are accepted, and the recorder has handed the attempt on, or never had it
)

// Begin initializes r, which is zero, with an attempt at the job.
func (r *Reports) Begin(owner Owner, job *outbox.Claimed, recorder *Recorder) {
	r.Owner, r.job, r.recorder = owner, job, recorder
	engine.InternalOf(job).Recorder = r
}

// record holds what an attempt has reported, the database does not have yet, and a reader could still see: the newest
// progress and checkpoint, and the newest lines. So it stays small however long the database is unreachable.
type record struct {
	revision int64 // rises with every report
	stored   int64 // nothing is left to store up to this revision

	progress   progress
	checkpoint checkpoint
	lines      []logLine
	lineCount  int64 // lines of this attempt, including those that are stored
	logStart   int16 // position of the first of them in the database; -1 if unknown
	steps      []stepResult

	durable     []*durable      // writes whose callers wait for them
	saved       bool            // a checkpoint of this attempt may be stored
	names       map[string]bool // steps of this attempt: true while they may not be called again
	lockedSince time.Time       // since when the job's row has been found locked; zero if it was not
}

type progress struct {
	current, total int64
	message        string
	at             time.Time
	revision       int64
}

type checkpoint struct {
	encoded  []byte // nil if there is nothing to store
	revision int64
}

// logLine and stepResult have the form that RecordReports takes.
type logLine struct {
	Line    int64  `json:"line"`
	Age     string `json:"age"`
	Level   string `json:"level"`
	Message string `json:"message"`

	at       time.Time // Age is computed from it when the line is sent
	revision int64
}

type stepResult struct {
	Name   string `json:"name"`
	Took   string `json:"took"`
	Result []byte `json:"result"`

	revision int64
}

// durable is a write whose caller waits for it.
type durable struct {
	revision int64
	done     chan error // has room for the one answer
}

var (
	errAttemptOver = errors.New("the attempt is over: its handler has returned")
	errRowLocked   = errors.New(
		"the job's row is locked; if the handler's own transaction has called Guard or Complete, end it first")
)

var _ engine.Recorder = (*Reports)(nil)

func (a *Reports) Progress(current, total int64, message string) error {
	now := time.Now()
	_, err := a.note(false, func(r *record) {
		r.progress = progress{current, total, message, now, r.revision}
	})
	return err
}

func (a *Reports) Log(level slog.Level, message string) error {
	now := time.Now()
	_, err := a.note(false, func(r *record) {
		if len(r.lines) == engine.MaxLogLines { // the database would overwrite the oldest one anyway
			r.lines = slices.Delete(r.lines, 0, 1)
		}
		r.lines = append(r.lines, logLine{
			Line: r.lineCount, Level: level.String(), Message: message, at: now,
			revision: r.revision,
		})
		r.lineCount++
	})
	return err
}

func (a *Reports) SaveCheckpoint(ctx context.Context, encoded []byte) error {
	return a.noteDurably(ctx, func(r *record) {
		r.checkpoint, r.saved = checkpoint{encoded, r.revision}, true
	})
}

// LoadCheckpoint asks the database only if there may be a checkpoint: no attempt preceded the one with epoch 1.
func (a *Reports) LoadCheckpoint(ctx context.Context) (encoded []byte, err error) {
	a.mu.Lock()
	saved := a.record != nil && a.record.saved
	a.mu.Unlock()
	if a.job.Epoch == 1 && !saved {
		return nil, nil
	}
	err = a.recorder.read(ctx, func(ctx context.Context, db Statements) error {
		found, err := db.FindCheckpoint(ctx, pgvalue.UUID(a.job.ID))
		if err == nil && len(found) == 1 {
			encoded = found[0].Checkpoint
		}
		return err
	})
	return encoded, err
}

// FailedSpans returns the span of the newest failed attempt of each job that has one.
func (a *Reports) FailedSpans(ctx context.Context, jobs []pgtype.UUID) (spans []engine.FailedSpan, err error) {
	err = a.recorder.read(ctx, func(ctx context.Context, db Statements) error {
		found, err := db.FindFailedSpans(ctx, jobs)
		for _, f := range found {
			spans = append(spans, engine.FailedSpan{TraceParent: f.Trace, Attempt: int(f.Attempt)})
		}
		return err
	})
	return spans, err
}

// Flush stores the remaining reports through the handler's own transaction, which is about to close the job. They stay
// here as well: only the commit shows that they are stored, and then the job has no row for which the recorder could
// store them again.
//
// Flush locks the row first, so that our recorder, which skips locked rows, is never in the middle of the same rows.
func (a *Reports) Flush(ctx context.Context, tx engine.DB) error {
	batch := newBatch(1)
	if !batch.add(a, time.Now()) {
		return nil
	}
	if err := a.job.Guard(ctx, tx); err != nil {
		return err
	}
	if _, err := sqlgen.New(tx).RecordReports(ctx, batch.params); err != nil {
		return fmt.Errorf("store what it has reported: %w", engine.ExplainSnapshot(err))
	}
	return nil
}

// note changes the record and notifies the recorder that there is something to store.
func (a *Reports) note(urgent bool, change func(*record)) (revision int64, err error) {
	if a.Owner.LeaseLost() { // just now: the fence would refuse later reports all the same
		return 0, outbox.ErrLeaseLost
	}
	a.mu.Lock()
	if a.phase != running {
		a.mu.Unlock()
		return 0, errAttemptOver
	}
	r := a.recordLocked()
	known := r.revision > r.stored // the recorder knows that there is something to store
	r.revision++
	revision = r.revision
	change(r)
	a.mu.Unlock()
	if !known || urgent {
		a.recorder.add(a, urgent)
	}
	return revision, nil
}

// recordLocked returns the record, and makes it when it is first needed. The caller holds the mutex.
func (a *Reports) recordLocked() *record {
	if a.record == nil {
		a.record = &record{logStart: -1, names: map[string]bool{}}
	}
	return a.record
}

// noteDurably changes the record as note does, but returns only after the change is stored.
func (a *Reports) noteDurably(ctx context.Context, change func(*record)) error {
	w := &durable{done: make(chan error, 1)}
	_, err := a.note(true, func(r *record) {
		w.revision = r.revision
		r.durable = append(r.durable, w)
		change(r)
	})
	if err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		a.mu.Lock()
		defer a.mu.Unlock()
		a.record.durable = slices.DeleteFunc(a.record.durable, func(other *durable) bool { return other == w })
		return context.Cause(ctx)
	}
}

// End ends the reports. If the last ones are still to be stored, it hands the attempt to the recorder, which passes it
// on afterwards, and reports true. It waits while the recorder has as many such attempts as it may.
func (a *Reports) End() (left bool) {
	a.mu.Lock()
	left = a.hasLeft()
	if a.phase = gone; left {
		a.phase = over
	}
	a.mu.Unlock()
	if left {
		a.recorder.ended <- struct{}{}
		a.recorder.add(a, true)
	}
	return left
}

// state reports whether there is anything to store, and how far the attempt has come.
func (a *Reports) state() (left bool, at phase) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hasLeft(), a.phase
}

// hasLeft reports whether there is anything to store. The caller holds the mutex.
func (a *Reports) hasLeft() bool { return a.record != nil && a.record.revision > a.record.stored }

// leave notes that the attempt leaves the recorder.
func (a *Reports) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase = gone
}

// drop forgets the reports up to a revision, because they are stored (err is nil) or never will be. Handlers that wait
// for them continue.
func (r *record) drop(revision int64, err error) {
	r.stored = max(r.stored, revision)
	if r.progress.revision <= revision {
		r.progress = progress{}
	}
	if r.checkpoint.revision <= revision {
		r.checkpoint = checkpoint{}
	}
	r.lines = slices.DeleteFunc(r.lines, func(l logLine) bool { return l.revision <= revision })
	r.steps = slices.DeleteFunc(r.steps, func(s stepResult) bool { return s.revision <= revision })
	r.durable = slices.DeleteFunc(r.durable, func(w *durable) bool {
		if w.revision <= revision {
			w.done <- err
		}
		return w.revision <= revision
	})
}

// recorded notes that everything up to a revision is stored.
func (a *Reports) recorded(revision int64, logStart int16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.record.drop(revision, nil)
	a.record.lockedSince = time.Time{}
	if a.record.logStart < 0 {
		a.record.logStart = logStart
	}
}

// giveUp drops reports that cannot be stored.
func (a *Reports) giveUp(revision int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.record.drop(min(revision, a.record.revision), err)
}

// spellInASCII escapes non-ASCII characters in the unstored reports, for a database whose encoding lacks them. It
// reports whether there were any.
func (a *Reports) spellInASCII() (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	escape := func(text *string, limit int) {
		escaped := pgvalue.ASCII(*text, limit)
		changed = changed || escaped != *text
		*text = escaped
	}
	escape(&a.record.progress.message, engine.MaxProgressBytes)
	for i := range a.record.lines {
		escape(&a.record.lines[i].Message, engine.MaxLogBytes)
	}
	return changed
}

// lost stops the handler: another worker has the job, or the job is closed. If the handler itself has completed it, the
// handler may go on.
func (a *Reports) lost() {
	if !engine.InternalOf(a.job).Completed.Load() {
		a.Owner.LoseLease() // first: a handler that goes on now must not report in vain afterwards
	}
	a.giveUp(math.MaxInt64, outbox.ErrLeaseLost)
}

// foundLocked lets handlers wait for a while for their reports to be stored. If the job's row is what is locked, they
// stop waiting then, because the handler itself may have locked it. The reports may still be stored later.
func (a *Reports) foundLocked(job bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.record
	switch {
	case r.lockedSince.IsZero():
		r.lockedSince = time.Now()
	case job && time.Since(r.lockedSince) > recordPatience:
		for _, w := range r.durable {
			w.done <- errRowLocked
		}
		r.durable = nil
	}
}

func microseconds(d time.Duration) string { return fmt.Sprintf("%d microseconds", d.Microseconds()) }

// beginStep takes the name of a step, and reports whether a step of that name has failed before in this attempt. The
// error says what is wrong with the name.
func (a *Reports) beginStep(name string) (again bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := a.recordLocked().names
	taken, again := names[name]
	switch {
	case taken:
		return again, fmt.Errorf("is %q, which another step of this attempt has", name)
	case !again && len(names) == engine.MaxSteps:
		return again, fmt.Errorf("is that of step %d, want at most %d of them", engine.MaxSteps+1, engine.MaxSteps)
	}
	names[name] = true
	return again, nil
}

// stepFailed frees the name of a step, so that the handler may try it again.
func (a *Reports) stepFailed(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.record.names[name] = false
}

// findStep reads the result of a step. While the database is unreachable it waits, until ctx ends.
func (a *Reports) findStep(ctx context.Context, name string) (stored [][]byte, err error) {
	err = a.recorder.read(ctx, func(ctx context.Context, db Statements) (err error) {
		stored, err = db.FindStep(ctx, pgvalue.UUID(a.job.ID), name)
		return err
	})
	return stored, err
}

// saveStep stores the result of a step that has begun.
func (a *Reports) saveStep(ctx context.Context, name string, took time.Duration, result []byte) error {
	return a.noteDurably(ctx, func(r *record) {
		r.steps = append(r.steps, stepResult{
			Name: name, Took: microseconds(took), Result: result,
			revision: r.revision,
		})
	})
}
