package relay

import (
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

func init() {
	maxHoles = 10_000
	heldWaits = []time.Duration{20 * time.Millisecond}
	lookLife = time.Minute // so that what is read too late shows
}

// SetClock sets the clock by which destinations are missing for an hour.
func (c *Config) SetClock(now func() time.Time) { c.now = now }

// SetOutage sets the shortest and the longest wait between trials of a sink that is away.
func (c *Config) SetOutage(least, most time.Duration) {
	c.outage = backoff.Backoff{Min: least, Max: most}
}
