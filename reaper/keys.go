package reaper

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	sweepInterval = 2 * time.Second
	sweepPage     = 500
	sweepShare    = 19 // the next sweep follows after so many times the duration of the last
	// sweepPatience is after how long the sweep looks again at a key that it found stuck: usually the process that
	// freed a slot is about to promote the next job.
	sweepPatience = 250 * time.Millisecond
	everySlot     = engine.MaxKeyActive
)

// keys names some keys, as the statements take them.
type keys struct {
	tenants       []pgtype.UUID
	queues, names []string
	counts        []int32
}

func (k *keys) add(tenant pgtype.UUID, queue, name string, count int32) {
	k.tenants, k.queues, k.names, k.counts = append(k.tenants, tenant), append(k.queues, queue), append(k.names, name),
		append(k.counts, count)
}

// keyName names a key.
type keyName struct {
	tenant      pgtype.UUID
	queue, name string
}

func (k *keys) name(i int) keyName { return keyName{k.tenants[i], k.queues[i], k.names[i]} }

// A sweeper moves on the keys that no other process moves on.
type sweeper struct {
	db       *sqlgen.Queries
	promoter *promoter
	metrics  *metrics
	keyed    atomic.Bool // there are or were keys to sweep, as the last pass over the leases saw
	keysPage int32       // keys that one statement examines

	seed  maphash.Seed
	waits map[uint64]bool // hashes of the keys whose next job the last sweep has seen due and not running
}

// sweep examines every key and promotes jobs where a slot is free: the process that freed it died before it had
// promoted the next job, or a head has been dead for long enough. It forgets keys that no open job bears. The sweep
// makes keys correct; prompt promotion by the others makes them fast.
//
// A process that has room for a job that it promotes notifies nobody of it, and may die before it claims the job:
//
//	process    A leaves its key, promote B, commit   killed
//	sweep                                                     B is due, nothing runs -> NOTIFY
//
// The job may as well be one that no process has a handler for, or wait for its turn. So the sweep notifies once for
// what it did not see the last time.
func (s *sweeper) sweep(ctx context.Context) (time.Duration, error) {
	if !s.keyed.Load() { // an idle process queries nothing
		return backoff.Jitter(sweepInterval), nil
	}
	var stuck, idle keys
	started, waits, more := time.Now(), map[uint64]bool{}, false
	page := sqlgen.SweepKeysParams{AfterTenantID: pgtype.UUID{Valid: true}, MaxKeys: s.keysPage}
	for {
		rows, err := s.page(ctx, page)
		if err != nil {
			return 0, err
		}
		for _, row := range rows {
			switch {
			case row.Stuck:
				stuck.add(row.TenantID, row.Queue, row.Key, everySlot)
			case row.Waits:
				name := maphash.Comparable(s.seed, keyName{row.TenantID, row.Queue, row.Key})
				waits[name], more = true, more || !s.waits[name]
			case row.Idle:
				idle.add(row.TenantID, row.Queue, row.Key, 0)
			}
		}
		if len(rows) < int(s.keysPage) {
			break
		}
		last := rows[len(rows)-1]
		page.AfterTenantID, page.AfterQueue, page.AfterKey = last.TenantID, last.Queue, last.Key
	}
	wait := max(backoff.Jitter(sweepInterval), sweepShare*time.Since(started))
	if s.waits = waits; more {
		bound, cancel := context.WithTimeout(ctx, statementTimeout)
		_ = s.db.Notify(bound, []string{engine.Channel}) // a hint
		cancel()
	}
	if len(idle.names) > 0 {
		if err := s.forget(ctx, idle); err != nil {
			return 0, err
		}
	}
	if len(stuck.names) > 0 {
		_ = backoff.Sleep(ctx, sweepPatience)
		n, err := s.promoter.promote(ctx, stuck, true)
		if err != nil {
			return 0, err
		}
		s.metrics.promoted.Add(float64(n))
	}
	return wait, nil
}

func (s *sweeper) page(ctx context.Context, page sqlgen.SweepKeysParams) ([]sqlgen.SweepKeysRow, error) {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := s.db.SweepKeys(bound, page)
	if err != nil {
		return nil, fmt.Errorf("sweep the keys: %w", err)
	}
	return rows, nil
}

