package outbox

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// A Protector seals the content of jobs, to hide it from readers of the database or to keep large content out of it:
// package protect has one for each. Set it as the Protect of [Options] when you enqueue, give it to the dispatcher's
// mux by dispatcher.Protect, and to await.Config where results are waited for. It must be safe for concurrent use.
type Protector interface {
	// Seal returns the content to store instead of plain. Content that it leaves alone keeps its type; content that it
	// changes gets a type that begins with protect.SealedPrefix.
	Seal(ctx context.Context, of Part, plain Content) (Content, error)
	// Open undoes Seal for the same part, and fails for any other.
	Open(ctx context.Context, of Part, sealed Content) (Content, error)
}

// Part identifies the job or event, and the column, that a content belongs to.
type Part struct {
	Tenant ID     // owner of the job or event
	Job    ID     // the job's ID, or the event's
	Column string // "payload" or "result"
}

// Content is bytes with their content type.
type Content struct {
	Type  string // like "application/json"
	Bytes []byte // plain or sealed
}

// seal seals the payload of a job or an event with p, which may be nil.
func seal(ctx context.Context, p Protector, of Part, plain Content, w wording) (Content, error) {
	sealed := plain
	if p != nil {
		var err error
		if sealed, err = p.Seal(ctx, of, plain); err != nil {
			return Content{}, fmt.Errorf("%s.Protect: %w", w.options, err)
		}
	}
	if n := len(sealed.Bytes); n > engine.MaxPayloadBytes {
		return Content{}, invalid(w.value,
			"%s %d bytes, want at most %d; store large data elsewhere and %s a reference", w.are, n,
			engine.MaxPayloadBytes, w.verb)
	}
	return sealed, nil
}
