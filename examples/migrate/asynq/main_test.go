package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/brokertest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rig is a Redis with a queue of asynq, and a database.
type rig struct {
	t     *testing.T
	uri   string
	redis asynq.RedisConnOpt
	tasks *asynq.Inspector
	db    *pgxpool.Pool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	uri := "redis://admin:admin@" + brokertest.StartRedis(t, "unused").Address
	redis, err := connection(uri)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t, uri, redis, asynq.NewInspector(redis), pgtest.New(t)}
	t.Cleanup(func() { _ = r.tasks.Close() })
	return r
}

// enqueue stores tasks by asynq's own client.
func (r *rig) enqueue(tasks ...*asynq.Task) {
	r.t.Helper()
	client := asynq.NewClient(r.redis)
	defer client.Close()
	for _, task := range tasks {
		if _, err := client.Enqueue(task); err != nil {
			r.t.Fatal(err)
		}
	}
}

// work lets a server of asynq's run until the queue is as it should be.
func (r *rig) work(handle func(context.Context, *asynq.Task) error, until func(*asynq.QueueInfo) bool) (stop func()) {
	r.t.Helper()
	server := asynq.NewServer(r.redis, asynq.Config{
		Queues: map[string]int{"mail": 1}, LogLevel: asynq.FatalLevel, ShutdownTimeout: 10 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	if err := server.Start(asynq.HandlerFunc(handle)); err != nil {
		r.t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if info, err := r.tasks.GetQueueInfo("mail"); err != nil || time.Now().After(deadline) {
			r.t.Fatalf("asynq's server did not get there: %+v, %v", info, err)
		} else if until(info) {
			return server.Shutdown
		}
	}
}

func (r *rig) move() (said string) {
	r.t.Helper()
	var out bytes.Buffer
	if err := run(r.t.Context(), r.uri, "mail", r.db.Config().ConnString(), &out); err != nil {
		r.t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// job is what the tests look at of one.
type job struct {
	Kind, Status, ContentType, Payload string
	MaxAttempts                        int
	RunsIn, Timeout                    time.Duration // RunsIn in whole hours
	HasDeadline                        bool
	Headers                            map[string]string
}

// jobs returns what is stored, by the id of the task; one that is stored twice fails the test.
func (r *rig) jobs() map[string]job {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), `
		SELECT kind, status::text, content_type, convert_from(payload, 'UTF8'), max_attempts,
			round(greatest(extract(epoch FROM run_at - now()), 0) / 3600)::bigint * 3600000000000,
			coalesce(extract(epoch FROM timeout)::bigint, 0) * 1000000000, deadline IS NOT NULL, headers
		FROM outbox.jobs WHERE queue = 'mail'`)
	if err != nil {
		r.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job])
	if err != nil {
		r.t.Fatal(err)
	}
	byID := map[string]job{}
	for _, j := range all {
		id := j.Headers["asynq-id"]
		if _, twice := byID[id]; twice {
			r.t.Errorf("task %s was stored twice", id)
		}
		byID[id] = j
	}
	return byID
}

func says(t *testing.T, said string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(said, line) {
			t.Errorf("it does not say %q but\n%s", line, said)
		}
	}
}

