package memory

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// record is a job in the queue. The first group of fields does not change; the store's mu guards the others.
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
	awaySince         time.Time // start of the current series of outages; zero if the latest outcome was none
	reports           *recorder // of the running attempt; nil between attempts
	result            any
	code, message     string
	cancel            context.CancelCauseFunc // while it runs
	timer             *time.Timer             // while it waits for another attempt
}

type recorderKey struct{}

// attempt is a running attempt at a job.
type attempt struct {
	record *record
	ctx    context.Context // the handler's
	stop   context.CancelFunc
	job    *outbox.Claimed // what the handler sees, a new one for each attempt
}

// workers run the jobs of a store.
type workers struct {
	store   *store
	base    context.Context // parent of the handlers' contexts
	working sync.WaitGroup
}

// work runs jobs until a stop, and after that until none waits.
func (w *workers) work() {
	for a := w.take(); a != nil; a = w.take() {
		w.attempt(a)
	}
}

// take waits for a job and begins its attempt; it returns nil if there will be none. It does both in one step: in
// between, a cancel would not find the job.
func (w *workers) take() *attempt {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) == 0 && !s.stopping {
		s.came.Wait()
	}
	if len(s.pending) == 0 {
		return nil
	}
	r := s.pending[0]
	s.pending[0] = nil
	s.pending = s.pending[1:]
	s.metrics.waiting.Dec()
	return w.begin(r)
}

// begin marks a job as running. The caller holds the store's mu.
func (w *workers) begin(r *record) *attempt {
	reports := &recorder{w.store, r}
	ctx, cancel := context.WithCancelCause(context.WithValue(w.base, recorderKey{}, reports))
	ctx, stop := context.WithTimeoutCause(ctx, r.timeout, dispatcher.ErrTimeout)
	r.status, r.cancel, r.started = outbox.Running, cancel, time.Now()
	r.attempt++
	r.reports = reports
	w.store.running[r] = struct{}{}
	w.store.metrics.running.Inc()
	job := &outbox.Claimed{
		ID: r.id, Tenant: r.tenant, Kind: r.route.kind, Attempt: r.attempt, MaxAttempts: r.maxAttempts,
		Timeout: r.timeout, Backoff: r.backoff,
		RunAt: r.submitted, CreatedAt: r.submitted, StartedAt: r.started, RawHeaders: r.headers,
	}
	kept := engine.InternalOf(job)
	kept.Recorder, kept.FollowUps.Refused, kept.Context = reports, engine.ErrNotStored, ctx
	return &attempt{r, ctx, stop, job}
}

// attempt calls the handler. A handler or a backoff policy that ends its goroutine ends this worker; another worker
// replaces it.
func (w *workers) attempt(a *attempt) {
	defer a.stop()
	r := a.record
	var result any
	verdict, exits := r.route.policy.Fail(a.job, outcome.ErrExited), true // unless both return
	defer func() {
		if exits {
			w.working.Go(w.work)
		}
		w.store.settle(r, verdict, result, context.Cause(a.ctx))
	}()
	err, returned := outcome.ErrExited, false
	defer func() {
		verdict, _ = r.route.policy.Decide(a.job, err, outcome.CauseOf(a.ctx))
		exits = !returned
	}()
	args := r.args // they are dropped only at the end
	err = outcome.Call(a.ctx, func(ctx context.Context, job *outbox.Claimed) (err error) {
		result, err = r.route.handle(ctx, job, args)
		return err
	}, a.job)
	returned = true
}

// settle decides the job's next state after an attempt. cause is the reason for which its context ended, or nil if it
// had not.
func (s *store) settle(r *record, v outcome.Outcome, result any, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, r)
	s.metrics.running.Dec()
	r.cancel(nil)
	r.cancel, r.reports = nil, nil
	r.route.counts.processing.Observe(time.Since(r.started).Seconds())
	spared := r.spare(&v, time.Now())
	again := v.Status == outbox.Retrying || v.Status == outbox.Pending
	switch {
	case v.Status == outbox.Succeeded:
		r.result = result
		s.end(r, outbox.Succeeded, "", "")
	case errors.Is(cause, ErrCancelled):
		s.end(r, outbox.Cancelled, "cancelled", v.Message)
	case again && (s.stopping || errors.Is(cause, dispatcher.ErrShutdown)):
		s.end(r, outbox.Cancelled, codeShutdown, v.Message)
	case again:
		if spared {
			r.attempt--
		}
		s.schedule(r, v)
	default:
		s.end(r, v.Status, v.Code, v.Message)
	}
}

// spare turns an outage into a retry that spends no attempt, as long as the first outage of the series began less than
// the kind's limit ago. The caller holds the store's mu.
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
	if v.Wait == 0 { // jittered, so that jobs postponed together do not return together
		growing := min(max(lasted, time.Second), 5*time.Minute)
		v.Delay = growing*3/4 + rand.N(growing/2)
	}
	return true
}

// headersJSON returns the headers as JSON, or nil for none.
func headersJSON(headers map[string]string) []byte {
	if len(headers) == 0 {
		return nil
	}
	text, _ := json.Marshal(headers) // the strings were validated before
	return text
}
