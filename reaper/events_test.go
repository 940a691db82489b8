package reaper

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// storeEvents stores n events that were published so long ago, every other one of another
// tenant, and the partition for them.
func storeEvents(t testing.TB, db *pgxpool.Pool, n int, ago time.Duration) (name string) {
	t.Helper()
	name = ensureDayOf(t, db, "outbox.events", ago)
	exec(t, db, `
		INSERT INTO outbox.events (at, id, tenant_id, topic, content_type, payload)
		SELECT now() - $2::interval, gen_random_uuid(), CASE WHEN i % 2 = 0 THEN gen_random_uuid() ELSE '00000000-0000-0000-0000-000000000001' END, 't', 'c', ''
		FROM generate_series(1, $1) AS i`, n, ago)
	return name
}

// eventsLeft returns how many events there are by how many days old they are.
func eventsLeft(t testing.TB, db *pgxpool.Pool) map[int]int {
	t.Helper()
	left := map[int]int{}
	rows, _ := db.Query(t.Context(), `SELECT round(extract(epoch FROM now() - at) / 86400)::integer, count(*)::integer FROM outbox.events GROUP BY 1`)
	var days, n int
	if _, err := pgx.ForEachRow(rows, []any{&days, &n}, func() error { left[days] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return left
}

// With 3 events in each of four days, and position 0 of the log before all of them:
//
//	days ago    10     9      8      2
//	positions   1-3    4-6    7-9    10-12
func TestDaysOfEventsAreHeldForSinks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sinks string // names, tops and holes
		keep  time.Duration
		want  map[int]int
		held  float64
		lost  map[string]float64 // with LoseUnread
	}{
		"without sinks by age":                {``, 0, map[int]int{2: 3}, 0, nil},
		"with another age":                    {``, 8 * day, map[int]int{8: 3, 2: 3}, 0, nil},
		"all is read":                         {`('a', 12, '{}'), ('b', 9, '{}')`, 0, map[int]int{2: 3}, 0, nil},
		"a sink has begun no day":             {`('a', 0, '{}'), ('b', 12, '{}')`, 0, map[int]int{10: 3, 9: 3, 8: 3, 2: 3}, 3, map[string]float64{"a": 9}},
		"a sink is in the middle of a day":    {`('a', 5, '{}')`, 0, map[int]int{9: 3, 8: 3, 2: 3}, 2, map[string]float64{"a": 4}},
		"a sink is at the end of a day":       {`('a', 6, '{}')`, 0, map[int]int{8: 3, 2: 3}, 1, map[string]float64{"a": 3}},
		"a hole is in a day":                  {`('a', 12, '{[5,6)}')`, 0, map[int]int{9: 3, 2: 3}, 1, map[string]float64{"a": 1}},
		"holes at the edges, and two sinks":   {`('a', 12, '{[3,4),[7,8)}'), ('b', 8, '{[12,13)}')`, 0, map[int]int{10: 3, 8: 3, 2: 3}, 2, map[string]float64{"a": 2, "b": 1}},
		"a hole elsewhere":                    {`('a', 12, '{[10,11)}')`, 0, map[int]int{2: 3}, 0, nil},
		"a sink that is paused holds as well": {`('a', 3, '{}')`, 0, map[int]int{9: 3, 8: 3, 2: 3}, 2, map[string]float64{"a": 6}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, before := pgtest.New(t), 4
			for _, ago := range []time.Duration{10 * day, 9 * day, 8 * day, 2 * day} {
				storeEvents(t, db, 3, ago)
			}
			if c.sinks != `` {
				exec(t, db, `INSERT INTO outbox.sinks (sink, top, holes) VALUES `+c.sinks)
				exec(t, db, `UPDATE outbox.sinks SET paused_at = now() WHERE $1`, name == "a sink that is paused holds as well")
			}
			for _, lose := range []bool{false, true} {
				exec(t, db, `DELETE FROM outbox.chores`)
				r := newReaper(t, db, Config{KeepEvents: c.keep, LoseUnread: lose})
				want, held := c.want, c.held
				if lose {
					want, held = map[int]int{2: 3}, 0
					if c.keep != 0 {
						want[8] = 3
					}
				}
				for range 2 {
					trimPass(t, r)
					if diff := cmp.Diff(want, eventsLeft(t, db)); diff != "" {
						t.Errorf("lose %t, days left (-want +got):\n%s", lose, diff)
					}
				}
				if got := value(t, r.metrics.dropped); got != float64(before-len(want)) {
					t.Errorf("lose %t: %v days dropped, want %d", lose, got, before-len(want))
				}
				before = len(want)
				if got := value(t, r.metrics.eventDaysHeld); got != held {
					t.Errorf("lose %t: %v days held, want %v", lose, got, held)
				}
				lost := make(chan prometheus.Metric, 9)
				r.metrics.eventsLost.Collect(lost)
				if n := len(lost); lose && n != len(c.lost) || !lose && n != 0 {
					t.Errorf("lose %t: events of %d sinks are lost, want %d", lose, n, len(c.lost))
				}
				for sink, want := range c.lost {
					if got := value(t, r.metrics.eventsLost.WithLabelValues(sink)); lose && got != want {
						t.Errorf("%s has lost %v events, want %v", sink, got, want)
					}
				}
				if !noted(t, db) {
					t.Error("that it was trimmed is not noted: a day that is held is no trouble of the reaper's")
				}
			}
		})
	}
}

