package report

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	recordInterval = 250 * time.Millisecond // between stores of reports that no handler waits for
	recordPatience = 3 * time.Second        // of a handler that waits for a job whose row is locked
)

// Conns is how many connections a recorder uses: one writes, one reads.
const Conns = 2

// Statements lists the statements of a recorder.
type Statements interface {
	RecordReports(context.Context, sqlgen.RecordReportsParams) ([]sqlgen.RecordReportsRow, error)
	FindCheckpoint(context.Context, pgtype.UUID) ([]sqlgen.FindCheckpointRow, error)
	FindStep(context.Context, pgtype.UUID, string) ([][]byte, error)
	FindFailedSpans(context.Context, []pgtype.UUID) ([]sqlgen.FindFailedSpansRow, error)
}

// Config is what a recorder needs.
type Config struct {
	DB      Statements
	Health  *health.Health
	Log     *slog.Logger
	Timeout time.Duration // of a statement that reads
	Most    int           // attempts in a statement; four times as many that are over wait here, then workers wait
	Bytes   int           // of reports in a statement; one attempt's may be more
	// Bound returns the context of a statement that stores.
	Bound    func() (context.Context, context.CancelFunc)
	Settling context.Context // while it lasts, reports that are not stored are tried again
	OnDone   func(Owner)     // takes an attempt that is over, after its last report is stored
}

// Recorder stores what the attempts of this process report: everything that there is to store in one statement, and one
// statement at a time. So handlers use no more than one connection for it, however much they report, and no report is
// stored twice at once. Jobs that report nothing never use the recorder.
type Recorder struct {
	Config
	wake     slot.Slot     // look again
	reading  chan struct{} // holds a token for each read under way
	ended    chan struct{} // holds a token for each attempt that is over, to be settled after its last report
	stopping atomic.Bool

	mu     sync.Mutex
	dirty  map[*Reports]struct{} // attempts with something to store
	urgent map[*Reports]struct{} // those of them whose handlers wait for it, or are over

	// Only Run uses the following fields.
	passed time.Time // when all of dirty was taken last
	resume time.Time // nothing is tried before: the database was unreachable
	retry  backoff.Backoff
	most   int // attempts in the next statement
}

// NewRecorder returns a recorder that stores nothing until Run is called.
func NewRecorder(c Config) *Recorder {
	return &Recorder{
		Config:  c,
		wake:    slot.New(),
		reading: make(chan struct{}, 1),
		ended:   make(chan struct{}, 4*c.Most),
		dirty:   map[*Reports]struct{}{},
		urgent:  map[*Reports]struct{}{},
		most:    c.Most,
	}
}

// Stop lets Run return when everything is stored. No attempt may report or end after it.
func (r *Recorder) Stop() {
	r.stopping.Store(true)
	r.wake.Set()
}

func (r *Recorder) add(a *Reports, urgent bool) {
	r.mu.Lock()
	r.dirty[a] = struct{}{}
	if urgent {
		r.urgent[a] = struct{}{}
	}
	r.mu.Unlock()
	r.wake.Set()
}

