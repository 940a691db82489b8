package api

import (
	"context"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Counting a million open jobs takes a quarter of a second, so nobody waits for it who
// can be shown an older count: it is made anew beside the answer when it is older than
// countedFor, and every recountEvery for keptFor after somebody asked, so that there is
// one for who asks next. Only a count older than recountBy is not shown any more: then
// nobody asked for long, or counts fail, and their error is the answer.
const (
	countedFor   = 5 * time.Second
	recountEvery = 30 * time.Second
	recountBy    = time.Minute
	keptFor      = time.Hour
)

// maxCounts bounds the tenants whose counts are remembered.
const maxCounts = 1000

// statsCache remembers the counts of each tenant. However many ask, one counts. Its
// timers end by themselves, and with stopping.
type statsCache struct {
	count    func(tenant outbox.ID) ([]operator.Queue, error)
	stopping <-chan struct{}

	mu     sync.Mutex
	counts map[outbox.ID]*counts
}

type counts struct {
	made  *counted      // the latest that there is; nil before the first
	err   error         // of the latest try; nil if made is of it
	next  chan struct{} // closed when the count that is being made is there; nil for none
	asked time.Time     // when somebody last did
	timer *time.Timer   // to the next count that nobody asks for; nil before the first
}

type counted struct {
	asOf   time.Time // what is counted is at least as new
	queues []operator.Queue
}

// forget has the next look wait for a new count.
func (c *statsCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = nil
}

// look returns a count that may be shown. The count itself does not end with the request
// that set it off: others wait for it.
func (c *statsCache) look(ctx context.Context, tenant outbox.ID) (*counted, error) {
	known, made, done := c.get(tenant)
	if made != nil {
		return made, nil
	}
	select {
	case <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known.err != nil {
		return nil, known.err
	}
	return known.made, nil
}

// get returns what is known of a tenant and a count that may be shown, or what to wait
// for; and begins a count if it is time.
func (c *statsCache) get(tenant outbox.ID) (*counts, *counted, <-chan struct{}) {
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
	known.asked = time.Now()
	if known.made == nil || time.Since(known.made.asOf) > countedFor {
		c.begin(tenant, known)
	}
	if known.made != nil && time.Since(known.made.asOf) < recountBy {
		return known, known.made, nil
	}
	return known, nil, known.next
}

// begin has a count made, unless one is under way; mu is held.
func (c *statsCache) begin(tenant outbox.ID, known *counts) {
	if known.next != nil {
		return
	}
	known.next = make(chan struct{})
	go c.make(tenant, known)
}

func (c *statsCache) make(tenant outbox.ID, known *counts) {
	asOf := time.Now().UTC()
	queues, err := c.count(tenant)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known.err = err; err == nil {
		known.made = &counted{asOf: asOf, queues: queues}
	}
	close(known.next)
	known.next = nil
	if known.timer == nil {
		known.timer = time.AfterFunc(recountEvery, func() { c.again(tenant, known) })
	} else {
		known.timer.Reset(recountEvery)
	}
}

// again counts what nobody asks for just now, but did lately.
func (c *statsCache) again(tenant outbox.ID, known *counts) {
	select {
	case <-c.stopping:
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[tenant] == known && time.Since(known.asked) < keptFor {
		c.begin(tenant, known)
	}
}

// count counts the open jobs of a tenant, or of all, in a transaction that is tied to it.
func (s *server) count(tenant outbox.ID) ([]operator.Queue, error) {
	return s.operator.QueuesOf(operator.TiedTo(context.Background(), tenant), tenant)
}
