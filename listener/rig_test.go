package listener_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/listener"
)

const (
	channel = "outbox_jobs"
	app     = "rig"

	interval = 250 * time.Millisecond // short, so that tests are
	patience = 5 * time.Second        // with a canary, on a busy machine
	soon     = time.Minute            // for what takes milliseconds, on a busy machine
)

// rig is a listener and what surrounds it: a database, a proxy between the two,
// the wake-up, a registry, a log and the story of Listening.
type rig struct {
	*listener.Listener
	pool  *pgxpool.Pool
	proxy *proxy
	wake  listener.Signal
	reg   *prometheus.Registry
	log   *journal

	password string // in the listener's connection string

	mu       sync.Mutex
	reported []bool // to OnListening
}

// newRig makes a listener with a short canary interval; change adapts it.
func newRig(t *testing.T, change func(*rig, *listener.Config)) *rig {
	t.Helper()
	pool := pgtest.NewEmpty(t)
	target := pool.Config().ConnConfig
	p := newProxy(t, func() net.Conn {
		network, addr := pgconn.NetworkAddress(target.Host, target.Port)
		conn, err := net.Dial(network, addr)
		if err != nil {
			panic(err)
		}
		return conn
	})
	r := &rig{pool: pool, proxy: p, wake: listener.NewSignal(), reg: prometheus.NewRegistry(), log: new(journal)}
	cfg := listener.Config{
		AppName:        app,
		Canary:         pool,
		CanaryInterval: interval,
		OnListening:    r.hearing,
		Logger:         slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer:     r.reg,
	}
	cfg.SetPatience(patience)
	if change != nil {
		change(r, &cfg)
	}
	if r.password = target.Password; r.password == "" {
		r.password = "sw0rdfish" // the server asks for none
	}
	connString := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(target.User, r.password),
		Host:     p.addr,
		Path:     target.Database,
		RawQuery: "sslmode=disable",
	}
	l, err := listener.New(connString.String(), channel, r.wake, cfg)
	if err != nil {
		t.Fatalf("new listener: %v", err)
	}
	r.Listener = l
	return r
}

func (r *rig) hearing(now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reported = append(r.reported, now)
}

// start runs the listener. The function that it returns stops it; the test's end calls
// it, too.
func (r *rig) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run = %v, want nil after an asked-for stop", err)
			}
		case <-time.After(soon):
			t.Error("Run did not return")
		}
		if r.Listening() {
			t.Error("Listening after Run has returned")
		}
		if bytes.Contains(r.log.bytes(), []byte(r.password)) {
			t.Errorf("the log tells the password:\n%s", r.log.bytes())
		}
	})
	t.Cleanup(stop)
	return stop
}

// startHearing starts the listener, waits until it hears and takes the wake-up
// that comes with every connection.
func (r *rig) startHearing(t *testing.T) (stop func()) {
	t.Helper()
	stop = r.start(t)
	await(t, "the listener hears", r.Listening)
	r.awaitWake(t)
	return stop
}

func (r *rig) awaitWake(t *testing.T) {
	t.Helper()
	select {
	case <-r.wake:
	case <-time.After(soon):
		t.Fatalf("no wake-up came; the log:\n%s", r.log.bytes())
	}
}

func (r *rig) notify(t *testing.T) {
	t.Helper()
	r.exec(t, "NOTIFY "+channel)
}

func (r *rig) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := r.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// metric returns the value of a counter or gauge, or the number of a histogram's observations.
func (r *rig) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	for _, f := range families {
		if m := f.GetMetric()[0]; f.GetName() == name {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func (r *rig) wantReported(t *testing.T, want ...bool) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.reported); diff != "" {
		t.Errorf("OnListening was told (-want +got):\n%s", diff)
	}
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(soon)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("gave up waiting until %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// journal keeps JSON log lines.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) bytes() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return bytes.Clone(j.buf.Bytes())
}

// news returns every message above Debug, in order.
func (j *journal) news(t *testing.T) []string {
	t.Helper()
	var messages []string
	for line := range bytes.Lines(j.bytes()) {
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatalf("log line %s: %v", line, err)
		}
		if entry.Level != "DEBUG" {
			messages = append(messages, entry.Level+" "+entry.Msg)
		}
	}
	return messages
}

// sender is a listener.Sender.
type sender func(ctx context.Context, sql string) error

func (s sender) Exec(ctx context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, s(ctx, sql)
}

var broken = sender(func(context.Context, string) error { return errors.New("the pool is broken") })
