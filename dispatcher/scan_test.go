package dispatcher

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/outbox"
)

var priorities = rapid.Custom(func(t *rapid.T) int16 {
	return rapid.OneOf(
		rapid.SampledFrom([]int16{math.MinInt16, math.MinInt16 + 1, -1, 0, 1, math.MaxInt16 - 1, math.MaxInt16}),
		rapid.Int16(),
	).Draw(t, "priority")
})

func candidate(priority int16, runAt time.Time, id byte) *attempt {
	return &attempt{job: &outbox.Claimed{Priority: int(priority), RunAt: runAt, ID: outbox.ID{15: id}}}
}

// The known priorities and the gaps between them are every priority, each once.
func TestScanGapsCoverWhatIsUnknown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s scan
		for _, p := range rapid.SliceOfN(priorities, 0, 2*maxLevels).Draw(t, "priorities") {
			s.level(p)
		}
		known, above, below := s.gaps()
		if len(above) != len(below) {
			t.Fatalf("%d lower ends of gaps, %d upper ends", len(above), len(below))
		}
		times := make([]int, math.MaxUint16+1)
		for _, p := range known {
			times[int(p)-math.MinInt16]++
		}
		for i := range above {
			if below[i]-above[i] < 2 {
				t.Errorf("gap between %d and %d is empty: a query for nothing", above[i], below[i])
			}
			for p := max(above[i]+1, math.MinInt16); p < below[i] && p <= math.MaxInt16; p++ {
				times[p-math.MinInt16]++
			}
		}
		for i, n := range times {
			if n != 1 {
				t.Fatalf("priority %d is looked at %d times, want once", i+math.MinInt16, n)
			}
		}
	})
}

func TestScanLevelsAreSortedAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s scan
		now := time.Now()
		for i, p := range rapid.SliceOfN(priorities, 1, 4*maxLevels).Draw(t, "priorities") {
			if l := s.level(p); l.priority != p {
				t.Fatalf("level(%d) is that of priority %d", p, l.priority)
			}
			s.note(full, now, now, []*attempt{candidate(p, now.Add(time.Duration(i)), 1)})
			if len(s.levels) > maxLevels {
				t.Fatalf("%d levels, want at most %d", len(s.levels), maxLevels)
			}
			if !slices.IsSortedFunc(s.levels, func(a, b level) int { return int(b.priority) - int(a.priority) }) {
				t.Fatalf("levels are not in order: %v", s.levels)
			}
			for i := range len(s.levels) - 1 {
				if s.levels[i].priority == s.levels[i+1].priority {
					t.Fatalf("priority %d has two levels", s.levels[i].priority)
				}
			}
			if !slices.ContainsFunc(s.levels, func(l level) bool { return l.priority == p }) {
				t.Fatalf("priority %d was forgotten as it was made", p)
			}
		}
	})
}

func TestScanForgetsTheLevelThatWasIdleLongest(t *testing.T) {
	var s scan
	now := time.Now()
	for p := range int16(maxLevels) {
		s.level(p).used = now.Add(time.Duration(p) * time.Second)
	}
	s.level(7).used = now.Add(-time.Hour)
	s.level(1000)
	known, _, _ := s.gaps()
	if slices.Contains(known, 7) || !slices.Contains(known, 1000) || len(known) != maxLevels {
		t.Errorf("known = %v, want 1000 in place of 7", known)
	}
}

// A position only moves forward, whatever order jobs are claimed in: a straggler
// that a wide scan found does not send the near scan back to the front.
func TestScanPositionMovesForward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s scan
		now := time.Now()
		type position struct {
			runAt time.Time
			id    outbox.ID
		}
		furthest := map[int16]position{}
		for range rapid.IntRange(1, 20).Draw(t, "claims") {
			p := rapid.Int16Range(0, 3).Draw(t, "priority")
			var claimed []*attempt
			for range rapid.IntRange(0, 5).Draw(t, "jobs") {
				a := candidate(p, now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "due"))), rapid.Byte().Draw(t, "id"))
				claimed = append(claimed, a)
				at := position{a.job.RunAt, a.job.ID}
				if old, ok := furthest[p]; !ok || old.runAt.Before(at.runAt) || old.runAt.Equal(at.runAt) && bytes.Compare(old.id[:], at.id[:]) < 0 {
					furthest[p] = at
				}
			}
			slices.SortFunc(claimed, byUrgency)
			s.note(depth(rapid.IntRange(int(full), int(near)).Draw(t, "depth")), now, now, claimed)

			priorities, runAts, ids := s.from(near)
			for i, p := range priorities {
				at, ok := furthest[p]
				if !ok {
					if runAts[i].InfinityModifier != pgtype.NegativeInfinity {
						t.Fatalf("priority %d, of which nothing was claimed, starts at %v", p, runAts[i])
					}
					continue
				}
				if !runAts[i].Time.Equal(at.runAt) || ids[i].Bytes != at.id {
					t.Fatalf("priority %d starts at %v %x, want %v %x", p, runAts[i].Time, ids[i].Bytes, at.runAt, at.id)
				}
			}
		}
	})
}

