package dispatcher

import "sync/atomic"

// health is the answer of the latest statement.
type health struct{ last atomic.Pointer[error] }

func (h *health) set(err error) {
	if err == nil {
		if h.last.Load() != nil {
			h.last.Store(nil)
		}
		return
	}
	h.last.Store(&err)
}

func (h *health) err() error {
	if p := h.last.Load(); p != nil {
		return *p
	}
	return nil
}
