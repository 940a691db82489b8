package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// BatchConfig says how the jobs of a kind are gathered. The zero value is up to
// 100 jobs, gathered for at most 50 ms.
type BatchConfig struct {
	Max  int           // jobs of a batch, 1 to 1000; 0 is 100
	Wait time.Duration // for more, after the first, up to a minute; 0 is 50 ms

	// Protect opens payloads that were sealed and seals results, as [Opens] does for
	// handlers of one job; nil for none.
	Protect outbox.Protector
}

const (
	defaultBatchMax  = 100
	maxBatchMax      = 1000
	defaultBatchWait = 50 * time.Millisecond
	maxBatchWait     = time.Minute
)

func (b BatchConfig) validate() error {
	var errs []error
	if b.Max < 1 || b.Max > maxBatchMax {
		errs = append(errs, invalid("BatchConfig.Max", "is %d, want 1 to %d, or 0 for %d", b.Max, maxBatchMax, defaultBatchMax))
	}
	if b.Wait < 0 || b.Wait > maxBatchWait {
		errs = append(errs, invalid("BatchConfig.Wait", "is %s, want up to %s, or 0 for %s", b.Wait, maxBatchWait, defaultBatchWait))
	}
	return errors.Join(errs...)
}

// HandleMany registers a handler that gets up to batch.Max jobs of T's kind at
// once. It returns an outcome for each of them, in their order: nil, an error,
// [Discard], [RetryAfter], [RetryAtLeast], [Unavailable] or [Snooze], with the meaning
// that they have for [Handle]. Outcomes of another number fail every job with the code
// "outcome_count", and a panic fails every job with its stack. A job whose payload
// cannot be decoded is discarded by itself, and the handler does not see it.
//
// A batch takes one of the queue's worker slots, whatever its size, and lasts as
// long as the kind's timeout allows; a job's own Options.Timeout is not looked at.
// Its context ends with the timeout, when a shutdown's grace period is over, and
// when every job has lost its lease or was cancelled. For one of the jobs, ask
// [JobContext]. What the handler says of a job whose lease was lost is refused by
// the fence, as ever, and concerns no other job.
//
// Middleware of the mux wraps handlers of one job and does not wrap this one. A
// config that is out of bounds is a bug in the program and panics, as a second handler
// of the kind does, with an error that wraps an [*outbox.InvalidError] for each mistake.
func HandleMany[T outbox.Args](m *Mux, handler func(ctx context.Context, jobs []*outbox.Job[T]) []error, batch BatchConfig, config ...KindConfig) {
	batch.Max, batch.Wait = cmp.Or(batch.Max, defaultBatchMax), cmp.Or(batch.Wait, defaultBatchWait)
	if err := batch.validate(); err != nil {
		panic(fmt.Errorf("dispatcher: %w", err))
	}
	var zero T
	m.HandleRaw(zero.Kind(), nil, config...)
	m.routes[zero.Kind()].many = &many{BatchConfig: batch, handle: func(ctx context.Context, claimed []*outbox.Claimed) []error {
		outcomes := make([]error, len(claimed))
		jobs := make([]*outbox.Job[T], 0, len(claimed))
		places := make([]int, 0, len(claimed)) // of the jobs among the claimed
		for i, c := range claimed {
			if batch.Protect != nil {
				if err := c.Open(ctx, batch.Protect); err != nil {
					outcomes[i] = &codedError{outbox.CodeUnreadablePayload, err}
					continue
				}
			}
			job, err := decode[T](c)
			if outcomes[i] = err; err == nil {
				jobs, places = append(jobs, job), append(places, i)
			}
		}
		if len(jobs) == 0 {
			return outcomes
		}
		answers := handler(ctx, jobs)
		for i, place := range places {
			if len(answers) != len(jobs) {
				outcomes[place] = &codedError{"outcome_count", fmt.Errorf("the handler returned %d outcomes for %d jobs", len(answers), len(jobs))}
			} else {
				outcomes[place] = answers[i]
				if answers[i] == nil {
					outcomes[place] = claimed[place].SealResult(ctx)
				}
			}
		}
		return outcomes
	}}
}

