package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// declared creates the sink "s", and returns the position after which it begins.
func declared(t *testing.T, db *pgxpool.Pool, atEnd bool) int64 {
	t.Helper()
	tops, err := sqlgen.New(db).DeclareSink(t.Context(), "s", atEnd)
	if err != nil || len(tops) != 1 {
		t.Fatalf("to declare the sink: %v, %v", tops, err)
	}
	return tops[0]
}

// owned makes a process the owner of the sink "s".
func owned(t *testing.T, db *pgxpool.Pool) sqlgen.OwnSinkRow {
	t.Helper()
	rows, err := sqlgen.New(db).OwnSink(t.Context(), sqlgen.OwnSinkParams{Sink: "s", Owner: "o", LeaseTtl: pgvalue.Interval(time.Minute)})
	if err != nil || len(rows) != 1 {
		t.Fatalf("to own the sink: %v, %v", rows, err)
	}
	return rows[0]
}

// A failover that has lost events has the sink go back to where it was a rewind before, from what its row says alone:
// whatever the log has, and however long nobody has owned the sink.
func TestARewindGoesBackToAMark(t *testing.T) {
	t.Parallel()
	db := database(t)
	q := sqlgen.New(db)
	declared(t, db, false)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 1000)`)
	epoch := owned(t, db).Epoch
	advance := func(top int64, later string) {
		t.Helper()
		rows, err := q.AdvanceSink(t.Context(), sqlgen.AdvanceSinkParams{
			Sink: "s", Owner: "o", Epoch: epoch, Top: top, LeaseTtl: pgvalue.Interval(time.Minute), Rewind: pgvalue.Interval(5 * time.Minute),
		})
		if err != nil || len(rows) != 1 {
			t.Fatalf("to advance the sink: %v, %v", rows, err)
		}
		exec(t, db, `UPDATE outbox.sinks SET mark_at = mark_at - $1::interval`, later)
	}
	failover := func(about string, want int64) {
		t.Helper()
		exec(t, db, `UPDATE outbox.sinks SET timeline = '1/00000001', top_id = gen_random_uuid()`)
		row := owned(t, db)
		if epoch = row.Epoch; row.Top != want {
			t.Errorf("%s: the sink goes back from %d to %d, want %d", about, row.Was, row.Top, want)
		}
	}
	advance(10, "0")
	advance(20, "6 minutes")
	failover("there was no mark before the first one", 0)
	advance(30, "0")
	advance(40, "6 minutes")
	advance(50, "4 minutes") // 30 becomes the older mark
	advance(60, "0")
	failover("the newer mark is too new", 30)
	for range 3 {
		advance(70, "1 hour")
	}
	failover("a sink has been quiet for longer than a rewind", 70)
	advance(80, "1 hour")
	advance(90, "1 hour")
	if _, err := operator.New(db).SeekSink(t.Context(), "s", operator.SinkTarget{End: true}); err != nil {
		t.Fatal(err)
	}
	failover("an operator has had the sink go on behind events that are there no more", 1000)
}

// A server that crashes and is back before a sink stores its cursor may have lost commits: that another sink of the
// process has met the broken connection, and has connected anew, does not let this one store what it knew before.
func TestACrashThatAnotherSinkHasMetEndsOwnerships(t *testing.T) {
	t.Parallel()
	db := database(t)
	config := db.Config()
	config.ConnConfig.RuntimeParams["application_name"] = "crashes"
	crashes, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(crashes.Close)
	var a, b recorder
	start(t, crashes, &a, func(c *relay.Config) {
		c.Sinks = append(c.Sinks, relay.SinkConfig{Name: "b", Sink: &b, Routes: c.Sinks[0].Routes})
		c.SetRenewInterval(time.Minute)
	})
	publish(t, db, "t", "k", "1")
	stored := func(top int) {
		waitFor(t, func() bool { return ask[int](t, db, `SELECT min(top) FROM outbox.sinks`) == top }, func() string { return fmt.Sprint("both have stored ", top) })
	}
	stored(1)
	exec(t, db, `UPDATE outbox.sinks SET paused_at = now() WHERE sink = 'b'`)
	publish(t, db, "t", "k", "2")
	stored(2) // so b has heard of the pause
	exec(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'crashes' AND datname = current_database()`)
	publish(t, db, "t", "k", "3")
	a.await(t, "1", "2", "3")
	exec(t, db, `UPDATE outbox.sinks SET paused_at = NULL`)
	waitFor(t, func() bool {
		exec(t, db, `SELECT pg_notify('outbox_events', '')`)
		return slices.Contains(b.bodies(), "3")
	}, func() string { return "the other one goes on" })
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.sinks WHERE epoch > 1`); n != 2 {
		t.Errorf("%d sinks have begun anew after a crash, want both", n)
	}
}

// pairs stores an event at position 1, and two at each of 2 to most, as a copy of the database leaves them that came
// without its sequence: what was stored from the copy on until the sequence was put right has positions anew. It
// returns their bodies.
func pairs(t *testing.T, db *pgxpool.Pool, most int) (bodies []string) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.events (position, id, tenant_id, topic, key, content_type, payload)
		SELECT i, gen_random_uuid(), $1, 't', concat('k', i, '.', n), 'text/plain', convert_to(concat(i, '.', n), 'UTF8')
		FROM generate_series(1, $2::integer) AS i, generate_series(1, least(i, 2)) AS n`, outbox.RootTenant, most)
	exec(t, db, `SELECT setval('outbox.events_position_seq', $1)`, most)
	for i := range most {
		for n := range min(i+1, 2) {
			bodies = append(bodies, fmt.Sprintf("%d.%d", i+1, n+1))
		}
	}
	slices.Sort(bodies)
	return bodies
}

