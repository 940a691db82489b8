package dispatcher

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	settlers    = 2 // one gathers while the other waits for the database
	settleBatch = 2000
	settleBytes = 16 << 20 // of payloads and results, so that the statement fits into its time
	settleDelay = 2 * time.Millisecond
	// While a batch is under way, the next one goes on growing for this long: a
	// large batch costs the server a fifth less a job than a small one.
	settlePatience = 8 * time.Millisecond
)

// settle stores outcomes in batches until the channel is closed and empty.
func (d *Dispatcher) settle() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch := d.gather(timer)
		if len(batch) == 0 {
			return
		}
		d.settling.Add(1)
		d.settleBatch(batch)
		d.settling.Add(-1)
	}
}

// gather waits for outcomes and returns a batch that is full or has waited long
// enough; an empty one at the end. One settler gathers at a time: two that share
// the stream would send two small batches instead of a large one.
func (d *Dispatcher) gather(timer *time.Timer) []*attempt {
	d.gathering.Lock()
	defer d.gathering.Unlock()
	first, open := <-d.settled
	if !open {
		return nil
	}
	batch := append(make([]*attempt, 0, settleBatch), first)
	started, size := time.Now(), first.size()
	timer.Reset(settleDelay)
	for len(batch) < settleBatch && size < settleBytes {
		select {
		case a, open := <-d.settled:
			if !open {
				return batch
			}
			batch = append(batch, a)
			size += a.size()
		case <-timer.C:
			if d.settling.Load() == 0 || time.Since(started) >= settlePatience {
				return batch
			}
			timer.Reset(settleDelay / 2)
		}
	}
	return batch
}

// settleBatch stores every outcome of the batch, however long the database is
// away: nothing is given up while the process lives. The leases are extended
// meanwhile by nobody who could not reach the database either; what lapses is
// refused by the fence.
//
// Every statement that waits for the rows of several jobs waits for them in the
// order of their ids (but for one that gives up: settleInPlace). Also one whose leases were lost locks what it looks at, because
// Postgres locks a row before it judges its newest version, so two settlements of the
// same two jobs could otherwise wait for each other:
//
//	ours     snapshot: q and r are ours
//	                      reaper, another's claim: q and r are another's
//	ours     q: locked, not ours
//	                      another's settlement: r settled; q: waits for us
//	ours     r: waits for the other                                 → deadlock
func (d *Dispatcher) settleBatch(batch []*attempt) {
	slices.SortFunc(batch, byID)
	d.metrics.settleBatch.Observe(float64(len(batch)))
	var succeeded, followed, unfinished, unavailable []*attempt
	for _, a := range batch {
		switch {
		case a.outcome.outageLimit > 0:
			unavailable = append(unavailable, a)
		case a.outcome.status != outbox.Succeeded:
			unfinished = append(unfinished, a)
		case a.follows:
			followed = append(followed, a)
		default:
			succeeded = append(succeeded, a)
		}
	}
	d.store(succeeded, d.storeSucceeded)
	d.store(followed, d.storeFollowed)
	d.store(unfinished, d.storeUnfinished)
	d.store(unavailable, d.storeUnavailable)
	d.promoter.left(batch)
	d.madeRoom(batch)
}

func byID(a, b *attempt) int { return bytes.Compare(a.job.ID[:], b.job.ID[:]) }

type storeFunc func(context.Context, []*attempt) ([]pgtype.UUID, error)

