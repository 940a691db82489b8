package dispatcher

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Channel is the NOTIFY channel on which dispatchers learn of jobs. A listener whose signal is Config.Wake listens to
// it. Notifications carry no data: any role may read and forge them.
const Channel = engine.Channel

// Attach connects the dispatcher to a producer in the same program that uses the same database. When a transaction that
// the producer began has enqueued jobs, its commit wakes the dispatcher before it returns: the dispatcher learns of its
// jobs without waiting for the database's notification, which goes to the other processes. If a transaction enqueued
// one job that can start at once, and the dispatcher has nothing else to do in that queue, the commit also claims the
// job for it: the job starts as soon as the commit is known. If the process dies right after such a commit, the job
// waits for its lease to lapse, as after any claim.
//
// A producer has one dispatcher at a time, until detach is called. A producer with outbox.NotifyOff wakes nobody.
// Package app attaches its dispatcher to the producer that it is given. Attach is safe for concurrent use.
func (d *Dispatcher) Attach(p *outbox.Producer) (detach func()) {
	local := engine.Of(p)
	local.SetWake(d.wake)
	local.SetReserve(d.reserve)
	return func() {
		local.SetWake(nil)
		local.SetReserve(nil)
	}
}

// wake makes every queue look for jobs now. The attached producer calls it after it has committed a job. It never
// blocks, and may be called at any time.
//
// A wake-up that arrives by Config.Wake may come from anybody, often for jobs that another process has long begun; the
// queue paces wake-ups that find nothing. A call of wake is answered at once, as long as such calls find jobs.
func (d *Dispatcher) wake() {
	select {
	case d.own <- struct{}{}:
	default: // an earlier call has not been answered yet
	}
}

// fanOut passes each wake-up on to every queue.
func (d *Dispatcher) fanOut(ctx context.Context) {
	others := d.config.Wake
	for {
		own := false
		select {
		case <-ctx.Done():
			return
		case <-d.own:
			own = true
		case _, open := <-others:
			if !open {
				others = nil
				continue
			}
		}
		d.leases.poke()
		for _, q := range d.queues {
			if own {
				q.pace.own.Store(true)
			}
			q.capacity.poke()
		}
	}
}

// reserve keeps a worker for a single job that the attached producer is about to commit. The commit then claims the
// job, which starts when the commit is known, without a wake-up and a claim's own round trip and disk flush. It returns
// nil if the job is to be claimed in the ordinary way: while the queue has jobs in hand, while another reservation is
// under way, or if this process has no handler for the kind, or handles it in batches. It never blocks; a caller that
// gets a reservation must end it.
func (d *Dispatcher) reserve(kind, queue string, id [16]byte) engine.Reservation {
	if !d.process.phase.isClaiming() {
		return nil
	}
	if q, r := d.queues[queue], d.process.routes[kind]; q != nil && r != nil && r.many == nil {
		if reservation := q.reserved.reserve(id); reservation != nil {
			return reservation
		}
	}
	return nil
}

// Outage is a kind whose jobs wait in a queue of this process because their dependency is unavailable ([Unavailable]).
type Outage struct {
	Queue, Kind string
	Since       time.Time
}

// Outages returns the present outages, sorted by queue and kind. It returns none unless Run is at work.
func (d *Dispatcher) Outages() (all []Outage) {
	if !d.process.phase.isClaiming() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.config.Queues)) {
		for _, kind := range d.process.kinds {
			if since, lasts := d.queues[name].workers.outages.of[kind].Since(); lasts {
				all = append(all, Outage{name, kind, since})
			}
		}
	}
	return all
}

// showing returns the dispatcher's row in the list of workers.
func (d *Dispatcher) showing() sqlgen.ShowWorkerParams {
	row := sqlgen.ShowWorkerParams{Worker: d.process.worker, Kinds: d.process.kinds, Queues: slices.Sorted(maps.Keys(d.config.Queues))}
	for _, name := range row.Queues {
		row.Concurrency = append(row.Concurrency, int32(cmp.Or(d.config.Queues[name].Concurrency, defaultConcurrency)))
	}
	return row
}

// Presence describes a dispatcher as the list of workers shows it.
type Presence struct {
	Worker  string         // name under which it holds leases
	Version string         // of the program
	Queues  map[string]int // how many jobs of each queue it runs at once
	Kinds   []string       // with a handler
}

// Presence returns the dispatcher's description. It never changes.
func (d *Dispatcher) Presence() Presence {
	row := d.showing()
	p := Presence{Worker: row.Worker, Version: engine.Version(), Queues: map[string]int{}, Kinds: row.Kinds}
	for i, queue := range row.Queues {
		p.Queues[queue] = int(row.Concurrency[i])
	}
	return p
}
