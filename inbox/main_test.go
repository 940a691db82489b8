package inbox_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// exampleDB is pgtest.New for an example, which has no *testing.T.
func exampleDB() (db *pgxpool.Pool, end func()) {
	tb := new(exampleTB)
	return pgtest.New(tb), func() {
		for _, f := range slices.Backward(tb.cleanups) {
			f()
		}
	}
}

type exampleTB struct {
	testing.TB
	cleanups []func()
	failed   bool
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
	tb.Logf(format, args...) // and so the output differs
}
