package relay_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// publishAs stores one event of a tenant.
func publishAs(t *testing.T, db outbox.DB, tenant byte, key, body string) {
	t.Helper()
	args := outbox.Raw{KindName: "order.paid", Payload: []byte(body)}
	if _, err := outbox.Publish(t.Context(), db, args, outbox.EventOptions{Tenant: outbox.ID{0: tenant}, Key: key}); err != nil {
		t.Fatal(err)
	}
}

// Of two new sinks, the one that begins with the oldest event gets all events, and the one that begins now those that
// are committed from then on: also those of a transaction that has stored its event before, in the order of the key.
// Both miss nothing while no relay runs, and what the configuration says then has no effect.
//
//	committed    1  2     4
//	open               3            committed
//	now                      begins
//	committed                    5                6
func TestASinkBeginsWhereItsConfigurationSays(t *testing.T) {
	t.Parallel()
	db := database(t)
	publishAs(t, db, 0, "k", `"1"`)
	publishAs(t, db, 7, "k", `"2"`)
	open := begin(t, db)
	publishAs(t, open, 7, "k", `"3"`)
	publishAs(t, db, 7, "", `"4"`)
	run := func(all, later relay.Begin) (got, gotLater *recorder, stop func()) {
		got, gotLater = new(recorder), new(recorder)
		stop = start(t, db, got, func(c *relay.Config) {
			c.Sinks[0].Begin = all
			c.Sinks = append(c.Sinks, relay.SinkConfig{Name: "later", Sink: gotLater, Routes: c.Sinks[0].Routes, Begin: later})
		})
		return got, gotLater, stop
	}
	all, later, stop := run("", relay.BeginNow)
	publishAs(t, db, 0, "k", `"5"`)
	all.await(t, `"1"`, `"2"`, `"4"`, `"5"`)
	later.await(t, `"5"`)
	end(t, open.Commit)
	publishAs(t, db, 7, "k", `"6"`)
	all.await(t, `"1"`, `"2"`, `"4"`, `"5"`, `"3"`, `"6"`)
	later.await(t, `"5"`, `"3"`, `"6"`)
	stop()

	publishAs(t, db, 0, "", `"7"`)
	publishAs(t, db, 7, "k", `"8"`)
	all, later, _ = run(relay.BeginNow, relay.BeginNow)
	all.await(t, `"7"`, `"8"`)
	later.await(t, `"7"`, `"8"`)
}

// In a log that has never had an event, to begin now skips nothing, and is not taken for a failover.
func TestASinkBeginsInAnEmptyLog(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	var logged said
	start(t, db, &sink, func(c *relay.Config) { c.Sinks[0].Begin, c.Logger = relay.BeginNow, logged.logger(t) })
	waitFor(t, func() bool { return logged.has("sink owned") }, func() string { return "the sink is owned" })
	if s, err := operator.New(db).Sink(t.Context(), "s"); err != nil || s.Lag != 0 || logged.has("rewound") {
		t.Errorf("the sink is %+v, %v, want no lag and no rewind", s, err)
	}
	publish(t, db, "order.paid", "k", "1", "2")
	sink.await(t, "1", "2")
}

// A sink whose row an operator has removed while a relay has it in its configuration is a new one: it begins now again.
func TestARemovedSinkBeginsAnew(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	publish(t, db, "order.paid", "k", "1")
	start(t, db, &sink, func(c *relay.Config) { c.Sinks[0].Begin = relay.BeginNow })
	publish(t, db, "order.paid", "k", "2")
	sink.await(t, "2")
	exec(t, db, `DELETE FROM outbox.sinks`)
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.sinks`) == 1 }, func() string { return "it is declared again" })
	publish(t, db, "order.paid", "k", "3")
	sink.await(t, "2", "3")
}

// A sink that begins now is where one is that an operator has moved to the end, and stays there after a failover.
func TestToBeginNowIsToMoveToTheEnd(t *testing.T) {
	t.Parallel()
	db := database(t)
	open := begin(t, db)
	publish(t, open, "order.paid", "k", "too old")
	exec(t, db, `SELECT setval('outbox.events_position_seq', 20000)`)
	publish(t, open, "order.paid", "k", "later")
	publish(t, db, "order.paid", "k", "seen")
	at := func() string {
		return ask[string](t, db, `SELECT format('%s %s %s %s %s', top, top_id, rewind_top, mark_top, holes) FROM outbox.sinks`)
	}
	if top := declared(t, db, false); top != 0 {
		t.Errorf("with the oldest event it begins after %d, want 0", top)
	}
	if _, err := operator.New(db).SeekSink(t.Context(), "s", operator.SinkTarget{End: true}); err != nil {
		t.Fatal(err)
	}
	moved := at()
	exec(t, db, `DELETE FROM outbox.sinks`)
	if top := declared(t, db, true); top != 20002 {
		t.Errorf("now it begins after %d, want 20002", top)
	}
	seen := ask[string](t, db, `SELECT id::text FROM outbox.events`)
	if want := fmt.Sprintf("20002 %s 20002 20002 {[10003,20002)}", seen); at() != want || moved != want {
		t.Errorf("now it begins at %s, and moved to the end it is at %s, want %s", at(), moved, want)
	}
	exec(t, db, `UPDATE outbox.sinks SET timeline = '1/00000001', top_id = gen_random_uuid()`)
	if row := owned(t, db); row.Top != 20002 || row.Was != 20002 {
		t.Errorf("after a failover it goes back from %d to %d, want it to stay at 20002", row.Was, row.Top)
	}
}

// Of two processes that start at the same time, one creates the sink, and the other one leaves it as it is.
//
//	first     creates after 1                     commits
//	second                       finds no sink             creates none
func TestASinkIsCreatedOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "order.paid", "k", "1")
	first := begin(t, db)
	if tops, err := sqlgen.New(first).DeclareSink(t.Context(), "s", true); err != nil || !slices.Equal(tops, []int64{1}) {
		t.Fatalf("the first one creates a sink after %d, %v, want after 1", tops, err)
	}
	publish(t, db, "order.paid", "k", "2")
	second := make(chan string)
	go func() {
		tops, err := sqlgen.New(db).DeclareSink(t.Context(), "s", true)
		second <- fmt.Sprint(tops, err)
	}()
	waitFor(t, func() bool {
		return ask[int](t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, func() string { return "the second one waits" })
	end(t, first.Commit)
	if got := <-second; got != "[] <nil>" {
		t.Errorf("the second one creates %s, want none", got)
	}
	if top := ask[int](t, db, `SELECT top FROM outbox.sinks`); top != 1 {
		t.Errorf("the sink is at %d, want 1", top)
	}
}

func TestWhereASinkBeginsIsChecked(t *testing.T) {
	t.Parallel()
	for begin, want := range map[relay.Begin]string{
		"": "", relay.BeginOldest: "", relay.BeginNow: "",
		"end": `relay: sink "s": Begin is "end", want oldest or now`,
	} {
		_, err := relay.New((*pgxpool.Pool)(nil), relay.Config{Sinks: []relay.SinkConfig{{
			Name: "s", Sink: &recorder{}, Routes: []relay.Route{{Topics: []string{"*"}}}, Begin: begin,
		}}})
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("%q: %v, want %s", begin, err, want)
		}
	}
}
