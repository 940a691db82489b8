package relay_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/relay"
)

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
	end(t, func(ctx context.Context) error { return q.DeclareSink(ctx, "s") })
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
		c.SetBeat(time.Minute)
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
