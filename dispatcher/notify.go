package dispatcher

import (
	"context"
	"time"
)

const (
	// waitersWindow is the least time between two NOTIFYs to callers waiting for jobs, and peersWindow the least time
	// between two to the other processes.
	waitersWindow = 5 * time.Millisecond
	peersWindow   = 10 * time.Millisecond
)

// notifier sends one NOTIFY for many events. A lost one costs the listeners a poll interval.
type notifier struct {
	due    chan struct{} // one slot
	window time.Duration
	send   func(context.Context) error
}

func newNotifier(window time.Duration, send func(context.Context) error) *notifier {
	return &notifier{make(chan struct{}, 1), window, send}
}

// notify asks for a NOTIFY soon; it never blocks.
func (n *notifier) notify() {
	select {
	case n.due <- struct{}{}:
	default:
	}
}

// run sends NOTIFYs until stop is called, including one that is due then. It empties the slot before it sends, so an
// event that comes meanwhile causes another NOTIFY.
func (n *notifier) run() {
	for range n.due {
		ctx, cancel := context.WithTimeout(context.Background(), hintTimeout)
		_ = n.send(ctx) // a hint: its error does not matter
		cancel()
		time.Sleep(n.window)
	}
}

// stop ends run. Nobody may call notify after it.
func (n *notifier) stop() { close(n.due) }
