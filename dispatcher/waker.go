package dispatcher

import "sync/atomic"

// waker makes the claim loop of a queue look again. Any goroutine may use it, and it never blocks.
type waker struct {
	wake     chan struct{} // one slot
	notified atomic.Bool   // jobs may have come, and the claim loop has not looked since
	atLimit  atomic.Bool   // an operator's limit kept the last claim from taking more
}

func newWaker() *waker { return &waker{wake: make(chan struct{}, 1)} }

// poke makes the claim loop look for jobs that it does not know of.
func (w *waker) poke() {
	w.notified.Store(true)
	w.roomMade()
}

// roomMade makes the claim loop continue with the jobs that it knows of.
func (w *waker) roomMade() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// jobEnded makes a queue that is at one of its limits look again, because there is room.
func (w *waker) jobEnded() {
	if w.atLimit.Load() {
		w.roomMade()
	}
}
