package dispatcher

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/limit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
)

// waker makes the claim loop of a queue look again. Any goroutine may use it, and it never blocks.
type waker struct {
	wake    slot.Slot
	woken   atomic.Int32 // a wakeUp: who has announced jobs since the claim loop looked last
	hasRoom atomic.Bool  // there is room for known jobs, and the claim loop has not begun a drain since
	limits  limit.State  // of the queue
	refused atomic.Int64 // outcomes of the queue that the database refuses for now: see capacity.most
}

func newWaker() *waker { return &waker{wake: slot.New()} }

// wakeUp says who has announced jobs to a queue. The attached producer counts if others have, too.
type wakeUp = int32

const (
	nobody wakeUp = iota
	byOthers
	byProducer
)

// poke makes the claim loop look for jobs that it does not know of.
func (w *waker) poke() {
	w.woken.CompareAndSwap(nobody, byOthers)
	w.wake.Set()
}

// pokeOwn does what poke does, for jobs that the attached producer has committed.
func (w *waker) pokeOwn() {
	w.woken.Store(byProducer)
	w.wake.Set()
}

// roomMade makes the claim loop continue with the jobs that it knows of.
func (w *waker) roomMade() {
	w.hasRoom.Store(true)
	w.wake.Set()
}

// jobEnded makes a queue of which as many jobs run as may look again, because there is room.
func (w *waker) jobEnded() {
	if w.limits.Reached() {
		w.roomMade()
	}
}

// pace is a token bucket for wake-ups that find nothing. It holds three tokens and refills at fifty a second, because
// anybody who can connect may send notifications. A look that finds jobs costs no token, so the first wake-up after a
// quiet time is answered at once.
//
// Wake-ups of the attached producer do not wait because of wake-ups from elsewhere. Otherwise N processes that enqueue
// and dispatch would delay each other: each is notified of every job, of its own jobs for a second time, and of most
// jobs after they have been claimed. But the producer's jobs may all be for other processes; then its wake-ups take
// tokens like any other, until one finds something.
//
// Only the claim loop uses it.
type pace struct {
	ownFinds bool // the last look after a wake-up of the attached producer found jobs
	tokens   float64
	counted  time.Time // when tokens was last computed
}

const (
	maxTokens       = 3
	tokensPerSecond = 50
)

// wait waits for a token for a look that may find nothing; it reports false if ctx ends first. Room for known jobs ends
// the wait.
func (p *pace) wait(ctx context.Context, w *waker) bool {
	if p.refill(); w.hasRoom.Swap(false) || p.tokens >= 1 || p.atOnce(w) {
		return true
	}
	refilled := time.NewTimer(time.Duration((1 - p.tokens) / tokensPerSecond * float64(time.Second)))
	defer refilled.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-refilled.C:
			return true
		case <-w.wake: // the look that this waits for answers it, too
			if w.hasRoom.Swap(false) || p.atOnce(w) {
				return true
			}
		}
	}
}

// looked takes the token of a look that has answered a wake-up and found nothing.
func (p *pace) looked(by wakeUp, found bool) {
	free := found || by == byProducer && p.ownFinds
	if by == byProducer {
		p.ownFinds = found
	}
	if p.refill(); !free {
		p.tokens = max(p.tokens-1, 0)
	}
}

func (p *pace) refill() {
	now := time.Now()
	p.tokens = min(p.tokens+now.Sub(p.counted).Seconds()*tokensPerSecond, maxTokens)
	p.counted = now
}

func (p *pace) atOnce(w *waker) bool { return p.ownFinds && w.woken.Load() == byProducer }

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
