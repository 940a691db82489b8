package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestJobGoesFromEnqueueToHistory(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenant := outbox.NewID()
	id := enqueue(t, db, probe{7}, outbox.Options{
		Priority: 3, MaxAttempts: 9, Key: outbox.KeyRules{Name: "customer-1"}, Tenant: tenant, Timeout: time.Minute,
		Headers: map[string]string{"trace": "abc"},
	})
	seen := make(chan *outbox.Job[probe], 1)
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		seen <- job
		return nil
	}), quiet(nil))

	job := receive(t, seen, "the job")
	if job.Args != (probe{7}) || job.ID != id || job.Queue != "default" || job.Claimed.Kind != "probe" || job.Priority != 3 ||
		job.Attempt != 1 || job.MaxAttempts != 9 || job.LostLeases != 0 || job.Epoch != 1 || job.Key != "customer-1" ||
		job.Tenant != tenant || job.Worker != d.Worker() || job.Timeout != time.Minute || job.ContentType != "application/json" ||
		string(job.Payload) != `{"n":7}` || job.Headers()["trace"] != "abc" {
		t.Errorf("the handler got %+v", job.Claimed)
	}
	if job.RunAt.IsZero() || job.CreatedAt.IsZero() || job.StartedAt.Before(job.RunAt) {
		t.Errorf("run at %v, created at %v, started at %v", job.RunAt, job.CreatedAt, job.StartedAt)
	}
	awaitSucceeded(t, db, 1)
	want := fmt.Sprintf("succeeded from running, attempt 1, epoch 1, by %s", d.Worker())
	got := ask[string](t, db, `SELECT format('%s from %s, attempt %s, epoch %s, by %s', status, closed_from, attempt, epoch, worker) FROM outbox.history WHERE id = $1`, id)
	if got != want {
		t.Errorf("history says %q, want %q", got, want)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != 0 {
		t.Errorf("rows in outbox.attempts = %d: a job that succeeds at once writes none", n)
	}
	if err := d.Ready(); err != nil {
		t.Errorf("Ready() = %v", err)
	}
}

// order runs every job with one worker and returns the numbers in the order of their starts.
func order(t *testing.T, db outbox.DB, n int, run func(h handler)) []int {
	t.Helper()
	var mu sync.Mutex
	var started []int
	run(func(_ context.Context, job *outbox.Job[probe]) error {
		mu.Lock()
		defer mu.Unlock()
		started = append(started, job.Args.N)
		return nil
	})
	awaitSucceeded(t, db, n)
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(started)
}

func single(config dispatcher.Config) dispatcher.Config {
	config.Queues = map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 1}}
	return config
}

func TestMostUrgentFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var requests []outbox.Request
	var want []int
	for n, priority := range []int{-32768, -5, 0, 0, 4, 5, 32767} {
		requests = append(requests, outbox.Request{Args: probe{n}, Options: outbox.Options{Priority: priority}})
	}
	want = []int{6, 5, 4, 2, 3, 1, 0}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	got := order(t, db, len(want), func(h handler) { start(t, db, handle(h), single(quiet(nil))) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of the starts (-want +got):\n%s", diff)
	}
}

func TestOldestFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 300, outbox.Options{})
	enqueue(t, db, probe{-1}, outbox.Options{RunAt: time.Now().Add(-time.Hour)})
	want := []int{-1}
	for n := range 300 {
		want = append(want, n)
	}
	got := order(t, db, len(want), func(h handler) { start(t, db, handle(h), single(quiet(nil))) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of the starts (-want +got):\n%s", diff)
	}
}

func TestWakeUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wake := make(chan struct{}, 1)
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(wake))
	awaitScans(t, d, 1)
	for n := 1; n <= 20; n++ {
		enqueue(t, db, probe{n}, outbox.Options{})
		wake <- struct{}{}
		awaitSucceeded(t, db, n)
	}
	// A burst: each wake-up may find that a scan is under way.
	for n := range 200 {
		enqueue(t, db, probe{n}, outbox.Options{})
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	awaitSucceeded(t, db, 220)
}