// take returns the attempts whose reports must be stored now, and when to look again.
func (r *Recorder) take(now time.Time) (due []*Reports, wait time.Duration) {
	if now.Before(r.resume) && r.Settling.Err() == nil { // else each attempt that is over gets a last try
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

// Run stores reports until Stop is called, and then the last ones.
func (r *Recorder) Run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer context.AfterFunc(r.Settling, r.wake.Set)() // Run may be waiting for another try
	for {
		due, wait := r.take(time.Now())
		if len(due) > 0 {
			r.store(due)
			for _, a := range due {
				r.handOn(a)
			}
			continue
		}
		if r.stopping.Load() && len(r.ended) == 0 {
			return
		}
		timer.Reset(wait)
		select {
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// store stores the reports of attempts in as many statements as their size requires. It puts back those that have more
// to store, or must be stored again.
func (r *Recorder) store(due []*Reports) {
	for len(due) > 0 {
		now := time.Now()
		batch := newBatch(min(len(due), r.most))
		n := 0
		for n < len(due) && len(batch.attempts) < r.most && batch.size < r.Bytes {
			batch.add(due[n], now)
			n++
		}
		if r.storeBatch(batch) == away {
			break
		}
		due = due[n:]
	}
	for _, a := range due { // the database is unreachable
		r.putBack(a)
	}
}

// putBack makes Run store what an attempt has left with all the others, within recordInterval: its row may be locked.
func (r *Recorder) putBack(a *Reports) {
	if left, _ := a.state(); left {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dirty[a] = struct{}{}
	}
}

// answer is the result of a statement.
type answer int

const (
	answered  answer = iota // the reports are stored, skipped or refused
	lockedOut               // the statement waited too long for one attempt's row
	away                    // the database cannot be asked now
)

// storeBatch sends one statement. If the database refuses its content, storeBatch tries the attempts one by one, so
// that one job's reports do not block those of the others.
func (r *Recorder) storeBatch(batch *batch) answer {
	if len(batch.attempts) == 0 {
		return answered
	}
	ctx, cancel := r.Bound()
	rows, err := r.DB.RecordReports(ctx, batch.params)
	cancel()
	switch {
	case err == nil:
		r.Health.OK()
		r.retry.Reset()
		r.most = min(2*r.most, r.Most)
		r.apply(batch, rows)
	case passes(err):
		if pgsession.State(err) == "" && !pgsession.IsUnreachable(err) { // it may have been too large for its deadline
			r.most = max(len(batch.attempts)/2, 1)
		}
		return r.retryLater(batch, err)
	case len(batch.attempts) > 1:
		return r.storeApart(batch, err)
	case pgsession.IsLockedOut(err): // the row of its progress, locked by none of our statements
		batch.attempts[0].foundLocked(false)
		r.putBack(batch.attempts[0])
		return lockedOut
	case pgsession.IsUnacceptable(err) && batch.attempts[0].spellInASCII():
		r.putBack(batch.attempts[0])
	default:
		a := batch.attempts[0]
		r.Log.LogAttrs(context.Background(), slog.LevelWarn, "reports refused",
			a.Owner.Attrs("reports_refused", slog.Any("err", err))...)
		a.giveUp(batch.revisions[0], err)
		r.putBack(a)
	}
	return answered
}

// storeApart stores each attempt's reports in a statement of its own. If two of them are locked out, the lock is not on
// a row of theirs: a table is locked.
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
	r.resume = time.Now().Add(r.retry.Next())
	return away
}

// passes reports whether an error is the database's own trouble, which passes, and not caused by the reports.
func passes(err error) bool {
	// A missing schema or a missing privilege would keep the reports here without end.
	return !pgsession.IsForbidden(err) && !pgsession.RefusesTheRow(err)
}

// apply processes the answer for each attempt's reports.
func (r *Recorder) apply(batch *batch, rows []sqlgen.RecordReportsRow) {
	answers := make(map[engine.Fence]sqlgen.RecordReportsRow, len(rows))
	for _, row := range rows {
		answers[engine.FenceOf(row.ID.Bytes, row.Epoch, row.StartedAt.Time)] = row
	}
	for i, a := range batch.attempts {
		switch answer := answers[engine.FenceOf(a.job.ID, a.job.Epoch, a.job.StartedAt)]; {
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

// handOn sends an attempt that is over to the settler if it has nothing left to store, or if that cannot be stored:
// then it loses these reports, not its outcome.
func (r *Recorder) handOn(a *Reports) {
	left, at := a.state()
	switch {
	case at != over, left && !r.givesUp(a):
		return
	case left:
		r.Log.LogAttrs(context.Background(), slog.LevelWarn, "last reports not stored",
			a.Owner.Attrs("reports_lost")...)
		a.giveUp(math.MaxInt64, errAttemptOver)
	}
	a.leave() // a statement that End has overtaken may bring it here, and so may the entry that End makes
	r.OnDone(a.Owner)
	<-r.ended
}

// givesUp reports whether the last reports of an attempt that is over are dropped. A lock may keep them longer than
// those of a handler: only the outcome waits.
func (r *Recorder) givesUp(a *Reports) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	locked := a.record.lockedSince
	return r.Settling.Err() != nil || !locked.IsZero() && time.Since(locked) > 10*recordPatience
}

// read runs one read at a time, and repeats it while the database is unreachable and ctx lasts.
func (r *Recorder) read(ctx context.Context, query func(context.Context, Statements) error) error {
	var retry backoff.Backoff
	for {
		select {
		case r.reading <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		bound, cancel := context.WithTimeout(ctx, r.Timeout)
		err := query(bound, r.DB)
		cancel()
		<-r.reading
		if err == nil || !passes(err) {
			return err
		}
		if cause := retry.Wait(ctx); cause != nil {
			return errors.Join(cause, err)
		}
	}
}
