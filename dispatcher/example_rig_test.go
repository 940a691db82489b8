package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// work has a handler do one job, on a database of its own.
func work[T outbox.Args](args T, handler func(context.Context, *outbox.Job[T]) error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	tb := new(workTB)
	defer tb.end()
	pool := pgtest.New(tb)
	if _, err := outbox.Enqueue(ctx, pool, args, outbox.Options{}); err != nil {
		tb.Fatal(err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, handler, dispatcher.KindConfig{Retry: dispatcher.Delays(0)})
	d, err := dispatcher.New(pool, &mux, dispatcher.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- d.Run(ctx) }()
	for done := false; !done && err == nil; time.Sleep(5 * time.Millisecond) { // between two questions
		err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.history)`).Scan(&done)
	}
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		tb.Fatal(err)
	}
}

// workTB is a *testing.T for an example, which has none.
type workTB struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (tb *workTB) end() {
	for _, f := range slices.Backward(tb.cleanups) {
		f()
	}
}

func (tb *workTB) Helper()                         {}
func (tb *workTB) Name() string                    { return "Example" }
func (tb *workTB) Cleanup(f func())                { tb.cleanups = append(tb.cleanups, f) }
func (tb *workTB) Failed() bool                    { return tb.failed }
func (tb *workTB) Fatal(args ...any)               { panic(fmt.Sprint(args...)) }
func (tb *workTB) Fatalf(format string, a ...any)  { panic(fmt.Sprintf(format, a...)) }
func (tb *workTB) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (tb *workTB) Errorf(format string, args ...any) {
	tb.failed = true
	tb.Logf(format, args...) // and so the output differs
}
