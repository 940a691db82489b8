package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// due records what a key gives away, and when.
type due struct {
	slots   int32     // that jobs have left; 0 while a look gives them away
	times   int       // looks in a row that found something locked
	again   time.Time // no look begins before
	refused error     // why the database has refused to move the key on; nil if it has not
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
		k = new(due)
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
		names, counts := p.take()
		if len(names) == 0 {
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
		err := p.promote(names, counts)
		if err == nil {
			retry.Reset()
			continue
		}
		p.health.Failed(err)
		p.health.Complain(p.handlerContext, "keys not moved on", err)
		if p.phase.isCutOff() { // shutting down: the reaper does it
			continue
		}
		for i, name := range names {
			p.free(name, counts[i])
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
func (p *promoter) take() (names []keyName, counts []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for name, k := range p.keys {
		if k.slots == 0 || now.Before(k.again) {
			continue
		}
		if len(names) == maxBatch/2 {
			break
		}
		names, counts = append(names, name), append(counts, k.slots)
		k.slots = 0
	}
	return names, counts
}

// looked notes the result of a look: how many slots of which keys it has given away, what was locked, and what the
// database has refused. The looks at a locked key become rarer each time, since another transaction may lock a job's
// row for an hour; but a job that leaves the key causes one at once.
func (p *promoter) looked(names []keyName, counts []int32, given map[keyName]int32, locked map[keyName]bool,
	refused map[keyName]error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for i, name := range names {
		k := p.keys[name]
		since := k.slots // that jobs have left during the look
		switch {
		case refused[name] != nil:
			*k = due{slots: since + counts[i], again: now.Add(refusedRetry), refused: refused[name]}
		case locked[name]:
			again := now.Add(scheduler.LockedPause(k.times))
			if since > 0 {
				again = now
			}
			*k = due{slots: since + max(counts[i]-given[name], 1), times: k.times + 1, again: again}
		case since > 0:
			*k = due{slots: since}
		default:
			delete(p.keys, name)
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
func (p *promoter) promote(names []keyName, counts []int32) error {
	movable, err := p.find(names)
	if err != nil {
		return err
	}
	p.health.OK()
	given, locked, refused := map[keyName]int32{}, map[keyName]bool{}, map[keyName]error{}
	if len(movable) > 0 {
		rows, err := p.move(names, counts, movable, refused)
		offered := rows[:0]
		for _, job := range rows {
			name := keyName{job.TenantID.Bytes, job.Queue, job.Key}
			if !job.ID.Valid {
				locked[name] = true
				continue
			}
			given[name]++
			offered = append(offered, job)
		}
		if p.offer(offered) || err != nil { // the move may have been committed: the next look finds nothing to promote
			p.peers.notify()
		}
		if err != nil {
			return err
		}
	}
	p.looked(names, counts, given, locked, refused)
	return nil
}

// find returns which of the keys can be moved on, without locking them.
func (p *promoter) find(names []keyName) (movable []int32, err error) {
	var look sqlgen.FindMovableKeysParams
	for i, name := range names {
		look.Ats = append(look.Ats, int32(i))
		look.TenantIds = append(look.TenantIds, pgvalue.UUID(name.tenant))
		look.Queues = append(look.Queues, name.queue)
		look.Keys = append(look.Keys, name.key)
	}
	ctx, cancel := p.boundSettling()
	defer cancel()
	return p.db.FindMovableKeys(ctx, look)
}

// move promotes jobs of the keys at the given places. It adds the keys that the database refuses to move on to refused.
func (p *promoter) move(names []keyName, counts []int32, places []int32,
	refused map[keyName]error,
) (promoted []sqlgen.PromoteKeysRow, err error) {
	err = pgsession.Apart(places, func(part []int32) error {
		var move sqlgen.PromoteKeysParams
		for _, i := range part {
			move.TenantIds, move.Queues = append(move.TenantIds, pgvalue.UUID(names[i].tenant)), append(move.Queues,
				names[i].queue)
			move.Keys, move.Counts = append(move.Keys, names[i].key), append(move.Counts, counts[i])
		}
		ctx, cancel := p.boundSettling()
		defer cancel()
		rows, err := p.db.PromoteKeys(ctx, move)
		promoted = append(promoted, rows...)
		return err
	}, func(i int32, err error) {
		refused[names[i]] = err
		p.health.Complain(p.handlerContext, "key not moved on: the database refuses it", err,
			slog.String("tenant_id", names[i].tenant.String()), slog.String("queue", names[i].queue),
			slog.String("key", names[i].key))
	})
	return promoted, err
}