// JobContext returns the context of one job of a batch, for what is done for that
// job alone: it ends with ctx, and when the job's own lease is lost, the job is
// cancelled, or its deadline has come. ctx is the
// handler's, or derived from it. In a handler of one job it is ctx itself.
func JobContext(ctx context.Context, job *outbox.Claimed) context.Context {
	b, ok := ctx.Value(batchKey{}).(*batch)
	if !ok {
		return ctx
	}
	own, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if cause := b.ended[job]; cause != nil {
		cancel(cause)
	}
	b.cancels[job] = append(b.cancels[job], cancel)
	return own
}

// many is what a kind's route has if its jobs are handled together.
type many struct {
	BatchConfig
	handle func(context.Context, []*outbox.Claimed) []error // an outcome each
}

type batchKey struct{}

// batch is jobs on their way through the process together. Until it is in the
// buffer it belongs to whoever holds gathered.mu, then to one worker.
type batch struct {
	attempts []*attempt
	timer    *time.Timer
	sent     time.Time // to the workers

	mu      sync.Mutex // after an attempt's
	cancel  context.CancelCauseFunc
	left    int                                           // jobs that may still run
	ended   map[*outbox.Claimed]error                     // why the others may not
	cancels map[*outbox.Claimed][]context.CancelCauseFunc // of their own contexts
}

// gathered is the batches of a queue that wait for more jobs. They take no slot:
// what is claimed meanwhile is what they wait for.
type gathered struct {
	mu      sync.Mutex
	open    map[*route]*batch
	onlyFor bool // the latest claim brought nothing else
}

// gather adds a claimed job to the batch of its kind, which goes to the workers
// when it is full or has waited long enough. The buffer has room for it; see
// batchRoom.
func (q *queue) gather(a *attempt) {
	g := &q.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.open[a.route]
	if b == nil {
		b = &batch{}
		if g.open == nil {
			g.open = map[*route]*batch{}
		}
		g.open[a.route] = b
		b.timer = time.AfterFunc(a.route.many.Wait, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.open[a.route] == b { // else it was full, or a stop gave it back
				q.send(a.route)
			}
		})
	}
	b.attempts = append(b.attempts, a)
	if len(b.attempts) == a.route.many.Max {
		b.timer.Stop()
		q.send(a.route)
	}
}

// send hands the open batch of a kind to the workers. gathered.mu is held.
func (q *queue) send(r *route) {
	b := q.gathered.open[r]
	delete(q.gathered.open, r)
	lead := b.attempts[0]
	lead.batch, b.sent = b, time.Now()
	q.inHand.Add(1)
	q.buffer <- lead
}

// seats is how many jobs the open batches have room for. They are asked for as
// long as all that is claimed is for batches: other jobs would have to wait for a
// worker.
func (q *queue) seats() (seats int) {
	g := &q.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.onlyFor {
		return 0
	}
	for r, b := range g.open {
		seats += r.many.Max - len(b.attempts)
	}
	return seats
}

// noteClaim remembers whether a claim was for batches only.
func (q *queue) noteClaim(claimed, forBatches int) {
	q.gathered.mu.Lock()
	defer q.gathered.mu.Unlock()
	q.gathered.onlyFor = claimed == forBatches
}

// giveBackGathered returns the jobs of open batches; the buffer may be closed then.
func (q *queue) giveBackGathered() {
	g := &q.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	for r, b := range g.open {
		b.timer.Stop()
		delete(g.open, r)
		for _, a := range b.attempts {
			q.settler.returnUnstarted(a)
		}
	}
}

// batchRoom is how much more the buffer has to hold because of batches: one that
// is open for each kind, and as many other jobs as were claimed for their seats.
func (d *Dispatcher) batchRoom() (room int) {
	for _, r := range d.routes {
		if r.many != nil {
			room += r.many.Max + 1
		}
	}
	return room
}

// bufferedAt is since when an attempt waits for a worker.
func (a *attempt) bufferedAt() time.Time {
	if a.batch != nil {
		return a.batch.sent
	}
	return a.arrived
}

