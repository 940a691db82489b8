// Package promote moves keys on after jobs of this process have left them. It works in parallel with the settlers,
// which therefore never wait for a key's row. If the process dies before it is done, the reaper does the rest.
//
// Most jobs leave a key for which no job waits, so a promoter looks before it locks. This loses no promotion, because a
// claim that has blocked a job looks, too ("The lost promotion", docs/races.md). If the claim's answer is lost, its
// process looks at the keys that it knows of, perhaps before the claim is committed; the reaper finds what this look
// misses.
//
// A promotion passes by a key or a job that another transaction has locked (outbox.promote_keys lists the possible
// ones), and looks at it again soon. If the database refuses to move a key on, because of a trigger for example, no
// other key waits for it, and the promoter tries it again later.
package promote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/slot"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Promoter holds the keys that jobs have left. Any goroutine may call Free, Blocked and Stop.
type Promoter struct {
	Config
	wake slot.Slot
	stop chan struct{} // closed when no more jobs will leave a key

	mu   sync.Mutex
	keys map[Key]*due
}

// Config is what a Promoter needs of a dispatcher.
type Config struct {
	DB     Statements
	Health *health.Health
	// Offer gives promoted jobs to the claim loops of this process. It reports whether others should be notified of
	// them, because this process will not run all of them at once.
	Offer   func([]sqlgen.PromoteKeysRow) (elsewhere bool)
	Notify  func()                                       // notifies other processes
	Bound   func() (context.Context, context.CancelFunc) // returns the context of a statement
	Most    int                                          // keys of a statement
	Context context.Context                              // of log lines
	Pause   func(times int) time.Duration                // until the next look, after so many in a row that met a lock
	Rest    func(wait time.Duration, err error)          // waits before what has failed is repeated
	CutOff  func() bool                                  // the process waits no longer for the database
}

// Statements are the statements of a Promoter.
type Statements interface {
	FindMovableKeys(context.Context, sqlgen.FindMovableKeysParams) ([]int32, error)
	PromoteKeys(context.Context, sqlgen.PromoteKeysParams) ([]sqlgen.PromoteKeysRow, error)
}

// Key identifies a key by which jobs are ordered and limited.
type Key struct {
	Tenant      outbox.ID
	Queue, Name string
}

// due records how many slots of a key are free, and when to look at it.
type due struct {
	Key
	slots   int32     // freed by jobs that left, besides those of the look under way
	times   int       // looks in a row that met a lock
	again   time.Time // the earliest time of the next look
	refused error     // why the database has refused to move the key on; nil if it has not
	look    look
}

// look is the look under way, or the latest one.
type look struct {
	slots   int32 // that it may fill
	given   int32
	locked  bool // it skipped the key or one of its jobs because of a lock
	refused error
}

const refusedRetry = time.Minute // a trigger may accept tomorrow what it refuses today

// New returns a Promoter, which promotes nothing before Run or Once.
func New(c Config) *Promoter {
	return &Promoter{Config: c, wake: slot.New(), stop: make(chan struct{}), keys: map[Key]*due{}}
}

// Blocked notes keys in which a claim has blocked jobs.
func (p *Promoter) Blocked(keys []Key) {
	for _, key := range keys {
		p.Free(key, engine.MaxKeyActive) // any number of slots may have become free since
	}
}

// Free notes that a key may give away more slots. It does so at once, unless the database has refused that lately.
func (p *Promoter) Free(key Key, slots int32) {
	p.mu.Lock()
	k := p.keys[key]
	if k == nil {
		k = &due{Key: key}
		p.keys[key] = k
	}
	k.slots = min(k.slots+slots, engine.MaxKeyActive)
	if k.refused == nil {
		k.again = time.Time{}
	}
	p.mu.Unlock()
	p.wake.Set()
}

// Run promotes until Stop is called and nothing is left to promote. Keys and jobs that are locked at that point are
// left to the reaper.
func (p *Promoter) Run() {
	var retry backoff.Backoff
	for stopping := false; ; {
		keys := p.take()
		if len(keys) == 0 {
			if stopping {
				return
			}
			select {
			case <-p.wake:
			case <-p.stop:
				stopping = true
			case <-p.again():
			}
			continue
		}
		err := p.promote(keys)
		if err == nil {
			retry.Reset()
			continue
		}
		p.Health.Failed(err)
		p.Health.Complain(p.Context, "keys not moved on", err)
		if p.CutOff() { // shutting down: the reaper does it
			continue
		}
		for _, k := range keys {
			p.Free(k.Key, k.look.slots)
		}
		p.Rest(retry.Next(), err)
	}
}

// Stop makes Run end. Nobody may call Free or Blocked after it.
func (p *Promoter) Stop() { close(p.stop) }