// store retries until the statement goes through or the process is told to stop
// waiting. What the database refuses because of a row is taken apart, so that one
// job cannot hold up the others; what does not go through for another reason (no
// answer in time, a message too large) is tried in halves.
func (d *Dispatcher) store(batch []*attempt, statement storeFunc) {
	var retry backoff.Backoff
	for tries := 1; len(batch) > 0; tries++ {
		ctx, cancel := bounded(context.Background())
		stored, err := statement(ctx, batch)
		cancel()
		if err == nil {
			d.health.OK()
			d.report(batch, stored, tries > 1)
			d.leases.remove(batch)
			return
		}
		if pgsession.RefusesTheRow(err) { // the row's fault, not the database's
			d.log.LogAttrs(ctx, slog.LevelWarn, "settle failed", slog.Int("jobs", len(batch)), slog.Any("err", err))
		} else {
			d.health.Failed(err)
			d.health.Complain(ctx, "settle failed", err, slog.Int("jobs", len(batch)))
		}
		switch {
		case pgsession.IsNoPartition(err):
			d.ensureHistory()
		case pgsession.RefusesTheRow(err) && len(batch) == 1:
			d.storeRefused(batch[0], statement, err)
			return
		case pgsession.RefusesTheRow(err):
			for i := range batch {
				d.store(batch[i:i+1], statement)
			}
			return
		case tries > 1 && len(batch) > 1 && !pgsession.IsUnreachable(err):
			d.store(batch[:len(batch)/2], statement)
			d.store(batch[len(batch)/2:], statement)
			return
		}
		if d.phase.isCutOff() && tries >= 3 { // shutting down, the grace period is over: the leases lapse
			d.log.LogAttrs(ctx, slog.LevelError, "outcomes not stored: the jobs will run again", slog.Int("jobs", len(batch)))
			d.leases.remove(batch)
			return
		}
		d.health.rest(retry.Next(), err)
	}
}

// storeRefused deals with one outcome that the database refuses. A row that is
// locked will be free some day, and what a trigger refuses it may take tomorrow. A
// success that can never be stored as it is becomes failed, without its result and
// its follow-ups: the job waits for a person, with the reason, and when it is run
// again its handler asks for both again. Of other outcomes only the error can be at
// fault: a database whose encoding is not UTF-8 takes it in ASCII. Nothing is lost in
// silence.
func (d *Dispatcher) storeRefused(a *attempt, statement storeFunc, err error) {
	switch {
	case !pgsession.IsUnacceptable(err):
		d.parked <- a // still held: its lease goes on
	case a.outcome.status == outbox.Succeeded:
		code := outbox.CodeResultNotStored
		if a.follows { // one of these, or the result: the message tells
			code = outbox.CodeFollowUpsNotStored
		}
		a.err = Discard(&codedError{code, err})
		a.job.Result = nil
		a.outcome = decide(a.job, a.route.config.Retry, a.err, nil)
		d.store([]*attempt{a}, d.storeUnfinished)
	case a.outcome.spellInASCII():
		d.store([]*attempt{a}, statement)
	default:
		d.parked <- a
	}
}

// ensureHistory makes the partition of today: no reaper did in time.
func (d *Dispatcher) ensureHistory() {
	ctx, cancel := bounded(context.Background())
	defer cancel()
	if _, err := d.db.EnsureHistory(ctx, 1); err != nil {
		d.log.LogAttrs(ctx, slog.LevelError, "history partition not created", slog.Any("err", err))
	}
}

// storeSucceeded stores those that are where their claims have left them first, which
// costs the server less than to look for them, and then the others.
func (d *Dispatcher) storeSucceeded(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	stored, left, err := d.storeInPlace(ctx, batch)
	if err != nil {
		return nil, fmt.Errorf("settle %d succeeded jobs: %w", len(batch), err)
	}
	if len(left) > 0 {
		p := sqlgen.SettleSucceededParams{
			Ids:     make([]pgtype.UUID, len(left)),
			Epochs:  make([]int64, len(left)),
			Results: make([][]byte, len(left)),
		}
		for i, a := range left {
			p.Ids[i], p.Epochs[i], p.Results[i] = pgID(a.job.ID), a.job.Epoch, a.job.Result
		}
		others, err := d.db.SettleSucceeded(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("settle %d succeeded jobs: %w", len(left), err)
		}
		stored = append(stored, others...)
	}
	return d.closeCalledOff(ctx, batch, stored)
}