func TestScanStarts(t *testing.T) {
	due := time.Now()
	var s scan
	if p, runAt, _ := s.from(near); len(p) != 1 || p[0] != 0 || runAt[0].InfinityModifier != pgtype.NegativeInfinity {
		t.Errorf("a new scan starts at %v %v, want priority 0 from the front", p, runAt)
	}
	s.note(full, due, due, []*attempt{candidate(0, due, 9)})
	for name, c := range map[string]struct {
		depth depth
		runAt pgtype.Timestamptz
		id    [16]byte
	}{
		"full: from the front":                     {full, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, [16]byte{}},
		"overlap: some seconds back, any id":       {overlap, pgtype.Timestamptz{Time: due.Add(-overlapTime), Valid: true}, [16]byte{}},
		"near: from the last job that was claimed": {near, pgtype.Timestamptz{Time: due, Valid: true}, [16]byte{15: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			_, runAts, ids := s.from(c.depth)
			got, want := runAts[0], c.runAt
			if got.InfinityModifier == pgtype.NegativeInfinity {
				got.Time = time.Time{}
			}
			if got != want || ids[0].Bytes != c.id {
				t.Errorf("starts at %v %x, want %v %x", got, ids[0].Bytes, want, c.id)
			}
		})
	}
}

// As long as a full scan costs no more than a near one, every claim makes it.
func TestScanIsFullWhileThatIsFree(t *testing.T) {
	var s scan
	now := time.Now()
	for range 1000 {
		if got := s.depth(now); got != full {
			t.Fatalf("depth = %d, want full", got)
		}
		s.note(full, now, now.Add(time.Millisecond), []*attempt{candidate(0, now, 1)})
		now = now.Add(2 * time.Millisecond)
	}
}

// A full scan, or a survey, during which the machine stood still for a moment is no
// reason to look no more at what was committed late.
func TestScanIsFullAfterAScanThatWasHeldUp(t *testing.T) {
	var s scan
	now := time.Now()
	for i := range 100 {
		took := time.Millisecond
		if i%2 == 1 {
			took = 500 * time.Millisecond
		}
		started := now
		now = now.Add(took)
		if i%4 < 2 {
			s.note(full, started, now, nil)
		} else {
			s.noteSurvey(started, now, false)
		}
		if got := s.depth(now); got != full {
			t.Fatalf("depth = %d after scan %d, want full", got, i)
		}
	}
	for _, held := range []func(){
		func() { s.note(full, now, now.Add(500*time.Millisecond), nil) },
		func() { s.noteSurvey(now, now.Add(500*time.Millisecond), false) },
	} {
		s = scan{}
		held()
		held()
		if got := s.depth(now.Add(time.Second)); got == full {
			t.Errorf("two dear ones in a row were believed to be chance")
		}
	}
}

// Where it takes long to be answered, a near claim shows that, and no wide one is dear
// for that reason.
func TestScanIsFullThoughAnswersTakeLong(t *testing.T) {
	var s scan
	now := time.Now()
	wide := 0
	for i := range 1000 {
		d := s.depth(now)
		if i >= 300 && d == full {
			wide++
		}
		started := now
		now = now.Add(40*time.Millisecond + time.Duration(i*7919%2000)*time.Microsecond) // and are not all the same
		s.note(d, started, now, []*attempt{candidate(0, started, 1)})
	}
	if wide < 400 {
		t.Errorf("full scans of the last 700 = %d, want most: the near ones took as long", wide)
	}
}

// A near claim that was slow by chance does not make wide scans look cheap for long.
func TestScanForgetsAnAnswerThatTookLong(t *testing.T) {
	var s scan
	now := time.Now()
	wide, nears := 0, 0
	for i := range 5000 {
		d, took := s.depth(now), 10*time.Millisecond
		if d == near {
			if took = time.Millisecond; nears == 10 {
				took = 200 * time.Millisecond
			}
			nears++
		}
		started := now
		now = now.Add(took)
		s.note(d, started, now, []*attempt{candidate(0, started, 1)})
		if i >= 1000 && d < near {
			wide++
		}
	}
	if wide > 400 {
		t.Errorf("wide scans of the last 4000 claims = %d, want few: they are ten times as dear", wide)
	}
}

