package outboxtest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// exampleT stands in for the *testing.T that an example does not have. It prints failures.
type exampleT struct {
	testing.TB
	cleanups []func()
	failed   bool
}

// example returns a test and its pool. end ends both.
func example() (t *exampleT, pool *pgxpool.Pool, end func()) {
	pool, drop := pgtest.Example()
	t = &exampleT{}
	if _, err := pool.Exec(context.Background(), `CREATE TABLE orders (id bigint PRIMARY KEY, reminders int NOT NULL DEFAULT 0)`); err != nil {
		panic(err)
	}
	return t, pool, func() {
		for _, f := range slices.Backward(t.cleanups) {
			f()
		}
		drop()
	}
}

// failing runs test in a goroutine that a failure may end.
func (t *exampleT) failing(test func()) {
	defer func() { _ = recover() }()
	test()
}

func (t *exampleT) Helper()                  {}
func (t *exampleT) Context() context.Context { return context.Background() }
func (t *exampleT) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) Failed() bool             { return t.failed }

func (t *exampleT) Error(args ...any) { t.Errorf("%s", fmt.Sprint(args...)) }

func (t *exampleT) Errorf(format string, args ...any) {
	t.failed = true
	fmt.Printf(format, args...)
}

func (t *exampleT) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

func (t *exampleT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	panic("the test has failed")
}
