package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

func TestTimeouts(t *testing.T) {
	const short = 20 * time.Millisecond
	for name, c := range map[string]struct {
		ofDispatcher, ofKind, ofJob, want time.Duration
	}{
		"of the dispatcher":              {short, 0, 0, short},
		"of the kind before that":        {time.Hour, short, 0, short},
		"of the job before that":         {time.Hour, time.Hour, short, short},
		"of the job, also a shorter one": {short, short, 30 * time.Millisecond, 30 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var cause error
			mux := new(Mux)
			Handle(mux, func(ctx context.Context, _ *outbox.Job[tiny]) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return ctx.Err()
			}, KindConfig{Timeout: c.ofKind})
			inMemoryOf(t, 1, mux, Config{Timeout: c.ofDispatcher, Backoff: Waits(24 * time.Hour)}, func(r rig) {
				job := newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")
				job.Timeout = c.ofJob
				r.put(job)
				r.capacity.Poke()
				r.sleep(2 * time.Hour)
				if n := r.ended(outbox.Retrying, codes.Timeout); n != 1 || !errors.Is(cause, ErrTimeout) {
					t.Fatalf("%d attempts have run out of time, want 1; cause = %v, want ErrTimeout", n, cause)
				}
				if took := (*r.ends)[0].took; took != c.want {
					t.Errorf("it had %s, want %s", took, c.want)
				}
			})
		})
	}
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text } // panics for a nil *nilError

type panicsWithNil struct{}

func (panicsWithNil) Error() string { panic(nil) }

// A handler's bug costs its own job an attempt, never the process and the other
// jobs in it, and never a worker.
func TestAHandlersBugCostsItsOwnJobOnly(t *testing.T) {
	const bad = 1 // the priority of the jobs that meet it
	for name, bug := range map[string]struct {
		handle func() error
		config KindConfig
		code   string
	}{
		"an error that is a nil pointer": {handle: func() error { var e *nilError; return e }, code: codes.Panic},
		"a backoff policy that panics": {
			handle: func() error { return context.Canceled },
			config: KindConfig{Backoff: func(*outbox.Claimed, error) time.Duration { panic("policy") }}, code: codes.Panic,
		},
		"panic(nil)":                    {handle: func() error { panic(nil) }, code: codes.Panic},
		"an error that panics with nil": {handle: func() error { return panicsWithNil{} }, code: codes.Panic},
		"an exit of its goroutine":      {handle: func() error { runtime.Goexit(); return nil }, code: codes.Goexit},
	} {
		t.Run(name, func(t *testing.T) {
			mux := new(Mux)
			Handle(mux, func(_ context.Context, job *outbox.Job[tiny]) error {
				if job.Priority == bad {
					return bug.handle()
				}
				return nil
			}, bug.config)
			inMemoryOf(t, 2, mux, Config{}, func(r rig) { // fewer workers than bugs
				for n := range 20 {
					job := newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")
					job.MaxAttempts = 1
					if n < 5 {
						job.Priority = bad
					}
					r.put(job)
				}
				r.capacity.Poke()
				r.sleep(time.Minute)
				r.wantDone(t, 15)
				if n := r.ended(outbox.Dead, bug.code); n != 5 {
					t.Errorf("%d jobs are dead with the code %s, want 5", n, bug.code)
				}
			})
		})
	}
}

// A handler that goes on after its time is over is reported, once, while it goes on.
func TestAHandlerThatOutlivesItsTimeIsReported(t *testing.T) {
	for name, batch := range map[string]bool{"one job": false, "a batch": true} {
		t.Run(name, func(t *testing.T) {
			const lingers, exits = 1, 2 // the priorities of those that do
			linger := func(job *outbox.Job[tiny]) {
				switch {
				case job.Priority == lingers:
					time.Sleep(time.Minute)
				case job.Priority == exits && job.Attempt == 1: // its time is over, but nothing runs any more
					time.Sleep(time.Second)
					runtime.Goexit()
				}
			}
			mux, kind := new(Mux), KindConfig{Timeout: 100 * time.Millisecond}
			if batch {
				HandleMany(mux, func(_ context.Context, jobs []*outbox.Job[tiny]) []error {
					linger(jobs[0])
					return make([]error, len(jobs))
				}, BatchConfig{Max: 1}, kind)
			} else {
				Handle(mux, func(_ context.Context, job *outbox.Job[tiny]) error { linger(job); return nil }, kind)
			}
			log := new(lines)
			inMemoryOf(t, 4, mux, Config{Logger: slog.New(slog.NewTextHandler(log, nil))}, func(r rig) {
				r.addAt(0, outbox.RootTenant, "")
				r.addAt(lingers, outbox.RootTenant, "")
				r.addAt(exits, outbox.RootTenant, "")
				late := r.jobs[slices.IndexFunc(r.jobs, func(job *outbox.Claimed) bool { return job.Priority == lingers })]
				r.capacity.Poke()
				r.sleep(30 * time.Second)
				if text := log.String(); strings.Count(text, "msg=handler_overrun") != 1 || !strings.Contains(text, "event=handler_overrun job_id="+late.ID.String()) {
					t.Errorf("logged %s, want one line about the job %s", text, late.ID)
				}
				r.sleep(time.Hour)
				r.wantDone(t, 3)
			})
		})
	}
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
