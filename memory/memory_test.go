// With this, recover returns nil for panic(nil): programs that are older than Go 1.21
// may ask for it.
//
//go:debug panicnil=1
package memory

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stream cannot be stored.
type stream struct {
	Input io.Reader
	Do    func(ctx context.Context) error
}

func (stream) Kind() string { return "stream" }

// do returns a job that does something.
func do(f func(ctx context.Context) error) stream { return stream{Do: f} }

func nothing(context.Context) error { return nil }

// rig is a queue in a bubble of virtual time, whose handler does as the job says.
type rig struct {
	*Queue
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error
	reg  *prometheus.Registry
}

func start(t *testing.T, config Config) *rig {
	t.Helper()
	r := prepare(t, config)
	r.run()
	return r
}

// prepare makes a rig as start does, without Run.
func prepare(t *testing.T, config Config) *rig {
	t.Helper()
	var mux Mux
	HandleResult(&mux, func(ctx context.Context, job *outbox.Job[stream]) (string, error) {
		if job.Args.Do != nil {
			return "", job.Args.Do(ctx)
		}
		text, err := io.ReadAll(job.Args.Input)
		return strings.ToUpper(string(text)), err
	})
	r := &rig{t: t, done: make(chan struct{}), reg: prometheus.NewRegistry()}
	config.Registerer = r.reg
	var err error
	if r.Queue, err = New(&mux, config); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		defer close(r.done)
		r.err = r.Run(ctx)
	}()
	r.t.Cleanup(func() { cancel(); <-r.done })
}

// end stops the queue and returns what Run returned.
func (r *rig) end() error {
	r.stop()
	<-r.done
	return r.err
}

func (r *rig) submit(args outbox.Args, opts Options) outbox.ID {
	r.t.Helper()
	id, err := r.Submit(args, opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *rig) want(id outbox.ID, status outbox.Status, attempt int, code string) {
	r.t.Helper()
	synctest.Wait()
	job, err := r.Job(id)
	if err != nil || job.Status != status || job.Attempt != attempt || job.ErrorCode != code || job.Ended() != (status.Closed() || status == outbox.Failed || status == outbox.Dead) {
		r.t.Errorf("job is %s attempt=%d code=%q ended=%t (%v), want %s attempt=%d code=%q", job.Status, job.Attempt, job.ErrorCode, job.Ended(), err, status, attempt, code)
	}
}

// metric returns the sum of the series of a name.
func (r *rig) metric(name string) (sum float64) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && f.GetType() == dto.MetricType_HISTOGRAM {
				sum += float64(m.GetHistogram().GetSampleCount())
			} else if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestAHandlerGetsTheVeryValue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{})
		id := r.submit(stream{Input: strings.NewReader("ada")}, Options{})
		job, err := r.Wait(t.Context(), id)
		if err != nil || job.Status != outbox.Succeeded || job.Attempt != 1 || !job.Ended() {
			t.Errorf("job = %+v, %v; want it succeeded", job, err)
		}
		if got, err := Result[string](r.Queue, id); err != nil || got != "ADA" {
			t.Errorf("result = %q, %v; want ADA", got, err)
		}
		if _, err := Result[int](r.Queue, id); err == nil {
			t.Error("a result of another type has no error")
		}
		for name, want := range map[string]float64{"outbox_memory_jobs_total": 1, "outbox_memory_processing_seconds": 1, "outbox_memory_waiting": 0, "outbox_memory_running": 0} {
			if got := r.metric(name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
	})
}

