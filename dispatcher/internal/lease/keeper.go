package lease

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Keeper holds the leases of a process. A short job costs two map operations and no statement. It is safe for
// concurrent use.
type Keeper struct {
	Config
	trust time.Duration // how long after sending a claim or an extension we trust the lease
	wake  slot.Slot     // a job may have been cancelled

	mu   sync.Mutex
	held map[*Lease]struct{}
}

// Config is what a Keeper needs of a dispatcher.
type Config struct {
	TTL       time.Duration // of a lease
	DB        Statements
	Extending Extensions    // on a connection of its own: extensions wait for no claim and no settlement
	Timeout   time.Duration // of a statement
	Most      int           // jobs of a statement
	Notice    time.Duration // the longest time between two looks for cancellations
	Cancelled error         // the cause that ends the handler of a cancelled job
	Health    *health.Health
	Late      prometheus.Counter // counts late extensions
}

// Statements are the statements of a Keeper, except those of its own connection.
type Statements interface {
	ListCancelRequests(context.Context, sqlgen.ListCancelRequestsParams) ([]sqlgen.ListCancelRequestsRow, error)
}

// Extensions is the statement that extends leases.
type Extensions interface {
	ExtendLeases(context.Context, sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error)
}

// NewKeeper returns a Keeper without leases.
func NewKeeper(c Config) *Keeper {
	return &Keeper{Config: c, trust: c.TTL - c.TTL/10, wake: slot.New(), held: map[*Lease]struct{}{}}
}

// Add holds leases, each from when its claim was sent. Add each once, before anything else uses it.
func (k *Keeper) Add(leases iter.Seq[*Lease]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range leases {
		l.until = l.Claimed.Add(k.trust) // nobody else knows the lease yet
		k.held[l] = struct{}{}
	}
}

// Remove holds the leases no longer: their outcomes are stored, or given up.
func (k *Keeper) Remove(leases iter.Seq[*Lease]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range leases {
		delete(k.held, l)
	}
}

// IDs returns the id of every held job.
func (k *Keeper) IDs() []pgtype.UUID {
	k.mu.Lock()
	defer k.mu.Unlock()
	ids := make([]pgtype.UUID, 0, len(k.held)) // nil would be NULL in a statement
	for l := range k.held {
		ids = append(ids, pgvalue.UUID(l.Job.ID))
	}
	return ids
}

// EndAll ends every lease with the cause.
func (k *Keeper) EndAll(cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range k.held {
		l.End(cause)
	}
}

// Count returns how many leases are held.
func (k *Keeper) Count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held)
}

// Keep extends leases until ctx ends.
func (k *Keeper) Keep(ctx context.Context) {
	backoff.Every(ctx, k.TTL/15, func(now time.Time) {
		if err := k.extend(ctx, k.due(now)); err != nil && ctx.Err() == nil {
			k.Health.Failed(err)
			k.Health.Complain(ctx, "leases not extended", err)
		}
	})
}

// Watch stops handlers on time until ctx ends, even while an extension hangs.
func (k *Keeper) Watch(ctx context.Context) { backoff.Every(ctx, k.TTL/50, k.dropLapsed) }

// due returns the leases of which a third is used.
func (k *Keeper) due(now time.Time) []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*Lease
	renewBelow := k.trust - k.TTL/3 // remaining trust at which an extension is due
	for l := range k.held {
		if l.needsExtension(now, renewBelow) {
			due = append(due, l)
		}
	}
	return due
}

