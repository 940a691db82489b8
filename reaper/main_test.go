package reaper

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func init() { trimBatch = 500 }

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }
