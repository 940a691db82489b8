package watch

import (
	"slices"
	"time"
)

const (
	// lookRest is how many times as long as a look at the database took the pause lasts before the next one that nobody
	// waits for: such looks take a fiftieth of one connection, however many viewers and open jobs there are.
	// maxLookRest limits the pause.
	lookRest    = 49
	maxLookRest = 30 * time.Second
)

// restAfterLook returns how long to pause after a look that took the given time.
func restAfterLook(took time.Duration) time.Duration { return min(lookRest*took, maxLookRest) }

// counting holds the counts that are to be made, and whether one is being made: one at a time in a process, and those
// that somebody waits for first. The cache's mu guards it.
type counting struct {
	urgent, later []*counts
	making        bool
	rested        time.Time // when the next of later may be made
	resting       bool      // a timer is set for that
}

// request queues a count, unless one is already queued. The caller holds mu.
func (c *Counts) request(known *counts) {
	if known.next != nil {
		return
	}
	known.next = make(chan struct{})
	c.later = append(c.later, known)
	c.advance()
}

// hurry queues a count before those that nobody waits for. The caller holds mu.
func (c *Counts) hurry(known *counts) {
	if i := slices.Index(c.later, known); i >= 0 {
		c.later = slices.Delete(c.later, i, i+1)
		c.urgent = append(c.urgent, known)
		c.advance()
	}
}

// advance begins the next count, if none is being made. The caller holds mu.
func (c *Counts) advance() {
	switch rest := time.Until(c.rested); {
	case c.making:
	case len(c.urgent) > 0:
		c.making = true
		go c.make(take(&c.urgent), false)
	case len(c.later) > 0 && rest <= 0:
		c.making = true
		go c.make(take(&c.later), true)
	case len(c.later) > 0 && !c.resting:
		c.resting = true
		time.AfterFunc(rest, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.resting = false
			c.advance()
		})
	}
}

func take(queue *[]*counts) *counts {
	first := (*queue)[0]
	*queue = slices.Delete(*queue, 0, 1)
	return first
}

// make makes a count, and begins the next.
func (c *Counts) make(known *counts, rest bool) {
	began := time.Now()
	made := &Counted{AsOf: began.UTC()}
	err := func() (err error) {
		defer recovered(&err)
		made.Jobs, made.byTenant, err = c.count(known.tenant)
		return err
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(known, made, err)
	if rest {
		c.rested = time.Now().Add(restAfterLook(time.Since(began)))
	}
	c.making = false
	c.advance()
}
