// Package clock measures time across the suspension of a machine.
package clock

import "time"

// Elapsed returns how long b is after a, by the clock that has advanced further. The monotonic clock, which
// [time.Time.Sub] uses, stops while the machine is suspended; the database's clock, by which leases end, does not. A
// wall clock that is set ahead makes the result too long, so Elapsed is only for actions that do no harm if they come
// too early.
func Elapsed(a, b time.Time) time.Duration {
	return max(b.Sub(a), b.Round(0).Sub(a.Round(0)))
}
