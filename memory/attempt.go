package memory

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// record is a job as the queue knows it. The first lines do not change; q.mu
// guards the others.
type record struct {
	id, tenant  outbox.ID
	route       *route
	maxAttempts int
	timeout     time.Duration
	backoff     outbox.Backoff
	headers     []byte
	submitted   time.Time
	key         keyOf         // zero without an idempotency key
	done        chan struct{} // closed at the end

	args              outbox.Args // until the end
	status            outbox.Status
	attempt           int
	started, finished time.Time
	progress          Progress
	checkpoint        []byte    // nil for none
	awaySince         time.Time // the first outage in a row; zero if its latest outcome was none
	reports           *recorder // of the attempt that runs; nil between attempts
	result            any
	code, message     string
	cancel            context.CancelCauseFunc // while it runs
	timer             *time.Timer             // while it waits for another attempt
}

type recordKey struct{}

// running is a record and its queue, for Progress.
type running struct {
	queue  *Queue
	record *record
}

// attempt is a job that runs.
type attempt struct {
	record *record
	ctx    context.Context // the handler's
	stop   context.CancelFunc
	job    *outbox.Claimed // what the handler sees, a new one for each attempt
}

// begin marks a job as running. q.mu is held.
func (q *Queue) begin(r *record) *attempt {
	ctx, cancel := context.WithCancelCause(context.WithValue(q.base, recordKey{}, running{q, r}))
	ctx, stop := context.WithTimeoutCause(ctx, r.timeout, dispatcher.ErrTimeout)
	r.status, r.cancel, r.started = outbox.Running, cancel, time.Now()
	r.attempt++
	r.reports = &recorder{q, r}
	q.running[r] = struct{}{}
	q.metrics.running.Inc()
	job := &outbox.Claimed{
		ID: r.id, Tenant: r.tenant, Kind: r.route.kind, Attempt: r.attempt, MaxAttempts: r.maxAttempts, Timeout: r.timeout, Backoff: r.backoff,
		RunAt: r.submitted, CreatedAt: r.submitted, StartedAt: r.started, RawHeaders: r.headers,
	}
	engine.Of(job).Recorder = r.reports
	return &attempt{r, ctx, stop, job}
}

// attempt calls the handler. One that ends its goroutine ends this worker; another
// goes on in its place.
func (q *Queue) attempt(a *attempt) {
	defer a.stop()
	r := a.record
	verdict := outcome.Outcome{Status: outbox.Dead, Code: "goexit", Message: "the handler ended its goroutine with runtime.Goexit"}
	returned := false
	var result any
	defer func() {
		if !returned {
			q.working.Go(q.work)
		}
		q.settle(r, verdict, result, context.Cause(a.ctx))
	}()
	args := r.args // they are dropped at the end only
	err := outcome.Call(a.ctx, func(ctx context.Context, job *outbox.Claimed) (err error) {
		result, err = r.route.handle(ctx, job, args)
		return err
	}, a.job)
	verdict, _ = r.route.policy.Decide(a.job, err, outcome.CauseOf(a.ctx))
	returned = true
}

// settle decides what becomes of a job after an attempt. cause is why its context
// ended, nil if it had not.
func (q *Queue) settle(r *record, v outcome.Outcome, result any, cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.running, r)
	q.metrics.running.Dec()
	r.cancel(nil)
	r.cancel, r.reports = nil, nil
	r.route.counts.processing.Observe(time.Since(r.started).Seconds())
	spared := r.spare(&v, time.Now())
	again := v.Status == outbox.Retrying || v.Status == outbox.Pending
	switch {
	case v.Status == outbox.Succeeded:
		r.result = result
		q.end(r, outbox.Succeeded, "", "")
	case errors.Is(cause, ErrCancelled):
		q.end(r, outbox.Cancelled, "cancelled", v.Message)
	case again && (q.stopping || errors.Is(cause, dispatcher.ErrShutdown)):
		q.end(r, outbox.Cancelled, codeShutdown, v.Message)
	case again:
		if spared {
			r.attempt--
		}
		q.schedule(r, v)
	default:
		q.end(r, v.Status, v.Code, v.Message)
	}
}

// spare makes a retry of an outage, which spends no attempt as long as the first one
// in a row was less than the kind's limit ago. q.mu is held.
func (r *record) spare(v *outcome.Outcome, now time.Time) bool {
	if v.OutageLimit == 0 {
		r.awaySince = time.Time{}
		return false
	}
	if r.awaySince.IsZero() {
		r.awaySince = now
	}
	lasted := now.Sub(r.awaySince)
	if lasted >= v.OutageLimit {
		return false
	}
	v.Status, v.Delay = outbox.Retrying, v.Wait
	if v.Wait == 0 { // jittered, so that what was put off together does not come back together
		growing := min(max(lasted, time.Second), 5*time.Minute)
		v.Delay = growing*3/4 + rand.N(growing/2)
	}
	return true
}

// schedule has a job wait for its next attempt. q.mu is held.
func (q *Queue) schedule(r *record, v outcome.Outcome) {
	r.status, r.code, r.message = v.Status, v.Code, v.Message
	if v.Status == outbox.Pending { // snoozed: no attempt spent
		r.attempt--
	}
	q.later++
	q.metrics.waiting.Inc()
	r.timer = time.AfterFunc(v.Delay, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if r.timer != nil { // else a cancel or a stop came first
			q.unschedule(r)
			q.enqueue(r)
		}
	})
}

// unschedule ends the wait for another attempt. q.mu is held.
func (q *Queue) unschedule(r *record) {
	r.timer.Stop()
	r.timer = nil
	q.later--
	q.metrics.waiting.Dec()
}

// end closes a job. q.mu is held.
func (q *Queue) end(r *record, status outbox.Status, code, message string) {
	r.status, r.code, r.message, r.finished = status, code, message, time.Now()
	r.args, r.checkpoint = nil, nil // may be large, or hold what is to be closed
	close(r.done)
	q.ended = append(q.ended, r)
	q.forget(r.finished)
	r.route.counts.ended[status].Inc()
	level := slog.LevelInfo
	if status != outbox.Succeeded {
		level = slog.LevelWarn
	}
	q.log.LogAttrs(context.Background(), level, "job in memory ended", slog.String("job_id", r.id.String()), slog.String("kind", r.route.kind),
		slog.String("status", string(status)), slog.Int("attempt", r.attempt), slog.String("error_code", code), slog.String("error", message))
}

// drop takes a job out of those that wait for a worker. q.mu is held.
func (q *Queue) drop(r *record) {
	i := slices.Index(q.pending, r)
	q.pending = slices.Delete(q.pending, i, i+1)
	q.metrics.waiting.Dec()
}

// headersJSON is nil for no headers.
func headersJSON(headers map[string]string) []byte {
	if len(headers) == 0 {
		return nil
	}
	text, _ := json.Marshal(headers) // strings that were found valid
	return text
}
