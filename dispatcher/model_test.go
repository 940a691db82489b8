package dispatcher_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// modelJob is what the state machine of the design says about one job.
type modelJob struct {
	Status      outbox.Status
	Attempt     int
	MaxAttempts int
	Epoch       int64
	LostLeases  int
	Priority    int
	Due         bool // run_at has come; the model has no clock, it moves rows
}

// model plays the state machine against the database. Every lease that was ever
// handed out stays in use, as by workers that do not know that they lost it.
type model struct {
	db     *pgxpool.Pool
	q      *sqlgen.Queries
	jobs   map[outbox.ID]*modelJob
	ids    []outbox.ID // in the order of their making
	leases []lease
}

// The database and an in-memory model agree after any sequence of enqueues,
// claims, settlements, extensions, lapses and operators' retries. More than the
// default: go test -run Model -rapid.checks=5000.
func TestModel(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`) // many short lives: vacuum would only add noise
	rapid.Check(t, func(t *rapid.T) {
		m := &model{db: db, q: sqlgen.New(db), jobs: map[outbox.ID]*modelJob{}}
		m.exec(t, `DELETE FROM outbox.jobs`)
		m.exec(t, `DELETE FROM outbox.history`)
		t.Repeat(map[string]func(*rapid.T){
			"enqueue":       m.enqueue,
			"claim":         m.claim,
			"succeed":       m.succeed,
			"complete":      m.complete,
			"settle":        m.settle,
			"extend":        m.extend,
			"guard":         m.guard,
			"lapse":         m.lapse,
			"retry by hand": m.retryByHand,
			"time goes by":  m.timeGoesBy,
			"":              m.compare,
		})
	})
}

func (m *model) exec(t *rapid.T, sql string, args ...any) {
	if _, err := m.db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (m *model) enqueue(t *rapid.T) {
	j := &modelJob{
		Status:      outbox.Pending,
		MaxAttempts: rapid.IntRange(1, 3).Draw(t, "max attempts"),
		Priority:    rapid.IntRange(-1, 1).Draw(t, "priority"),
		Due:         rapid.IntRange(0, 4).Draw(t, "due") > 0,
	}
	opts := outbox.Options{MaxAttempts: j.MaxAttempts, Priority: j.Priority}
	if !j.Due {
		opts.Delay = time.Hour
	}
	id, err := outbox.Enqueue(context.Background(), m.db, probe{len(m.ids)}, opts)
	if err != nil {
		t.Fatal(err)
	}
	m.jobs[id] = j
	m.ids = append(m.ids, id)
}

func (m *model) claim(t *rapid.T) {
	n := rapid.IntRange(1, 5).Draw(t, "room")
	worker := rapid.SampledFrom([]string{"w1", "w2"}).Draw(t, "worker")
	rows, err := m.q.ClaimJobs(context.Background(), claimParams(worker, n, 1, 0, -1))
	if err != nil {
		t.Fatal(err)
	}
	var claimable []int
	for _, j := range m.jobs {
		if j.Due && (j.Status == outbox.Pending || j.Status == outbox.Retrying) {
			claimable = append(claimable, -j.Priority)
		}
	}
	slices.Sort(claimable)
	var got []int
	for _, row := range rows {
		id := outbox.ID(row.ID.Bytes)
		j := m.jobs[id]
		if j == nil || !j.Due || !j.Status.CanBecome(outbox.Running) {
			t.Fatalf("claimed %s, which is %+v", id, j)
		}
		j.Status, j.Attempt, j.Epoch = outbox.Running, j.Attempt+1, j.Epoch+1
		if row.Epoch != j.Epoch || int(row.Attempt) != j.Attempt || int(row.LostLeases) != j.LostLeases {
			t.Fatalf("claimed %s with epoch %d, attempt %d, %d lost leases; want %+v", id, row.Epoch, row.Attempt, row.LostLeases, j)
		}
		m.leases = append(m.leases, lease{id, row.Epoch})
		got = append(got, -j.Priority)
	}
	slices.Sort(got)
	if want := claimable[:min(n, len(claimable))]; !slices.Equal(got, want) {
		t.Fatalf("claimed priorities %v (negated), want the most urgent %v", got, want)
	}
}

// live is the job of a lease that still counts, nil otherwise.
func (m *model) live(l lease) *modelJob {
	if j := m.jobs[l.id]; j.Status == outbox.Running && j.Epoch == l.epoch {
		return j
	}
	return nil
}

// draw picks leases, most of them live if there are any, none twice.
func (m *model) draw(t *rapid.T, most int) []lease {
	var live []lease
	for _, l := range m.leases {
		if m.live(l) != nil {
			live = append(live, l)
		}
	}
	var drawn []lease
	for range rapid.IntRange(1, most).Draw(t, "leases") {
		from := m.leases
		if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "live") > 0 {
			from = live
		}
		if len(from) == 0 {
			t.Skip("no lease")
		}
		if l := rapid.SampledFrom(from).Draw(t, "lease"); !slices.Contains(drawn, l) {
			drawn = append(drawn, l)
		}
	}
	return drawn
}

// split are the arrays that statements take, and the ids of the leases that count.
func (m *model) split(leases []lease) (ids []pgtype.UUID, epochs []int64, live []outbox.ID) {
	for _, l := range leases {
		ids, epochs = append(ids, pgID(l.id)), append(epochs, l.epoch)
		if m.live(l) != nil {
			live = append(live, l.id)
		}
	}
	return ids, epochs, live
}

func wantIDs(t *rapid.T, got []pgtype.UUID, want []outbox.ID) {
	var ids []outbox.ID
	for _, id := range got {
		ids = append(ids, outbox.ID(id.Bytes))
	}
	byBytes := func(a, b outbox.ID) int { return cmp.Compare(a.String(), b.String()) }
	slices.SortFunc(ids, byBytes)
	slices.SortFunc(want, byBytes)
	if !slices.Equal(ids, want) {
		t.Fatalf("the statement took effect for %v, want %v", ids, want)
	}
}

func (m *model) succeed(t *rapid.T) {
	ids, epochs, live := m.split(m.draw(t, 4))
	settled, err := m.q.SettleSucceeded(context.Background(), sqlgen.SettleSucceededParams{Ids: ids, Epochs: epochs, Results: make([][]byte, len(ids))})
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, settled, live)
	for _, id := range live {
		m.jobs[id].Status = outbox.Succeeded
	}
}

// complete finishes a job in a transaction of its own, which may roll back.
func (m *model) complete(t *rapid.T) {
	l, commit := m.draw(t, 1)[0], rapid.Bool().Draw(t, "commit")
	tx, err := m.db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	err = (&outbox.Claimed{ID: l.id, Epoch: l.epoch}).Complete(context.Background(), tx)
	j := m.live(l)
	if (err == nil) != (j != nil) {
		t.Fatalf("Complete returns %v; the lease is live: %v", err, j != nil)
	}
	if j == nil || !commit {
		return
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	j.Status = outbox.Succeeded
}

func (m *model) settle(t *rapid.T) {
	leases := m.draw(t, 4)
	ids, epochs, live := m.split(leases)
	p := sqlgen.SettleUnfinishedParams{Ids: ids, Epochs: epochs}
	for _, l := range leases {
		next := rapid.SampledFrom([]outbox.Status{outbox.Retrying, outbox.Retrying, outbox.Pending, outbox.Failed}).Draw(t, "outcome")
		j := m.live(l)
		if next == outbox.Retrying && j != nil && j.Attempt >= j.MaxAttempts {
			next = outbox.Dead
		}
		delay := rapid.SampledFrom([]time.Duration{-1, 0, time.Hour}).Draw(t, "delay") // -1 leaves run_at alone
		code := "boom"
		if next == outbox.Pending {
			code = ""
		}
		p.Statuses = append(p.Statuses, next.String())
		p.Delays = append(p.Delays, pgtype.Interval{Microseconds: max(delay, 0).Microseconds(), Valid: delay >= 0})
		p.ErrorCodes, p.ErrorMessages, p.Stacks = append(p.ErrorCodes, code), append(p.ErrorMessages, code), append(p.Stacks, "")
		if j == nil {
			continue
		}
		j.Status, j.Epoch = next, j.Epoch+1
		if next == outbox.Pending {
			j.Attempt--
		}
		if delay >= 0 {
			j.Due = delay == 0
		}
	}
	settled, err := m.q.SettleUnfinished(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, settled, live)
}

func (m *model) extend(t *rapid.T) {
	leases := m.draw(t, 4)
	ids, epochs, live := m.split(leases)
	rows, err := m.q.ExtendLeases(context.Background(), sqlgen.ExtendLeasesParams{Ids: ids, Epochs: epochs, LeaseTtl: interval(2 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(leases) - len(live); len(rows) != want {
		t.Fatalf("leases not extended = %d, want %d", len(rows), want)
	}
	for _, row := range rows {
		if !row.Lost {
			t.Fatalf("the lease of %v was not extended, and is not lost", row.ID)
		}
	}
}

func (m *model) guard(t *rapid.T) {
	l := m.draw(t, 1)[0]
	err := (&outbox.Claimed{ID: l.id, Epoch: l.epoch}).Guard(context.Background(), m.db)
	if (err == nil) != (m.live(l) != nil) {
		t.Fatalf("Guard returns %v; the lease is live: %v", err, m.live(l) != nil)
	}
}

// lapse has some leases run out, and a reaper come by.
func (m *model) lapse(t *rapid.T) {
	var lapsed []outbox.ID
	for _, l := range m.draw(t, 3) {
		if m.live(l) != nil {
			lapsed = append(lapsed, l.id)
		}
	}
	m.exec(t, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second' WHERE id = ANY ($1)`, lapsed)
	rows, err := expireLapsed(context.Background(), m.db)
	if err != nil {
		t.Fatal(err)
	}
	var got []pgtype.UUID
	for _, row := range rows {
		if row.ID.Valid {
			got = append(got, row.ID)
		}
	}
	wantIDs(t, got, slices.Clone(lapsed))
	for _, id := range lapsed {
		j := m.jobs[id]
		j.Status, j.Epoch, j.LostLeases = outbox.Retrying, j.Epoch+1, j.LostLeases+1
		if j.Attempt >= j.MaxAttempts || j.LostLeases >= 2*j.MaxAttempts+10 {
			j.Status = outbox.Dead
		}
		if j.LostLeases > 1 { // it waits for some seconds: the model, for as long as it likes
			m.exec(t, `UPDATE outbox.jobs SET run_at = now() + interval '1 hour' WHERE id = $1 AND run_at > now()`, id)
			j.Due = false
		}
	}
}

