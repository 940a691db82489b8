package dispatcher_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type Export struct{ Pages int }

func (Export) Kind() string { return "export" }

func writePage(context.Context, int) error { return nil }

// What does a handler do when its job is cancelled? It watches its context, as for a timeout or a shutdown, and the
// cause tells it which it is.
func ExampleErrCancelled() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[Export]) error {
		for page := range job.Args.Pages {
			if err := writePage(ctx, page); err != nil {
				return err
			}
			if errors.Is(context.Cause(ctx), dispatcher.ErrCancelled) {
				return fmt.Errorf("stopped after page %d", page) // kept with the job, which is cancelled now
			}
		}
		return nil // succeeded, also if somebody has just cancelled it
	})
}
