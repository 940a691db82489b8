package outboxtest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// receipt is the job of most tests.
type receipt struct {
	Order int
	To    string `json:",omitempty"`
}

func (receipt) Kind() string { return "receipt.send" }

// paid is an event.
type paid struct{ Order int }

func (paid) Topic() string { return "order.paid" }

func handle(handler func(context.Context, *outbox.Job[receipt]) error, config ...dispatcher.KindConfig) *dispatcher.Mux {
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, handler, config...)
	return mux
}

func done(context.Context, *outbox.Job[receipt]) error { return nil }

func enqueue(t testing.TB, db outbox.DB, args outbox.Args, opts outbox.Options) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), db, args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// stored returns a test's database with a table of its own.
func stored(t testing.TB, pool *pgxpool.Pool) *outboxtest.DB {
	t.Helper()
	db := outboxtest.New(t, pool)
	exec(t, db, `CREATE TABLE sent (id bigserial PRIMARY KEY, order_id int NOT NULL, note text, at timestamptz NOT NULL DEFAULT now())`)
	return db
}

func exec(t testing.TB, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// ask returns the one value of a query.
func ask[T any](t testing.TB, db outbox.DB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// statuses returns the statuses of outcomes.
func statuses(outcomes []outboxtest.Outcome) string {
	var all []string
	for _, o := range outcomes {
		all = append(all, string(o.Status))
	}
	return strings.Join(all, " ")
}

// fails returns what a test that fails says.
func fails(t testing.TB, test func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		test(r)
	}()
	<-ended
	if !r.failed {
		t.Error("the test did not fail")
	}
	return r.said.String()
}

// recorder is a test that fails by itself.
type recorder struct {
	testing.TB
	failed bool
	said   strings.Builder
}

func (r *recorder) Helper()      {}
func (r *recorder) Failed() bool { return r.failed }
func (r *recorder) FailNow() {
	r.failed = true
	runtime.Goexit()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	fmt.Fprintf(&r.said, format+"\n", args...)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }
