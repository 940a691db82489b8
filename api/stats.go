package api

import (
	"context"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Counting a million open jobs takes a quarter of a second. A count is new for
// countedFor; until it is recountBy old it is still shown, while it is made anew.
const (
	countedFor = 5 * time.Second
	recountBy  = time.Minute
)

// maxCounts bounds the tenants whose counts are remembered.
const maxCounts = 1000

// statsCache remembers the counts of each tenant. However many ask, one counts.
type statsCache struct {
	mu     sync.Mutex
	counts map[outbox.ID]*counts
}

type counts struct {
	made *counted      // nil before the first
	next chan struct{} // closed when the count that is being made is there; nil for none
}

type counted struct {
	asOf   time.Time
	queues []operator.Queue
	err    error
}

// forget has the next look wait for a new count.
func (c *statsCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = nil
}

// get returns a count that may be shown, or what to wait for; and has count called
// if it is time.
func (c *statsCache) get(tenant outbox.ID, count func() *counted) (*counted, *counts, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.counts[tenant]
	if known == nil {
		if c.counts == nil || len(c.counts) >= maxCounts {
			c.counts = map[outbox.ID]*counts{}
		}
		known = &counts{}
		c.counts[tenant] = known
	}
	old := time.Duration(1<<63 - 1)
	if known.made != nil && known.made.err == nil {
		old = time.Since(known.made.asOf)
	}
	if old > countedFor && known.next == nil {
		known.next = make(chan struct{})
		go c.make(known, count)
	}
	if old < recountBy {
		return known.made, nil, nil
	}
	return nil, known, known.next
}

func (c *statsCache) make(known *counts, count func() *counted) {
	made := count()
	c.mu.Lock()
	defer c.mu.Unlock()
	known.made = made
	close(known.next)
	known.next = nil
}

// count returns the queues of the principal's tenant, or of all. The count itself
// does not end with the request that set it off: others wait for it.
func (s *server) count(ctx context.Context) (*counted, error) {
	tenant := within(ctx)
	made, awaited, done := s.stats.get(tenant, func() *counted {
		asOf := time.Now().UTC() // what is counted is at least as new
		queues, err := s.operator.QueuesOf(context.WithoutCancel(ctx), tenant)
		return &counted{asOf: asOf, queues: queues, err: err}
	})
	if made != nil {
		return made, nil
	}
	select {
	case <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	return awaited.made, awaited.made.err
}
