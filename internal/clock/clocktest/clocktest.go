// Package clocktest makes times as they are on a machine that was suspended.
package clocktest

import (
	"time"
	"unsafe"
)

// Suspended returns t on a machine that was suspended for d before: its wall clock has advanced by d, and its monotonic
// clock has not.
func Suspended(t time.Time, d time.Duration) time.Time {
	late := t.Add(d)
	(*struct { // as in package time
		wall uint64
		ext  int64 // with a monotonic reading: that
		loc  *time.Location
	})(unsafe.Pointer(&late)).ext -= int64(d)
	return late
}
