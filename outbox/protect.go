package outbox

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Protector keeps what a job carries from readers of the database, or the database
// from what is too large for it: package protect has two. Give it to [Options] as
// Protect when you enqueue, to the dispatcher's mux by dispatcher.Protect, and to
// await.Config where results are waited for. It has to be safe for concurrent use.
type Protector interface {
	// Seal returns what is to be stored instead of plain. Content that it leaves
	// alone keeps its type; content that it changes gets a type that begins with
	// protect.SealedPrefix.
	Seal(ctx context.Context, of Part, plain Content) (Content, error)
	// Open undoes Seal for the same part, and fails for any other.
	Open(ctx context.Context, of Part, sealed Content) (Content, error)
}

// Part is what a content belongs to.
type Part struct {
	Tenant ID     // whose job or event it is
	Job    ID     // of which it is a part: the job's ID, or the event's
	Column string // "payload" or "result"
}

// Content is bytes and what they are.
type Content struct {
	Type  string // like "application/json"
	Bytes []byte // plain or sealed
}

// seal has p, which may be nil, seal the payload of a job or an event.
func seal(ctx context.Context, p Protector, of Part, plain Content, w wording) (Content, error) {
	sealed := plain
	if p != nil {
		var err error
		if sealed, err = p.Seal(ctx, of, plain); err != nil {
			return Content{}, fmt.Errorf("%s.Protect: %w", w.options, err)
		}
	}
	if n := len(sealed.Bytes); n > engine.MaxPayloadBytes {
		return Content{}, invalid(w.value, "%s %d bytes, want at most %d; store large data elsewhere and %s a reference", w.are, n, engine.MaxPayloadBytes, w.verb)
	}
	return sealed, nil
}
