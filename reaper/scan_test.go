package reaper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// timeline plays passes against a cost model: so much for each hour that a span
// covers of a history of so many hours.
type timeline struct {
	scan  scan
	now   time.Time
	hours float64
	cost  func(hours float64) time.Duration
	spent [2]time.Duration // on recent passes and on full ones
}

// pass makes one pass and returns the ranges that it covered to the end, in hours
// before now.
func (l *timeline) pass() (covered [][2]float64) {
	l.now = l.now.Add(expireInterval)
	for _, s := range l.scan.spans(l.now) {
		from, before := l.age(s.from), l.age(s.before)
		cost := l.cost(from - before)
		err := error(nil)
		if cost > statementTimeout {
			cost, err = statementTimeout, context.DeadlineExceeded
		}
		if s.full {
			l.spent[1] += cost
		} else {
			l.spent[0] += cost
		}
		l.scan.note(s, cost, l.now, l.now, err)
		if err != nil {
			break
		}
		covered = append(covered, [2]float64{from, before})
	}
	return covered
}

// age returns how many hours ago an instant is. An infinite one is brought to now by the statement itself, or lies
// before everything.
func (l *timeline) age(at pgtype.Timestamptz) float64 {
	switch at.InfinityModifier {
	case pgtype.NegativeInfinity:
		return l.hours
	case pgtype.Infinity:
		return 0
	}
	return min(l.now.Sub(at.Time).Hours(), l.hours)
}

func newTimeline(hours float64, perHour time.Duration) *timeline {
	return &timeline{
		now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), hours: hours,
		cost: func(h float64) time.Duration { return time.Duration(h * float64(perHour)) },
	}
}

func TestEveryPassIsFullWhileThatIsCheap(t *testing.T) {
	l := newTimeline(100, time.Millisecond)
	for range 100 {
		if covered := l.pass(); len(covered) != 1 || covered[0][0] != 100 {
			t.Fatalf("a pass covered %v, want all 100 hours at once", covered)
		}
	}
}

func TestASlowSweepTakesATenthOfTheTimeAndStillCoversEverything(t *testing.T) {
	for name, perHour := range map[string]time.Duration{
		"half a second at once":               5 * time.Millisecond,
		"more than a statement may take":      100 * time.Millisecond,
		"one slice of an hour takes a second": time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			l := newTimeline(100, perHour)
			const passes = 3000
			oldest, fulls := 0.0, 0
			for range passes {
				oldest += expireInterval.Hours() // it ages like everything else
				for _, c := range l.pass() {
					if c[1] >= l.hours { // beyond the oldest entry
						continue
					}
					if c[1] > oldest+0.01 {
						t.Fatalf("what lapsed %.2f to %.2f hours ago was left out of the full pass", oldest, c[1])
					}
					if c[0] > oldest {
						oldest = c[0]
					}
					if oldest >= 99.9 {
						oldest, fulls = 0, fulls+1
					}
				}
			}
			total := passes * expireInterval
			if l.spent[1] > total/9 {
				t.Errorf("full passes took %s of %s, want a tenth", l.spent[1], total)
			}
			if fulls < 2 {
				t.Errorf("complete full passes in %s = %d, want some", total, fulls)
			}
		})
	}
}

func TestAFailedPassIsNotCountedAsComplete(t *testing.T) {
	var s scan
	now := time.Now()
	s.note(s.spans(now)[0], time.Second, now, now, errors.New("connection reset"))
	if !s.passed.IsZero() {
		t.Errorf("the position moved to %s by a pass that failed after its first batch", s.passed)
	}
}

func TestAfterASlowSweepHasBecomeQuickEveryPassIsFullAgain(t *testing.T) {
	l := newTimeline(100, time.Second)
	for range 1000 {
		l.pass()
	}
	l.cost = func(float64) time.Duration { return time.Millisecond } // the snapshot was let go
	for range 1000 {
		l.pass()
	}
	if covered := l.pass(); len(covered) != 1 || covered[0][0] != 100 {
		t.Errorf("a pass covered %v, want all 100 hours at once", covered)
	}
}

func TestUnexpiredLeasesInFrontDoNotStarveLapsedOnes(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	unvacuumed(t, db)
	storeRunning(t, db, 10_000, time.Hour)
	storeRunning(t, db, 5_000, -time.Minute)
	expirePass(t, r)
	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying'`); got != 5_000 {
		t.Errorf("jobs taken = %d, want 5000", got)
	}
	storeRunning(t, db, 1, -time.Minute)
	beside := blocks(t, r, db, func() { expirePass(t, r) })
	t.Logf("one lapsed beside 10000 live leases: %d blocks", beside)
	if beside > 200 {
		t.Errorf("a pass reads %d blocks, as if it read the live leases", beside)
	}
}

// Under a snapshot that somebody holds, dead entries stay in the index of the
// leases, one for every job that was ever claimed. Passes must not slow down.
func TestAHeldSnapshotDoesNotSlowPassesDown(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	unvacuumed(t, db)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	timed := func(at time.Time) time.Duration {
		r.expirer.scan.fullAfter = at
		started := time.Now()
		expirePass(t, r)
		return time.Since(started)
	}
	pass := func(at time.Time) int { return blocks(t, r, db, func() { timed(at) }) }
	affordable, tooSoon := time.Time{}, time.Now().Add(time.Hour)
	pass(affordable)
	idle := pass(affordable)

	storeRunning(t, db, 4_000, -2*time.Minute) // claimed minutes ago …
	exec(t, db, `DELETE FROM outbox.jobs`)     // … and settled
	full, recent := pass(affordable), pass(tooSoon)
	t.Logf("a pass over nothing reads %d blocks; over 4000 dead entries: full %d, recent %d", idle, full, recent)
	if recent > max(full/4, 3*idle+20) {
		t.Errorf("a recent pass reads %d blocks, with no dead entries %d, and a full one %d", recent, idle, full)
	}
	// Keys that come and go leave dead rows, too. A pass says that there are some, and reads none.
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) SELECT '00000000-0000-0000-0000-000000000001', 'default', n::text FROM generate_series(1, 4000) AS n`)
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ('ffffffff-0000-0000-0000-000000000001', 'default', 'k')`)
	exec(t, db, `DELETE FROM outbox.keys WHERE key <> 'k'`)
	n := pass(tooSoon)
	if n > recent+idle+20 || !r.sweeper.keyed.Load() {
		t.Errorf("a recent pass over 4000 dead keys reads %d blocks, %d without them; one is left, seen: %t", n, recent, r.sweeper.keyed.Load())
	}
	exec(t, db, `DELETE FROM outbox.keys`)
	var wait, took time.Duration
	for range 20 { // a slow machine may stop between the pass and the look at the clock
		took = timed(affordable)
		if wait = time.Until(r.expirer.scan.fullAfter); wait >= 4*took && wait <= 20*took {
			return
		}
	}
	t.Errorf("no full pass for %s after one of %s, want about nine times as long", wait, took)
}
