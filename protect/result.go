package protect

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// SealedPrefix is how the content type of what a protector made begins.
const SealedPrefix = "application/vnd.posthaste."

// SealedError says that a job succeeded with a result that a [outbox.Protector] sealed, and
// that there was none to open it, or one that does not know this kind of seal. Give
// await.Config the protector, or open what is stored by [OpenResult].
type SealedError struct {
	ID          outbox.ID
	ContentType string // says which kind of protector; begins with [SealedPrefix]
}

func (e *SealedError) Error() string {
	return fmt.Sprintf("the result of job %s is sealed (%s): it needs await.Config.Protect, or protect.OpenResult", e.ID, e.ContentType)
}

// SealResult has p seal the result of a job, as dispatcher.Protect does for a handler that returns.
// What p leaves alone stays as it is, for everybody to read; so do no result and one that is sealed.
func SealResult(ctx context.Context, p outbox.Protector, tenant, job outbox.ID, result []byte) ([]byte, error) {
	if len(result) == 0 || bytes.HasPrefix(result, []byte(engine.FrameMagic)) {
		return result, nil
	}
	sealed, err := p.Seal(ctx, outbox.Part{Tenant: tenant, Job: job, Column: "result"}, outbox.Content{Type: engine.ContentJSON, Bytes: result})
	if err != nil {
		return nil, fmt.Errorf("seal the result of job %s: %w", job, err)
	}
	if !strings.HasPrefix(sealed.Type, SealedPrefix) {
		return sealed.Bytes, nil
	}
	return engine.Frame(sealed.Type, sealed.Bytes), nil
}

// SealedResult is the content type that a protector gave the stored result of a job
// when it sealed it, which begins with [SealedPrefix]; "" if none did.
func SealedResult(stored []byte) (contentType string) {
	contentType, _, _ = engine.Unframe(stored)
	return contentType
}

// OpenResult has p open the stored result of a job. One that was not sealed comes
// back as it is; an [*SealedError] is that p does not know this kind of seal.
func OpenResult(ctx context.Context, p outbox.Protector, tenant, job outbox.ID, stored []byte) ([]byte, error) {
	contentType, content, framed := engine.Unframe(stored)
	if !framed {
		return stored, nil
	}
	if contentType == "" {
		return nil, fmt.Errorf("open the result of job %s: it is cut off", job)
	}
	plain, err := p.Open(ctx, outbox.Part{Tenant: tenant, Job: job, Column: "result"}, outbox.Content{Type: contentType, Bytes: content})
	if err != nil {
		return nil, fmt.Errorf("open the result of job %s: %w", job, err)
	}
	if strings.HasPrefix(plain.Type, SealedPrefix) {
		// By another: to decode it as the handler's would be worse than to fail.
		return nil, fmt.Errorf("the protector leaves it as it is: %w", &SealedError{ID: job, ContentType: plain.Type})
	}
	return plain.Bytes, nil
}
