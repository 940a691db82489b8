package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A host that is away makes no process unready, and /readyz says whose jobs wait for it.
func TestReadyzNamesKindsThatWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for range 20 {
		enqueue(t, pool, "Ada")
	}
	r := start(t, greeter(func(context.Context, string) error {
		return dispatcher.Unavailable(errors.New("connection refused"), 0)
	}), Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(200, "ready", nil)
	var detail string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && detail == ""; time.Sleep(20 * time.Millisecond) {
		_, report := r.readyz()
		detail = report.Components["dispatcher"].Detail
	}
	if !strings.Contains(detail, "greet in queue default since 20") {
		t.Errorf("the dispatcher's detail is %q, want the kind and the queue", detail)
	}
	r.awaitReadyz(200, "ready", nil)
	r.end(nil)
}
