package listener

// A Signal is a coalescing wake-up with one slot: any number of Set calls before a receive count as one. It carries no
// data. Receive from it as from any channel; it may be passed on as a <-chan struct{}.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set sets the signal. It never blocks, whether or not anybody receives. It returns false if the signal was already
// set.
func (s Signal) Set() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}