func (m *model) retryByHand(t *rapid.T) {
	var dead []outbox.ID
	for _, id := range m.ids {
		if j := m.jobs[id]; j.Status.CanBecome(outbox.Pending) && j.Status != outbox.Running {
			dead = append(dead, id)
		}
	}
	if len(dead) == 0 {
		t.Skip("no dead letter")
	}
	id := rapid.SampledFrom(dead).Draw(t, "job")
	m.exec(t, `UPDATE outbox.jobs SET status = 'pending', attempt = 0, epoch = epoch + 1 WHERE id = $1`, id)
	j := m.jobs[id]
	j.Status, j.Attempt, j.Epoch = outbox.Pending, 0, j.Epoch+1
}

func (m *model) timeGoesBy(t *rapid.T) {
	m.exec(t, `UPDATE outbox.jobs SET run_at = now() WHERE run_at > now()`)
	for _, j := range m.jobs {
		j.Due = j.Due || !j.Status.Closed()
	}
}

func (m *model) compare(t *rapid.T) {
	rows, _ := m.db.Query(context.Background(), `
		SELECT id, status::text, attempt, max_attempts, epoch, lost_leases, priority, run_at <= now() FROM outbox.jobs
		UNION ALL
		SELECT id, status::text, attempt, max_attempts, epoch, lost_leases, priority, run_at <= now() FROM outbox.history`)
	stored := map[string]modelJob{}
	var id outbox.ID
	var j modelJob
	_, err := pgx.ForEachRow(rows, []any{&id, (*string)(&j.Status), &j.Attempt, &j.MaxAttempts, &j.Epoch, &j.LostLeases, &j.Priority, &j.Due}, func() error {
		if _, twice := stored[id.String()]; twice {
			return fmt.Errorf("job %s is stored twice", id)
		}
		stored[id.String()] = j
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]modelJob{}
	for id, j := range m.jobs {
		want[id.String()] = *j
	}
	if diff := gocmp.Diff(want, stored); diff != "" {
		t.Fatalf("the model and the database differ (-model +database):\n%s", diff)
	}
}