// awaitScans waits until the dispatcher has sent n more claims.
func awaitScans(t *testing.T, d *running, n float64) {
	t.Helper()
	const claims = "outbox_dispatcher_claim_batch_size"
	before := d.metric(t, claims)
	if n <= before {
		return
	}
	awaitThat(t, "claims are sent", func() bool { return d.metric(t, claims) >= n })
}

func TestPollFindsWhatNobodyAnnounced(t *testing.T) {
	t.Parallel()
	for name, hearing := range map[string]bool{"hearing": true, "deaf": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			config := quiet(nil)
			config.Hearing = func() bool { return hearing }
			if hearing {
				config.PollInterval = 20 * time.Millisecond
			} else {
				config.DeafPollInterval = 20 * time.Millisecond
			}
			d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), config)
			awaitScans(t, d, 3)
			enqueue(t, db, probe{}, outbox.Options{})
			awaitSucceeded(t, db, 1)
		})
	}
}

// With a poll of an hour only a timer can start these jobs.
func TestFutureJobsStartByTimer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wake := make(chan struct{}, 1)
	for n := range 5 {
		enqueue(t, db, probe{n}, outbox.Options{Delay: 300*time.Millisecond + time.Duration(n)*40*time.Millisecond, Priority: n - 2})
	}
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(wake))
	awaitSucceeded(t, db, 5)

	// One that is announced while the queue sleeps.
	awaitScans(t, d, 2)
	enqueue(t, db, probe{9}, outbox.Options{Delay: 200 * time.Millisecond, Priority: 100})
	wake <- struct{}{}
	awaitSucceeded(t, db, 6)
	if early := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE started_at < run_at`); early != 0 {
		t.Errorf("jobs that started before their time = %d", early)
	}
}

// Two jobs that become due within a moment: the second may do so while the first
// is being claimed, or between the claim and the look for the next start. Each
// queue is one try.
func TestFutureJobsThatBecomeDueDuringAScan(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const queues, jobs = 40, 25
	config := quiet(nil)
	config.Queues = map[string]dispatcher.QueueConfig{}
	base := time.Now().Add(time.Second)
	var requests []outbox.Request
	for q := range queues {
		name := fmt.Sprintf("q%d", q)
		config.Queues[name] = dispatcher.QueueConfig{Concurrency: 2}
		for n := range jobs {
			at := base.Add(time.Duration(n*20+q)*time.Millisecond + time.Duration(n*q)*17*time.Microsecond)
			requests = append(requests, outbox.Request{Args: probe{n}, Options: outbox.Options{Queue: name, RunAt: at}})
		}
		// The last one follows soon: nothing after it wakes the queue.
		last := base.Add(time.Duration((jobs-1)*20+q)*time.Millisecond + time.Duration((jobs-1)*q)*17*time.Microsecond)
		requests = append(requests, outbox.Request{Args: probe{jobs}, Options: outbox.Options{
			Queue: name,
			RunAt: last.Add(time.Duration(1+q*5%40) * 50 * time.Microsecond),
		}})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), config)
	// One that was missed stays pending and due for good. A slow machine may have many such
	// for seconds, but then others run.
	const silence = 3 * time.Second
	open, since := len(requests), time.Now()
	awaitThat(t, "every job is done, or none has been for three seconds", func() bool {
		if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != open {
			open, since = n, time.Now()
		}
		return open == 0 || time.Since(since) > silence
	})
	if open > 0 {
		t.Errorf("jobs that nothing but the poll would find: %d of %d", open, len(requests))
	}
}

func TestRetriesStartByTimer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(0, 200*time.Millisecond, time.Millisecond)
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Attempt <= 3 {
			return errBoom
		}
		return nil
	}), config)
	awaitSucceeded(t, db, 1)
	wantState(t, db, id, "succeeded attempt=4 epoch=7 lost=0 error=error")
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE job_id = $1 AND error_message = 'boom'`, id); n != 3 {
		t.Errorf("recorded attempts = %d, want the 3 that failed", n)
	}
}