// extend extends leases. If the database refuses to change a job's row, as a user's trigger may, only that job's lease
// is not extended.
func (k *Keeper) extend(ctx context.Context, due []*Lease) error {
	for batch := range slices.Chunk(due, k.Most) {
		err := pgsession.Apart(batch, func(part []*Lease) error { return k.extendSome(ctx, part) },
			func(l *Lease, err error) {
				k.Health.Complain(ctx, "lease not extended: the database refuses it", err,
					slog.String("job_id", l.Job.ID.String()))
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) extendSome(ctx context.Context, batch []*Lease) error {
	params := sqlgen.ExtendLeasesParams{LeaseTtl: pgvalue.Interval(k.TTL)}
	params.Ids, params.Epochs, params.Starts = engine.Fences(batch, (*Lease).Fence)
	sent := time.Now()
	bound, cancel := context.WithTimeout(ctx, min(k.Timeout, k.TTL/5)) // several tries before the lease lapses
	rows, err := k.Extending.ExtendLeases(bound, params)
	cancel()
	if err != nil {
		return fmt.Errorf("extend %d leases: %w", len(batch), err)
	}
	k.Health.OK()
	kept := make(map[engine.Fence]bool, len(rows)) // false if lost
	for _, row := range rows {
		kept[engine.FenceOf(row.ID.Bytes, row.Epoch, row.StartedAt.Time)] = !row.Lost
	}
	late := 0
	k.mu.Lock()
	for _, l := range batch {
		ours, listed := kept[l.Fence()]
		switch {
		case !listed:
			if l.extended(sent, sent.Add(k.trust)) {
				late++
			}
		case ours:
			// The row is locked, most likely by the handler's own transaction, so the lease was extended in
			// outbox.lease_extensions. If the extension was late, a reaper may have locked the row and may be taking
			// the job right now: look again with the next tick.
			if l.extended(sent, sent.Add(k.trust)) {
				l.extended(sent, sent.Add(k.TTL/3))
			}
		case engine.InternalOf(l.Job).Completed.Load():
			// The handler's own transaction has most likely deleted the row. If it did not commit, the fence decides:
			// nothing more is stored of this attempt.
			l.extended(sent, sent.Add(k.trust))
		default:
			l.End(outbox.ErrLeaseLost)
		}
	}
	k.mu.Unlock()
	k.Late.Add(float64(late))
	return nil
}

// dropLapsed stops handlers whose lease we could not extend in time, before the database lets another worker start. The
// fence decides about their outcome: it is still stored if no worker has taken the job meanwhile.
func (k *Keeper) dropLapsed(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range k.held {
		if l.lapsed(now) {
			l.End(outbox.ErrLeaseLost)
		}
	}
}

// A handler learns that its job was cancelled within some tenths of a second if a notification arrives, however many
// do, and otherwise within a tick and Config.Notice of the request and of its own first tick. While all handlers start
// and return within four ticks, no query runs, whatever notifications arrive. A job that waits in this process counts
// like one that runs: if it still waits about a second after it was cancelled, it does not start.
const cancelTick = 100 * time.Millisecond

// WatchCancellations ends the contexts of handlers whose jobs were cancelled, until ctx ends. Nothing depends on it: a
// missed request is found when the attempt is settled, or when its lease lapses.
func (k *Keeper) WatchCancellations(ctx context.Context) {
	var looked time.Time
	spacing := k.Notice
	backoff.Every(ctx, cancelTick, func(now time.Time) {
		select {
		case <-k.wake:
			spacing = 2 * cancelTick
		default:
		}
		if now.Sub(looked) < spacing {
			return
		}
		spacing = k.Notice
		running := k.longRunning(now)
		if len(running) == 0 {
			return
		}
		looked = now
		if err := k.endCancelled(ctx, running); err != nil && ctx.Err() == nil {
			k.Health.Failed(err)
			k.Health.Complain(ctx, "cancelled jobs not looked for", err)
		}
	})
}

// Poke makes WatchCancellations look soon; it never blocks.
func (k *Keeper) Poke() { k.wake.Set() }

// longRunning returns the leases to ask about: none until some handler has been running long enough.
func (k *Keeper) longRunning(now time.Time) []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	var running []*Lease
	long := false
	for l := range k.held {
		if age := l.age(now, 4*cancelTick); age >= cancelTick {
			running = append(running, l)
			long = long || age >= 4*cancelTick
		}
	}
	if !long {
		return nil
	}
	return running
}

func (k *Keeper) endCancelled(ctx context.Context, running []*Lease) error {
	bound, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	byFence := make(map[engine.Fence]*Lease, len(running))
	for _, l := range running {
		byFence[l.Fence()] = l
	}
	var params sqlgen.ListCancelRequestsParams
	params.Ids, params.Epochs, params.Starts = engine.Fences(running, (*Lease).Fence)
	asked, err := k.DB.ListCancelRequests(bound, params)
	if err != nil {
		return fmt.Errorf("look for cancelled jobs among %d: %w", len(running), err)
	}
	for _, row := range asked {
		byFence[engine.FenceOf(row.ID.Bytes, row.Epoch, row.StartedAt.Time)].End(k.Cancelled)
	}
	return nil
}