// A claim that failed may have been too wide for its deadline: the next ones look less
// far, and for long if the same happens again. If the database was away, all of that is
// taken back.
func TestScanAfterClaimsThatFailed(t *testing.T) {
	var s scan
	now := time.Now()
	const took = 5 * time.Second
	s.charge(full, now, now.Add(took))
	now = now.Add(took)
	if got := s.depth(now); got != overlap {
		t.Errorf("depth after a full scan that failed = %d, want overlap", got)
	}
	now = now.Add(took)
	if got := s.depth(now); got != full {
		t.Errorf("depth as long after that as it took = %d, want full: it may have failed for another reason", got)
	}
	s.charge(full, now, now.Add(took))
	now = now.Add(took)
	if got := s.depth(now.Add(wideBudget * took / 2)); got != overlap {
		t.Errorf("depth long after two full scans that failed = %d, want overlap", got)
	}
	s = scan{}
	s.noteSurvey(now, now.Add(took), true)
	s.note(full, now, now, nil) // cheap: there is nothing in the levels
	s.noteSurvey(now, now.Add(took), true)
	if got := s.depth(now.Add(wideBudget * took / 2)); got == full {
		t.Errorf("long after two surveys that failed the next look is full again")
	}
	s.forgive()
	if got := s.depth(now); got != full {
		t.Errorf("depth when the database was away = %d, want full", got)
	}
}

// Where both wide depths cost the same, there is one of either in thirty-nine times as
// long, in turns.
func TestScanWideDepthsTakeTurns(t *testing.T) {
	var s scan
	now := time.Now()
	const wide = 80 * time.Millisecond
	var times [near + 1]int
	for begin := now; now.Sub(begin) < 5*time.Minute; {
		d, took := s.depth(now), wide
		if d == near {
			took = time.Millisecond
		}
		started := now
		now = now.Add(took)
		s.note(d, started, now, []*attempt{candidate(0, started, 1)})
		times[d]++
		now = now.Add(10 * time.Millisecond)
	}
	all := int(5 * time.Minute / (39 * wide)) // 96
	if n := times[full] + times[overlap]; n < all*8/10 || n > all*11/10 || min(times[full], times[overlap]) < all*4/10 {
		t.Errorf("wide scans in five minutes: full %d, overlap %d, want about %d, half of each", times[full], times[overlap], all)
	}
}

// A held snapshot: full scans are expensive, overlapping ones a little, near ones
// cheap. Wide scans then take a twentieth of the time, but are never given up.
func TestScanDepthBudget(t *testing.T) {
	var s scan
	begin := time.Now()
	now := begin
	cost := map[depth]time.Duration{full: 200 * time.Millisecond, overlap: 20 * time.Millisecond, near: time.Millisecond}
	var spent, times [near + 1]time.Duration
	for now.Sub(begin) < 2*time.Minute {
		d := s.depth(now)
		started := now
		now = now.Add(cost[d])
		s.note(d, started, now, []*attempt{candidate(0, started, 1)})
		spent[d] += cost[d]
		times[d]++
		if d == full && times[full] > 1 { // the first could be dear by chance
			if next := s.depth(now); next == full {
				t.Fatal("a second expensive full scan is followed by another")
			}
			wide, _ := s.wideAfter(now)
			if wide < 38*cost[full] || wide > 39*(cost[full]+cost[overlap]) {
				t.Fatalf("the next full scan is in %s, want about thirty-nine times %s, and for the overlapping ones", wide, cost[full])
			}
		}
	}
	if times[full] < 10 || times[overlap] < 50 || times[near] < 10_000 {
		t.Errorf("scans in two minutes: full %d, overlap %d, near %d; want all of them", times[full], times[overlap], times[near])
	}
	for d := full; d < near; d++ {
		if share := spent[d].Seconds() / 120; share > 0.03 {
			t.Errorf("scans of depth %d take %.0f %% of the time, want at most a fortieth", d, share*100)
		}
	}

	// The snapshot is released: a full scan is cheap again, and soon each is one.
	cost[full], cost[overlap] = time.Millisecond, time.Millisecond
	for range 10_000 {
		d := s.depth(now)
		started := now
		now = now.Add(cost[d])
		s.note(d, started, now, []*attempt{candidate(0, started, 1)})
	}
	if got := s.depth(now); got != full {
		t.Errorf("depth after the snapshot was released = %d, want full", got)
	}
	if wide, _ := s.wideAfter(now); wide != 0 {
		t.Errorf("the next full scan is in %s, want at once", wide)
	}
}