// More priorities than a scan remembers.
func TestEveryPriorityIsServed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	requests := make([]outbox.Request, 200)
	for n := range requests {
		requests[n] = outbox.Request{Args: probe{n}, Options: outbox.Options{Priority: n * 31}}
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	awaitSucceeded(t, db, len(requests))
}

func TestRowsOfTomorrowAreLeftAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 20, outbox.Options{Delay: 24 * time.Hour, Priority: 1000})
	enqueueProbes(t, db, 20, outbox.Options{})
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, db, "what is due succeeds", `SELECT count(*) = 20 FROM outbox.history`)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'pending' AND attempt = 0 AND epoch = 0`); n != 20 {
		t.Errorf("untouched jobs of tomorrow = %d, want 20", n)
	}
}

// A job whose transaction commits late lies behind the position of the scan.
func TestLateCommitIsFound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wake := make(chan struct{}, 1)
	late := begin(t, db)
	enqueue(t, late, probe{}, outbox.Options{})
	enqueue(t, late, probe{}, outbox.Options{RunAt: time.Now().Add(-time.Hour)})
	enqueueProbes(t, db, 50, outbox.Options{})
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(wake))
	awaitSucceeded(t, db, 50)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wake <- struct{}{}
	awaitSucceeded(t, db, 52)
}

// Looks that failed because the database did not answer were not too wide: what lies
// behind the position of the scan, and what another tenant has, is found as soon as it
// is back.
func TestLateCommitIsFoundAfterAnOutage(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]outbox.Options{"the root's": {}, "a tenant's": of(1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			wake := make(chan struct{}, 1)
			enqueueProbes(t, db, 50, options)
			start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(wake))
			awaitSucceeded(t, db, 50)
			away := begin(t, db)
			late := options
			late.RunAt = time.Now().Add(-time.Hour)
			enqueue(t, away, probe{}, late)
			exec(t, away, `LOCK TABLE outbox.jobs`)
			wake <- struct{}{}
			// Two looks, of two seconds each, and one after each for what they may have left.
			time.Sleep(9 * time.Second)
			if err := away.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			back := time.Now()
			awaitSucceeded(t, db, 51)
			if took := time.Since(back); took > 15*time.Second {
				t.Errorf("found after %s, want seconds", took)
			}
		})
	}
}

func TestUnknownKindsAreLeftAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var unknown []outbox.ID
	for n := range 30 {
		unknown = append(unknown, enqueue(t, db, outbox.Raw{KindName: "unknown", Payload: []byte("1")}, outbox.Options{Priority: n % 3}))
		enqueue(t, db, probe{n}, outbox.Options{Priority: n % 2})
	}
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, db, "the known ones succeed", `SELECT count(*) = 30 FROM outbox.history`)
	for _, id := range unknown {
		wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
	}
}

func TestNoHandlerClaimsNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	config := quiet(nil)
	config.DeafPollInterval = 10 * time.Millisecond
	d := start(t, db, new(dispatcher.Mux), config)
	awaitThat(t, "a few polls", func() bool { return d.metric(t, "job_poll_scanned_total") >= 5 })
	d.stop(t)
	wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
	if c := d.log.complaints(); c != "" {
		t.Errorf("complaints:\n%s", c)
	}
}

func TestPausedQueueIsNotClaimed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', now())`)
	id := enqueue(t, db, probe{}, outbox.Options{Priority: 4})
	wake := make(chan struct{}, 1)
	config := quiet(wake)
	config.DeafPollInterval = 10 * time.Millisecond
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), config)
	awaitStops(t, d, 6)
	wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
	exec(t, db, `UPDATE outbox.queues SET paused_at = NULL WHERE queue = 'default'`)
	awaitSucceeded(t, db, 1)
	d.stop(t)
}