func TestWhatTheHandlerSees(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mux Mux
		var seen *outbox.Claimed
		var refused []error
		mux.HandleRaw("raw", func(ctx context.Context, job *outbox.Claimed) error {
			seen = job
			_, err := job.Then(outbox.Raw{KindName: "next", Payload: []byte("1")}, outbox.Options{})
			_, inTx := dispatcher.StepTx(ctx, job, nil, "a", func(context.Context, pgx.Tx) (int, error) { return 0, nil })
			refused = []error{job.Complete(ctx, nil), job.Guard(ctx, nil), err, inTx}
			return nil
		})
		q, err := New(&mux, Config{})
		if err != nil {
			t.Fatal(err)
		}
		tenant := outbox.NewID()
		id, err := q.Submit(outbox.Raw{KindName: "raw", Payload: []byte("x"), ContentType: "text/plain"},
			Options{Tenant: tenant, Headers: map[string]string{"user": "ada"}, MaxAttempts: 3, Timeout: time.Minute, Backoff: outbox.Backoff{time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- q.Run(ctx) }()
		if job, err := q.Wait(t.Context(), id); err != nil || job.Status != outbox.Succeeded {
			t.Errorf("job = %+v, %v", job, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for i, err := range refused {
			if !errors.Is(err, ErrNotStored) {
				t.Errorf("method %d: got %v, want ErrNotStored", i, err)
			}
		}
		if seen.ID != id || seen.Tenant != tenant || seen.Kind != "raw" || seen.Attempt != 1 || seen.MaxAttempts != 3 || seen.Timeout != time.Minute || !slices.Equal(seen.Backoff, outbox.Backoff{time.Hour}) ||
			string(seen.Payload) != "x" || seen.ContentType != "text/plain" || seen.Headers()["user"] != "ada" || seen.StartedAt.IsZero() {
			t.Errorf("the handler saw %+v", seen)
		}
	})
}

// A raw job is what package outbox says that it is.
func TestRawJobsAreThoseOfPackageOutbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mux Mux
		var seen []string
		mux.HandleRaw("raw", func(_ context.Context, job *outbox.Claimed) error {
			seen = append(seen, job.ContentType+" "+string(job.Payload))
			return nil
		})
		q, err := New(&mux, Config{Concurrency: 1})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Queue: q, t: t, done: make(chan struct{})}
		r.run()
		for _, raw := range []outbox.Raw{
			{Payload: []byte(`{"a":1}`)},
			{Payload: []byte("[]"), ContentType: "application/json"},
			{ContentType: "text/plain"},
		} {
			raw.KindName = "raw"
			r.submit(raw, Options{})
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{`application/json {"a":1}`, "application/json []", "text/plain "}, seen); diff != "" {
			t.Errorf("seen (-want +got):\n%s", diff)
		}
		for _, raw := range []outbox.Raw{
			{},
			{Payload: []byte("x")},
			{Payload: []byte("\"\xff\"")},
			{ContentType: "text/plain\x00"},
			{ContentType: strings.Repeat("x", 129)},
		} {
			raw.KindName = "raw"
			if _, err := r.Submit(raw, Options{}); !isInvalid(err) {
				t.Errorf("%q of %.20q: %v", raw.Payload, raw.ContentType, err)
			}
		}
	})
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*outbox.InvalidError](err)
	return ok
}

func TestTooManyJobsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Capacity: 2, Concurrency: 1})
		release := make(chan struct{})
		first := r.submit(do(func(context.Context) error { <-release; return nil }), Options{IdempotencyKey: "first"})
		synctest.Wait() // it runs, and waits no more
		r.submit(do(nothing), Options{})
		r.submit(do(nothing), Options{})
		if _, err := r.Submit(do(nothing), Options{}); !errors.Is(err, ErrBackpressure) {
			t.Errorf("got %v, want %v", err, ErrBackpressure)
		}
		if again, err := r.Submit(do(nothing), Options{IdempotencyKey: "first"}); err != nil || again != first {
			t.Errorf("a repeat got %s, %v; want the first job also when there is no room", again, err)
		}
		if got := r.metric("outbox_memory_rejected_total"); got != 1 {
			t.Errorf("rejected = %v, want 1", got)
		}
		close(release)
		synctest.Wait()
		r.submit(do(nothing), Options{})
	})
}

