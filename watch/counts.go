package watch

import (
	"context"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Counting a million open jobs takes a quarter of a second, so requests are answered with an older count. It is
// refreshed in the background when it is older than countedFor, and every recountEvery for keptFor after the last
// request: then nobody looks, and nothing is asked. While there is a count of all tenants that is refreshed so (and
// always, with Config.CountAtOnce), a tenant's count is taken from it. A count older than recountBy is not shown:
// nobody asked for long, or counts fail, and their error is the answer. After an act that changed much, requests
// wait for a new count, but no longer than patience.
const (
	countedFor   = 5 * time.Second
	recountEvery = 30 * time.Second
	recountBy    = time.Minute
	keptFor      = time.Hour
	patience     = 50 * time.Millisecond
)

// allTenants is the tenant that stands for all of them.
var allTenants outbox.ID

// maxCounts bounds the tenants whose counts are remembered.
const maxCounts = 1000

// Counts remembers the counts of each tenant. However many ask, one counts, and one
// count is made at a time; see counting. Its timers end by themselves, and with stopping.
type Counts struct {
	count    func(tenant outbox.ID) (jobs operator.OpenJobs, byTenant map[outbox.ID]operator.OpenJobs, err error)
	keepAll  bool // who asks for a tenant has the count of all tenants made
	stopping <-chan struct{}

	mu     sync.Mutex
	counts map[outbox.ID]*counts
	acted  time.Time // when an act changed much: counts from before say too little
	counting
}

// NewCounts counts by o. With keepAll the count of all tenants is made from now on, before anybody asks, and is what
// each tenant is shown its part of. Nothing is counted once stopping is closed; nil never is.
func NewCounts(o *operator.Operator, keepAll bool, stopping <-chan struct{}) *Counts {
	c := &Counts{keepAll: keepAll, stopping: stopping}
	c.count = func(tenant outbox.ID) (operator.OpenJobs, map[outbox.ID]operator.OpenJobs, error) {
		return o.CountOpen(operator.TiedTo(context.Background(), tenant), tenant)
	}
	if keepAll {
		c.get(outbox.ID{})
	}
	return c
}

// counts is what is known of a tenant, or of all.
type counts struct {
	tenant outbox.ID
	made   *Counted      // the latest that there is; nil before the first
	err    error         // of the latest try; nil if made is of it
	next   chan struct{} // closed when the count that is being made, or is to be, is there; nil for none
	asked  time.Time     // when somebody last did
	timer  *time.Timer   // to the next count that nobody asks for; nil before the first
}

type Counted struct {
	AsOf     time.Time // what is counted is at least as new
	Jobs     operator.OpenJobs
	byTenant map[outbox.ID]operator.OpenJobs // nil if it is not known
}

// Outdate has those who ask wait a little for a count of what is so now.
func (c *Counts) Outdate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acted = time.Now()
}

// Look returns a count of the open jobs of a tenant, or of all, that may be shown. The count itself does not end with
// the request that set it off: others wait for it.
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

func (c *Counts) failure(known *counts) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return known.err
}

// get returns a count that may be shown, if there is one, and what to wait for if it
// is better to; and has a count made if it is time.
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

// of returns what is known of a tenant: of all, if that says enough. mu is held.
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

// serves reports whether what is known of all is made anew, and says what each tenant
// has. One that was not made yet is waited for: it may.
func (c *Counts) serves(all *counts) bool {
	if all == nil || !c.keepAll && !c.kept(all) {
		return false
	}
	if all.made == nil {
		return all.err == nil && all.next != nil
	}
	return all.made.byTenant != nil && (all.err == nil || time.Since(all.made.AsOf) < recountBy)
}

// kept reports whether a count is made anew though nobody asks for it just now.
func (c *Counts) kept(known *counts) bool {
	return time.Since(known.asked) < keptFor
}

// of is what a count of all tenants, if there is one, says of one of them.
func (c *Counted) of(tenant outbox.ID) *Counted {
	if c == nil || c.byTenant == nil {
		return nil
	}
	return &Counted{AsOf: c.AsOf, Jobs: c.byTenant[tenant]}
}

// note remembers a count, and has the next one made after a while; mu is held.
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

// again counts what nobody asks for just now, but did lately. What the count of all says
// as well is not counted.
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