// giveBack returns what was in the buffer, a job or a batch.
func (q *queue) giveBack(a *attempt) {
	q.inHand.Add(-1)
	if a.batch == nil {
		if a.tenant != nil {
			a.tenant.inHand.Add(-1)
		}
		q.settler.returnUnstarted(a)
		return
	}
	for _, one := range a.batch.attempts {
		q.settler.returnUnstarted(one)
	}
}

// attemptBatch is attempt for a batch.
func (q *queue) attemptBatch(b *batch, again func()) {
	returned := false
	var took time.Duration
	defer func() {
		if !returned {
			for _, a := range b.attempts {
				if a.outcome.status == "" { // else the handler did not see it
					a.err = errExited
					a.outcome = a.route.config.classify(failure(a.job, time.Minute, a.err), a.err)
				}
			}
			q.working.Go(again)
		}
		q.finished(nil, took)
		for _, a := range b.attempts {
			q.hand(a)
		}
	}()
	took = b.run(q)
	returned = true
}

// run calls the handler with the jobs that may still run, and decides what becomes
// of each.
func (b *batch) run(q *queue) (took time.Duration) {
	r := b.attempts[0].route
	started := time.Now()
	ctx, cancel := context.WithCancelCause(context.WithValue(q.jobs, batchKey{}, b))
	defer cancel(nil)
	b.cancel, b.left = cancel, len(b.attempts)
	b.ended, b.cancels = map[*outbox.Claimed]error{}, map[*outbox.Claimed][]context.CancelCauseFunc{}

	var running []*attempt
	var jobs []*outbox.Claimed
	for _, a := range b.attempts {
		if !a.begin(func(cause error) { b.end(a, cause) }, started, r.config.Timeout) {
			a.outcome = outcome{status: outbox.Pending, keepDue: true}
			b.end(a, outbox.ErrLeaseLost)
			continue
		}
		if !a.until.IsZero() {
			if !a.until.After(started) {
				a.outcome = outcome{status: outbox.Pending, delay: pastDeadline}
				b.end(a, ErrDeadline)
				continue
			}
			defer time.AfterFunc(a.until.Sub(started), func() { b.end(a, ErrDeadline) }).Stop()
		}
		running, jobs = append(running, a), append(jobs, a.job)
		r.counts.startDelay.Observe((a.job.StartedAt.Sub(a.job.RunAt) + started.Sub(a.claimed)).Seconds())
		if q.log.Enabled(ctx, slog.LevelInfo) {
			q.log.LogAttrs(ctx, slog.LevelInfo, "job_claimed", a.Attrs("job_claimed", slog.Int("batch", len(b.attempts)))...)
		}
	}
	if len(running) == 0 {
		return 0
	}
	defer time.AfterFunc(r.config.Timeout, func() {
		cancel(ErrTimeout)
		running[0].reportOverrun()
	}).Stop()
	outcomes := callMany(attemptContext{ctx, started.Add(r.config.Timeout)}, r.many, jobs)
	running[0].returned.Store(true)
	cause := causeOf(ctx)
	took = time.Since(started)
	for i, a := range running {
		a.err, a.took = outcomes[i], took
		a.follows, a.extra = a.job.SealFollowUps()
		r.counts.processing.Observe(took.Seconds())
		a.outcome = settleFor(a, cmp.Or(b.whyEnded(a), cause))
	}
	return took
}

// callMany is call for a batch.
func callMany(ctx context.Context, m *many, jobs []*outbox.Claimed) (outcomes []error) {
	returned := false
	defer func() {
		if value := recover(); !returned {
			err := &panicError{value: value, stack: string(debug.Stack())}
			outcomes = make([]error, len(jobs))
			for i := range outcomes {
				outcomes[i] = err
			}
		}
	}()
	outcomes = m.handle(ctx, jobs)
	returned = true
	return outcomes
}

// end takes one job's right to run. The context of the batch goes on for the
// others, unless the process stops or there are none.
func (b *batch) end(a *attempt, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended[a.job] != nil {
		return
	}
	b.ended[a.job] = cause
	for _, cancel := range b.cancels[a.job] {
		cancel(cause)
	}
	if b.left--; b.left == 0 || errors.Is(cause, ErrShutdown) {
		b.cancel(cause)
	}
}

func (b *batch) whyEnded(a *attempt) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended[a.job]
}
