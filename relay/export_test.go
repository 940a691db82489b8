package relay

import "time"

func init() {
	heldWaits = []time.Duration{20 * time.Millisecond}
	lookLife = time.Minute // so that what is read too late shows
}
