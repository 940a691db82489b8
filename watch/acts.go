package watch

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Acts notifies all readers of this process when an operator has acted on something other than a job, such as a queue,
// a key, a schedule, a sink or an operation: no change of a job shows that. It polls with one statement for all
// readers, which costs the same however many jobs there are, and not at all while there are none.
type Acts struct {
	pool     outbox.Beginner
	every    time.Duration
	complain func(context.Context, error)
	found    func() // is called before readers are notified

	mu      sync.Mutex
	readers map[*ActsReader]bool
	begun   chan struct{} // of the present run; closed after its first look
	nudged  chan struct{} // one slot: a reader has left
}

// ActsReader is notified of acts on what a tenant sees.
type ActsReader struct {
	of       *Acts
	tenant   outbox.ID
	notified chan struct{} // one slot
}

// NewActs returns Acts that look in the database of pool once somebody reads them. found is called when there are new
// acts, before readers are notified; nil calls nothing.
func NewActs(pool outbox.Beginner, c ChangesConfig, found func()) *Acts {
	a := &Acts{
		pool: pool, every: cmp.Or(c.LookEvery, lookEvery), complain: c.Complain, found: found,
		readers: map[*ActsReader]bool{}, nudged: make(chan struct{}, 1),
	}
	if a.complain == nil {
		a.complain = func(context.Context, error) {}
	}
	if a.found == nil {
		a.found = func() {}
	}
	return a
}

// Open returns a reader of the acts on what a tenant sees or, if it is zero, of all, that commit from now on. Close the
// reader when you are done.
func (a *Acts) Open(ctx context.Context, tenant outbox.ID) (*ActsReader, error) {
	r := &ActsReader{of: a, tenant: tenant, notified: make(chan struct{}, 1)}
	a.mu.Lock()
	a.readers[r] = true
	if a.begun == nil {
		a.begun = make(chan struct{})
		go a.run(a.begun)
	}
	begun := a.begun
	a.mu.Unlock()
	select {
	case <-begun:
		return r, nil
	case <-ctx.Done():
		r.Close()
		return nil, ctx.Err()
	}
}

// Notified returns a channel that receives after one or more acts.
func (r *ActsReader) Notified() <-chan struct{} { return r.notified }

// Close ends the reading. It may be called more than once.
func (r *ActsReader) Close() {
	r.of.mu.Lock()
	delete(r.of.readers, r)
	r.of.mu.Unlock()
	select {
	case r.of.nudged <- struct{}{}:
	default:
	}
}

// run looks until there are no readers. It decides under the lock that there are none and that it ends.
func (a *Acts) run(begun chan struct{}) {
	again := time.NewTicker(a.every)
	defer again.Stop()
	first := sync.OnceFunc(func() { close(begun) })
	for after := int64(math.MaxInt64); a.goesOn(); {
		tenants, latest, err := a.look(after)
		switch {
		case err != nil:
			a.complain(context.Background(), err)
		case len(tenants) > 0:
			a.found()
			a.tell(tenants)
			after = latest
		default:
			after = latest
			first() // the first look finds none
		}
		select {
		case <-again.C:
		case <-a.nudged:
		}
	}
}

// goesOn reports whether there are readers; if not, the run ends.
func (a *Acts) goesOn() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.readers) == 0 {
		a.begun = nil
	}
	return len(a.readers) > 0
}

// look returns whose things operators have acted on since a link of the audit's chain, and the latest link.
func (a *Acts) look(after int64) (tenants []outbox.ID, latest int64, err error) {
	defer recovered(&err)
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	err = access.InTx(ctx, a.pool, access.Principal{AllTenants: true}, func(tx pgx.Tx) (err error) {
		tenants, latest, err = changefeed.ListActs(ctx, tx, after)
		return err
	})
	return tenants, latest, err
}

func (a *Acts) tell(tenants []outbox.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r := range a.readers {
		sees := func(of outbox.ID) bool { return r.tenant.IsZero() || of.IsZero() || of == r.tenant }
		if !slices.ContainsFunc(tenants, sees) {
			continue
		}
		select {
		case r.notified <- struct{}{}:
		default: // it knows already
		}
	}
}
