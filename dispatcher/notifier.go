package dispatcher

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
)

const notifyWindow = 5 * time.Millisecond // the least time between two NOTIFYs of a notifier

// notifier sends one NOTIFY for many events. A lost one costs the listeners a poll interval.
type notifier struct {
	bound    func() (context.Context, context.CancelFunc) // returns the context of a NOTIFY
	db       notifyStatement
	channels []string
	due      slot.Slot
}

type notifyStatement interface {
	Notify(ctx context.Context, channels []string) error
}

func newNotifier(bound func() (context.Context, context.CancelFunc), db notifyStatement, channel string) *notifier {
	return &notifier{bound, db, []string{channel}, slot.New()}
}

// notify asks for a NOTIFY soon; it never blocks.
func (n *notifier) notify() { n.due.Set() }

// run sends NOTIFYs until stop is called, including one that is due then. It empties the slot before it sends, so an
// event that comes meanwhile causes another NOTIFY.
func (n *notifier) run() {
	for range n.due {
		ctx, cancel := n.bound()
		_ = n.db.Notify(ctx, n.channels) // a hint: its error does not matter
		cancel()
		time.Sleep(notifyWindow)
	}
}

// stop ends run. Nobody may call notify after it.
func (n *notifier) stop() { close(n.due) }