func (d *Dispatcher) storeUnfinished(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	p := sqlgen.SettleUnfinishedParams{Worker: d.worker}
	for _, a := range batch {
		o := a.outcome
		p.Ids = append(p.Ids, pgID(a.job.ID))
		p.Epochs = append(p.Epochs, a.job.Epoch)
		p.Statuses = append(p.Statuses, string(o.status))
		p.Delays = append(p.Delays, pgtype.Interval{Microseconds: o.delay.Microseconds(), Valid: !o.keepDue})
		p.ErrorCodes = append(p.ErrorCodes, o.code)
		p.ErrorMessages = append(p.ErrorMessages, o.message)
		p.Stacks = append(p.Stacks, o.stack)
		p.Fingerprints = append(p.Fingerprints, a.fingerprint())
	}
	stored, err := d.db.SettleUnfinished(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("settle %d unfinished jobs: %w", len(batch), err)
	}
	return d.closeCalledOff(ctx, batch, stored)
}

// returnUnstarted gives back a job that was claimed and not started.
func (d *Dispatcher) returnUnstarted(a *attempt) {
	a.outcome = outcome{status: outbox.Pending, keepDue: true}
	a.unused = true
	d.settled <- a
}

// settleParked stores, one by one, the outcomes that the database refuses: most
// of them because somebody keeps the row locked. They hold up nobody but each other.
// When all jobs are over nothing else is left to do: then what is refused for another
// reason gets three more tries, and a lock is waited for until the grace period is over.
func (d *Dispatcher) settleParked(afterJobs context.Context) {
	var parked []*attempt
	var retry backoff.Backoff
	for in, last := d.parked, 0; in != nil || len(parked) > 0; {
		if len(parked) == 0 {
			if a, open := <-in; open {
				parked = append(parked, a)
			} else {
				in = nil
			}
			continue
		}
		for more := in != nil; more; {
			select {
			case a, open := <-in:
				if more = open; open {
					parked = append(parked, a)
				} else {
					in = nil
				}
			default:
				more = false
			}
		}
		kept, mayPass := parked[:0], false
		for _, a := range parked {
			if err := d.storeParked(a); err != nil {
				kept = append(kept, a)
				mayPass = mayPass || pgsession.IsLockedOut(err) || !pgsession.RefusesTheRow(err)
			}
		}
		parked = kept
		if len(parked) == 0 {
			retry.Reset()
			continue
		}
		if d.phase.isCutOff() || in == nil && !mayPass {
			if last++; last >= 3 {
				d.log.LogAttrs(d.jobs, slog.LevelError, "outcomes not stored: the jobs will run again", slog.Int("jobs", len(parked)))
				d.leases.remove(parked)
				parked = nil
				continue
			}
		}
		if retry.Wait(afterJobs) != nil {
			retry, afterJobs = backoff.Backoff{}, context.Background()
		}
	}
}

// storeParked returns why the outcome is not stored, nil if it is.
func (d *Dispatcher) storeParked(a *attempt) error {
	statement := d.storeUnfinished
	switch {
	case a.outcome.outageLimit > 0:
		statement = d.storeUnavailable
	case a.outcome.status != outbox.Succeeded:
	case a.follows:
		statement = d.storeFollowed
	default:
		statement = d.storeSucceeded
	}
	ctx, cancel := bounded(context.Background())
	defer cancel()
	stored, err := statement(ctx, []*attempt{a})
	if err != nil {
		if !pgsession.RefusesTheRow(err) {
			d.health.Failed(err)
		}
		return err
	}
	d.health.OK()
	d.report([]*attempt{a}, stored, true)
	d.leases.remove([]*attempt{a})
	d.promoter.left([]*attempt{a})
	d.madeRoom([]*attempt{a})
	return nil
}
