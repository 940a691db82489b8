package relay

import "time"

func init() {
	maxHoles = 10_000
	heldWaits = []time.Duration{20 * time.Millisecond}
	lookLife = time.Minute // so that what is read too late shows
}

// SetClock sets the clock by which destinations are missing for an hour.
func (c *Config) SetClock(now func() time.Time) { c.now = now }
