package dispatcher

import (
	"context"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Opens returns middleware that has p open the payloads that a protector sealed
// when they were enqueued, and seal the results of their handlers; other jobs pass.
// A payload that cannot be opened is tried again by the kind's policy, with the
// error code unreadable_payload: the key may be deployed tomorrow.
func Opens(p outbox.Protector) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, job *outbox.Claimed) error {
			if err := job.Open(ctx, p); err != nil {
				return &codedError{codes.UnreadablePayload, err}
			}
			if err := next(ctx, job); err != nil {
				return err
			}
			return job.SealResult(ctx)
		}
	}
}
