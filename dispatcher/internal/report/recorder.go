package report

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	recordInterval = 250 * time.Millisecond // between stores of what nobody waits for
	recordBatch    = 500                    // attempts a statement
	recordBytes    = 4 << 20                // reports a statement
	recordPatience = 3 * time.Second        // of a handler that waits for a job whose row is locked
	lastPatience   = 30 * time.Second       // of an attempt that is over, with any lock
	overBatch      = 2000                   // attempts that are over, before others
)

// Conns is how many connections a recorder uses: one writes, one reads.
const Conns = 2

// Statements are those of a recorder.
type Statements interface {
	RecordReports(context.Context, sqlgen.RecordReportsParams) ([]sqlgen.RecordReportsRow, error)
	FindCheckpoint(context.Context, pgtype.UUID) ([]sqlgen.FindCheckpointRow, error)
	FindStep(context.Context, pgtype.UUID, string) ([][]byte, error)
	FindFailedSpans(context.Context, []pgtype.UUID) ([]sqlgen.FindFailedSpansRow, error)
}

// Health notes what the database answers.
type Health interface {
	OK()
	Failed(error)
	Complain(ctx context.Context, message string, err error, attrs ...slog.Attr)
}

// Config is what a recorder needs.
type Config struct {
	DB      Statements
	Health  Health
	Log     *slog.Logger
	Timeout time.Duration // of a statement
	CutOff  func() bool   // the process stops waiting for what cannot be stored
	Over    func(Owner)   // takes an attempt that is over, when its last report is stored
}

// Recorder stores what the attempts of this process report: all that there is to
// store in one statement, one statement at a time. So handlers can take no more
// than one connection for it, however much they report, and nothing is stored
// twice at once. Jobs that report nothing never meet it.
type Recorder struct {
	Config
	ended   chan *Reports // attempts that are over, to be settled after their last report
	wake    chan struct{} // one slot: look again
	reading chan struct{} // holds a token for each read under way

	mu     sync.Mutex
	dirty  map[*Reports]struct{} // have reported something
	urgent map[*Reports]struct{} // of these, those in which somebody waits

	// The recorder's own.
	passed time.Time // when all of dirty was taken last
	resume time.Time // nothing is tried before: the database was away
	retry  backoff.Backoff
	tries  int // in a row that failed because the database was away
}

// NewRecorder returns a recorder that stores nothing before it runs.
func NewRecorder(c Config) *Recorder {
	return &Recorder{
		Config:  c,
		ended:   make(chan *Reports, overBatch),
		wake:    make(chan struct{}, 1),
		reading: make(chan struct{}, 1),
		dirty:   map[*Reports]struct{}{},
		urgent:  map[*Reports]struct{}{},
	}
}

// Stop lets Run return when everything is stored. No attempt may report or end after it.
func (r *Recorder) Stop() { close(r.ended) }

func (r *Recorder) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, r.Timeout)
}

func (r *Recorder) add(a *Reports, urgent bool) {
	r.mu.Lock()
	r.dirty[a] = struct{}{}
	if urgent {
		r.urgent[a] = struct{}{}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// forget leaves an attempt that is over to the channel of those.
func (r *Recorder) forget(a *Reports) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dirty, a)
	delete(r.urgent, a)
}

