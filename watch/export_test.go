package watch

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// CatchUp returns what is sent first to readers that come back with these positions at the
// same moment.
func CatchUp(ctx context.Context, pool outbox.Beginner, tenant outbox.ID, positions ...Position) ([]string, error) {
	h := &Changes{pool: pool, maxChanges: maxChanges}
	f := &feed{tenant: tenant, readers: map[*Reader]bool{}}
	if err := h.begin(ctx, f); err != nil {
		return nil, err
	}
	for _, from := range positions {
		f.joining = append(f.joining, &Reader{from: from, begun: make(chan error, 1), batches: make(chan *Batch, 1), ended: make(chan struct{})})
	}
	readers := append([]*Reader{}, f.joining...)
	h.catchUp([]*feed{f}, time.Now().Add(time.Minute))
	sent := make([]string, len(readers))
	for i, r := range readers {
		if err := <-r.begun; err != nil {
			return nil, err
		}
		sent[i] = string((<-r.batches).Text)
	}
	return sent, nil
}

// RestAfterBurst has a feed rest for so long after a look that found more than its readers are sent.
func RestAfterBurst(h *Changes, long time.Duration) {
	h.restBurst = func(time.Duration) time.Duration { return long }
}

// LookInBurst has a feed look so often while a burst goes on.
func LookInBurst(h *Changes, every time.Duration) { h.burstLook = every }

// RestOfBurst returns how long a hub rests after a look that took so long.
func RestOfBurst(took time.Duration) time.Duration { return restAfterBurst(took) }
