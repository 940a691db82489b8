// Package outage keeps an outage of the database out of the logs: what fails again
// and again is told at once, and then every ten seconds.
package outage

import (
	"sync"
	"time"
)

// Complaints remembers what was told, and when. The zero value is ready to use. It
// is safe for concurrent use.
type Complaints struct {
	mu   sync.Mutex
	told map[string]*complaint
}

type complaint struct {
	at     time.Time
	missed int
}

const every = 10 * time.Second

// Due reports whether a complaint is to be told now, and how often it was not told
// since the last time.
func (c *Complaints) Due(what string, now time.Time) (missed int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = map[string]*complaint{}
	}
	last := c.told[what]
	if last != nil && now.Sub(last.at) < every {
		last.missed++
		return 0, false
	}
	if last != nil {
		missed = last.missed
	}
	c.told[what] = &complaint{at: now}
	return missed, true
}
