package memory

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

const maxKept = 10_000 // jobs that have ended

// store holds all known jobs and their places on the way from submission to end.
type store struct {
	capacity int
	keep     time.Duration
	metrics  *metrics
	log      *slog.Logger

	mu       sync.Mutex
	came     sync.Cond // signals a pending job, or a stop
	stopping bool
	pending  []*record             // waiting for a worker
	later    int                   // waiting for their next attempt
	running  map[*record]struct{}  //
	jobs     map[outbox.ID]*record // all known jobs
	keys     map[keyOf]*record     // the known jobs with an idempotency key
	ended    []*record             // the known jobs that have ended, in that order
}

type keyOf struct {
	tenant    outbox.ID
	kind, key string
}

func newStore(config Config, m *metrics, log *slog.Logger) *store {
	s := &store{
		capacity: config.Capacity, keep: config.Keep, metrics: m, log: log,
		running: map[*record]struct{}{}, jobs: map[outbox.ID]*record{}, keys: map[keyOf]*record{},
	}
	s.came.L = &s.mu
	return s
}

// add accepts a job, unless one with its key is already known, and returns the id of whichever is kept.
func (s *store) add(r *record) (outbox.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(time.Now())
	if first := s.keys[r.key]; first != nil {
		return first.id, nil
	}
	if s.stopping {
		return outbox.ID{}, ErrStopped
	}
	if len(s.pending)+s.later >= s.capacity {
		r.route.counts.rejected.Inc()
		return outbox.ID{}, fmt.Errorf("submit a job of kind %s: %w: %d", r.route.kind, ErrBackpressure, s.capacity)
	}
	if r.key != (keyOf{}) {
		s.keys[r.key] = r
	}
	s.jobs[r.id] = r
	s.enqueue(r)
	return r.id, nil
}

// find returns a known job. The caller holds mu.
func (s *store) find(id outbox.ID) (*record, error) {
	s.forget(time.Now())
	r := s.jobs[id]
	if r == nil {
		return nil, fmt.Errorf("job %s: %w", id, ErrNotFound)
	}
	return r, nil
}

// enqueue appends a job to pending. The caller holds mu.
func (s *store) enqueue(r *record) {
	r.status = outbox.Pending
	s.pending = append(s.pending, r)
	s.metrics.waiting.Inc()
	s.came.Signal()
}

// forget drops jobs that ended long ago, and the oldest if there are too many. The caller holds mu.
func (s *store) forget(now time.Time) {
	n := 0
	for n < len(s.ended) && (len(s.ended)-n > maxKept || now.Sub(s.ended[n].finished) > s.keep) {
		r := s.ended[n]
		delete(s.jobs, r.id)
		if s.keys[r.key] == r {
			delete(s.keys, r.key)
		}
		s.ended[n] = nil
		n++
	}
	s.ended = s.ended[n:]
}

// schedule makes a job wait for its next attempt. The caller holds mu.
func (s *store) schedule(r *record, v outcome.Outcome) {
	r.status, r.code, r.message = v.Status, v.Code, v.Message
	if v.Status == outbox.Pending { // a snooze spends no attempt
		r.attempt--
	}
	s.later++
	s.metrics.waiting.Inc()
	r.timer = time.AfterFunc(v.Delay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.timer != nil { // unless a cancel or a stop came first
			s.unschedule(r)
			s.enqueue(r)
		}
	})
}

// unschedule ends the wait for another attempt. The caller holds mu.
func (s *store) unschedule(r *record) {
	r.timer.Stop()
	r.timer = nil
	s.later--
	s.metrics.waiting.Dec()
}

// end closes a job. The caller holds mu.
func (s *store) end(r *record, status outbox.Status, code, message string) {
	r.status, r.code, r.message, r.finished = status, code, message, time.Now()
	r.args, r.checkpoint = nil, nil // they may be large, or hold resources that must be closed
	close(r.done)
	s.ended = append(s.ended, r)
	s.forget(r.finished)
	r.route.counts.ended[status].Inc()
	level := slog.LevelInfo
	if status != outbox.Succeeded {
		level = slog.LevelWarn
	}
	s.log.LogAttrs(context.Background(), level, "job in memory ended", slog.String("job_id", r.id.String()),
		slog.String("kind", r.route.kind),
		slog.String("status", string(status)), slog.Int("attempt", r.attempt), slog.String("error_code", code),
		slog.String("error", message))
}

// drop removes a job from pending. The caller holds mu.
func (s *store) drop(r *record) {
	i := slices.Index(s.pending, r)
	s.pending = slices.Delete(s.pending, i, i+1)
	s.metrics.waiting.Dec()
}

// cancel ends a waiting job, or asks a running one to end, and returns its previous status.
func (s *store) cancel(id outbox.ID) (was outbox.Status, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(id)
	if err != nil {
		return "", err
	}
	was = r.status
	switch {
	case !r.finished.IsZero():
	case r.cancel != nil:
		r.cancel(ErrCancelled)
	case r.timer != nil:
		s.unschedule(r)
		s.end(r, outbox.Cancelled, "cancelled", ErrCancelled.Error())
	default:
		s.drop(r)
		s.end(r, outbox.Cancelled, "cancelled", ErrCancelled.Error())
	}
	return was, nil
}

// stop makes the store refuse new jobs, and drops those that wait for another attempt, whose time may be hours away.
func (s *store) stop(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	dropped := 0
	for _, r := range s.jobs {
		if r.timer != nil {
			s.unschedule(r)
			s.end(r, outbox.Cancelled, codeShutdown, "the process stopped before another attempt")
			dropped++
		}
	}
	if dropped > 0 {
		s.log.LogAttrs(ctx, slog.LevelWarn, "jobs in memory dropped: they waited for another attempt",
			slog.Int("jobs", dropped))
	}
	s.came.Broadcast()
}

// cutOff ends the grace period.
func (s *store) cutOff(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.LogAttrs(ctx, slog.LevelWarn, "jobs in memory lost: the grace period is over",
		slog.Int("cut_off", len(s.running)), slog.Int("not_started", len(s.pending)))
	for r := range s.running {
		r.cancel(dispatcher.ErrShutdown)
	}
	for _, r := range s.pending {
		s.metrics.waiting.Dec()
		s.end(r, outbox.Cancelled, codeShutdown, "the process stopped before it started")
	}
	s.pending = nil
	s.came.Broadcast()
}
