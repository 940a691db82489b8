package protect

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// SealedPrefix begins the content type of everything that a protector sealed.
const SealedPrefix = "application/vnd.posthaste."

// SealedError reports that a job succeeded with a result that a [outbox.Protector] sealed, and that there was no
// protector to open it, or only one that does not know this kind of seal. Give await.Config the protector, or open the
// stored result with [OpenResult].
type SealedError struct {
	ID          outbox.ID
	ContentType string // identifies the kind of protector; begins with [SealedPrefix]
}

func (e *SealedError) Error() string {
	return fmt.Sprintf("the result of job %s is sealed (%s): it needs await.Config.Protect, or protect.OpenResult",
		e.ID, e.ContentType)
}

// SealResult seals the result of a job with p, as dispatcher.Protect does when a handler returns. A result that p
// leaves alone is returned unchanged, readable by everybody; so are an empty result and one that is already sealed.
func SealResult(ctx context.Context, p outbox.Protector, tenant, job outbox.ID, result []byte) ([]byte, error) {
	if len(result) == 0 || bytes.HasPrefix(result, []byte(engine.FrameMagic)) {
		return result, nil
	}
	sealed, err := p.Seal(ctx, outbox.Part{Tenant: tenant, Job: job, Column: "result"},
		outbox.Content{Type: engine.ContentJSON, Bytes: result})
	if err != nil {
		return nil, fmt.Errorf("seal the result of job %s: %w", job, err)
	}
	if !strings.HasPrefix(sealed.Type, SealedPrefix) {
		return sealed.Bytes, nil
	}
	return engine.Frame(sealed.Type, sealed.Bytes), nil
}

// SealedResult returns the content type that a protector gave the stored result of a job when it sealed it, which
// begins with [SealedPrefix], or "" if the result is not sealed.
func SealedResult(stored []byte) (contentType string) {
	contentType, _, _ = engine.Unframe(stored)
	return contentType
}

// OpenResult opens the stored result of a job with p. It returns an unsealed result unchanged, and a [*SealedError] if
// p does not know this kind of seal.
func OpenResult(ctx context.Context, p outbox.Protector, tenant, job outbox.ID, stored []byte) ([]byte, error) {
	contentType, content, framed := engine.Unframe(stored)
	if !framed {
		return stored, nil
	}
	if contentType == "" {
		return nil, fmt.Errorf("open the result of job %s: it is cut off", job)
	}
	plain, err := p.Open(ctx, outbox.Part{Tenant: tenant, Job: job, Column: "result"},
		outbox.Content{Type: contentType, Bytes: content})
	if err != nil {
		return nil, fmt.Errorf("open the result of job %s: %w", job, err)
	}
	if strings.HasPrefix(plain.Type, SealedPrefix) {
		// Another protector sealed it: decoding the seal as the handler's result would be worse than failing.
		return nil, fmt.Errorf("the protector leaves it as it is: %w", &SealedError{ID: job, ContentType: plain.Type})
	}
	return plain.Bytes, nil
}
