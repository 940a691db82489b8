package dispatcher

import (
	"context"
	"fmt"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
	"github.com/posthaste-dev/posthaste/protect"
)

// Protect returns middleware that uses p to open payloads that were sealed when they were enqueued, and to seal the
// results of their handlers. It leaves other jobs alone. A payload that cannot be opened is retried by the kind's
// policy, with the error code unreadable_payload: the key may be deployed tomorrow.
func Protect(p outbox.Protector) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, job *outbox.Claimed) error {
			if err := openPayload(ctx, p, job); err != nil {
				return outcome.WithCode(codes.UnreadablePayload, err)
			}
			if err := next(ctx, job); err != nil {
				return err
			}
			return sealResult(ctx, job)
		}
	}
}

// openPayload opens the payload with p if it is sealed. From then on p also seals the result of the job.
func openPayload(ctx context.Context, p outbox.Protector, job *outbox.Claimed) error {
	if !strings.HasPrefix(job.ContentType, protect.SealedPrefix) {
		return nil
	}
	part := outbox.Part{Tenant: job.Tenant, Job: job.ID, Column: "payload"}
	plain, err := p.Open(ctx, part, outbox.Content{Type: job.ContentType, Bytes: job.Payload})
	if err != nil {
		return fmt.Errorf("open the payload of job %s: %w", job.ID, err)
	}
	job.ContentType, job.Payload = plain.Type, plain.Bytes
	engine.InternalOf(job).Seal = func(ctx context.Context, result []byte) ([]byte, error) {
		return protect.SealResult(ctx, p, job.Tenant, job.ID, result)
	}
	return nil
}

// sealResult seals the handler's result if the payload was sealed.
func sealResult(ctx context.Context, job *outbox.Claimed) (err error) {
	if seal := engine.InternalOf(job).Seal; seal != nil {
		var sealed []byte
		if sealed, err = seal(ctx, job.Result); err == nil {
			job.Result = sealed
		}
	}
	return err
}
