package changefeed_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }
