package model

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const keyedQueue = "keyed"

var allTime = []pgtype.Timestamptz{
	{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
	{InfinityModifier: pgtype.Infinity, Valid: true},
}

func (m *KeyedMachine) claim(ctx context.Context, d Draws) (bool, error) {
	var also []outbox.ID // any job may be offered, whatever its status is by now
	for range d.Below(3, "offers") {
		if len(m.known) > 0 {
			also = append(also, pick(d, m.known, "offered"))
		}
	}
	return true, m.claimSome(ctx, 1+d.Below(6, "room"), pick(d, []int{2 * maxKeyed, 3}, "reach"), also)
}

func (m *KeyedMachine) claimSome(ctx context.Context, room, reach int, also []outbox.ID) error {
	offered := []pgtype.UUID{}
	for _, id := range also {
		offered = append(offered, pgvalue.UUID(id))
	}
	var fromRunAt []pgtype.Timestamptz
	var fromID []pgtype.UUID
	for range priorities {
		fromRunAt, fromID = append(fromRunAt, allTime[0]), append(fromID, pgtype.UUID{Valid: true})
	}
	rows, _ := m.db.Query(ctx, sqlgen.ClaimKeyedJobs, "w1", pgvalue.Interval(leaseTTL), // Err returns the error, too
		[]pgtype.UUID{pgvalue.UUID(m.Tenant)}, []int32{int32(room)}, []int32{int32(reach)}, []int32{1},
		[]int32{int32(len(priorities))},
		priorities, fromRunAt, fromID, kinds[:1], offered, int32(room), keyedQueue, false)
	var claimed []outbox.ID
	var halted []string
	var id pgtype.UUID
	var key *string
	columns := make([]any, len(rows.FieldDescriptions()))
	columns[0], columns[len(columns)-5] = &id, &key // a row without a job names a key; the last row has neither
	_, err := pgx.ForEachRow(rows, columns, func() error {
		switch {
		case id.Valid:
			claimed = append(claimed, id.Bytes)
		case key != nil:
			halted = append(halted, *key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(claimed) > room {
		return fmt.Errorf("claimed %d jobs, want at most %d", len(claimed), room)
	}
	if err := m.checkClaim(ctx, claimed, len(claimed) < room && reach > maxKeyed); err != nil {
		return err
	}
	// A claim must not block a job that could run, since nothing else ran at the same time. But if the jobs of a key
	// have different rules, one that cannot run may hold up a later one that could; moveOn repairs that.
	for _, key := range halted {
		if key == mixedKey {
			continue
		}
		if err := m.checkMoves(key, m.of(key)); err != nil {
			return fmt.Errorf("after it was blocked: %w", err)
		}
	}
	return m.moveOn(ctx, halted, engine.MaxKeyActive)
}

// moveOn does what a dispatcher's promoter does for keys that jobs have left.
func (m *KeyedMachine) moveOn(ctx context.Context, keys []string, slots int32) error {
	var look sqlgen.FindMovableKeysParams
	for i, key := range keys {
		look.Ats, look.TenantIds = append(look.Ats, int32(i)), append(look.TenantIds, pgvalue.UUID(m.Tenant))
		look.Queues, look.Keys = append(look.Queues, keyedQueue), append(look.Keys, key)
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := m.q.FindMovableKeys(ctx, look)
	if err != nil {
		return err
	}
	var move sqlgen.PromoteKeysParams
	for _, i := range found {
		move.TenantIds, move.Queues, move.Keys = append(move.TenantIds, look.TenantIds[i]), append(move.Queues,
			keyedQueue), append(move.Keys, keys[i])
		move.Counts = append(move.Counts, slots)
	}
	if len(found) == 0 {
		return nil
	}
	_, err = m.q.PromoteKeys(ctx, move)
	return err
}

// left does what follows the stored end of an attempt: the key's next jobs are promoted, unless the process dies first.
func (m *KeyedMachine) left(ctx context.Context, d Draws, key string) error {
	if d.Below(4, "the process dies") == 3 {
		m.dirty[key] = true
		return nil
	}
	return m.moveOn(ctx, []string{key}, 1)
}

// drawRunning draws a job whose attempt is to end.
func (m *KeyedMachine) drawRunning(d Draws) *keyedJob {
	jobs := m.where(running)
	if len(jobs) == 0 {
		return nil
	}
	return pick(d, jobs, "job")
}

func (m *KeyedMachine) succeed(ctx context.Context, d Draws) (bool, error) {
	j := m.drawRunning(d)
	if j == nil {
		return false, nil
	}
	if err := m.settle(ctx, j); err != nil {
		return false, err
	}
	return true, m.left(ctx, d, j.key)
}

func (m *KeyedMachine) settle(ctx context.Context, j *keyedJob) error {
	settled, err := m.q.SettleSucceeded(ctx, sqlgen.SettleSucceededParams{
		Ids:    []pgtype.UUID{pgvalue.UUID(j.id)},
		Epochs: []int64{j.epoch}, Results: make([][]byte, 1),
	})
	if err == nil && (len(settled) == 1) == j.late {
		err = fmt.Errorf("settled %d jobs, of which %s is late: %t", len(settled), j.id, j.late)
	}
	return err
}

func (m *KeyedMachine) fail(ctx context.Context, d Draws) (bool, error) {
	return m.unfinished(ctx, d, outbox.Retrying, outbox.Retrying, outbox.Failed, outbox.Dead)
}

func (m *KeyedMachine) snooze(ctx context.Context, d Draws) (bool, error) {
	return m.unfinished(ctx, d, outbox.Pending)
}

func (m *KeyedMachine) unfinished(ctx context.Context, d Draws, outcomes ...outbox.Status) (bool, error) {
	j := m.drawRunning(d)
	if j == nil || j.late {
		return false, nil
	}
	delay := pgtype.Interval{Valid: true}
	if d.Below(2, "later") == 1 {
		delay.Microseconds = far.Microseconds()
	}
	settled, err := m.q.SettleUnfinished(ctx, sqlgen.SettleUnfinishedParams{
		Ids: []pgtype.UUID{pgvalue.UUID(j.id)}, Epochs: []int64{j.epoch},
		Statuses: []string{string(pick(d, outcomes, "outcome"))}, Delays: []pgtype.Interval{delay},
		ErrorCodes: []string{"boom"}, ErrorMessages: []string{"boom"}, Stacks: []string{""}, Fingerprints: []string{""},
		Worker: "w1",
	})
	if err == nil && len(settled) == 0 && !m.asked(ctx, j) {
		err = fmt.Errorf("job %s was not settled", j.id)
	}
	if err != nil {
		return false, err
	}
	return true, m.left(ctx, d, j.key)
}

// asked reports whether a running job was cancelled: then only its success counts.
func (m *KeyedMachine) asked(ctx context.Context, j *keyedJob) (asked bool) {
	_ = m.db.QueryRow(ctx, `SELECT cancel_requested_at IS NOT NULL FROM outbox.jobs WHERE id = $1`, j.id).Scan(&asked)
	return asked
}

// lapse makes the worker of a job die, and the reaper notice.
func (m *KeyedMachine) lapse(ctx context.Context, d Draws) (bool, error) {
	j := m.drawRunning(d)
	if j == nil {
		return false, nil
	}
	if _, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 s' WHERE id = $1`,
		j.id); err != nil {
		return false, err
	}
	rows, err := m.q.ExpireLeases(ctx, sqlgen.ExpireLeasesParams{
		FromLease: allTime[0], BeforeLease: allTime[1],
		Overlap: pgvalue.Interval(0), MaxJobs: 100,
	})
	if err == nil && (len(rows) != 1 || rows[0].ID != pgvalue.UUID(j.id)) {
		err = fmt.Errorf("the reaper took away %d leases, want that of %s", len(rows), j.id)
	}
	if err != nil {
		return false, err
	}
	return true, m.left(ctx, d, j.key)
}

// expire makes deadlines pass, and usually the reaper notice.
func (m *KeyedMachine) expire(ctx context.Context, d Draws) (bool, error) {
	jobs := m.where(func(j *keyedJob) bool { return !j.dead() })
	if len(jobs) == 0 {
		return false, nil
	}
	for range 1 + d.Below(3, "jobs") {
		if _, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET deadline = now() - interval '1 minute' WHERE id = $1`,
			pick(d, jobs, "job").id); err != nil {
			return false, err
		}
	}
	if d.Below(3, "nobody notices yet") == 2 {
		return true, nil
	}
	row, err := m.q.ExpireDeadlines(ctx, sqlgen.ExpireDeadlinesParams{
		FromDeadline: allTime[0], BeforeDeadline: allTime[1], Overlap: pgvalue.Interval(0),
		Horizon: pgvalue.Interval(0), Patience: pgvalue.Interval(0), MaxJobs: 100,
	})
	if err != nil {
		return false, err
	}
	return true, m.moveOn(ctx, row.Keys, engine.MaxKeyActive)
}

func (m *KeyedMachine) becomeDue(ctx context.Context, _ Draws) (bool, error) {
	_, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET run_at = now() WHERE run_at > now()`)
	return true, err
}

// parkLater makes time pass while the first job of key "parked later" is dead, and checks that the key is parked.
func (m *KeyedMachine) parkLater(ctx context.Context, _ Draws) (bool, error) {
	first := head(m.of("parked later"))
	if first == nil || !first.dead() || m.dirty[first.key] {
		return false, nil
	}
	_, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET failed_at = failed_at - 2 * $2::interval WHERE id = $1`, first.id,
		pgvalue.Interval(far))
	if err == nil {
		_, err = m.db.Exec(ctx,
			`UPDATE outbox.keys SET park_at = park_at - 2 * $2::interval WHERE key = $1 AND park_at IS NOT NULL`,
			first.key, pgvalue.Interval(far))
	}
	if err != nil {
		return false, err
	}
	if _, err := m.sweep(ctx, nil); err != nil {
		return false, err
	}
	if err := m.look(ctx); err != nil {
		return false, err
	}
	if !m.parked[first.key] {
		return false, fmt.Errorf("key %s is not parked, though its head has been dead for longer than it waits",
			first.key)
	}
	return true, nil
}

// sweep runs the reaper's sweep, which finds all lost promotions.
func (m *KeyedMachine) sweep(ctx context.Context, _ Draws) (bool, error) {
	page := sqlgen.SweepKeysParams{AfterTenantID: pgtype.UUID{Valid: true}, MaxKeys: 100}
	rows, err := m.q.SweepKeys(ctx, page)
	if err != nil {
		return false, err
	}
	var move sqlgen.PromoteKeysParams
	move.Patient = true
	for _, row := range rows {
		if row.Stuck {
			move.TenantIds, move.Queues, move.Keys = append(move.TenantIds, row.TenantID), append(move.Queues,
				row.Queue), append(move.Keys, row.Key)
			move.Counts = append(move.Counts, engine.MaxKeyActive)
		}
	}
	if len(move.Keys) > 0 {
		_, err = m.q.PromoteKeys(ctx, move)
	}
	clear(m.dirty)
	return true, err
}
