package reaper

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func init() { trimBatch, firstTrim = 500, 100*time.Millisecond }

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }
