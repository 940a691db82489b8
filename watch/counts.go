package watch

import (
	"context"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Counting a million open jobs takes a quarter of a second, so requests are answered with an older count. It is
// refreshed in the background when it is older than countedFor, and every recountEvery until keptFor after the last
// request; after that there are no viewers, and no queries. While there is a count of all tenants that is refreshed in
// this way (with Config.CountAtOnce, always), a tenant's count is taken from it. A count older than recountBy is not
// shown: nobody has asked for long, or counts fail, and their error is the answer. After an act that changed much,
// requests wait for a new count, but no longer than patience.
const (
	countedFor   = 5 * time.Second
	recountEvery = 30 * time.Second
	recountBy    = time.Minute
	keptFor      = time.Hour
	patience     = 50 * time.Millisecond
)

// allTenants stands for all tenants.
var allTenants outbox.ID

// maxCounts limits the tenants whose counts are cached.
const maxCounts = 1000

// Counts caches the counts of each tenant. However many viewers ask, one count is made at a time; see counting. Its
// timers end on their own, and with stopping.
type Counts struct {
	count    func(tenant outbox.ID) (jobs operator.OpenJobs, byTenant map[outbox.ID]operator.OpenJobs, err error)
	keepAll  bool // a request for a tenant makes the count of all tenants
	stopping <-chan struct{}

	mu     sync.Mutex
	counts map[outbox.ID]*counts
	acted  time.Time // when an act last changed much: earlier counts are outdated
	counting
}

// NewCounts returns Counts that query through o. With keepAll the count of all tenants is made from now on, before
// anybody asks, and each tenant is shown its part of that. Nothing is counted once stopping is closed; nil never is.
func NewCounts(o *operator.Operator, keepAll bool, stopping <-chan struct{}) *Counts {
	c := &Counts{keepAll: keepAll, stopping: stopping}
	c.count = func(tenant outbox.ID) (operator.OpenJobs, map[outbox.ID]operator.OpenJobs, error) {
		return o.CountOpen(operator.WithTenant(context.Background(), tenant), tenant)
	}
	if keepAll {
		c.get(outbox.ID{})
	}
	return c
}

// counts holds the counts of a tenant, or of all.
type counts struct {
	tenant outbox.ID
	made   *Counted      // the latest count; nil before the first
	err    error         // of the latest attempt; nil if made is its result
	next   chan struct{} // closed when the current or queued count is done; nil if there is none
	asked  time.Time     // when somebody last asked
	timer  *time.Timer   // for the next count that nobody asks for; nil before the first
}

type Counted struct {
	AsOf     time.Time // the count is at least as new
	Jobs     operator.OpenJobs
	byTenant map[outbox.ID]operator.OpenJobs // nil if not known
}

// Outdate makes later callers wait a little for a count of the present state.
func (c *Counts) Outdate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acted = time.Now()
}

// Look returns a count of the open jobs of a tenant, or of all, that is recent enough to show. The count itself does
// not end with the request that triggered it, because others wait for it.
func (c *Counts) Look(ctx context.Context, tenant outbox.ID) (*Counted, error) {
	waited := time.NewTimer(patience)
	defer waited.Stop()
	for {
		known, made, next := c.get(tenant)
		if next == nil {
			return made, nil
		}
		impatient := waited.C
		if made == nil { // there is nothing to show instead
			impatient = nil
		}
		select {
		case <-next:
		case <-impatient:
			return made, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := c.failure(known); err != nil && made == nil {
			return nil, err
		} else if err != nil {
			return made, nil
		}
	}
}

// Known returns the latest count of a tenant, or of all, and nil if none is recent enough to show. It starts no count,
// and waits for none.
func (c *Counts) Known(tenant outbox.ID) (made *Counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.counts[allTenants]; tenant != allTenants && c.serves(all) {
		made = all.made.of(tenant)
	} else if known := c.counts[tenant]; known != nil {
		made = known.made
	}
	if made == nil || time.Since(made.AsOf) >= recountBy {
		return nil
	}
	return made
}

func (c *Counts) failure(known *counts) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return known.err
}

// get returns a count that may be shown, if there is one, and what to wait for if that is better. It triggers a count
// if one is needed.
func (c *Counts) get(tenant outbox.ID) (known *counts, made *Counted, next <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known = c.of(tenant)
	made = known.made
	if made == nil || made.AsOf.Before(c.acted) || time.Since(made.AsOf) > countedFor {
		c.request(known)
	}
	known.asked = time.Now()
	if known.tenant != tenant {
		made = made.of(tenant)
	}
	switch {
	case made == nil || time.Since(made.AsOf) >= recountBy:
		c.hurry(known)
		return known, nil, known.next
	case made.AsOf.Before(c.acted):
		c.hurry(known)
		return known, made, known.next
	}
	return known, made, nil
}

// of returns the counts for a tenant: those of all tenants, if they suffice. The caller holds mu.
func (c *Counts) of(tenant outbox.ID) *counts {
	all := c.counts[outbox.ID{}]
	if c.serves(all) {
		return all
	}
	known := c.counts[tenant]
	if known == nil {
		if len(c.counts) >= maxCounts {
			c.counts = nil
		}
		if c.counts == nil {
			c.counts = map[outbox.ID]*counts{}
		}
		if all != nil {
			c.counts[outbox.ID{}] = all
		}
		known = &counts{tenant: tenant}
		c.counts[tenant] = known
	}
	return known
}

// serves reports whether the count of all tenants is being refreshed, and contains each tenant's. A first count that is
// still being made is assumed to.
func (c *Counts) serves(all *counts) bool {
	if all == nil || !c.keepAll && !c.kept(all) {
		return false
	}
	if all.made == nil {
		return all.err == nil && all.next != nil
	}
	return all.made.byTenant != nil && (all.err == nil || time.Since(all.made.AsOf) < recountBy)
}

// kept reports whether a count is refreshed although nobody asks for it just now.
func (c *Counts) kept(known *counts) bool {
	return time.Since(known.asked) < keptFor
}

// of returns the part of a count of all tenants, if there is one, that concerns one of them.
func (c *Counted) of(tenant outbox.ID) *Counted {
	if c == nil || c.byTenant == nil {
		return nil
	}
	return &Counted{AsOf: c.AsOf, Jobs: c.byTenant[tenant]}
}

// note stores a count, and schedules the next one. The caller holds mu.
func (c *Counts) note(known *counts, made *Counted, err error) {
	if known.err = err; err == nil {
		known.made = made
	}
	close(known.next)
	known.next = nil
	if known.timer == nil {
		known.timer = time.AfterFunc(recountEvery, func() { c.again(known) })
	} else {
		known.timer.Reset(recountEvery)
	}
}

// again makes a count that nobody asks for just now, but did recently. It skips a count that the count of all tenants
// contains.
func (c *Counts) again(known *counts) {
	select {
	case <-c.stopping:
		return
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[known.tenant] == known && c.kept(known) && c.of(known.tenant) == known {
		c.request(known)
	}
}
