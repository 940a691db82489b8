package pgtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Example returns a pool like [New] for an example, which has no *testing.T. The database exists until end is called.
// Failures are printed, so that the example's output differs.
func Example() (pool *pgxpool.Pool, end func()) {
	tb := new(exampleTB)
	return New(tb), tb.end
}

type exampleTB struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (tb *exampleTB) end() {
	for _, f := range slices.Backward(tb.cleanups) {
		f()
	}
}

func (tb *exampleTB) Helper()                         {}
func (tb *exampleTB) Name() string                    { return "Example" }
func (tb *exampleTB) Cleanup(f func())                { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Failed() bool                    { return tb.failed }
func (tb *exampleTB) Fatal(args ...any)               { panic(fmt.Sprint(args...)) }
func (tb *exampleTB) Fatalf(format string, a ...any)  { panic(fmt.Sprintf(format, a...)) }
func (tb *exampleTB) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (tb *exampleTB) Errorf(format string, args ...any) {
	tb.failed = true
	tb.Logf(format, args...)
}