func TestEveryStateOfATask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inQueue := asynq.Queue("mail")
	failing := func(id string, retries int) *asynq.Task {
		return asynq.NewTask("fails", []byte(`{}`), inQueue, asynq.TaskID(id), asynq.MaxRetry(retries), asynq.Retention(time.Hour))
	}
	r.enqueue(failing("retry", 3), failing("archived", 0), asynq.NewTask("completes", nil, inQueue, asynq.Retention(time.Hour)))
	r.work(func(_ context.Context, task *asynq.Task) error {
		if task.Type() == "fails" {
			return errors.New("no")
		}
		return nil
	}, func(q *asynq.QueueInfo) bool { return q.Retry == 1 && q.Archived == 1 && q.Completed == 1 })()

	headers := map[string]string{"trace": "x"}
	r.enqueue(
		asynq.NewTaskWithHeaders("mail:send", []byte(`{"to": "ada"}`), headers, inQueue, asynq.TaskID("pending"), asynq.Deadline(time.Now().Add(time.Hour))),
		asynq.NewTask("mail:send", []byte(`{"to": "ada"}`), inQueue, asynq.TaskID("scheduled"), asynq.ProcessIn(48*time.Hour), asynq.MaxRetry(7), asynq.Unique(time.Hour)),
		asynq.NewTask("mail:send", []byte("not JSON"), inQueue, asynq.TaskID("bytes"), asynq.Timeout(time.Minute)),
		asynq.NewTask("mail:send", nil, inQueue, asynq.TaskID("grouped"), asynq.Group("g")),
		asynq.NewTask("no kind of ours", nil, inQueue, asynq.TaskID("unnamed")),
	)
	said := r.move()
	says(t, said, "scheduled: 1 moved, 0 left", "retry: 1 moved, 0 left", "archived: 1 moved, 0 left", "pending: 2 moved, 1 left",
		`left: task "unnamed": enqueue "no kind of ours": Args.Kind()`, "left: 1 waiting in groups", "left: 1 completed", "left: 1 waiting:")

	const half = 30 * time.Minute
	want := map[string]job{
		"pending":   {"mail:send", "pending", "application/json", `{"to": "ada"}`, 26, 0, 0, true, map[string]string{"trace": "x"}},
		"scheduled": {"mail:send", "pending", "application/json", `{"to": "ada"}`, 8, 48 * time.Hour, half, false, nil},
		"bytes":     {"mail:send", "pending", "application/octet-stream", "not JSON", 26, 0, time.Minute, false, nil},
		"retry":     {"fails", "pending", "application/json", `{}`, 3, time.Hour, half, false, nil},
		"archived":  {"fails", "created", "application/json", `{}`, 1, 0, half, false, nil},
	}
	for id, j := range want {
		j.Headers = maps.Clone(j.Headers)
		if j.Headers == nil {
			j.Headers = map[string]string{}
		}
		j.Headers["asynq-id"] = id
		want[id] = j
	}
	if diff := cmp.Diff(want, r.jobs()); diff != "" {
		t.Errorf("the jobs are not what the tasks were (-want +got):\n%s", diff)
	}
	info, err := r.tasks.GetQueueInfo("mail")
	if err != nil || !info.Paused || info.Size != 3 {
		t.Errorf("asynq has %+v, %v; want it paused, with the task without a name, that in a group and the completed one", info, err)
	}
	says(t, r.move(), "pending: 0 moved, 1 left")
	if n := len(r.jobs()); n != len(want) {
		t.Errorf("%d jobs after a second run, want %d", n, len(want))
	}
}

// Tasks that are stored and not yet deleted when a run is broken off are still in Redis: the next run stores none of
// them again. More than a page of them, between tasks that are left.
func TestASecondRunDoublesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 1100
	task := func(i int) *asynq.Task {
		return asynq.NewTask("mail:send", fmt.Appendf(nil, `{"n": %d}`, i), asynq.Queue("mail"), asynq.TaskID(fmt.Sprint(i)))
	}
	for i := range n {
		r.enqueue(task(i))
		if i%100 == 0 {
			r.enqueue(asynq.NewTask("no kind of ours", nil, asynq.Queue("mail")))
		}
	}
	says(t, r.move(), fmt.Sprintf("pending: %d moved, 11 left", n))
	first := r.jobs()
	for i := range n / 2 {
		r.enqueue(task(i))
	}
	says(t, r.move(), fmt.Sprintf("pending: %d moved, 11 left", n/2))
	if again := r.jobs(); len(again) != n || !cmp.Equal(slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(again))) {
		t.Errorf("%d jobs, then %d; want %d", len(first), len(again), n)
	}
}

// A task that asynq's server runs stays its own, and no other is taken once the queue is moved.
func TestATaskThatRunsIsLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(asynq.NewTask("slow", nil, asynq.Queue("mail"), asynq.TaskID("slow")))
	done := make(chan struct{})
	stop := r.work(func(context.Context, *asynq.Task) error { <-done; return nil }, func(q *asynq.QueueInfo) bool { return q.Active == 1 })
	defer stop()
	defer close(done)
	says(t, r.move(), "pending: 0 moved, 0 left", "left: 1 active")
	if jobs := r.jobs(); len(jobs) != 0 {
		t.Errorf("a running task was stored: %v", jobs)
	}
}

