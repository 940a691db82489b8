package dispatcher

import (
	"sync"
	"time"
)

// batches holds the batches of a queue that wait for more jobs. They take no slot: the jobs that they wait for are
// claimed meanwhile.
type batches struct {
	workers *workers

	mu      sync.Mutex
	open    map[*route]*batch
	onlyFor bool // the latest claim that got jobs brought only jobs for batches
}

func newBatches(w *workers) *batches {
	g := &batches{workers: w, open: map[*route]*batch{}}
	for _, r := range w.routes {
		if r.many != nil {
			w.capacity.seats = g.seats
		}
	}
	return g
}

// gather adds a claimed job to the batch of its kind. A batch goes to the workers when it is full or has waited long
// enough.
func (g *batches) gather(a *attempt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.open[a.route]
	if b == nil {
		b = &batch{}
		g.open[a.route] = b
		b.timer = time.AfterFunc(a.route.many.Wait, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.open[a.route] == b { // else it was full, or a stop gave it back
				g.send(a.route)
			}
		})
	}
	b.attempts = append(b.attempts, a)
	if len(b.attempts) == a.route.many.Max {
		b.timer.Stop()
		g.send(a.route)
	}
}

// send hands the open batch of a kind to the workers. mu is held.
func (g *batches) send(r *route) {
	b := g.open[r]
	delete(g.open, r)
	lead := b.attempts[0]
	lead.batch, b.sent = b, time.Now()
	g.workers.capacity.inHand.Add(1)
	g.workers.buffer.Put(lead, false)
}

// seats returns how many more jobs the open batches have room for. It returns 0 unless the latest jobs were for batches
// only: other jobs would have to wait for a worker.
func (g *batches) seats() (seats int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.onlyFor {
		return 0
	}
	for r, b := range g.open {
		seats += r.many.Max - len(b.attempts)
	}
	return seats
}

// noteClaim remembers whether a claim was for batches only. A claim that got nothing tells nothing.
func (g *batches) noteClaim(claimed, forBatches int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if claimed > 0 {
		g.onlyFor = claimed == forBatches
	}
}

// giveBack returns the jobs of open batches. After it the workers may be closed.
func (g *batches) giveBack() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for r, b := range g.open {
		b.timer.Stop()
		delete(g.open, r)
		for _, a := range b.attempts {
			g.workers.returnUnstarted(a)
		}
	}
}
