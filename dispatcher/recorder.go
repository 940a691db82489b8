package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	recordInterval = 250 * time.Millisecond // between stores of what nobody waits for
	recordBatch    = 500                    // attempts a statement
	recordBytes    = 4 << 20                // reports a statement
	recordPatience = 3 * time.Second        // of whoever waits for a job whose row is locked
	lastPatience   = 30 * time.Second       // of an attempt that is over, with any lock
	recorderConns  = 2                      // of the control pool: one writes, one reads
)

// recorder stores what the attempts of this process report: all that there is to
// store in one statement, one statement at a time. So handlers can take no more
// than one connection for it, however much they report, and nothing is stored
// twice at once. Jobs that report nothing never meet it.
type recorder struct {
	*Dispatcher
	ended   chan *attempt // attempts that are over, to be settled after their last report
	wake    chan struct{} // one slot: look again
	reading chan struct{} // holds a token for each read under way

	mu     sync.Mutex
	dirty  map[*attempt]struct{} // have reported something
	urgent map[*attempt]struct{} // of these, those in which somebody waits

	// The recorder's own.
	passed time.Time // when all of dirty was taken last
	resume time.Time // nothing is tried before: the database was away
	retry  backoff.Backoff
	tries  int // in a row that failed because the database was away
}

func newRecorder(d *Dispatcher) *recorder {
	return &recorder{
		Dispatcher: d,
		ended:      make(chan *attempt, settleBatch),
		wake:       make(chan struct{}, 1),
		reading:    make(chan struct{}, 1),
		dirty:      map[*attempt]struct{}{},
		urgent:     map[*attempt]struct{}{},
	}
}

func (r *recorder) add(a *attempt, urgent bool) {
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
func (r *recorder) forget(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dirty, a)
	delete(r.urgent, a)
}

// take returns the attempts whose reports are to be stored now, and when to look
// again.
func (r *recorder) take(now time.Time) (due []*attempt, wait time.Duration) {
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

// run stores reports until the channel of ended attempts is closed and empty.
func (r *recorder) run() {
	var over []*attempt // whose last reports are not stored yet
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for in := r.ended; in != nil || len(over) > 0; {
		over, in = receive(over, in)
		due, wait := r.take(time.Now())
		// What is over comes, or has come, through the channel: not twice in one statement.
		due = slices.DeleteFunc(due, (*attempt).isOver)
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
func receive(over []*attempt, in chan *attempt) ([]*attempt, chan *attempt) {
	for in != nil && len(over) < settleBatch {
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
func (r *recorder) store(due []*attempt) {
	for len(due) > 0 {
		now := time.Now()
		batch := newReports(len(due))
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

func (r *recorder) putBack(a *attempt) {
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
func (r *recorder) storeBatch(batch *reports) answer {
	if len(batch.attempts) == 0 {
		return answered
	}
	ctx, cancel := bounded(context.Background())
	rows, err := r.db.RecordReports(ctx, batch.params)
	cancel()
	switch {
	case err == nil:
		r.health.set(nil)
		r.retry.Reset()
		r.tries = 0
		r.apply(batch, rows)
	case isAway(err):
		return r.isAway(batch, err)
	case len(batch.attempts) > 1:
		return r.storeApart(batch, err)
	case pgsession.IsLockedOut(err): // the row of its progress, by nobody of ours
		batch.attempts[0].foundLocked(false)
		r.putBack(batch.attempts[0])
		return lockedOut
	default:
		a := batch.attempts[0]
		r.log.LogAttrs(r.jobs, slog.LevelWarn, "reports refused", a.attrs("reports_refused", slog.Any("err", err))...)
		a.giveUp(batch.revisions[0], err)
		r.putBack(a)
	}
	return answered
}

// storeApart stores each attempt's reports in a statement of its own. When two of
// them are locked out it is not for a row of theirs: a table is locked.
func (r *recorder) storeApart(batch *reports, err error) answer {
	locked := 0
	for _, a := range batch.attempts {
		one := newReports(1)
		one.add(a, time.Now())
		switch r.storeBatch(one) {
		case away:
			return away
		case lockedOut:
			if locked++; locked == 2 {
				return r.isAway(batch, err)
			}
		}
	}
	return answered
}

// isAway has nothing be tried again for a while.
func (r *recorder) isAway(batch *reports, err error) answer {
	if !pgsession.IsLockedOut(err) {
		r.noteError(err)
	}
	r.complain(r.jobs, "reports not stored", err, slog.Int("jobs", len(batch.attempts)))
	r.tries++
	r.resume = time.Now().Add(r.retry.Next())
	return away
}

// isAway reports whether an error is the database's trouble, which passes, and not
// that of what was to be stored.
func isAway(err error) bool {
	if state := pgsession.State(err); len(state) == 5 && (state[:2] == "3F" || state[:2] == "42") {
		return false // a schema or rights that are not there would hold the reports back for ever
	}
	return !pgsession.RefusesTheRow(err)
}

// apply notes what became of each attempt's reports.
func (r *recorder) apply(batch *reports, rows []sqlgen.RecordReportsRow) {
	answers := make(map[leaseKey]sqlgen.RecordReportsRow, len(rows))
	for _, row := range rows {
		answers[leaseKey{row.ID, row.Epoch}] = row
	}
	for i, a := range batch.attempts {
		switch answer := answers[leaseKey{pgID(a.job.ID), a.job.Epoch}]; {
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
func (r *recorder) handOn(over []*attempt) (kept []*attempt) {
	for _, a := range over {
		left, _ := a.leftToStore()
		switch {
		case !left:
		case r.givesUp(a):
			r.log.LogAttrs(r.jobs, slog.LevelWarn, "last reports not stored", a.attrs("reports_lost")...)
			a.giveUp(math.MaxInt64, errAttemptOver)
		default:
			kept = append(kept, a)
			continue
		}
		r.settled <- a
	}
	return kept
}

func (r *recorder) givesUp(a *attempt) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	locked := a.record.lockedSince
	if r.cut.Load() {
		return r.tries >= 3 || !locked.IsZero()
	}
	return !locked.IsZero() && time.Since(locked) > lastPatience
}

// read runs one read at a time, again and again while the database is away and
// ctx lasts.
func (r *recorder) read(ctx context.Context, query func(context.Context, *sqlgen.Queries) error) error {
	var retry backoff.Backoff
	for {
		select {
		case r.reading <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		bound, cancel := bounded(ctx)
		err := query(bound, r.db)
		cancel()
		<-r.reading
		if err == nil || !isAway(err) {
			return err
		}
		if cause := retry.Wait(ctx); cause != nil {
			return errors.Join(cause, err)
		}
	}
}
