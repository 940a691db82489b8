package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// NotifyMode says how dispatchers learn of new jobs. With none of them anything
// is lost: they also poll.
type NotifyMode string

const (
	// NotifyCoalesced wakes dispatchers after the commit, at most once every few
	// milliseconds for the whole process. It is the default of a [Producer], which
	// sees the commit; an enqueue in a transaction that it does not see falls back
	// to NotifyTransactional.
	NotifyCoalesced NotifyMode = "coalesced"
	// NotifyTransactional has Postgres deliver the wake-up at commit. NOTIFY takes
	// a lock on the commits of the whole cluster: with many concurrent producers
	// they commit one after the other.
	NotifyTransactional NotifyMode = "transactional"
	// NotifyOff leaves it to the dispatchers' poll.
	NotifyOff NotifyMode = "off"
)

// ParseNotifyMode reads a mode; "" is coalesced.
func ParseNotifyMode(s string) (NotifyMode, error) {
	switch m := NotifyMode(s); m {
	case NotifyCoalesced, NotifyTransactional, NotifyOff:
		return m, nil
	case "":
		return NotifyCoalesced, nil
	}
	return "", fmt.Errorf("notify mode %q is unknown, want off, transactional or coalesced", s)
}

// coalesceWindow is how long after a NOTIFY the next one waits, and so the most
// that a wake-up is delayed.
const coalesceWindow = 3 * time.Millisecond

// notifyTimeout bounds one NOTIFY; when it is over, the poll covers.
const notifyTimeout = 2 * time.Second

// coalescer turns any number of wake calls into at most one NOTIFY per window.
// It has a leading edge, so that a lone job is picked up at once, and a trailing
// edge, so that the last job of a burst does not wait for the poll.
type coalescer struct {
	send func(context.Context) error

	mu      sync.Mutex
	sending bool // a goroutine is sending or waiting out the window
	again   bool // a wake came meanwhile
	idle    *sync.Cond
}

func newCoalescer(db DB) *coalescer {
	c := &coalescer{send: sqlgen.New(db).WakeDispatchers}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// wake returns at once. The NOTIFY that answers it starts after this call, so it
// is sent after the commit that the caller has just made.
func (c *coalescer) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending {
		c.again = true
		return
	}
	c.sending = true
	go c.run()
}

func (c *coalescer) run() {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_ = c.send(ctx) // a hint: the poll covers a lost one
		cancel()
		time.Sleep(coalesceWindow)

		c.mu.Lock()
		if !c.again {
			c.sending = false
			c.idle.Broadcast()
			c.mu.Unlock()
			return
		}
		c.again = false
		c.mu.Unlock()
	}
}

// flush waits until no wake-up is outstanding.
func (c *coalescer) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.sending {
		c.idle.Wait()
	}
}