func TestDefaultsAreFourWorkersAndRoomFor256(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := prepare(t, Config{})
		var at, most atomic.Int64
		for range 256 {
			r.submit(do(func(context.Context) error {
				for n := at.Add(1); n > most.Load(); {
					most.Store(n)
				}
				time.Sleep(time.Second) // virtual
				at.Add(-1)
				return nil
			}), Options{})
		}
		if _, err := r.Submit(do(nothing), Options{}); !errors.Is(err, ErrBackpressure) {
			t.Errorf("the 257th got %v, want %v", err, ErrBackpressure)
		}
		begun := time.Now()
		r.run()
		time.Sleep(64 * time.Second)
		synctest.Wait()
		if got := r.metric("outbox_memory_jobs_total"); got != 256 || most.Load() != 4 {
			t.Errorf("%v jobs ended within %s, %d at once; want all, 4 at once", got, time.Since(begun), most.Load())
		}
	})
}

func TestOutcomesMeanWhatTheyMeanInADispatcher(t *testing.T) {
	t.Parallel()
	wrong := errors.New("wrong")
	tests := map[string]struct {
		do      func(attempt int) error
		opts    Options
		status  outbox.Status
		attempt int
		code    string
	}{
		"an error, one attempt": {func(int) error { return wrong }, Options{}, outbox.Dead, 1, "error"},
		"an error, then none":   {func(n int) error { return map[bool]error{true: wrong}[n < 3] }, Options{MaxAttempts: 5}, outbox.Succeeded, 3, ""},
		"errors only":           {func(int) error { return wrong }, Options{MaxAttempts: 3}, outbox.Dead, 3, "error"},
		"discard":               {func(int) error { return dispatcher.Discard(wrong) }, Options{MaxAttempts: 5}, outbox.Failed, 1, "error"},
		"retry after":           {func(n int) error { return map[bool]error{true: dispatcher.RetryAfter(time.Hour, wrong)}[n < 2] }, Options{MaxAttempts: 5}, outbox.Succeeded, 2, ""},
		"panic":                 {func(int) error { panic("a bug") }, Options{}, outbox.Dead, 1, "panic"},
		"panic(nil)":            {func(int) error { panic(nil) }, Options{}, outbox.Dead, 1, "panic"},
		"goexit":                {func(int) error { runtime.Goexit(); return nil }, Options{}, outbox.Dead, 1, "goexit"},
		"goexit, then nothing": {func(n int) error {
			if n == 1 {
				runtime.Goexit()
			}
			return nil
		}, Options{MaxAttempts: 2}, outbox.Succeeded, 2, ""},
		"snoozes spend no attempt": {func() func(int) error {
			calls := 0
			return func(int) error {
				if calls++; calls < 4 {
					return dispatcher.Snooze(time.Minute)
				}
				return nil
			}
		}(), Options{}, outbox.Succeeded, 1, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := start(t, Config{Concurrency: 1, Keep: 1000 * time.Hour})
				calls := 0
				id := r.submit(do(func(context.Context) error { calls++; return tt.do(calls) }), tt.opts)
				time.Sleep(100 * time.Hour) // virtual
				r.want(id, tt.status, tt.attempt, tt.code)
				if _, err := Result[string](r.Queue, id); tt.status != outbox.Succeeded {
					if unfinished, ok := errors.AsType[*UnfinishedError](err); !ok || unfinished.Job.Status != tt.status {
						t.Errorf("result: got %v, want an UnfinishedError", err)
					}
				}
				after := r.submit(do(nothing), Options{}) // the worker is there
				r.want(after, outbox.Succeeded, 1, "")
			})
		})
	}
}

func TestAJobThatWaitsForAnotherAttemptTakesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Capacity: 1})
		id := r.submit(do(func(context.Context) error { return dispatcher.Snooze(time.Hour) }), Options{})
		r.want(id, outbox.Pending, 0, "")
		if _, err := r.Submit(do(nothing), Options{}); !errors.Is(err, ErrBackpressure) {
			t.Errorf("got %v, want %v", err, ErrBackpressure)
		}
		if got := r.metric("outbox_memory_waiting"); got != 1 {
			t.Errorf("waiting = %v, want 1", got)
		}
	})
}

// durable is a stream whose kind says how its jobs are run, wherever they are.
type durable struct{ stream }