// mail is a job of both systems.
type mail struct {
	N int `json:"n"`
}

func (mail) Kind() string { return "mail:send" }

// Both systems run the same kind at once, as in step 2 of the page: the producer is switched while asynq's server has
// tasks of before, and the program moves what waits while jobs run here. Each takes effect once.
func TestBothRunAndEachTaskTakesEffectOnce(t *testing.T) {
	t.Parallel()
	const before, after = 400, 200
	r := newRig(t)
	if _, err := r.db.Exec(t.Context(), `CREATE TABLE effects (n int NOT NULL, system text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	defer r.dispatch()()
	for n := range before {
		r.enqueue(asynq.NewTask("mail:send", fmt.Appendf(nil, `{"n": %d}`, n), asynq.Queue("mail"), asynq.MaxRetry(8)))
	}
	stop := r.serve()
	r.await(1, `SELECT least(count(*) / 100, 1) FROM effects`) // asynq is in the middle of its tasks
	for n := before; n < before+after; n++ {
		if n == before+10 {
			r.move()
		}
		if _, err := outbox.Enqueue(t.Context(), r.db, mail{n}, outbox.Options{Queue: "mail"}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	says(t, r.move(), "pending: 0 moved, 0 left") // what failed since then is in retry
	r.await(0, `SELECT count(*) FROM outbox.jobs`)
	r.await(0, `SELECT count(*) FROM (
		SELECT FROM generate_series(0, 599) AS n LEFT JOIN effects USING (n) GROUP BY n HAVING count(effects.n) <> 1) AS wrong`)
	r.await(before+after, `SELECT count(*) FROM effects`)
	r.await(1, `SELECT count(*) FROM (SELECT count(*) AS ran FROM effects WHERE system = 'asynq') AS a WHERE ran BETWEEN 100 AND 399`)
	if info, err := r.tasks.GetQueueInfo("mail"); err != nil || info.Size != 0 {
		t.Errorf("asynq has %+v, %v; want nothing", info, err)
	}
}

// serve starts a server of asynq's that sends mail. Stopping waits for the tasks that run.
func (r *rig) serve() (stop func()) {
	r.t.Helper()
	server := asynq.NewServer(r.redis, asynq.Config{
		Queues: map[string]int{"mail": 1}, LogLevel: asynq.FatalLevel, Concurrency: 4, TaskCheckInterval: 100 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 2 * time.Second },
	})
	err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		var m mail
		if err := json.Unmarshal(task.Payload(), &m); err != nil {
			return err
		}
		if retried, _ := asynq.GetRetryCount(ctx); m.N%20 == 0 && retried == 0 {
			return errors.New("not yet") // and it waits for some seconds, in which the program moves it
		}
		return r.send(ctx, m.N, "asynq")
	}))
	if err != nil {
		r.t.Fatal(err)
	}
	return server.Shutdown
}

// dispatch starts our workers.
func (r *rig) dispatch() (stop func()) {
	r.t.Helper()
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[mail]) error {
		return r.send(ctx, job.Args.N, "posthaste")
	})
	d, err := dispatcher.New(r.db, mux, dispatcher.Config{
		Logger: slog.New(slog.DiscardHandler), PollInterval: 10 * time.Millisecond,
		Queues: map[string]dispatcher.QueueConfig{"mail": {Concurrency: 4}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
}

// send takes effect.
func (r *rig) send(ctx context.Context, n int, system string) error {
	time.Sleep(5 * time.Millisecond)
	_, err := r.db.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, n, system)
	return err
}

// await waits until a query counts n.
func (r *rig) await(n int, query string) {
	r.t.Helper()
	got := 0
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err := r.db.QueryRow(r.t.Context(), query).Scan(&got); err != nil {
			r.t.Fatalf("%v: %s", err, query)
		}
		if got == n {
			return
		}
	}
	r.t.Fatalf("it is %d and not %d: %s", got, n, query)
}
