package dispatcher

import (
	"context"
	"time"
)

const (
	// waitersWindow is how long after a NOTIFY to those who wait for jobs the next one waits, peersWindow the
	// same for a NOTIFY to the other processes.
	waitersWindow = 5 * time.Millisecond
	peersWindow   = 10 * time.Millisecond
)

// notifier sends a NOTIFY, one for many events. A lost one costs the listeners a poll interval.
type notifier struct {
	due    chan struct{} // one slot
	window time.Duration
	send   func(context.Context) error
}

func newNotifier(window time.Duration, send func(context.Context) error) *notifier {
	return &notifier{make(chan struct{}, 1), window, send}
}

// notify has a NOTIFY sent soon; it never blocks.
func (n *notifier) notify() {
	select {
	case n.due <- struct{}{}:
	default:
	}
}

// run sends until stop, and what is due then. The slot is emptied before a NOTIFY is sent, so what comes meanwhile
// gets another.
func (n *notifier) run() {
	for range n.due {
		ctx, cancel := context.WithTimeout(context.Background(), hintTimeout)
		_ = n.send(ctx) // a hint
		cancel()
		time.Sleep(n.window)
	}
}

// stop may be called when nobody notifies any more.
func (n *notifier) stop() { close(n.due) }
