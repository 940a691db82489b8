// Package slot has the signal with which one goroutine makes another look again.
package slot

// Slot is a signal with one slot: any number of Set calls before a receive count as one.
type Slot chan struct{}

// New returns an empty Slot.
func New() Slot { return make(Slot, 1) }

// Set fills the slot if it is empty. It never blocks.
func (s Slot) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}
