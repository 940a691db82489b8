// Package wake makes the claim loop of a queue look for jobs again, and paces the looks that find nothing.
//
// Any number of wake-ups before a look count as one, and no wake-up before a look is lost. Wake-ups tell the loop who
// has announced jobs, because those of the attached producer are answered sooner than those of others.
package wake

import (
	"sync/atomic"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
)

// Waker makes a claim loop look again. Any goroutine may call Poke, PokeOwn and RoomMade, which never block; the other
// methods are for the claim loop.
type Waker struct {
	Signal slot.Slot // the claim loop receives from it

	woken   atomic.Int32 // a By: who has announced jobs since the claim loop looked last
	hasRoom atomic.Bool  // there is room for known jobs, and the claim loop has not begun a drain since
}

// New returns a Waker that nobody has used.
func New() *Waker { return &Waker{Signal: slot.New()} }

// By says who has announced jobs to a queue. The attached producer counts if others have, too.
type By = int32

const (
	Nobody By = iota
	Others
	Producer
)

// Poke makes the claim loop look for jobs that it does not know of.
func (w *Waker) Poke() {
	w.woken.CompareAndSwap(Nobody, Others)
	w.Signal.Set()
}

// PokeOwn does what Poke does, for jobs that the attached producer has committed.
func (w *Waker) PokeOwn() {
	w.woken.Store(Producer)
	w.Signal.Set()
}

// RoomMade makes the claim loop continue with the jobs that it knows of.
func (w *Waker) RoomMade() {
	w.hasRoom.Store(true)
	w.Signal.Set()
}

// Woken returns who has announced jobs since Take was called last.
func (w *Waker) Woken() By { return w.woken.Load() }

// Take returns what Woken does, and forgets it: a look follows.
func (w *Waker) Take() By { return w.woken.Swap(Nobody) }

// HasRoom reports whether there is room for known jobs, and no drain has begun since.
func (w *Waker) HasRoom() bool { return w.hasRoom.Load() }

// DrainBegins notes that the claim loop is about to use whatever room there is.
func (w *Waker) DrainBegins() { w.hasRoom.Store(false) }