func (s *sweeper) forget(ctx context.Context, k keys) error {
	for len(k.names) > 0 {
		n := min(len(k.names), sweepPage)
		bound, cancel := context.WithTimeout(ctx, statementTimeout)
		_, err := s.db.ForgetKeys(bound, sqlgen.ForgetKeysParams{
			TenantIds: k.tenants[:n], Queues: k.queues[:n],
			Keys: k.names[:n],
		})
		cancel()
		if err != nil {
			return fmt.Errorf("forget keys without jobs: %w", err)
		}
		k.tenants, k.queues, k.names = k.tenants[n:], k.queues[n:], k.names[n:]
	}
	return nil
}

// A promoter promotes jobs that wait for keys.
type promoter struct {
	db  *sqlgen.Queries
	log *slog.Logger

	mu      sync.Mutex
	skipped skipped[keyName]
}

// promote moves keys on, wakes the dispatchers for the jobs that it promoted, and returns how many those were. Keys
// that the database refuses to move on are left alone for a while and delay no others.
func (p *promoter) promote(ctx context.Context, k keys, patient bool) (promoted int, err error) {
	var tally refusals
	for page := range slices.Chunk(p.notSkipped(k), sweepPage) {
		err = pgsession.Apart(page, func(part []int) error {
			n, err := p.some(ctx, k, part, patient)
			promoted += n
			return err
		}, func(i int, err error) {
			p.mu.Lock()
			p.skipped.add(k.name(i))
			p.mu.Unlock()
			tally.add(err, slog.String("tenant_id", k.tenants[i].String()), slog.String("queue", k.queues[i]),
				slog.String("key", k.names[i]))
		})
		if err != nil {
			err = fmt.Errorf("move keys on: %w", err)
			break
		}
	}
	tally.log(ctx, p.log, "keys not moved on: the database refuses them")
	return promoted, err
}

// notSkipped returns the indexes of the keys that are not left alone now.
func (p *promoter) notSkipped(k keys) (at []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skipped.forget(time.Now())
	for i := range k.names {
		if _, alone := p.skipped[k.name(i)]; !alone {
			at = append(at, i)
		}
	}
	return at
}

// some executes one statement, on some of the keys.
func (p *promoter) some(ctx context.Context, k keys, at []int, patient bool) (promoted int, err error) {
	move := sqlgen.PromoteKeysParams{Patient: patient}
	for _, i := range at {
		move.TenantIds, move.Queues = append(move.TenantIds, k.tenants[i]), append(move.Queues, k.queues[i])
		move.Keys, move.Counts = append(move.Keys, k.names[i]), append(move.Counts, k.counts[i])
	}
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := p.db.PromoteKeys(bound, move)
	// The next sweep handles locked ones.
	rows = slices.DeleteFunc(rows, func(row sqlgen.PromoteKeysRow) bool { return !row.ID.Valid })
	if len(rows) > 0 {
		_ = p.db.Notify(bound, []string{engine.Channel}) // a hint
	}
	return len(rows), err
}

// moveOn promotes jobs that waited behind expired ones. An expired job that waited had no slot, but may have been the
// head of its line, or promoted and not yet claimed. Most were neither, so the statement looks before it locks, like
// the promoter of a dispatcher. If moveOn fails, the sweep does the work.
func (p *promoter) moveOn(ctx context.Context, freed keys) {
	if len(freed.names) == 0 {
		return
	}
	look := sqlgen.FindMovableKeysParams{TenantIds: freed.tenants, Queues: freed.queues, Keys: freed.names}
	for i := range freed.names {
		look.Ats = append(look.Ats, int32(i))
	}
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	found, err := p.db.FindMovableKeys(bound, look)
	cancel()
	var movable keys
	for _, i := range found {
		movable.add(freed.tenants[i], freed.queues[i], freed.names[i], everySlot)
	}
	if err == nil {
		_, err = p.promote(ctx, movable, false)
	}
	if err != nil && ctx.Err() == nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "keys of expired jobs not moved on", slog.Any("err", err))
	}
}

// lapsed gives the slots of lapsed leases to the next jobs of their keys. If it fails, the sweep does the work.
func (p *promoter) lapsed(ctx context.Context, rows []sqlgen.ExpireLeasesRow) {
	var freed keys
	at := map[keyName]int{} // each key is listed once
	for _, row := range rows {
		if row.Key == "" {
			continue
		}
		name := keyName{row.TenantID, row.Queue, row.Key}
		if i, known := at[name]; known {
			freed.counts[i]++
			continue
		}
		at[name] = len(freed.names)
		freed.add(row.TenantID, row.Queue, row.Key, 1)
	}
	if len(freed.names) == 0 {
		return
	}
	if _, err := p.promote(ctx, freed, false); err != nil && ctx.Err() == nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "keys of lapsed leases not moved on", slog.Any("err", err))
	}
}
