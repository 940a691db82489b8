package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// NotifyMode selects how dispatchers learn of new jobs. No mode loses jobs, because dispatchers also poll.
type NotifyMode string

const (
	// NotifyCoalesced wakes dispatchers after the commit, at most once every few milliseconds for the whole process. It
	// is the default of a [Producer], which sees the commit; an enqueue in a transaction that the producer does not see
	// falls back to NotifyTransactional.
	NotifyCoalesced NotifyMode = "coalesced"
	// NotifyTransactional makes Postgres deliver the wake-up at commit. NOTIFY takes a lock at commit that the whole
	// cluster shares, so many concurrent producers commit one after the other.
	NotifyTransactional NotifyMode = "transactional"
	// NotifyOff sends no wake-up; dispatchers find the jobs by polling.
	NotifyOff NotifyMode = "off"
)

// orDefault returns m, or NotifyCoalesced for "".
func (m NotifyMode) orDefault() (NotifyMode, error) {
	switch m {
	case NotifyCoalesced, NotifyTransactional, NotifyOff:
		return m, nil
	case "":
		return NotifyCoalesced, nil
	}
	return "", fmt.Errorf("notify mode %q is unknown, want off, transactional or coalesced", string(m))
}

// coalesceWindow is the pause after each NOTIFY before the next, and so the longest delay of a wake-up.
const coalesceWindow = 3 * time.Millisecond

// A NOTIFY that fails is sent again until it succeeds or notifyGiveUp has passed; after that, dispatchers find the jobs
// by polling.
const (
	notifyTimeout = 2 * time.Second // per NOTIFY
	notifyPause   = 200 * time.Millisecond
	notifyGiveUp  = 5 * time.Second
)

// channels is a set of NOTIFY channels.
type channels uint8

const (
	jobsChannel   channels = 1 << iota // dispatchers listen to it
	eventsChannel                      // relays listen to it
)

func (c channels) names() (names []string) {
	if c&jobsChannel != 0 {
		names = append(names, engine.Channel)
	}
	if c&eventsChannel != 0 {
		names = append(names, engine.EventsChannel)
	}
	return names
}

// A coalescer turns any number of wake calls into at most one statement per window, which notifies the channels that
// the calls name. It sends at the leading edge of a window, so that a lone job is picked up at once, and at the
// trailing edge, so that the last job of a burst does not wait for the poll.
type coalescer struct {
	send func(context.Context, channels) error

	mu       sync.Mutex
	sending  bool          // a goroutine is sending or waiting out the window
	due      channels      // named by calls of wake and not yet sent
	wakes    uint64        // how often wake was called
	answered uint64        // how many of these calls need no further NOTIFY
	progress chan struct{} // closed when answered changes
}

func newCoalescer(db DB) *coalescer {
	q := sqlgen.New(db)
	return &coalescer{
		send:     func(ctx context.Context, due channels) error { return q.Notify(ctx, due.names()) },
		progress: make(chan struct{}),
	}
}

// wake requests a NOTIFY on the channels and returns at once. The NOTIFY starts after this call, and so after the
// commit that the caller has just made.
func (c *coalescer) wake(due channels) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due |= due
	c.wakes++
	if !c.sending {
		c.sending = true
		go c.run()
	}
}

func (c *coalescer) run() {
	for {
		c.answer()
		time.Sleep(coalesceWindow)

		c.mu.Lock()
		if c.answered == c.wakes {
			c.sending = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// answer sends one NOTIFY for all earlier calls of wake, and repeats it while it fails.
func (c *coalescer) answer() {
	var due channels
	for start := time.Now(); ; time.Sleep(notifyPause) {
		c.mu.Lock()
		before := c.wakes
		due, c.due = due|c.due, 0
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		err := c.send(ctx, due)
		cancel()
		closed := errors.Is(err, puddle.ErrClosedPool) // permanently
		if err == nil || closed || time.Since(start) >= notifyGiveUp {
			c.mu.Lock()
			c.answered = before
			close(c.progress)
			c.progress = make(chan struct{})
			c.mu.Unlock()
			return
		}
	}
}

// flush waits until every earlier wake has been answered, regardless of later ones.
func (c *coalescer) flush(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for before := c.wakes; c.answered < before; {
		progress := c.progress
		c.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil && c.answered < before {
			return fmt.Errorf("flush wake-ups: %w", context.Cause(ctx))
		}
	}
	return nil
}