// Once promotes what is to be promoted now. Its error also says which keys the database refuses to move on, and why.
func (p *Promoter) Once() error {
	for {
		keys := p.take()
		if len(keys) == 0 {
			return p.refusal()
		}
		if err := p.promote(keys); err != nil {
			return fmt.Errorf("move %d keys on: %w", len(keys), err)
		}
	}
}

// again returns a channel that fires when the next key is due for another look; it is nil if there is none.
func (p *Promoter) again() <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next time.Time
	for _, k := range p.keys {
		if k.slots > 0 && (next.IsZero() || k.again.Before(next)) {
			next = k.again
		}
	}
	if next.IsZero() {
		return nil
	}
	return time.After(time.Until(next))
}

// take returns some of the keys that are due for a look, with all of their slots: once a look gives away enough, no
// other follows.
func (p *Promoter) take() (keys []*due) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, k := range p.keys {
		if k.slots == 0 || now.Before(k.again) {
			continue
		}
		if len(keys) == p.Most {
			break
		}
		k.look, k.slots = look{slots: k.slots}, 0
		keys = append(keys, k)
	}
	return keys
}

// looked notes the result of a look. The looks at a locked key become rarer each time, since another transaction may
// lock a job's row for an hour; but a job that leaves the key causes one at once.
func (p *Promoter) looked(keys []*due, rows []sqlgen.PromoteKeysRow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, row := range rows {
		k := p.keys[Key{row.TenantID.Bytes, row.Queue, row.Key}]
		if row.ID.Valid {
			k.look.given++
		} else {
			k.look.locked = true
		}
	}
	now := time.Now()
	for _, k := range keys {
		since, times := k.slots, k.times // since: that jobs have left during the look
		k.times, k.again, k.refused = 0, time.Time{}, k.look.refused
		switch {
		case k.refused != nil:
			k.slots, k.again = since+k.look.slots, now.Add(refusedRetry)
		case k.look.locked:
			k.slots, k.times = since+max(k.look.slots-k.look.given, 1), times+1
			if since == 0 {
				k.again = now.Add(p.Pause(times))
			}
		case since == 0:
			delete(p.keys, k.Key)
		}
	}
}

// refusal returns why the database refuses to move keys on, or nil, and forgets the refusals.
func (p *Promoter) refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for key, k := range p.keys {
		if k.refused != nil {
			errs = append(errs, fmt.Errorf("move key %s of queue %s on: %w", key.Name, key.Queue, k.refused))
			delete(p.keys, key)
		}
	}
	return errors.Join(errs...)
}

// promote moves keys on, and notifies other processes of jobs that this one will not run at once.
func (p *Promoter) promote(keys []*due) error {
	movable, err := p.find(keys)
	if err != nil {
		return err
	}
	p.Health.OK()
	var rows []sqlgen.PromoteKeysRow
	if len(movable) > 0 {
		rows, err = p.move(movable)
	}
	if err == nil {
		p.looked(keys, rows)
	}
	jobs := slices.DeleteFunc(rows, func(row sqlgen.PromoteKeysRow) bool { return !row.ID.Valid })
	if p.Offer(jobs) || err != nil { // the move may have been committed: the next look finds nothing to promote
		p.Notify()
	}
	return err
}

// find returns the keys that can be moved on, without locking them.
func (p *Promoter) find(keys []*due) (movable []*due, err error) {
	var params sqlgen.FindMovableKeysParams
	for i, k := range keys {
		params.Ats, params.TenantIds = append(params.Ats, int32(i)), append(params.TenantIds, pgvalue.UUID(k.Tenant))
		params.Queues, params.Keys = append(params.Queues, k.Queue), append(params.Keys, k.Name)
	}
	ctx, cancel := p.Bound()
	defer cancel()
	found, err := p.DB.FindMovableKeys(ctx, params)
	for _, i := range found {
		movable = append(movable, keys[i])
	}
	return movable, err
}

// move promotes jobs of the keys, and notes which keys the database refuses to move on.
func (p *Promoter) move(keys []*due) (rows []sqlgen.PromoteKeysRow, err error) {
	err = pgsession.Apart(keys, func(part []*due) error {
		var params sqlgen.PromoteKeysParams
		for _, k := range part {
			params.TenantIds, params.Queues = append(params.TenantIds, pgvalue.UUID(k.Tenant)), append(params.Queues, k.Queue)
			params.Keys, params.Counts = append(params.Keys, k.Name), append(params.Counts, k.look.slots)
		}
		ctx, cancel := p.Bound()
		defer cancel()
		some, err := p.DB.PromoteKeys(ctx, params)
		rows = append(rows, some...)
		return err
	}, func(k *due, err error) {
		k.look.refused = err
		p.Health.Complain(p.Context, "key not moved on: the database refuses it", err,
			slog.String("tenant_id", k.Tenant.String()), slog.String("queue", k.Queue), slog.String("key", k.Name))
	})
	return rows, err
}
