package reaper

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
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
)

// keyName names a key.
type keyName struct {
	tenant     pgtype.UUID
	queue, key string
}

// columns returns the names as the statements take them.
func columns(names []keyName) (tenants []pgtype.UUID, queues, keys []string) {
	for _, name := range names {
		tenants, queues, keys = append(tenants, name.tenant), append(queues, name.queue), append(keys, name.key)
	}
	return tenants, queues, keys
}

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
	var stuck, idle []keyName
	started, waits, more := time.Now(), map[uint64]bool{}, false
	page := sqlgen.SweepKeysParams{AfterTenantID: pgtype.UUID{Valid: true}, MaxKeys: s.keysPage}
	for {
		rows, err := s.page(ctx, page)
		if err != nil {
			return 0, err
		}
		for _, row := range rows {
			switch key := (keyName{row.TenantID, row.Queue, row.Key}); {
			case row.Stuck:
				stuck = append(stuck, key)
			case row.Waits:
				name := maphash.Comparable(s.seed, key)
				waits[name], more = true, more || !s.waits[name]
			case row.Idle:
				idle = append(idle, key)
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
	if err := s.forget(ctx, idle); err != nil {
		return 0, err
	}
	if len(stuck) > 0 {
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

func (s *sweeper) forget(ctx context.Context, idle []keyName) error {
	for page := range slices.Chunk(idle, sweepPage) {
		var params sqlgen.ForgetKeysParams
		params.TenantIds, params.Queues, params.Keys = columns(page)
		bound, cancel := context.WithTimeout(ctx, statementTimeout)
		_, err := s.db.ForgetKeys(bound, params)
		cancel()
		if err != nil {
			return fmt.Errorf("forget keys without jobs: %w", err)
		}
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
func (p *promoter) promote(ctx context.Context, names []keyName, patient bool) (promoted int, err error) {
	var tally refusals
	for page := range slices.Chunk(p.notSkipped(names), sweepPage) {
		err = pgsession.Apart(page, func(part []keyName) error {
			n, err := p.some(ctx, part, patient)
			promoted += n
			return err
		}, func(name keyName, err error) {
			p.mu.Lock()
			p.skipped.add(name)
			p.mu.Unlock()
			tally.add(err, slog.String("tenant_id", name.tenant.String()), slog.String("queue", name.queue),
				slog.String("key", name.key))
		})
		if err != nil {
			err = fmt.Errorf("move keys on: %w", err)
			break
		}
	}
	tally.log(ctx, p.log, "keys not moved on: the database refuses them")
	return promoted, err
}

// notSkipped returns the keys that are not left alone now.
func (p *promoter) notSkipped(names []keyName) []keyName {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skipped.forget(time.Now())
	return slices.DeleteFunc(slices.Clone(names), func(name keyName) bool {
		_, alone := p.skipped[name]
		return alone
	})
}

// some executes one statement, on some of the keys. It gives away all of their slots that are free.
func (p *promoter) some(ctx context.Context, names []keyName, patient bool) (promoted int, err error) {
	move := sqlgen.PromoteKeysParams{
		Counts: slices.Repeat([]int32{engine.MaxKeyActive}, len(names)), Patient: patient,
	}
	move.TenantIds, move.Queues, move.Keys = columns(names)
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

// moveOn promotes the jobs behind those whose leases have lapsed or whose deadlines have come. An expired job that
// waited had no slot, but may have been the head of its line, or promoted and not yet claimed. Most were neither, so
// moveOn looks before it locks, like the promoter of a dispatcher. If it fails, the sweep does the work.
func (p *promoter) moveOn(ctx context.Context, freed map[keyName]bool) {
	if len(freed) == 0 {
		return
	}
	names := slices.Collect(maps.Keys(freed))
	var look sqlgen.FindMovableKeysParams
	look.TenantIds, look.Queues, look.Keys = columns(names)
	for i := range names {
		look.Ats = append(look.Ats, int32(i))
	}
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	found, err := p.db.FindMovableKeys(bound, look)
	cancel()
	var movable []keyName
	for _, i := range found {
		movable = append(movable, names[i])
	}
	if err == nil {
		_, err = p.promote(ctx, movable, false)
	}
	if err != nil && ctx.Err() == nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "keys that jobs have left not moved on", slog.Any("err", err))
	}
}