// awaitAll waits until a sink has what it is to have, and has stored that.
func awaitAll(t *testing.T, db *pgxpool.Pool, sink *recorder, top int, want []string) {
	t.Helper()
	sorted := func() []string { return slices.Sorted(slices.Values(sink.bodies())) }
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == top }, func() string { return "the cursor is stored" })
	if got := sorted(); !slices.Equal(got, want) {
		t.Errorf("%d messages were published, want %d: %q", len(got), len(want), got)
	}
}

// A page ends between two positions: what shares one with the last event of a page is in that page, too.
func TestEventsThatShareAPositionAreAllPublished(t *testing.T) {
	t.Parallel()
	db := database(t)
	want := pairs(t, db, 600)
	var sink recorder
	start(t, db, &sink, nil)
	awaitAll(t, db, &sink, 600, want)
}

// By the event at its position a sink knows after a failover that it has passed nothing that was lost.
func TestASinkKnowsTheEventAtItsPosition(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, `INSERT INTO outbox.events (position, at, id, tenant_id, topic, content_type, payload)
		SELECT least(n, 3), now() - n * interval '1 second', gen_random_uuid(), $1, 't', 'text/plain', convert_to(n::text, 'UTF8')
		FROM generate_series(1, 4) AS n`, outbox.RootTenant)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 3)`)
	var sink recorder
	for range 2 { // the next owner does not read it
		stop := start(t, db, &sink, nil)
		awaitAll(t, db, &sink, 3, []string{"1", "2", "3", "4"})
		stop()
		if known := ask[string](t, db, `SELECT coalesce(min(convert_from(payload, 'UTF8')), 'none')
			FROM outbox.sinks JOIN outbox.events ON events.id = top_id`); known != "3" {
			t.Errorf("the sink knows event %s, want 3, which was stored last of those at its position", known)
		}
	}
}

// So it is where all events share the sink's position, and where an operator has the sink go there.
func TestACursorIsStoredWhereEventsShareAPosition(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, `INSERT INTO outbox.events (position, id, tenant_id, topic, content_type, payload)
		SELECT 1, gen_random_uuid(), $1, 't', 'text/plain', convert_to(n::text, 'UTF8') FROM generate_series(1, 2) AS n`, outbox.RootTenant)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 1)`)
	var sink recorder
	stop := start(t, db, &sink, nil)
	awaitAll(t, db, &sink, 1, []string{"1", "2"})
	stop()
	if _, err := operator.New(db).SeekSink(t.Context(), "s", operator.SinkTarget{Position: new(int64(1))}); err != nil {
		t.Error(err)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.sinks JOIN outbox.events ON events.id = top_id`); n != 1 {
		t.Error("the sink does not know its event again")
	}
}

// A position is behind the sink only once all that is at it is done.
func TestAPositionIsDoneWithAllItsEvents(t *testing.T) {
	t.Parallel()
	db := database(t)
	want := pairs(t, db, 20)
	var sink recorder
	sink.goOn(true)
	var mu sync.Mutex
	tried := map[string]bool{}
	sink.set(func(m relay.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if body := string(m.Body); strings.HasSuffix(body, "1") && !tried[body] {
			tried[body] = true
			return &relay.UnavailableError{Code: relay.CodeFull, Err: errors.New("not now")}
		}
		return nil
	}, nil)
	start(t, db, &sink, func(c *relay.Config) { c.SetOutage(time.Millisecond, time.Millisecond) })
	waitFor(t, func() bool {
		return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 20 && ask[string](t, db, `SELECT holes::text FROM outbox.sinks`) == "{}"
	},
		func() string { return "the cursor is stored" })
	got := slices.Compact(slices.Sorted(slices.Values(sink.bodies())))
	if !slices.Equal(got, want) {
		t.Errorf("%q were published, want %q", got, want)
	}
}

// What comes to holes is cut between two positions, and so is what is published again.
func TestPagesOfHolesAndReplaysEndBetweenPositions(t *testing.T) {
	t.Parallel()
	db := database(t)
	want := pairs(t, db, 600)
	declared(t, db, false)
	exec(t, db, `UPDATE outbox.sinks SET top = 600, holes = '{[1,601)}', timeline = outbox.timeline()`)
	var sink recorder
	start(t, db, &sink, nil)
	waitFor(t, func() bool { return ask[string](t, db, `SELECT holes::text FROM outbox.sinks`) == "{}" }, func() string { return "the cursor is stored" })
	awaitAll(t, db, &sink, 600, want)
	r := startReplay(t, db, operator.EventReplay{})
	awaitReplay(t, db, r)
	again := bodiesOf(sink.replayed())
	slices.Sort(again)
	if !slices.Equal(again, want) {
		t.Errorf("%d messages were published again, want %d", len(again), len(want))
	}
}

// The server writes the function into the statements that call it. If it called it, it would parse and plan it anew
// each time that a relay reads.
func TestTheTimelineIsWrittenIntoStatements(t *testing.T) {
	t.Parallel()
	db := database(t)
	plan := ask[string](t, db, `EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) SELECT outbox.timeline()`)
	if !strings.Contains(plan, "pg_control_system") || strings.Contains(plan, "timeline()") {
		t.Errorf("the plan of a statement that asks for the timeline is %s, want what the function says", plan)
	}
	got := ask[string](t, db, `SELECT outbox.timeline()`)
	want := ask[string](t, db, `SELECT system_identifier || '/' || lpad(upper(to_hex(timeline_id)), 8, '0') FROM pg_control_system(), pg_control_checkpoint()`)
	if got != want {
		t.Errorf("the timeline is %s, want %s", got, want)
	}
}

// Two transactions take positions in turn, and one of them has yet to end:
//
//	position    1      2       3      4       5      6       7      8  …
//	            open   commits open   commits open   commits open   commits
//	in memory   hole           hole           hole           hole
//	stored      [              ]              [              ]
//
// As many holes are stored as may be. The next owner publishes some events again, and none is missing.
func TestStoredHolesAreLimited(t *testing.T) {
	relay.LimitStored(t, 10)
	db := database(t)
	open, other := begin(t, db), begin(t, db)
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
		publish(t, open, "t", "open", want[i])
		publish(t, other, "t", "other", want[i])
	}
	end(t, other.Commit)
	sink := &picky{refuses: takesAll}
	stop := start(t, db, sink, nil)
	sink.awaitKey(t, "other", want...)
	stop()
	if top := ask[int](t, db, `SELECT top FROM outbox.sinks`); top != 40 {
		t.Fatalf("the sink has come to %d, want 40", top)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.sinks, unnest(holes)`); n != 10 {
		t.Errorf("%d holes are stored, want 10", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.sinks, generate_series(1, 40, 2) AS open WHERE holes @> open::bigint`); n != 20 {
		t.Errorf("%d of 20 open positions are at a hole", n)
	}
	start(t, db, sink, nil)
	waitFor(t, func() bool { return len(sink.messages()) == 30 }, func() string { return "what is inside of a hole is published again" })
	end(t, open.Commit)
	sink.awaitKey(t, "open", want...)
	sink.awaitKey(t, "other", want...)
}
