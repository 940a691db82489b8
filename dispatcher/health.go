package dispatcher

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// health is the answer of the latest statement.
type health struct {
	last atomic.Pointer[error]

	mu        sync.Mutex
	recovered chan struct{} // closed by the next statement that goes through; nil while nobody waits
}

func (h *health) set(err error) {
	if err != nil {
		h.last.Store(&err)
		return
	}
	if h.last.Load() == nil { // nearly always
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last.Store(nil)
	if h.recovered != nil {
		close(h.recovered)
		h.recovered = nil
	}
}

func (h *health) err() error {
	if p := h.last.Load(); p != nil {
		return *p
	}
	return nil
}

// recovery is closed as soon as a statement goes through, and already if the latest did.
func (h *health) recovery() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.recovered == nil {
		h.recovered = make(chan struct{})
	}
	recovered := h.recovered
	if h.last.Load() == nil {
		close(recovered)
		h.recovered = nil
	}
	return recovered
}

// rest waits before something is stored that was refused: when there was no server,
// only until one takes any statement. Claims learn from the listener that it is back, and
// what they start is settled behind this; if the process died meanwhile, all of it
// would run again.
func (d *Dispatcher) rest(wait time.Duration, err error) {
	if !pgsession.IsGone(err) {
		time.Sleep(wait)
		return
	}
	least := min(wait, backoff.DefaultMin)
	time.Sleep(least)
	select {
	case <-d.health.recovery():
	case <-time.After(wait - least):
	}
}