func TestQueuesHaveTheirOwnConcurrency(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	limits := map[string]int{"narrow": 1, "wide": 7}
	config := quiet(nil)
	config.Queues = map[string]dispatcher.QueueConfig{}
	var now, most sync.Map
	full := map[string]chan struct{}{}
	for queue, limit := range limits {
		config.Queues[queue] = dispatcher.QueueConfig{Concurrency: limit}
		now.Store(queue, new(atomic.Int64))
		most.Store(queue, new(atomic.Int64))
		full[queue] = make(chan struct{})
		enqueueProbes(t, db, 60, outbox.Options{Queue: queue})
	}
	enqueueProbes(t, db, 10, outbox.Options{Queue: "elsewhere"})
	count := func(m *sync.Map, queue string) *atomic.Int64 { v, _ := m.Load(queue); return v.(*atomic.Int64) }
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		running := count(&now, job.Queue).Add(1)
		defer count(&now, job.Queue).Add(-1)
		if peak := count(&most, job.Queue); running > peak.Load() { // races are caught by the next job
			peak.Store(running)
			if int(running) == limits[job.Queue] {
				close(full[job.Queue])
			}
		}
		select { // nobody goes on until all places of the queue are taken
		case <-full[job.Queue]:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}), config)
	await(t, db, "both queues are done", `SELECT count(*) = 120 FROM outbox.history WHERE status = 'succeeded'`)
	for queue, limit := range limits {
		if got := count(&most, queue).Load(); got != int64(limit) {
			t.Errorf("jobs of queue %s that ran at once = %d, want %d", queue, got, limit)
		}
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE queue = 'elsewhere' AND attempt = 0`); n != 10 {
		t.Errorf("untouched jobs of a queue that is not ours = %d, want 10", n)
	}
}

// Eight dispatchers compete for the same jobs.
func TestConcurrentClaimersShareWithoutOverlap(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 3000
	for priority := range 3 {
		enqueueProbes(t, db, jobs/3, outbox.Options{Priority: priority})
	}
	var runs sync.Map
	mux := handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if _, again := runs.LoadOrStore(job.ID, true); again {
			t.Errorf("job %s ran twice", job.ID)
		}
		return nil
	})
	var dispatchers []*running
	for range 8 {
		config := quiet(nil)
		config.DeafPollInterval = 50 * time.Millisecond // a claim skips what another is about to give up
		config.Queues = map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 4}}
		dispatchers = append(dispatchers, start(t, db, mux, config))
	}
	await(t, db, "all jobs succeed", `SELECT count(*) = 3000 FROM outbox.history`)
	var claimed float64
	for _, d := range dispatchers {
		d.stop(t)
		if c := d.log.complaints(); c != "" {
			t.Errorf("complaints of %s:\n%s", d.Worker(), c)
		}
		claimed += d.metric(t, "job_claimed_total")
	}
	rows, _ := db.Query(t.Context(), `SELECT DISTINCT format('%s %s %s', status, attempt, epoch) FROM outbox.history WHERE attempt > 1`)
	if odd, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(odd) > 0 {
		t.Errorf("jobs with more than one attempt: %v, %v", odd, err)
	}
	if handled := ask[int64](t, db, `SELECT sum((epoch + 1) / 2)::bigint FROM outbox.history`); float64(handled) != claimed {
		t.Errorf("epochs tell of %d claims, the dispatchers counted %.0f", handled, claimed)
	}
	if claimed == jobs { // nothing was given back: no epoch but 1
		if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE epoch <> 1`); n != 0 {
			t.Errorf("jobs whose epoch is not 1 = %d", n)
		}
	}
}

