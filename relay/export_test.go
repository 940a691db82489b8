package relay

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

func init() {
	maxHoles = 1_000
	heldWaits = []time.Duration{20 * time.Millisecond}
	lookLife = time.Minute // so that what is read too late shows
}

// SetClock sets the clock by which destinations are missing for an hour.
func (c *Config) SetClock(now func() time.Time) { c.now = now }

// SetRenewInterval sets the longest time between two renewals of a lease, whatever the lease.
func (c *Config) SetRenewInterval(interval time.Duration) { c.renewInterval = interval }

// SetPatience sets after which time a batch without an answer is unknown.
func (c *Config) SetPatience(patience time.Duration) { c.patience = patience }

// SetOutage sets the shortest and the longest wait between trials of a sink that is away.
func (c *Config) SetOutage(least, most time.Duration) {
	c.outage = backoff.Backoff{Min: least, Max: most}
}

// LimitWaiting sets how many messages may wait for destinations, until the test ends.
func LimitWaiting(t testing.TB, n int) {
	was := maxWaiting
	maxWaiting = n
	t.Cleanup(func() { maxWaiting = was })
}
