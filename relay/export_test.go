package relay

import (
	"cmp"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

func init() {
	maxHoles, maxLook = 1_000, 1_000
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

// LimitWaiting sets how many messages, and bytes of them, may wait for destinations, until the test ends; 0 sets no
// other limit.
func LimitWaiting(t testing.TB, messages, bytes int) {
	was, wasBytes := maxWaiting, maxWaitingBytes
	maxWaiting, maxWaitingBytes = cmp.Or(messages, was), cmp.Or(bytes, wasBytes)
	t.Cleanup(func() { maxWaiting, maxWaitingBytes = was, wasBytes })
}

// LimitStored sets how many holes of a cursor are stored, until the test ends.
func LimitStored(t testing.TB, holes int) {
	was := maxStored
	maxStored = holes
	t.Cleanup(func() { maxStored = was })
}
