package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	*process
	db    promoteStatements
	peers *notifier
	// offer gives promoted jobs to the claim loops of this process. It reports whether others should be notified of
	// them, because this process will not run all of them at once.
	offer func([]sqlgen.PromoteKeysRow) (elsewhere bool)
	wake  chan struct{} // one slot
	stop  chan struct{} // closed when no more jobs will leave a key

	mu    sync.Mutex
	freed map[keyName]int32 // how many slots may be given away

	passed map[keyName]pass // keys of which something was locked; only run uses it
}

// pass records what is known about a key that was passed by.
type pass struct {
	times   int       // in a row
	unmoved int32     // slots that should have been given away and were not
	again   time.Time // when to look at it again, if no job leaves it before
	refused error     // why the database refuses to move the key on until again; nil if the key was locked
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

func newPromoter(p *process, db promoteStatements, peers *notifier,
	offer func([]sqlgen.PromoteKeysRow) bool,
) *promoter {
	return &promoter{
		process: p, db: db, peers: peers, offer: offer,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), freed: map[keyName]int32{}, passed: map[keyName]pass{},
	}
}

// left notes the keys of jobs whose attempts have ended, however they were settled: the handler's own transaction may
// have settled the job, or the lease was lost. A job that goes back as it was is itself the next one of its key.
func (p *promoter) left(batch []*attempt) {
	freed := false
	for _, a := range batch {
		if a.job.Key == "" || a.outcome.Status == outbox.Pending && a.outcome.KeepDue {
			continue
		}
		freed = true
		p.mu.Lock()
		p.freed[keyName{a.job.Tenant, a.job.Queue, a.job.Key}]++
		p.mu.Unlock()
	}
	if freed {
		p.rouse()
	}
}

// blocked notes keys in which a claim has blocked jobs.
func (p *promoter) blocked(names []keyName) {
	if len(names) == 0 {
		return
	}
	p.mu.Lock()
	for _, name := range names {
		p.freed[name] += engine.MaxKeyActive // any number of slots may have become free since
	}
	p.mu.Unlock()
	p.rouse()
}

func (p *promoter) rouse() {
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
			clear(p.passed)
			continue
		}
		p.putBack(names, counts)
		p.health.rest(p.settling, retry.Next(), err)
	}
}

// again returns a channel that fires when the next passed key is due for another look; it is nil if there is none.
func (p *promoter) again() <-chan time.Time {
	var next time.Time
	for _, pass := range p.passed {
		if next.IsZero() || pass.again.Before(next) {
			next = pass.again
		}
	}
	if next.IsZero() {
		return nil
	}
	return time.After(time.Until(next))
}

// noteLocked notes which keys were locked and must be looked at again. The looks become rarer each time, since another
// transaction may lock a job's row for an hour.
func (p *promoter) noteLocked(looked []keyName, unmoved map[keyName]int32) {
	if len(unmoved) == 0 && len(p.passed) == 0 {
		return
	}
	now := time.Now()
	for _, name := range looked {
		n, locked := unmoved[name]
		if !locked {
			delete(p.passed, name)
			continue
		}
		times := p.passed[name].times
		p.passed[name] = pass{times: times + 1, unmoved: n, again: now.Add(scheduler.LockedRetry << min(times, 8))}
	}
}

// take returns some of the keys, including those that are due for another look. It adds the slots that an earlier look
// did not give away to those freed since: once a look gives away enough, no other follows.
func (p *promoter) take() (names []keyName, counts []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for name, passed := range p.passed {
		switch n, freed := p.freed[name]; {
		case passed.refused != nil && now.Before(passed.again):
			passed.unmoved = min(passed.unmoved+n, engine.MaxKeyActive)
			p.passed[name] = passed
			delete(p.freed, name)
		case freed || !now.Before(passed.again):
			p.freed[name] = min(p.freed[name]+passed.unmoved, engine.MaxKeyActive)
			passed.unmoved = 0
			p.passed[name] = passed
		}
	}
	for name, n := range p.freed {
		if len(names) == maxBatch/2 {
			break
		}
		names, counts = append(names, name), append(counts, n)
		delete(p.freed, name)
	}
	return names, counts
}

// refusal returns why the database refuses to move keys on, or nil, and forgets the refusals.
func (p *promoter) refusal() error {
	var errs []error
	for name, passed := range p.passed {
		if passed.refused != nil {
			errs = append(errs, fmt.Errorf("move key %s of queue %s on: %w", name.key, name.queue, passed.refused))
			delete(p.passed, name)
		}
	}
	return errors.Join(errs...)
}

func (p *promoter) putBack(names []keyName, counts []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, name := range names {
		p.freed[name] += counts[i]
	}
}

// promote moves keys on, and notifies other processes of jobs that this one will not run at once.
func (p *promoter) promote(names []keyName, counts []int32) error {
	movable, err := p.find(names)
	if err != nil {
		return err
	}
	p.health.OK()
	if len(movable) == 0 {
		p.noteLocked(names, nil)
		return nil
	}
	promoted, refused, err := p.move(names, counts, movable)
	given, offered := map[keyName]int32{}, promoted[:0]
	var locked []keyName
	for _, job := range promoted {
		name := keyName{job.TenantID.Bytes, job.Queue, job.Key}
		if !job.ID.Valid {
			locked = append(locked, name)
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
	unmoved := make(map[keyName]int32, len(locked))
	for _, name := range locked {
		unmoved[name] = max(counts[slices.Index(names, name)]-given[name], 1)
	}
	p.noteLocked(names, unmoved)
	maps.Copy(p.passed, refused)
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

// move promotes jobs of the keys at the given places. It also returns the keys that the database refuses to move on.
func (p *promoter) move(names []keyName, counts []int32,
	places []int32,
) (promoted []sqlgen.PromoteKeysRow, refused map[keyName]pass, err error) {
	refused = map[keyName]pass{}
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
		refused[names[i]] = pass{unmoved: counts[i], again: time.Now().Add(refusedRetry), refused: err}
		p.health.Complain(p.handlerContext, "key not moved on: the database refuses it", err,
			slog.String("tenant_id", names[i].tenant.String()), slog.String("queue", names[i].queue),
			slog.String("key", names[i].key))
	})
	return promoted, refused, err
}
