// With this, recover returns nil for panic(nil): programs older than Go 1.21 may ask for it.
//
//go:debug panicnil=1
package dispatcher_test

import (
	"context"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A result that is too large would be refused with every batch that it is in.
func TestAResultThatIsTooLargeFailsForGood(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, func(context.Context, *outbox.Job[returning[string]]) (string, error) {
		return strings.Repeat("x", engine.MaxPayloadBytes), nil
	})
	id := enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, mux, quiet(nil))
	await(t, db, "the attempt is settled", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'failed'`)
	wantState(t, db, id, "failed attempt=1 epoch=2 lost=0 error=result_too_large")
}
