package outbox

import (
	"context"
	"encoding/json"
	"fmt"
)

// Returns declares the result type of a kind's handler. Embed it in the arguments:
//
//	type Resize struct {
//		outbox.Returns[Size]
//		URL string
//	}
//
// dispatcher.HandleResult then accepts only a handler that returns a Size, and await.Enqueue returns a reference whose
// Wait returns one. Returns itself stores nothing.
type Returns[R any] struct{}

func (Returns[R]) returns() (r R) { return r }

// ResultArgs is Args that embed [Returns].
type ResultArgs[R any] interface {
	Args
	returns() R
}

var _ interface{ returns() struct{} } = Returns[struct{}]{} // satisfies ResultArgs once embedded

// CompleteWith finishes a job as [Claimed.Complete] does, with the typed result of a kind whose handler returns one:
// the result is stored with the job exactly when tx commits.
func CompleteWith[T ResultArgs[R], R any](ctx context.Context, tx DB, job *Job[T], result R) (err error) {
	if job.Result, err = json.Marshal(result); err != nil {
		return fmt.Errorf("complete job %s: %w", job.ID, invalid("result", "cannot be encoded as JSON: %v", err))
	}
	return job.Complete(ctx, tx)
}