// Rows that other producers wrote, as odd as the schema admits: none may stop the
// queue, for itself or for the others.
func TestOddRowsDoNotStopTheQueue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, columns := range map[string]string{
		"due since ever":          `run_at = '4713-01-01 BC', created_at = '-infinity'`,
		"made at the end of time": `created_at = 'infinity'`,
		"negative timeout":        `timeout = '-1 hour'`,
		"timeout of years":        `timeout = '10000 years'`,
		"waits of nonsense":       `backoff = '{{NULL,-1 hour},{10000 years,NULL}}'`,
		"headers of other types":  `headers = '[1, {"a": null}]'`,
		"headers that are null":   `headers = 'null'`,
		"empty key and type":      `key = '', content_type = ''`,
		"other tenant":            `tenant_id = '00000000-0000-0000-0000-000000000000'`,
		"many attempts":           `attempt = 2000000000, max_attempts = 2147483647, epoch = 9000000000000000000, lost_leases = 2000000000`,
	} {
		id := enqueue(t, db, probe{1}, outbox.Options{})
		if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET `+columns+` WHERE id = $1`, id); err != nil && !strings.Contains(err.Error(), "23514") {
			t.Fatal(err) // what a CHECK refuses cannot be in the table
		}
	}
	enqueueProbes(t, db, 10, outbox.Options{})
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		_ = job.Headers()
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, 20)
}

// slowFirstSurvey makes the first survey take long, as it does on a machine that
// is busy, or when the server has to read its catalogs first.
type slowFirstSurvey struct{ once sync.Once }

func (s *slowFirstSurvey) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, "-- name: SurveyLevels") {
		s.once.Do(func() { time.Sleep(500 * time.Millisecond) })
	}
	return ctx
}

func (*slowFirstSurvey) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The survey at the start finds the higher priority first, which has nothing due.
// That it took half a second must not keep it from looking for the lower one until
// thirty-nine times as long is over.
func TestSlowSurveyFindsEveryPriority(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, outbox.Options{Priority: 10, Delay: time.Hour})
	for priority := range 5 {
		enqueue(t, db, probe{}, outbox.Options{Priority: priority})
	}
	config := db.Config()
	config.ConnConfig.Tracer = &slowFirstSurvey{}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	ran := make(chan struct{}, 5)
	d := start(t, slow, handle(func(context.Context, *outbox.Job[probe]) error { ran <- struct{}{}; return nil }), quiet(nil))
	deadline := time.After(9 * time.Second)
	for i := range 5 {
		select {
		case <-ran:
		case <-deadline:
			t.Fatalf("%d of 5 due jobs ran within 9 s", i)
		}
	}
	d.stop(t)
}

// skimmed is a job of which nothing is read: decoding the bytes would be most of a test.
type skimmed struct{}

func (skimmed) Kind() string { return "blob" }

// Small jobs taught the dispatcher to claim many at once; then come large ones. No
// answer may hold all of them, and none of them loses anything by that.
func TestLargeJobsAfterSmallOnesAreClaimedFewAtATime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const small, large = 500, 30
	enqueueProbes(t, db, small, outbox.Options{Priority: 1})
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload)
		SELECT outbox.uuid_v7(), 'blob', convert_to('{"Bytes":"' || repeat('A', 2800000) || '"}', 'UTF8') FROM generate_series(1, $1::integer)`, large)
	mux := handle(func(context.Context, *outbox.Job[probe]) error { return nil })
	dispatcher.Handle(mux, func(context.Context, *outbox.Job[skimmed]) error { return nil })
	d := start(t, db, mux, single(quiet(nil)))
	awaitSucceeded(t, db, small+large)
	if !strings.Contains(d.log.String(), "given back: they are larger") {
		t.Error("no job was given back: the test did not reach what it is for")
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt <> 1`); n != 0 {
		t.Errorf("jobs that spent an attempt on it = %d, want 0", n)
	}
}

// Go and the SQL function store at most 4 MiB, psql whatever it is told to. A job
// that is too large for any bound still runs.
func TestAHugeJobRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) VALUES (outbox.uuid_v7(), 'blob',
		convert_to('{"Bytes":"' || repeat('A', 65 << 20) || '"}', 'UTF8'))`)
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(context.Context, *outbox.Job[skimmed]) error { return nil })
	start(t, db, mux, quiet(nil))
	awaitSucceeded(t, db, 1)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt = 1 AND epoch = 1`); n != 1 {
		t.Error("the job was given back before it ran")
	}
}