// The database refuses it by itself, too.
func TestADayOfEventsIsNotDroppedWhileASinkHasNotReadIt(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	name := storeEvents(t, db, 3, 8*day)
	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('behind', 2)`)
	if _, err := db.Exec(t.Context(), `SELECT outbox.drop_day($1::text::regclass)`, name); pgsession.State(err) != "55006" {
		t.Errorf("drop_day: %v, want SQLSTATE 55006", err)
	}
	// A sink that goes back after the reaper has looked.
	exec(t, db, `UPDATE outbox.sinks SET top = 3`)
	r := newReaper(t, db, Config{})
	exec(t, db, `UPDATE outbox.sinks SET top = 2`)
	if became, err := r.days.drop(t.Context(), name, false); err != nil || became != kept {
		t.Errorf("it became %d, %v; want it kept", became, err)
	}
	exec(t, db, `SELECT outbox.drop_day($1::text::regclass, lose => true)`, name)
	if _, err := db.Exec(t.Context(), `SELECT outbox.sinks_behind('outbox.jobs')`); pgsession.State(err) != "22023" {
		t.Errorf("sinks_behind of a table that is no day: %v", err)
	}
}

// What is lost is counted over more positions than one statement looks at.
func TestLostEventsAreCountedInPieces(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{LoseUnread: true})
	storeEvents(t, db, 2, 9*day)
	exec(t, db, `SELECT setval('outbox.events_position_seq', $1)`, 2*countPositions)
	storeEvents(t, db, 3, 9*day)
	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('behind', 1)`)
	trimPass(t, r)
	if got := value(t, r.metrics.eventsLost.WithLabelValues("behind")); got != 4 {
		t.Errorf("%v events are lost, want 4", got)
	}
}

// A sink that reads the rest of a day while its events are counted loses none. Another one that has not, does.
func TestEventsThatWereReadMeanwhileAreNotLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		top  int // of the sink when the day is dropped
		want float64
	}{
		"all":  {3, 0},
		"none": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, Config{LoseUnread: true})
			storeEvents(t, db, 3, 9*day)
			exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('behind', 1)`)
			events := r.trimmer.events
			days, err := sqlgen.New(db).ListEventDays(t.Context(), pgvalue.Interval(day))
			if err != nil || len(days) != 1 {
				t.Fatalf("days are %v, %v, want one", days, err)
			}
			unread, err := events.countUnread(t.Context(), days[0], "behind")
			if err != nil || unread != 2 {
				t.Fatalf("%d events are unread, %v, want 2", unread, err)
			}
			exec(t, db, `UPDATE outbox.sinks SET top = $1`, c.top)
			became, err := events.drop(t.Context(), days[0], map[string]int64{"behind": unread})
			if err != nil || became != dropped {
				t.Fatalf("it became %d, %v, want it dropped", became, err)
			}
			if got := value(t, r.metrics.eventsLost.WithLabelValues("behind")); got != c.want {
				t.Errorf("%v events are lost, want %v", got, c.want)
			}
		})
	}
}

// The sink has read a day long ago, and a replay is in the middle of it:
//
//	days ago    10     9      8
//	positions   1-3    4-6    7-9
//	replay              5, and it ends at 6
func TestADayOfEventsIsHeldForAReplay(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	for _, ago := range []time.Duration{10 * day, 9 * day, 8 * day} {
		storeEvents(t, db, 3, ago)
	}
	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('s', 9)`)
	exec(t, db, `INSERT INTO outbox.replays (id, sink, topics, key, since, until, position, last_position, per_second,
			again, events, actor, reason)
		VALUES (gen_random_uuid(), 's', '{}', '', '-infinity', 'infinity', 5, 6, 0, false, 1, 'me', '')`)
	trimPass(t, r)
	if diff := cmp.Diff(map[int]int{9: 3}, eventsLeft(t, db)); diff != "" {
		t.Errorf("days left, want it held (-want +got):\n%s", diff)
	}
	if held := value(t, r.metrics.eventDaysHeld); held != 1 {
		t.Errorf("%v days are held, want 1", held)
	}
	exec(t, db, `UPDATE outbox.replays SET finished_at = now(), stopped = true`)
	exec(t, db, `DELETE FROM outbox.chores`)
	trimPass(t, r)
	if left := eventsLeft(t, db); len(left) != 0 {
		t.Errorf("days %v are left, want none: the replay is stopped", left)
	}
}