func (durable) DefaultOptions() outbox.Options {
	return outbox.Options{Queue: "anything", MaxAttempts: 3, Timeout: time.Second, Backoff: outbox.Backoff{0}, IdempotencyKey: "one"}
}

func TestAKindSaysHowItsJobsAreRun(t *testing.T) {
	t.Parallel()
	mux := &Mux{}
	Handle(mux, func(ctx context.Context, job *outbox.Job[durable]) error { <-ctx.Done(); return ctx.Err() })
	synctest.Test(t, func(t *testing.T) {
		q, err := New(mux, Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Queue: q, t: t, done: make(chan struct{})}
		r.run()
		id := r.submit(durable{}, Options{MaxAttempts: 2})
		if again := r.submit(durable{}, Options{}); again != id {
			t.Errorf("with the idempotency key of the kind: got job %s, want the first one, %s", again, id)
		}
		time.Sleep(1500 * time.Millisecond)
		r.want(id, outbox.Running, 2, "job_timeout")
		time.Sleep(time.Second)
		r.want(id, outbox.Dead, 2, "job_timeout")
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Timeout: time.Minute})
		wait := do(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		byQueue, byJob := r.submit(wait, Options{}), r.submit(wait, Options{Timeout: time.Second})
		time.Sleep(2 * time.Second)
		r.want(byQueue, outbox.Running, 1, "")
		r.want(byJob, outbox.Dead, 1, "job_timeout")
		time.Sleep(time.Minute)
		r.want(byQueue, outbox.Dead, 1, "job_timeout")
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Concurrency: 1})
		running := r.submit(do(func(ctx context.Context) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), dispatcher.ErrCancelled) {
				t.Errorf("the context ended by %v, want %v", context.Cause(ctx), dispatcher.ErrCancelled)
			}
			return ctx.Err()
		}), Options{MaxAttempts: 5})
		waiting := r.submit(do(func(context.Context) error { t.Error("a cancelled job ran"); return nil }), Options{})
		other := r.submit(do(nothing), Options{})
		synctest.Wait()
		cancel := func(id outbox.ID, want outbox.Status) {
			t.Helper()
			if was, err := r.Cancel(id); err != nil || was != want {
				t.Errorf("cancel found the job %s, %v; want %s", was, err, want)
			}
		}
		cancel(waiting, outbox.Pending)
		r.want(waiting, outbox.Cancelled, 0, "cancelled")
		cancel(running, outbox.Running)
		r.want(running, outbox.Cancelled, 1, "cancelled")
		cancel(running, outbox.Cancelled)
		r.want(other, outbox.Succeeded, 1, "")
		cancel(other, outbox.Succeeded)
		r.want(other, outbox.Succeeded, 1, "")

		retrying := r.submit(do(func(context.Context) error { return errors.New("later") }), Options{MaxAttempts: 5})
		r.want(retrying, outbox.Retrying, 1, "error")
		cancel(retrying, outbox.Retrying)
		time.Sleep(time.Minute)
		r.want(retrying, outbox.Cancelled, 1, "cancelled")

		stubborn := r.submit(do(func(ctx context.Context) error { <-ctx.Done(); return nil }), Options{})
		synctest.Wait()
		cancel(stubborn, outbox.Running)
		r.want(stubborn, outbox.Succeeded, 1, "")

		if _, err := r.Cancel(outbox.NewID()); !errors.Is(err, ErrNotFound) {
			t.Errorf("cancelling an unknown job: %v, want %v", err, ErrNotFound)
		}
		if got := r.metric("outbox_memory_waiting") + r.metric("outbox_memory_running"); got != 0 {
			t.Errorf("waiting and running = %v, want 0", got)
		}
	})
}