// take returns the attempts whose reports are to be stored now, and when to look
// again.
func (r *Recorder) take(now time.Time) (due []*Reports, wait time.Duration) {
	if now.Before(r.resume) {
		return nil, r.resume.Sub(now)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	from := r.urgent
	if now.Sub(r.passed) >= recordInterval {
		from, r.passed = r.dirty, now
	}
	for a := range from {
		due = append(due, a)
		delete(r.dirty, a)
		delete(r.urgent, a)
	}
	if len(r.dirty) == 0 {
		return due, time.Hour
	}
	return due, r.passed.Add(recordInterval).Sub(now)
}

// Run stores reports until Stop, and then the last ones.
func (r *Recorder) Run() {
	var over []*Reports // whose last reports are not stored yet
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for in := r.ended; in != nil || len(over) > 0; {
		over, in = receive(over, in)
		due, wait := r.take(time.Now())
		// What is over comes, or has come, through the channel: not twice in one statement.
		due = slices.DeleteFunc(due, (*Reports).isOver)
		if now := time.Now(); !now.Before(r.resume) {
			due = append(due, over...)
		}
		if len(due) == 0 {
			if in == nil && len(over) == 0 { // closed while we were storing
				return
			}
			timer.Reset(wait)
			select {
			case a, open := <-in:
				if !open {
					in = nil
				} else {
					over = append(over, a)
				}
			case <-r.wake:
			case <-timer.C:
			}
			continue
		}
		r.store(due)
		over = r.handOn(over)
		if len(over) > 0 && !time.Now().Before(r.resume) { // locked rows, not an outage
			r.resume = time.Now().Add(recordInterval / 10)
		}
	}
}

// receive takes what is in the channel, as far as there is room.
func receive(over []*Reports, in chan *Reports) ([]*Reports, chan *Reports) {
	for in != nil && len(over) < overBatch {
		select {
		case a, open := <-in:
			if !open {
				return over, nil
			}
			over = append(over, a)
		default:
			return over, in
		}
	}
	return over, in
}

// store stores the reports of attempts, in as many statements as their size asks
// for, and puts those that have more to store, or again, back.
func (r *Recorder) store(due []*Reports) {
	for len(due) > 0 {
		now := time.Now()
		batch := newBatch(len(due))
		n := 0
		for n < len(due) && len(batch.attempts) < recordBatch && batch.size < recordBytes {
			batch.add(due[n], now)
			n++
		}
		if r.storeBatch(batch) == away {
			break
		}
		due = due[n:]
	}
	for _, a := range due { // the database is away
		r.putBack(a)
	}
}

func (r *Recorder) putBack(a *Reports) {
	left, over := a.leftToStore()
	if !left || over {
		return
	}
	r.mu.Lock()
	r.dirty[a] = struct{}{}
	r.mu.Unlock()
}

// answer is what the database said to a statement.
type answer int

const (
	answered  answer = iota // it is stored, skipped or refused
	lockedOut               // it waited too long for one attempt's row
	away                    // it cannot be asked now
)

// storeBatch sends one statement. What the database refuses because of its content
// is taken apart, so that one job's reports cannot hold up the others'.
func (r *Recorder) storeBatch(batch *batch) answer {
	if len(batch.attempts) == 0 {
		return answered
	}
	ctx, cancel := r.bounded(context.Background())
	rows, err := r.DB.RecordReports(ctx, batch.params)
	cancel()
	switch {
	case err == nil:
		r.Health.OK()
		r.retry.Reset()
		r.tries = 0
		r.apply(batch, rows)
	case isUnreachable(err):
		return r.retryLater(batch, err)
	case len(batch.attempts) > 1:
		return r.storeApart(batch, err)
	case pgsession.IsLockedOut(err): // the row of its progress, by nobody of ours
		batch.attempts[0].foundLocked(false)
		r.putBack(batch.attempts[0])
		return lockedOut
	case pgsession.IsUnacceptable(err) && batch.attempts[0].spellInASCII():
		r.putBack(batch.attempts[0])
	default:
		a := batch.attempts[0]
		r.Log.LogAttrs(context.Background(), slog.LevelWarn, "reports refused", a.Owner.Attrs("reports_refused", slog.Any("err", err))...)
		a.giveUp(batch.revisions[0], err)
		r.putBack(a)
	}
	return answered
}

// storeApart stores each attempt's reports in a statement of its own. When two of
// them are locked out it is not for a row of theirs: a table is locked.
func (r *Recorder) storeApart(batch *batch, err error) answer {
	locked := 0
	for _, a := range batch.attempts {
		one := newBatch(1)
		one.add(a, time.Now())
		switch r.storeBatch(one) {
		case away:
			return away
		case lockedOut:
			if locked++; locked == 2 {
				return r.retryLater(batch, err)
			}
		}
	}
	return answered
}

// retryLater backs off: nothing is stored for a while.
func (r *Recorder) retryLater(batch *batch, err error) answer {
	if !pgsession.IsLockedOut(err) {
		r.Health.Failed(err)
	}
	r.Health.Complain(context.Background(), "reports not stored", err, slog.Int("jobs", len(batch.attempts)))
	r.tries++
	r.resume = time.Now().Add(r.retry.Next())
	return away
}

// isUnreachable reports whether an error is the database's trouble, which passes, and not
// that of what was to be stored.
func isUnreachable(err error) bool {
	// A schema or rights that are not there would hold the reports back for ever.
	return !pgsession.IsForbidden(err) && !pgsession.RefusesTheRow(err)
}

// claimKey names a claim of a job.
type claimKey struct {
	id    pgtype.UUID
	epoch int64
}

// apply notes what became of each attempt's reports.
func (r *Recorder) apply(batch *batch, rows []sqlgen.RecordReportsRow) {
	answers := make(map[claimKey]sqlgen.RecordReportsRow, len(rows))
	for _, row := range rows {
		answers[claimKey{row.ID, row.Epoch}] = row
	}
	for i, a := range batch.attempts {
		switch answer := answers[claimKey{pgvalue.UUID(a.job.ID), a.job.Epoch}]; {
		case answer.Recorded:
			a.recorded(batch.revisions[i], answer.LogStart)
		case answer.Lost:
			a.lost()
		default:
			a.foundLocked(true)
		}
		r.putBack(a)
	}
}

// handOn sends the attempts that have nothing left to store to be settled, and
// those whose last reports cannot be stored, which costs them those, not their
// outcome. It returns the others.
func (r *Recorder) handOn(over []*Reports) (kept []*Reports) {
	for _, a := range over {
		left, _ := a.leftToStore()
		switch {
		case !left:
		case r.givesUp(a):
			r.Log.LogAttrs(context.Background(), slog.LevelWarn, "last reports not stored", a.Owner.Attrs("reports_lost")...)
			a.giveUp(math.MaxInt64, errAttemptOver)
		default:
			kept = append(kept, a)
			continue
		}
		r.Over(a.Owner)
	}
	return kept
}

func (r *Recorder) givesUp(a *Reports) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	locked := a.record.lockedSince
	if r.CutOff() {
		return r.tries >= 3 || !locked.IsZero()
	}
	return !locked.IsZero() && time.Since(locked) > lastPatience
}

// read runs one read at a time, again and again while the database is away and
// ctx lasts.
func (r *Recorder) read(ctx context.Context, query func(context.Context, Statements) error) error {
	var retry backoff.Backoff
	for {
		select {
		case r.reading <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		bound, cancel := r.bounded(ctx)
		err := query(bound, r.DB)
		cancel()
		<-r.reading
		if err == nil || !isUnreachable(err) {
			return err
		}
		if cause := retry.Wait(ctx); cause != nil {
			return errors.Join(cause, err)
		}
	}
}
