package pgtest

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("PGTEST_TEST_LEAKY") != "" { // a child of leak_test.go
		Main(m)
	}
	goleak.VerifyTestMain(Wrap(m))
}
