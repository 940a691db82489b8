package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// recorder is a sink that records what it is given.
type recorder struct {
	mu      sync.Mutex
	got     []relay.Message
	outcome func(relay.Message) error // nil accepts all; an error stops the batch
	onward  bool                      // it does not
	probe   error
	calls   int
	closed  bool
}

func (r *recorder) Publish(_ context.Context, batch []relay.Message) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	outcomes := make([]error, len(batch))
	var failed error
	for i, m := range batch {
		if failed == nil && r.outcome != nil {
			if outcomes[i] = r.outcome(m); outcomes[i] != nil {
				if !r.onward {
					failed = outcomes[i]
				}
				continue
			}
		}
		if failed != nil {
			outcomes[i] = relay.ErrNotTried
			continue
		}
		r.got = append(r.got, m)
	}
	return outcomes
}

func (r *recorder) Probe(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.probe
}

func (r *recorder) Check(context.Context, []string) ([]relay.Finding, error) { return nil, nil }

func (r *recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *recorder) set(outcome func(relay.Message) error, probe error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome, r.probe = outcome, probe
}

// bodies are those of the messages so far.
// goOn has an error not stop the batch, or stop it.
func (r *recorder) goOn(onward bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onward = onward
}

func (r *recorder) called() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

func (r *recorder) bodies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]string, len(r.got))
	for i, m := range r.got {
		all[i] = string(m.Body)
	}
	return all
}

func (r *recorder) messages() []relay.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *recorder) await(t *testing.T, want ...string) {
	t.Helper()
	waitFor(t, func() bool { return len(r.bodies()) >= len(want) }, func() string { return fmt.Sprintf("got %q, want %q", r.bodies(), want) })
	if got := r.bodies(); !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func waitFor(t *testing.T, ok func() bool, say func() string) {
	t.Helper()
	for range pgtest.Looks(time.Minute) {
		if ok() {
			return
		}
	}
	t.Fatal("in vain: " + say())
}

// start runs a relay with one sink called "s" until the test, or the returned function, ends it.
func start(t *testing.T, db *pgxpool.Pool, sink relay.Sink, change func(*relay.Config)) (stop func()) {
	t.Helper()
	wake := listener.NewSignal()
	heard, err := listener.New(db.Config().ConnString(), relay.Channel, wake, listener.Config{Pool: db})
	if err != nil {
		t.Fatal(err)
	}
	config := relay.Config{
		Sinks:     []relay.SinkConfig{{Name: "s", Sink: sink, Routes: []relay.Route{{Topics: []string{"*"}, CloudEvents: relay.CloudEventsOff}}}},
		Wake:      wake,
		Listening: heard.Listening, LeaseTTL: time.Minute, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	// The lease does not lapse on a busy machine, and what an operator wants is heard soon.
	config.SetRenewInterval(time.Second / 3)
	if change != nil {
		change(&config)
	}
	r, err := relay.New(db, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{heard.Run, r.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	waitFor(t, func() bool { return r.Ready() == nil }, func() string { return "the relay is ready" })
	return stop
}

// twoBeats waits until the owner of the only sink has stored its cursor twice: it knows what was in its row before.
func twoBeats(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	lease := func() string {
		return ask[string](t, db, `SELECT coalesce(lease_expires_at::text, '') FROM outbox.sinks`)
	}
	for range 2 {
		was := lease()
		waitFor(t, func() bool { return lease() != was }, func() string { return "the owner extends its lease" })
	}
}

// said is what a relay logs.
type said struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (s *said) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Write(line)
}

func (s *said) has(words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.lines.String(), words)
}

func (s *said) count(words string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.lines.String(), words)
}

// logger logs to both the test and s.
func (s *said) logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(io.MultiWriter(s, t.Output()), nil))
}

// database returns a database that has a place for events.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return ready(t, pgtest.New(t))
}

// ready makes a place for events.
func ready(t *testing.T, db *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	if ask[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass`) == 0 {
		if _, err := db.Exec(t.Context(), `CREATE TABLE outbox.events_all PARTITION OF outbox.events DEFAULT`); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// publish stores events of a topic and a key, one for each body.
func publish(t *testing.T, db outbox.DB, topic, key string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		_, err := db.Exec(t.Context(), `WITH stored AS (
				INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
				VALUES ($1, $2, $3, nullif($4, ''), 'text/plain', $5))
			SELECT pg_notify('outbox_events', '')`,
			outbox.NewID(), outbox.RootTenant, topic, key, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func begin(t *testing.T, db *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func end(t *testing.T, how func(context.Context) error) {
	t.Helper()
	if err := how(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func ask[T any](t *testing.T, db *pgxpool.Pool, sql string) (answer T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}
