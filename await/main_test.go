package await

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

const patience = time.Minute

// double is the job of most tests.
type double struct {
	outbox.Returns[doubled]
	N int
}

func (double) Kind() string { return "double" }

type doubled struct{ N int }

// counter counts the queries of waiters.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(q.SQL, "-- name: FindEnded") {
		c.n.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// rig is a running waiter that polls once an hour while it hears, unless a test
// changes that, and its database.
type rig struct {
	*Waiter
	db      *pgxpool.Pool
	queries *counter
	stop    func()
}

func newRig(t *testing.T, change func(*Waiter, *Config)) *rig {
	t.Helper()
	r := &rig{db: pgtest.New(t), queries: new(counter)}
	config := r.db.Config()
	config.ConnConfig.Tracer = r.queries
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traced.Close)
	var c Config
	if change != nil {
		change(new(Waiter), &c)
	}
	if r.Waiter, err = New(traced, c); err != nil {
		t.Fatal(err)
	}
	r.poll = time.Hour
	if change != nil {
		change(r.Waiter, &c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil after an asked-for stop", err)
		}
		done <- nil
	}
	t.Cleanup(func() { r.stop() })
	return r
}

// hears waits until the listener hears.
func (r *rig) hears(t *testing.T) {
	t.Helper()
	awaitThat(t, "the listener hears", r.listener.Listening)
}

// seen waits until everybody who waits was found to wait for an open job.
func (r *rig) seen(t *testing.T, waits int) {
	t.Helper()
	awaitThat(t, fmt.Sprintf("%d waits are asked for", waits), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := 0
		for _, job := range r.waits {
			if job.seen {
				n += len(job.waits)
			}
		}
		return n == waits
	})
}

// answered is what a Wait returned.
type answered struct {
	got doubled
	err error
}

// start waits in a goroutine.
func start(ref Ref[doubled]) chan answered {
	c := make(chan answered, 1)
	go func() {
		got, err := ref.Wait(context.Background())
		c <- answered{got, err}
	}()
	return c
}

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s in vain for %s", patience, what)
		panic("unreachable")
	}
}

func awaitThat(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range pgtest.Looks(patience) {
		if holds() {
			return
		}
	}
	t.Fatalf("waited %s in vain: %s", patience, what)
}

func exec(t *testing.T, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](t *testing.T, db outbox.DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func enqueue(t *testing.T, r *rig, db outbox.DB, n int, opts outbox.Options) Ref[doubled] {
	t.Helper()
	ref, err := Enqueue(t.Context(), r.Waiter, db, double{N: n}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// work runs a dispatcher with a handler for doubles.
func work(t *testing.T, db *pgxpool.Pool, handler func(context.Context, *outbox.Job[double]) (doubled, error), use ...dispatcher.Middleware) {
	t.Helper()
	mux := new(dispatcher.Mux)
	mux.Use(use...)
	dispatcher.HandleResult(mux, handler, dispatcher.KindConfig{Backoff: dispatcher.Waits()})
	d, err := dispatcher.New(db, mux, dispatcher.Config{FallbackPollInterval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

var errBoom = errors.New("boom")