// Cancel comes from everywhere while jobs are taken, run, wait and end.
func TestCancelRacesWithEverything(t *testing.T) {
	t.Parallel()
	r := start(t, Config{Concurrency: 8, Capacity: 10_000, Backoff: func(*outbox.Claimed, error) time.Duration { return 0 }})
	var submitting sync.WaitGroup
	for range 4 {
		submitting.Go(func() {
			for i := range 500 {
				id, err := r.Submit(do(func(ctx context.Context) error {
					if i%3 == 0 {
						return errors.New("again")
					}
					return ctx.Err()
				}), Options{MaxAttempts: 3})
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					runtime.Gosched()
				}
				if _, err := r.Cancel(id); err != nil {
					t.Error(err)
				}
				if job, err := r.Wait(t.Context(), id); err != nil || !job.Ended() {
					t.Errorf("job = %+v, %v; want it ended", job, err)
				}
			}
		})
	}
	submitting.Wait()
	if got := r.metric("outbox_memory_jobs_total"); got != 2000 {
		t.Errorf("ended = %v, want 2000", got)
	}
	if got := r.metric("outbox_memory_waiting") + r.metric("outbox_memory_running"); got != 0 {
		t.Errorf("waiting and running = %v, want 0", got)
	}
}

func TestProgressIsTheLatestWord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{})
		var late context.Context
		id := r.submit(do(func(ctx context.Context) error {
			late = ctx
			for i := range int64(3) {
				if !ReportProgress(ctx, Progress{Current: i, Total: 3, Message: "reading"}) {
					t.Error("progress was not noted")
				}
			}
			<-ctx.Done()
			return nil
		}), Options{Timeout: time.Minute})
		synctest.Wait()
		job, err := r.Job(id)
		if want := (Progress{2, 3, "reading"}); err != nil || job.Progress != want {
			t.Errorf("progress = %+v, %v; want %+v", job.Progress, err, want)
		}
		if ReportProgress(t.Context(), Progress{}) {
			t.Error("progress was noted outside of a handler")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if job, _ := r.Job(id); ReportProgress(late, Progress{Current: 9}) || job.Status != outbox.Succeeded || job.Progress.Current != 2 {
			t.Errorf("progress was noted of a job that has ended: %+v", job)
		}
	})
}

// A handler that was written for a dispatcher reports in its way.
func TestADispatchersHandlerReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var late *outbox.Claimed
		var mux Mux
		mux.HandleRaw("import", func(ctx context.Context, job *outbox.Claimed) error {
			row, found, err := outbox.LoadCheckpoint[int](ctx, job)
			if err != nil || found != (job.Attempt > 1) {
				t.Errorf("attempt %d: checkpoint %d, %t, %v", job.Attempt, row, found, err)
			}
			row += 10
			late = job
			return errors.Join(
				outbox.SaveCheckpoint(ctx, job, row), job.Progress(ctx, int64(row), 20, "importing"), job.Log(ctx, slog.LevelWarn, "row 7 has no address"),
				map[bool]error{true: errors.New("cut off")}[row < 20])
		})
		q, err := New(&mux, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Queue: q, t: t, done: make(chan struct{})}
		r.run()
		id := r.submit(outbox.Raw{KindName: "import", Payload: []byte("{}")}, Options{MaxAttempts: 2})
		time.Sleep(time.Minute) // virtual
		r.want(id, outbox.Succeeded, 2, "")
		job, err := r.Job(id)
		if want := (Progress{20, 20, "importing"}); err != nil || job.Progress != want {
			t.Errorf("progress = %+v, %v; want %+v", job.Progress, err, want)
		}
		if n := strings.Count(log.String(), "row 7 has no address"); n != 2 {
			t.Errorf("lines in the log = %d, want 2:\n%s", n, log.String())
		}
		if err := late.Progress(t.Context(), 1, 20, "late"); !errors.Is(err, outbox.ErrLeaseLost) {
			t.Errorf("progress after the attempt: %v, want ErrLeaseLost", err)
		}
		if err := outbox.SaveCheckpoint(t.Context(), late, 1); !errors.Is(err, outbox.ErrLeaseLost) {
			t.Errorf("a checkpoint after the attempt: %v, want ErrLeaseLost", err)
		}
	})
}

func TestCodesThatFailAJobForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mux Mux
		mux.HandleRaw("import", func(context.Context, *outbox.Claimed) error {
			return dispatcher.WithCode("no_such_file", errors.New("it is gone"))
		}, dispatcher.KindConfig{FailOn: []string{"no_such_file"}})
		q, err := New(&mux, Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Queue: q, t: t, done: make(chan struct{})}
		r.run()
		id := r.submit(outbox.Raw{KindName: "import", Payload: []byte("{}")}, Options{MaxAttempts: 5})
		time.Sleep(time.Minute) // virtual
		r.want(id, outbox.Failed, 1, "no_such_file")
	})
}

func TestAnIdempotencyKeyLastsAsLongAsItsJobIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Keep: time.Hour})
		first := r.submit(do(nothing), Options{IdempotencyKey: "k"})
		if again := r.submit(do(nothing), Options{IdempotencyKey: "k"}); again != first {
			t.Errorf("a repeat got %s, want the first job %s", again, first)
		}
		if other := r.submit(do(nothing), Options{IdempotencyKey: "k", Tenant: outbox.NewID()}); other == first {
			t.Error("another tenant got the first job")
		}
		time.Sleep(time.Hour)
		r.want(first, outbox.Succeeded, 1, "")
		time.Sleep(time.Minute)
		if _, err := r.Job(first); !errors.Is(err, ErrNotFound) {
			t.Errorf("after an hour: %v, want %v", err, ErrNotFound)
		}
		if again := r.submit(do(nothing), Options{IdempotencyKey: "k"}); again == first {
			t.Error("a key outlived its job")
		}
	})
}

func TestOnlySoManyJobsAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{})
		first := r.submit(do(nothing), Options{})
		for range maxKept {
			if _, err := r.Wait(t.Context(), r.submit(do(nothing), Options{})); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Job(first); !errors.Is(err, ErrNotFound) {
			t.Errorf("the first of %d jobs: %v, want %v", maxKept+1, err, ErrNotFound)
		}
		if len(r.store.jobs) != maxKept || len(r.store.ended) != maxKept {
			t.Errorf("remembers %d, %d jobs, want %d", len(r.store.jobs), len(r.store.ended), maxKept)
		}
	})
}

func TestAStopCarriesOutWhatWasTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Concurrency: 1, GracePeriod: time.Minute})
		slow := do(func(context.Context) error { time.Sleep(10 * time.Second); return nil })
		one, two := r.submit(slow, Options{}), r.submit(slow, Options{})
		later := r.submit(do(func(context.Context) error { return errors.New("wrong") }), Options{MaxAttempts: 2})
		snoozed := prepareSnoozed(r)
		stopped := time.Now()
		r.stop()
		synctest.Wait()
		if _, err := r.Submit(slow, Options{}); !errors.Is(err, ErrStopped) {
			t.Errorf("submit after the stop: %v, want %v", err, ErrStopped)
		}
		if err := r.end(); err != nil || time.Since(stopped) > 21*time.Second {
			t.Errorf("Run returned %v after %s, want nil once all were carried out", err, time.Since(stopped))
		}
		r.want(one, outbox.Succeeded, 1, "")
		r.want(two, outbox.Succeeded, 1, "")
		r.want(later, outbox.Cancelled, 1, "shutdown") // there is no other attempt
		r.want(snoozed, outbox.Cancelled, 0, "shutdown")
		if err := r.Run(t.Context()); err == nil {
			t.Error("a second Run has no error")
		}
	})
}

// prepareSnoozed has a job wait for its next attempt, on a worker of one that has
// jobs already: it is put there by hand.
func prepareSnoozed(r *rig) outbox.ID {
	record, err := r.newRecord(do(nothing), Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	record.attempt = 1
	r.store.jobs[record.id] = record
	r.store.schedule(record, outcome.Outcome{Status: outbox.Pending, Delay: time.Hour})
	return record.id
}

func TestAStopCutsWhatOutlivesTheGracePeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Concurrency: 1, GracePeriod: time.Second})
		running := r.submit(do(func(ctx context.Context) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), dispatcher.ErrShutdown) {
				t.Errorf("the context ended by %v, want %v", context.Cause(ctx), dispatcher.ErrShutdown)
			}
			return ctx.Err()
		}), Options{MaxAttempts: 3})
		waiting := r.submit(do(nothing), Options{})
		synctest.Wait()
		if err := r.end(); err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
		r.want(running, outbox.Cancelled, 1, "shutdown")
		r.want(waiting, outbox.Cancelled, 0, "shutdown")
		if got := r.metric("outbox_memory_waiting") + r.metric("outbox_memory_running"); got != 0 {
			t.Errorf("waiting and running = %v, want 0", got)
		}
	})
}

func TestAHandlerThatIgnoresTheStopIsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{GracePeriod: -1})
		r.submit(do(func(context.Context) error { time.Sleep(time.Hour); return nil }), Options{})
		synctest.Wait()
		stopped := time.Now()
		if err := r.end(); err == nil || time.Since(stopped) != abandonAfter {
			t.Errorf("Run returned %v after %s, want an error after %s", err, time.Since(stopped), abandonAfter)
		}
		time.Sleep(2 * time.Hour) // it ends after all
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := prepare(t, Config{})
	id := r.submit(do(nothing), Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no time")
	cancel(why)
	if _, err := r.Wait(ctx, id); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	if _, err := r.Wait(t.Context(), outbox.NewID()); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want %v", err, ErrNotFound)
	}
}

type pointer struct{}

func (*pointer) Kind() string { return "stream" }

func TestBadInputNamesItsField(t *testing.T) {
	t.Parallel()
	r := prepare(t, Config{})
	var got []string
	for _, submit := range []struct {
		args outbox.Args
		opts Options
	}{
		{nil, Options{}},
		{outbox.Raw{KindName: "unknown"}, Options{}},
		{&pointer{}, Options{}},
		{stream{}, Options{MaxAttempts: -1}},
		{stream{}, Options{Timeout: -1}},
		{stream{}, Options{IdempotencyKey: strings.Repeat("k", 513)}},
		{stream{}, Options{Headers: map[string]string{"a": "\x00"}}},
	} {
		_, err := r.Submit(submit.args, submit.opts)
		if invalid, ok := errors.AsType[*outbox.InvalidError](err); ok {
			got = append(got, invalid.Field)
		} else {
			t.Errorf("%+v: got %v, want an InvalidError", submit, err)
		}
	}
	want := []string{"Args", "Args.Kind()", "Args", "Options.MaxAttempts", "Options.Timeout", "Options.IdempotencyKey", "Options.Headers[a]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	for _, config := range []Config{{Capacity: -1}, {Concurrency: -1}, {Timeout: -1}, {Timeout: 30}, {Keep: -1}} {
		if _, err := New(new(Mux), config); err == nil {
			t.Errorf("%+v has no error", config)
		}
	}
	var mux Mux
	mux.HandleRaw("a", nil, dispatcher.KindConfig{Timeout: -1})
	_, err := New(&mux, Config{})
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); !ok || invalid.Field != "KindConfig.Timeout" {
		t.Errorf("a kind's timeout below none: got %v, want an InvalidError of it", err)
	}
}

func TestTwoHandlersForAKindPanic(t *testing.T) {
	t.Parallel()
	for name, register := range map[string]func(*Mux){
		`memory: kind is "stream", which has a handler already`: func(m *Mux) {
			Handle(m, func(context.Context, *outbox.Job[stream]) error { return nil })
			m.HandleRaw("stream", nil)
		},
		"memory: kind is empty, want 1 to 128 characters":                                                              func(m *Mux) { m.HandleRaw("", nil) },
		`memory: kind is "no such!": byte 2 is " ", want ASCII letters, digits and _ . : / -, first a letter or digit`: func(m *Mux) { m.HandleRaw("no such!", nil) },
	} {
		func() {
			defer func() {
				said, _ := recover().(error)
				if found, ok := errors.AsType[*outbox.InvalidError](said); !ok || found.Field != "kind" || said.Error() != name {
					t.Errorf("got %v, want a panic with an InvalidError that says %q", said, name)
				}
			}()
			register(new(Mux))
		}()
	}
}
