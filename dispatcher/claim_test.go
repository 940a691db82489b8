package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
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

// There are more priorities than one survey finds. No survey runs for each of them: no other jobs start meanwhile.
func TestEveryPriorityIsServed(t *testing.T) {
	t.Parallel()
	db, surveys := pgtest.New(t), &counter{text: "name: SurveyQueue"}
	requests := make([]outbox.Request, 400)
	for n := range requests {
		requests[n] = outbox.Request{Args: probe{n}, Options: outbox.Options{Priority: n * 31}}
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	start(t, traced(t, db, surveys), handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	awaitSucceeded(t, db, len(requests))
	if n := surveys.n.Load(); n > 50 {
		t.Errorf("%d surveys for %d priorities, want no more than 50", n, len(requests))
	}
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
	config.FallbackPollInterval = 10 * time.Millisecond
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
	config.FallbackPollInterval = 10 * time.Millisecond
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), config)
	awaitStops(t, d, 6)
	wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
	exec(t, db, `UPDATE outbox.queues SET paused_at = NULL WHERE queue = 'default'`)
	awaitSucceeded(t, db, 1)
	d.stop(t)
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
		config.FallbackPollInterval = 50 * time.Millisecond // a claim skips what another is about to give up
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

// Producers wrote rows as odd as the schema permits: none may stop the queue, for itself or for the others.
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
			t.Fatal(err) // a row that a CHECK refuses cannot be in the table
		}
	}
	enqueueProbes(t, db, 10, outbox.Options{})
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		_ = job.Headers()
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, 20)
}

// After small jobs the dispatcher claims many at once; then large jobs come. No answer may hold all of them, and none
// of them loses anything by that.
func TestLargeJobsAfterSmallOnesAreClaimedFewAtATime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const small, large = 20, 30
	enqueueProbes(t, db, small, outbox.Options{})
	mux := handle(func(context.Context, *outbox.Job[probe]) error { return nil })
	mux.HandleRaw("blob", func(context.Context, *outbox.Claimed) error { return nil })
	wake := make(chan struct{}, 1)
	config := quiet(wake) // with 64 workers the next claim asks for 64 jobs, however long these have taken
	config.SetClaimBytes(100_000)
	d := start(t, db, mux, config)
	awaitSucceeded(t, db, small)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload)
		SELECT outbox.uuid_v7(), 'blob', convert_to('{"Bytes":"' || repeat('A', 10000) || '"}', 'UTF8') FROM generate_series(1, $1::integer)`, large)
	wake <- struct{}{}
	awaitSucceeded(t, db, small+large)
	if !strings.Contains(d.log.String(), "given back: they are larger") {
		t.Error("no job was given back: the test did not reach what it is for")
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt <> 1`); n != 0 {
		t.Errorf("jobs that spent an attempt on it = %d, want 0", n)
	}
}

// A user's trigger fails for each claim of the first job: the jobs of its tenant behind it wait. The log says where the
// trigger fails and what helps: the job can be cancelled.
func TestTheLogSaysWhatKeepsAQueueFromItsJobs(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			exec(t, db, `CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO app.audit VALUES (NEW.id); RETURN NULL; END $$`)
			exec(t, db, `CREATE TRIGGER audit AFTER UPDATE ON outbox.jobs FOR EACH ROW WHEN (NEW.status = 'running' AND NEW.payload = '{"n":0}') EXECUTE FUNCTION audit()`)
			ids := enqueueProbes(t, db, 5, outbox.Options{Tenant: tenant})
			d := start(t, db, handle(nil), quiet(nil))
			awaitThat(t, "the log says where", func() bool { return strings.Contains(d.log.String(), "function audit()") })
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.history`); n != 0 {
				t.Errorf("%d jobs behind it are done: change the manual", n)
			}
			if _, err := operator.New(db).Cancel(t.Context(), ids[0]); err != nil {
				t.Fatal(err)
			}
			await(t, db, "the others succeed", `SELECT count(*) = 4 FROM outbox.history WHERE status = 'succeeded'`)
			d.stop(t)
		})
	}
}
