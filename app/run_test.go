package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/promtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

func enqueue(t *testing.T, pool *pgxpool.Pool, name string) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), pool, greet{name}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAJobIsHandledWithinMomentsThroughTheListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	handled := make(chan time.Time, 1)
	r := start(t, greeter(func(context.Context, string) error { handled <- time.Now(); return nil }),
		Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(200, "ready", nil)

	enqueued := time.Now()
	enqueue(t, pool, "Ada")
	select {
	case at := <-handled:
		t.Logf("picked up after %s", at.Sub(enqueued))
	case <-time.After(time.Second): // the poll comes after 30
		t.Fatal("the job was not handled within a second")
	}
	r.end(nil)
	var succeeded int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox.history WHERE status = 'succeeded'`).Scan(&succeeded); err != nil || succeeded != 1 {
		t.Errorf("got %d succeeded jobs (%v), want 1", succeeded, err)
	}
}

// Nothing is heard and the next poll is two seconds away: only the producer's own
// word can start five jobs, one after the other, within a second.
func TestAProducerOfTheSameProgramWakesItsDispatcher(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	producer := outbox.NewProducer(pool, outbox.NotifyCoalesced)
	handled := make(chan struct{})
	r := start(t, greeter(func(context.Context, string) error { handled <- struct{}{}; return nil }),
		Config{DatabaseURL: pool.Config().ConnString(), NoListen: true, Producer: producer})
	one := func() {
		err := producer.InTx(t.Context(), func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(t.Context(), tx, greet{"Ada"}, outbox.Options{})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-handled:
		case <-time.After(time.Minute):
			t.Fatal("a job was not handled")
		}
	}
	one()              // whenever the first claim is made
	least := time.Hour // of five: the machine may stand still beside one
	for range 5 {
		begun := time.Now()
		one()
		least = min(least, time.Since(begun))
	}
	if least > 1500*time.Millisecond {
		t.Errorf("each of five jobs took %s at least: they waited for the poll, which is every two seconds", least)
	}
	r.end(nil)
}

func TestADrainingProcessIsUnreadyAndLetsRunningJobsFinish(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	started, release := make(chan struct{}), make(chan struct{})
	r := start(t, greeter(func(context.Context, string) error {
		close(started)
		<-release
		return nil
	}), Config{DatabaseURL: pool.Config().ConnString()})
	enqueue(t, pool, "Ada")
	await(t, "the handler", started)

	r.stop(errors.New("the test says so"))
	r.awaitReadyz(503, "draining", map[string]string{"listener": "stopped", "reaper": "stopped", "scheduler": "stopped"})
	close(release)
	r.wait(nil)
	var status string
	if err := pool.QueryRow(t.Context(), `SELECT status FROM outbox.history`).Scan(&status); err != nil || status != "succeeded" {
		t.Errorf("the running job is %q (%v), want succeeded", status, err)
	}
}

func TestCutEndsADrainAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	started, release := make(chan struct{}), make(chan struct{})
	cut := make(chan struct{})
	r := start(t, greeter(func(context.Context, string) error {
		close(started)
		<-release
		return nil
	}), Config{DatabaseURL: pool.Config().ConnString(), Cut: cut, GracePeriod: time.Hour})
	enqueue(t, pool, "Ada")
	await(t, "the handler", started)

	close(cut)
	r.end(ErrCut)
	close(release) // so that the dispatcher ends before the test does
	r.awaitComponents()
}

func TestHandlersCannotStarveReadiness(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	var held []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	r := start(t, greeter(nothing), Config{Pool: pool})
	r.awaitReadyz(200, "ready", nil)
	for _, conn := range held {
		conn.Release()
	}
	r.end(nil)
}

// Without a pool for its handlers, their transactions are not on the process's own connections either.
func TestHandlersWithoutAPoolCannotStarveReadiness(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const holders = ownConnections + 2
	inside, leave := make(chan struct{}, holders), make(chan struct{})
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[greet]) error {
		return job.Tx(ctx, func(pgx.Tx) error {
			inside <- struct{}{}
			<-leave
			return nil
		})
	})
	url := pool.Config().ConnString() + "&pool_max_conns=" + strconv.Itoa(holders)
	r := start(t, mux, Config{DatabaseURL: url})
	r.awaitReadyz(200, "ready", nil)
	for range holders {
		enqueue(t, pool, "you")
	}
	for range holders {
		<-inside
	}
	if code, report := r.readyz(); code != 200 {
		t.Errorf("while %d handlers are in transactions, /readyz answers %d: %+v", holders, code, report)
	}
	if got := r.pool.Stat().AcquiredConns(); got > 1 {
		t.Errorf("%d of the process's own connections are in use", got)
	}
	close(leave)
	r.end(nil)
}

func TestWhatIsOffIsNotMade(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	tests := map[string]struct {
		config Config
		mux    *dispatcher.Mux
		states map[string]string
	}{
		"no listener":       {Config{NoListen: true}, greeter(nothing), map[string]string{"listener": "off"}},
		"no dispatcher":     {Config{NoDispatch: true}, greeter(nothing), map[string]string{"dispatcher": "off"}},
		"no reaper":         {Config{NoReap: true}, greeter(nothing), map[string]string{"reaper": "off"}},
		"no scheduler":      {Config{NoSchedule: true}, greeter(nothing), map[string]string{"scheduler": "off"}},
		"nothing to handle": {Config{}, new(dispatcher.Mux), map[string]string{"dispatcher": "idle"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.config.DatabaseURL = pool.Config().ConnString()
			r := start(t, test.mux, test.config)
			r.awaitReadyz(200, "ready", test.states)
			r.end(nil)
		})
	}
}

func TestADeafListenerIsDegradedAndReady(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, greeter(nothing), Config{
		DatabaseURL: pool.Config().ConnString(), ListenURL: "postgres://nobody@127.0.0.1:1/nowhere",
	})
	r.awaitReadyz(200, "degraded", map[string]string{"listener": "not listening"})
	r.end(nil)
}

// A job without a notification is found by the first look of a process that has
// just stopped listening, although the next one was due in an hour.
func TestGoingDeafMakesTheDispatcherLookAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	config := pool.Config().ConnConfig
	role := "listener_of_" + config.Database
	exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'x'`)
	defer func() { _, _ = pool.Exec(context.Background(), `DROP ROLE `+role) }()
	first, second := make(chan struct{}), make(chan struct{})
	r := start(t, greeter(func(_ context.Context, name string) error {
		if name == "Ada" {
			close(first)
		} else {
			close(second)
		}
		return nil
	}), Config{
		DatabaseURL: config.ConnString(), PollInterval: time.Hour,
		ListenURL: fmt.Sprintf("host=%s port=%d user=%s password=x dbname=%s sslmode=disable", config.Host, config.Port, role, config.Database),
	})
	r.awaitReadyz(200, "ready", nil)
	enqueue(t, pool, "Ada")
	await(t, "the first handler", first)
	time.Sleep(300 * time.Millisecond) // the looks that follow a job are over, and the next is due in an hour
	exec(`SELECT outbox.enqueue('greet', '{"Name": "Bob"}', notify => false)`)
	exec(`ALTER ROLE ` + role + ` NOLOGIN`)
	exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '` + role + `'`)
	await(t, "the second handler", second)
	r.end(nil)
}

func TestWithoutItsOptionalAdminServerAProcessGoesOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	err = Run(ctx, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString(), AdminAddr: taken.Addr().String(), AdminOptional: true})
	if err != nil {
		t.Error(err)
	}
}

func TestMistakesAreReturnedAtOnce(t *testing.T) {
	t.Parallel()
	const url = "postgres://ada:hush@127.0.0.1:1/x"
	taken := start(t, greeter(nothing), Config{DatabaseURL: url})
	tests := map[string]struct {
		config Config
		want   string
	}{
		"no database":       {Config{}, "Config.DatabaseURL"},
		"malformed URL":     {Config{DatabaseURL: "postgres://ada:hush@:x:y"}, "invalid port"},
		"malformed listen":  {Config{DatabaseURL: url, ListenURL: "postgres://ada:hush@:x:y"}, "listener"},
		"negative keep":     {Config{DatabaseURL: url, Keep: -1}, "Config.Keep"},
		"malformed worker":  {Config{DatabaseURL: url, Worker: "a b"}, "Config.Worker"},
		"two for one thing": {Config{DatabaseURL: url, NoSchedule: true, Schedules: make([]schedule.Schedule, 1)}, "Config.NoSchedule"},
		"lease too short":   {Config{DatabaseURL: url, LeaseTTL: time.Millisecond}, "Config.LeaseTTL"},
		"address in use":    {Config{DatabaseURL: url, AdminAddr: taken.admin.listener.Addr().String()}, "admin address"},
		"malformed address": {Config{DatabaseURL: url, AdminAddr: "x"}, "admin address"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), greeter(nothing), test.config)
			if strings.HasPrefix(test.want, "Config.") {
				if found, ok := errors.AsType[*outbox.InvalidError](err); !ok || found.Field != test.want {
					t.Errorf("got %v, want an InvalidError of %s", err, test.want)
				}
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hush") {
				t.Errorf("got %v, want an error about %s and no password", err, test.want)
			}
		})
	}
}

func TestTheAdminServerAnswers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(200, "ready", nil)
	for path, want := range map[string]string{
		"/livez":        "ok",
		"/metrics":      "outbox_pool_",
		"/debug/pprof/": "goroutine",
	} {
		res, err := probe.Get("http://" + r.admin.listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body := readAll(t, res)
		if res.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s is %d %.200q, want 200 with %q", path, res.StatusCode, body, want)
		}
	}
	r.end(nil)
}

func TestPprofCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString(), NoPprof: true})
	res, err := probe.Get("http://" + r.admin.listener.Addr().String() + "/debug/pprof/")
	if err != nil {
		t.Fatal(err)
	}
	if readAll(t, res); res.StatusCode != http.StatusNotFound {
		t.Errorf("GET /debug/pprof/ is %d, want 404", res.StatusCode)
	}
	r.end(nil)
}

// A process that is asked to stop is unready at once, and works on until its delay is over or cut.
func TestADrainDelayGoesOnWorking(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	cut, ran := make(chan struct{}), make(chan string, 1)
	r := start(t, greeter(func(_ context.Context, name string) error { ran <- name; return nil }),
		Config{DatabaseURL: pool.Config().ConnString(), DrainDelay: time.Hour, Cut: cut})
	r.awaitReadyz(200, "ready", nil)
	r.stop(errors.New("the test says so"))
	r.awaitReadyz(503, "draining", nil)
	if _, err := outbox.Enqueue(t.Context(), pool, greet{"Ada"}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ran:
	case <-time.After(time.Minute):
		t.Fatal("it works no more")
	}
	close(cut)
	r.stopped = true
	if err := <-r.ended; err != nil && !errors.Is(err, ErrCut) {
		t.Errorf("Run returned %v", err)
	}
	r.awaitComponents() // a stop that is cut does not, and they would still use the database
}

// What promtool says of the metrics of a process. Not all metrics of the manual are among them:
// TestPromlintOfEveryMetric has those that only other processes have.
func TestPromlintOfAProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan bool, 1)
	r := start(t, greeter(func(context.Context, string) error { ran <- true; return nil }), Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(200, "ready", nil)
	if _, err := outbox.Enqueue(t.Context(), pool, greet{"Ada"}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}
	<-ran
	res, err := probe.Get("http://" + r.admin.listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics := readAll(t, res)
	for _, name := range []string{"outbox_build_info{", "job_processing_seconds_bucket{", "outbox_pool_acquires_total{"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("these are not the metrics, they lack %s: %.400q", name, metrics)
		}
	}
	build := regexp.MustCompile(`(?m)^outbox_build_info\{.*schema="` + fmt.Sprint(migrations.Latest()) + `".*\} 1$`)
	if !build.MatchString(metrics) {
		t.Errorf("no metric matches %s: %.400q", build, metrics)
	}
	promtest.Check(t, "", []byte(metrics), "check", "metrics")
	r.end(nil)
}

// The listener's wake-up reaches the reaper: one that hears of no job finds a
// deadline that passed long ago twice a minute.
func TestANotificationHasLateJobsExpire(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(200, "ready", nil)
	if _, err := outbox.Enqueue(t.Context(), pool, greet{"Ada"}, outbox.Options{Deadline: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, pool, "expired")
}

// The same for cancellations and the dispatcher.
func TestANotificationStopsACancelledHandler(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	causes, started := make(chan error, 1), make(chan struct{})
	r := start(t, greeter(func(ctx context.Context, _ string) error {
		close(started)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}), Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(200, "ready", nil)
	id := enqueue(t, pool, "Ada")
	await(t, "the handler to start", started)
	asked := time.Now()
	if done, err := operator.New(pool).Cancel(t.Context(), id); done != operator.CancelRequested || err != nil {
		t.Fatalf("cancel = %q, %v", done, err)
	}
	select {
	case cause := <-causes:
		t.Logf("stopped after %s", time.Since(asked))
		if !errors.Is(cause, dispatcher.ErrCancelled) {
			t.Errorf("cause = %v, want ErrCancelled", cause)
		}
	case <-time.After(time.Minute):
		t.Fatal("the handler was not stopped")
	}
	awaitStatus(t, pool, "cancelled")
}

// awaitStatus waits until the one job is closed so.
func awaitStatus(t *testing.T, pool *pgxpool.Pool, status string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var closed bool
		if err := pool.QueryRow(t.Context(), `SELECT count(*) = 1 FROM outbox.history WHERE status::text = $1`, status).Scan(&closed); err != nil {
			t.Fatal(err)
		}
		if closed {
			return
		}
	}
	t.Fatalf("waited in vain for the job to be %s", status)
}

// What a process is told to keep is what its reaper keeps.
func TestHowLongRowsAreKept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO outbox.inbox VALUES ('c', 'old', now() - interval '3 days'), ('c', 'young', now() - interval '1 day')`,
		`INSERT INTO outbox.audit (at, actor, act) VALUES (now() - interval '32 days', 'ada', 'old'), (now() - interval '30 days', 'ada', 'young')`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	start(t, nil, Config{Pool: db, NoDispatch: true, NoSchedule: true, KeepInbox: 2 * 24 * time.Hour, KeepAudit: 31 * 24 * time.Hour})
	var left string
	for deadline := time.Now().Add(time.Minute); left != "young, young" && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		const sql = `SELECT string_agg(name, ', ' ORDER BY name) FROM (SELECT message_id FROM outbox.inbox UNION ALL SELECT act FROM outbox.audit) AS kept (name)`
		if err := db.QueryRow(t.Context(), sql).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
	if left != "young, young" {
		t.Errorf("kept are %s", left)
	}
}
