// Package clock measures time across the sleep of a machine.
package clock

import "time"

// Elapsed is how long b is after a, by whichever of their clocks has gone on further. The monotonic one, by which
// [time.Time.Sub] counts, stands still while the machine is suspended, and the database's goes on, by which leases end.
// A wall clock that is set ahead makes it too long: it is for what does no harm if it is done too early.
func Elapsed(a, b time.Time) time.Duration {
	return max(b.Sub(a), b.Round(0).Sub(a.Round(0)))
}
