package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// promoter moves keys on after jobs of this process have left them. It works in parallel with the settlers, which
// therefore never wait for a key's row. If the process dies before it is done, the reaper does the rest.
//
// Most jobs leave a key for which no job waits, so the promoter looks before it locks. This loses no promotion, because
// a claim that has blocked a job looks, too ("The lost promotion", docs/races.md). If the claim's answer is lost, its
// process looks at the keys that it knows of, perhaps before the claim is committed; the reaper finds what this look
// misses.
//
// A promotion passes by a key or a job that another transaction has locked (outbox.promote_keys lists the possible
// ones), and looks at it again soon. If the database refuses to move a key on, because of a trigger for example, no
// other key waits for it, and the promoter tries it again later.
type promoter struct {
	*common
	db    promoteStatements
	peers *notifier
	// offer gives promoted jobs to the claim loops of this process. It reports whether others should be notified of
	// them, because this process will not run all of them at once.
	offer func([]sqlgen.PromoteKeysRow) (elsewhere bool)
	wake  chan struct{} // one slot
	stop  chan struct{} // closed when no more jobs will leave a key

	mu   sync.Mutex
	keys map[keyName]*due
}

// due records how many slots of a key are free, and when to look at it.
type due struct {
	keyName
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

// keyName identifies the key by which jobs are ordered and limited.
type keyName struct {
	tenant     outbox.ID
	queue, key string
}

const refusedRetry = time.Minute // a trigger may accept tomorrow what it refuses today

type promoteStatements interface {
	FindMovableKeys(context.Context, sqlgen.FindMovableKeysParams) ([]int32, error)
	PromoteKeys(context.Context, sqlgen.PromoteKeysParams) ([]sqlgen.PromoteKeysRow, error)
}

func newPromoter(p *common, db promoteStatements, peers *notifier,
	offer func([]sqlgen.PromoteKeysRow) bool,
) *promoter {
	return &promoter{
		common: p, db: db, peers: peers, offer: offer,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), keys: map[keyName]*due{},
	}
}

// left notes the keys of jobs whose attempts have ended, however they were settled: the handler's own transaction may
// have settled the job, or the lease was lost. A job that goes back as it was is itself the next one of its key.
func (p *promoter) left(batch []*attempt) {
	for _, a := range batch {
		if a.job.Key != "" && (a.outcome.Status != outbox.Pending || !a.outcome.KeepDue) {
			p.free(keyName{a.job.Tenant, a.job.Queue, a.job.Key}, 1)
		}
	}
}

// blocked notes keys in which a claim has blocked jobs.
func (p *promoter) blocked(names []keyName) {
	for _, name := range names {
		p.free(name, engine.MaxKeyActive) // any number of slots may have become free since
	}
}

// free notes that a key may give away more slots. It does so at once, unless the database has refused that lately.
func (p *promoter) free(name keyName, slots int32) {
	p.mu.Lock()
	k := p.keys[name]
	if k == nil {
		k = &due{keyName: name}
		p.keys[name] = k
	}
	k.slots = min(k.slots+slots, engine.MaxKeyActive)
	if k.refused == nil {
		k.again = time.Time{}
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run promotes until stop is closed and nothing is left to promote. Keys and jobs that are locked at that point are
// left to the reaper.
func (p *promoter) run() {
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
		p.health.Failed(err)
		p.health.Complain(p.handlerContext, "keys not moved on", err)
		if p.phase.isCutOff() { // shutting down: the reaper does it
			continue
		}
		for _, k := range keys {
			p.free(k.keyName, k.look.slots)
		}
		p.health.rest(p.settling, retry.Next(), err)
	}
}

// again returns a channel that fires when the next key is due for another look; it is nil if there is none.
func (p *promoter) again() <-chan time.Time {
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
func (p *promoter) take() (keys []*due) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, k := range p.keys {
		if k.slots == 0 || now.Before(k.again) {
			continue
		}
		if len(keys) == maxBatch/2 {
			break
		}
		k.look, k.slots = look{slots: k.slots}, 0
		keys = append(keys, k)
	}
	return keys
}

// looked notes the result of a look. The looks at a locked key become rarer each time, since another transaction may
// lock a job's row for an hour; but a job that leaves the key causes one at once.
func (p *promoter) looked(keys []*due, rows []sqlgen.PromoteKeysRow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, row := range rows {
		k := p.keys[keyName{row.TenantID.Bytes, row.Queue, row.Key}]
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
				k.again = now.Add(scheduler.LockedPause(times))
			}
		case since == 0:
			delete(p.keys, k.keyName)
		}
	}
}

// refusal returns why the database refuses to move keys on, or nil, and forgets the refusals.
func (p *promoter) refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for name, k := range p.keys {
		if k.refused != nil {
			errs = append(errs, fmt.Errorf("move key %s of queue %s on: %w", name.key, name.queue, k.refused))
			delete(p.keys, name)
		}
	}
	return errors.Join(errs...)
}

// promote moves keys on, and notifies other processes of jobs that this one will not run at once.
func (p *promoter) promote(keys []*due) error {
	movable, err := p.find(keys)
	if err != nil {
		return err
	}
	p.health.OK()
	var rows []sqlgen.PromoteKeysRow
	if len(movable) > 0 {
		rows, err = p.move(movable)
	}
	if err == nil {
		p.looked(keys, rows)
	}
	jobs := slices.DeleteFunc(rows, func(row sqlgen.PromoteKeysRow) bool { return !row.ID.Valid })
	if p.offer(jobs) || err != nil { // the move may have been committed: the next look finds nothing to promote
		p.peers.notify()
	}
	return err
}

// find returns the keys that can be moved on, without locking them.
func (p *promoter) find(keys []*due) (movable []*due, err error) {
	var params sqlgen.FindMovableKeysParams
	for i, k := range keys {
		params.Ats, params.TenantIds = append(params.Ats, int32(i)), append(params.TenantIds, pgvalue.UUID(k.tenant))
		params.Queues, params.Keys = append(params.Queues, k.queue), append(params.Keys, k.key)
	}
	ctx, cancel := p.boundSettling()
	defer cancel()
	found, err := p.db.FindMovableKeys(ctx, params)
	for _, i := range found {
		movable = append(movable, keys[i])
	}
	return movable, err
}

// move promotes jobs of the keys, and notes which keys the database refuses to move on.
func (p *promoter) move(keys []*due) (rows []sqlgen.PromoteKeysRow, err error) {
	err = pgsession.Apart(keys, func(part []*due) error {
		var params sqlgen.PromoteKeysParams
		for _, k := range part {
			params.TenantIds, params.Queues = append(params.TenantIds, pgvalue.UUID(k.tenant)), append(params.Queues, k.queue)
			params.Keys, params.Counts = append(params.Keys, k.key), append(params.Counts, k.look.slots)
		}
		ctx, cancel := p.boundSettling()
		defer cancel()
		some, err := p.db.PromoteKeys(ctx, params)
		rows = append(rows, some...)
		return err
	}, func(k *due, err error) {
		k.look.refused = err
		p.health.Complain(p.handlerContext, "key not moved on: the database refuses it", err,
			slog.String("tenant_id", k.tenant.String()), slog.String("queue", k.queue), slog.String("key", k.key))
	})
	return rows, err
}
