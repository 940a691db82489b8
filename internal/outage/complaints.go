// Package outage keeps outages quiet and cheap. Complaints limits the log during an outage of the database: a repeated
// failure is logged at once, and then every ten seconds. Circuit limits the cost of an outage of what handlers need:
// the first few jobs find out for the others.
package outage

import (
	"sync"
	"time"
)

// Complaints remembers what was logged, and when. The zero value is ready to use.
// It is safe for concurrent use.
type Complaints struct {
	// Most limits how many different complaints are logged, and remembered, in any ten seconds: it is for texts that
	// others can choose. 0 means no limit.
	Most int

	mu     sync.Mutex
	logged map[string]*complaint
	missed int // complaints beyond Most, and complaints of forgotten entries
}

type complaint struct {
	at     time.Time
	missed int
}

const every = 10 * time.Second

// Due reports whether to log a complaint now, and how often it was left out since the last time. With a limit, missed
// also counts the omitted complaints that are forgotten.
func (c *Complaints) Due(what string, now time.Time) (missed int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.logged == nil {
		c.logged = map[string]*complaint{}
	}
	last := c.logged[what]
	if last != nil && now.Sub(last.at) < every {
		last.missed++
		return 0, false
	}
	if last != nil {
		missed = last.missed
	} else if !c.roomFor(now) {
		c.missed++
		return 0, false
	}
	missed, c.missed = missed+c.missed, 0
	c.logged[what] = &complaint{at: now}
	return missed, true
}

// roomFor reports whether one more can be logged, and forgets expired ones if it must.
func (c *Complaints) roomFor(now time.Time) bool {
	if c.Most == 0 || len(c.logged) < c.Most {
		return true
	}
	for what, last := range c.logged {
		if now.Sub(last.at) >= every {
			c.missed += last.missed
			delete(c.logged, what)
		}
	}
	return len(c.logged) < c.Most
}
