package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// takesNothing answers messages to destinations whose names begin with gone.
func takesNothing(code string) func(relay.Message) error {
	return func(m relay.Message) error {
		if strings.HasPrefix(m.Destination, "gone") {
			return &relay.UnavailableError{Code: code, Err: errors.New("it takes nothing")}
		}
		return nil
	}
}

// A destination that accepts nothing holds up its own messages, and those behind them of the same keys, but no others;
// nothing becomes a job, and all come in their order once it accepts them. It does not matter whether the sink tries
// the rest of a batch after one that was not accepted, and whether its owner changes.
func TestADestinationThatIsAwayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, code := range []string{relay.CodeNoDestination, relay.CodeFull, relay.CodeNoLeader} {
		for name, stops := range map[string]bool{code: false, code + " breaks the batch off": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holdsUpNoOther(t, code, stops)
			})
		}
	}
}

func holdsUpNoOther(t *testing.T, code string, stops bool) {
	db := database(t)
	sink := &picky{refuses: takesNothing(code), stops: stops}
	var log said
	quick := func(c *relay.Config) {
		c.Logger = log.logger(t)
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
	}
	// More than a page for the one that is away.
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone', 'text/plain', 'x' FROM generate_series(1, 2500)`, outbox.RootTenant)
	publish(t, db, "gone", "k", "1", "2")
	publish(t, db, "there", "k", "3")
	publish(t, db, "there", "other", "4")
	tenant := outbox.NewID()
	for _, topic := range []string{"gone", "there"} {
		if _, err := outbox.Publish(t.Context(), db, outbox.Raw{KindName: topic, Payload: []byte(topic), ContentType: "text/plain"},
			outbox.EventOptions{Tenant: tenant, Key: topic}); err != nil {
			t.Fatal(err)
		}
	}
	stop := start(t, db, sink, quick)
	sink.awaitKey(t, "other", "4")
	sink.awaitKey(t, "there", "there")
	away := func(want string) {
		t.Helper()
		waitFor(t, func() bool { return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == want },
			func() string { return "the sink shows the code " + want })
	}
	away(code)
	if why := ask[string](t, db, `SELECT away_message FROM outbox.sinks`); !strings.HasPrefix(why, "destination gone accepts nothing: ") {
		t.Errorf("the sink says %q, and not which destination accepts nothing", why)
	}
	if n := len(sink.ofKey("k")); n != 0 {
		t.Fatalf("%d messages of the key that waits are published", n)
	}
	waitFor(t, func() bool {
		return ask[int](t, db, `SELECT coalesce(sum(upper(h) - lower(h)), 0) FROM outbox.sinks, unnest(holes) AS h`) == 2504
	}, func() string { return "the cursor has holes where messages wait" })

	stop()
	publish(t, db, "there", "other", "5")
	start(t, db, sink, quick)
	sink.awaitKey(t, "other", "4", "5")
	away(code)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Errorf("%d messages are jobs, want none", n)
	}

	sink.now(takesAll)
	sink.awaitKey(t, "k", "1", "2", "3")
	sink.awaitKey(t, "gone", "gone")
	waitFor(t, func() bool { return ask[string](t, db, `SELECT holes::text FROM outbox.sinks`) == "{}" },
		func() string { return "nothing waits" })
	away("")
	if n := len(sink.messages()); n != 2500+3+2+2 {
		t.Errorf("%d messages are published, want each of %d once", n, 2500+3+2+2)
	}
	for _, line := range []string{"destination accepts nothing", "destination accepts messages again"} {
		if log.count(line) == 0 {
			t.Errorf("the log has no line %q", line)
		}
	}
}

// More messages wait for a destination than holes of open transactions are remembered: they are not taken for these,
// which would hide since when the destination accepts nothing.
func TestWhatWaitsIsNotTakenForOpenTransactions(t *testing.T) {
	t.Parallel()
	db := database(t)
	var log said
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, CASE i % 2 WHEN 0 THEN 'gone' ELSE 'there' END, 'text/plain', 'x'
		FROM generate_series(1, 5000) AS i`, outbox.RootTenant)
	start(t, db, &picky{refuses: takesNothing(relay.CodeFull)}, func(c *relay.Config) {
		c.Logger = log.logger(t)
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
	})
	waitFor(t, func() bool {
		return ask[int](t, db, `SELECT coalesce(sum(upper(h) - lower(h)), 0) FROM outbox.sinks, unnest(holes) AS h`) == 2500
	}, func() string { return "the cursor has holes where messages wait" })
	twoBeats(t, db)
	twoBeats(t, db)
	if log.has("sink waits") {
		t.Error("messages that wait are taken for open transactions")
	}
}

// gaps stores events of a topic, each behind a position without one.
func gaps(t *testing.T, db *pgxpool.Pool, topic string, n int) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.events (position, id, tenant_id, topic, content_type, payload)
		SELECT 0 * nextval('outbox.events_position_seq') + nextval('outbox.events_position_seq'), gen_random_uuid(), $1, $2,
			'text/plain', 'x'
		FROM generate_series(1, $3::int)`, outbox.RootTenant, topic, n)
}

// Messages wait for a destination beside more holes of open transactions than are remembered. The sink shows since when
// it waits for these, through all rounds, and afterwards since when the destination accepts nothing.
func TestASinkWaitsForTransactionsThroughRounds(t *testing.T) {
	t.Parallel()
	db := database(t)
	open := begin(t, db)
	if _, err := open.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	publish(t, db, "gone", "k", "1", "2")
	gaps(t, db, "there", 1_100)
	sink := &picky{refuses: takesNothing(relay.CodeFull)}
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 20*time.Millisecond) })
	shows := func(code string, seconds int) {
		t.Helper()
		waitFor(t, func() bool {
			return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == code
		}, func() string { return fmt.Sprintf("the sink shows the code %q", code) })
		for range 10 * seconds {
			time.Sleep(100 * time.Millisecond)
			if got := ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`); got != code {
				t.Fatalf("the sink shows the code %q, want %q", got, code)
			}
		}
		if since := ask[float64](t, db, `SELECT coalesce(extract(epoch FROM clock_timestamp() - away_since), 0)
			FROM outbox.sinks`); since < float64(seconds) {
			t.Errorf("the sink shows %s for %.1f s, and has for %d s", code, since, seconds)
		}
	}
	shows(relay.CodeHoles, 2)
	exec(t, db, `UPDATE outbox.sinks SET paused_at = now()`)
	shows(relay.CodeFull, 1) // a paused sink waits for no transaction
	exec(t, db, `UPDATE outbox.sinks SET paused_at = NULL`)
	shows(relay.CodeHoles, 0)
	end(t, open.Commit)
	shows(relay.CodeFull, 2)
	sink.now(takesAll)
	sink.awaitKey(t, "k", "1", "2")
	shows("", 0)
	if n := len(sink.messages()); n != 1_102 {
		t.Errorf("%d messages are published, want each of 1,102 once", n)
	}
}

// Messages that wait are no holes of open transactions: with as many of both as may be, newer events come in each
// round, however short it is.
func TestWhatWaitsLeavesRoomForHoles(t *testing.T) {
	t.Parallel()
	db := database(t)
	open := begin(t, db)
	if _, err := open.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	gaps(t, db, "gone", 900)
	sink := &picky{refuses: takesNothing(relay.CodeFull)}
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 20*time.Millisecond) })
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 1_800 },
		func() string { return "the messages wait" })
	for range 5 {
		exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
			VALUES (gen_random_uuid(), $1, 'there', 'other', 'text/plain', '1')`, outbox.RootTenant) // wakes nobody
		was := len(sink.messages())
		began := time.Now()
		waitFor(t, func() bool { return len(sink.messages()) > was }, func() string { return "a newer message is published" })
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a newer message took %v", took)
		}
	}
}

// A queue that is nearly full accepts a few messages at each attempt. The others of its sink do not come at its pace.
func TestAQueueThatIsNearlyFullHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := database(t)
	accepts := 0
	sink := &picky{}
	sink.refuses = func(m relay.Message) error {
		if m.Destination == "gone" {
			if accepts++; accepts%3 == 0 {
				return takesNothing(relay.CodeFull)(m)
			}
		}
		return nil
	}
	var full []string
	for i := range 30 {
		full = append(full, fmt.Sprint(i))
	}
	publish(t, db, "gone", "k", full...)
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(200*time.Millisecond, 300*time.Millisecond) })
	sink.awaitKey(t, "other", "4")
	if n := len(sink.ofKey("k")); n > 15 {
		t.Errorf("%d messages of 30 were published to the full queue before that", n)
	}
	sink.awaitKey(t, "k", full...)
}

// So many messages wait for a queue that is nearly full that they cannot be read again in the time of a round: newer
// ones for other destinations are published nevertheless.
func TestARoundComesToNewerMessages(t *testing.T) {
	t.Parallel()
	db := database(t)
	accepts := 0
	sink := &picky{}
	sink.refuses = func(m relay.Message) error {
		if m.Destination == "gone" {
			if accepts++; accepts%3 == 0 {
				return takesNothing(relay.CodeFull)(m)
			}
		}
		return nil
	}
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone', 'k', 'text/plain', 'x' FROM generate_series(1, 6000)`, outbox.RootTenant)
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 20*time.Millisecond) })
	sink.awaitKey(t, "other", "4")
	for _, body := range []string{"5", "6", "7"} {
		publish(t, db, "there", "l", body)
		was := len(sink.ofKey("k"))
		waitFor(t, func() bool { return slices.Contains(sink.ofKey("l"), body) }, func() string { return "a newer message is published" })
		if n := len(sink.ofKey("k")) - was; n > 100 {
			t.Errorf("%d messages were published to the full queue before a newer one", n)
		}
	}
}

// So many messages wait for a destination that no more may: the sink stands still, says so by a code of its own, and
// tries again.
func TestTooManyMessagesWait(t *testing.T) {
	t.Run("messages", func(t *testing.T) { tooManyWait(t, 10, 0) })
	t.Run("bytes", func(t *testing.T) { tooManyWait(t, 0, 20) })
}

func tooManyWait(t *testing.T, messages, bytes int) {
	relay.LimitWaiting(t, messages, bytes)
	db := database(t)
	sink := &picky{refuses: takesNothing(relay.CodeFull)}
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone', 'text/plain', convert_to(i::text, 'UTF8') FROM generate_series(10, 30) AS i`, outbox.RootTenant)
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	waitFor(t, func() bool {
		return strings.HasPrefix(ask[string](t, db, `SELECT coalesce(max(away_message), '') FROM outbox.sinks WHERE away_code = 'relay_waiting'`), `10 messages with 20 bytes wait, and more may not: destination gone accepts nothing`)
	}, func() string { return "the sink says how many wait" })
	twoBeats(t, db)
	if n := len(sink.messages()); n > 1 {
		t.Errorf("%d messages are published", n)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "other", "4")
	waitFor(t, func() bool { return ask[string](t, db, `SELECT holes::text FROM outbox.sinks`) == "{}" }, func() string { return "nothing waits" })
	got := sink.ofKey("")
	if !slices.IsSorted(got) || len(got) != 21 {
		t.Errorf("these are published: %q, want 21 in their order", got)
	}
}

// While the sink stands still because too many messages wait, it publishes nothing newer, even if that is in the page
// of the first message that may not wait: there would be more and more holes.
func TestNothingNewerIsPublishedWhileTooManyWait(t *testing.T) {
	relay.LimitWaiting(t, 1500, 0)
	db := database(t)
	sink := &picky{refuses: takesNothing(relay.CodeFull)}
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone', 'text/plain', 'x' FROM generate_series(1, 1600)`, outbox.RootTenant)
	publish(t, db, "there", "other", "1", "2")
	reg := prometheus.NewRegistry()
	start(t, db, sink, func(c *relay.Config) {
		c.Registerer = reg
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
	})
	code := func() string { return ask[string](t, db, `SELECT coalesce(max(away_code), '') FROM outbox.sinks`) }
	waitFor(t, func() bool { return code() == relay.CodeWaiting }, func() string { return "the sink stands still" })
	publish(t, db, "there", "other", "3")
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until) && !t.Failed(); time.Sleep(time.Millisecond) {
		if code, n := code(), gauge(t, reg, "outbox_relay_waiting_messages"); code != relay.CodeWaiting || n != 1500 {
			t.Errorf("while it reads again what waits, the sink has the code %q, and says that %v messages wait", code, n)
		}
	}
	if n := len(sink.messages()); n > 0 {
		t.Errorf("%d messages are published", n)
	}
	if top := ask[int](t, db, `SELECT top FROM outbox.sinks`); top != 1500 {
		t.Errorf("the sink has come to %d, want 1500", top)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "other", "1", "2", "3")
	waitFor(t, func() bool { return code() == "" && gauge(t, reg, "outbox_relay_waiting_messages") == 0 },
		func() string { return "nothing waits" })
}

// A message without an answer is met while as many messages wait as may: the search for another one does not keep the
// round from its end, and the sink notices that the destination accepts messages again.
func TestASearchEndsWhenTooManyWait(t *testing.T) {
	relay.LimitWaiting(t, 10, 0)
	db := database(t)
	full := func(m relay.Message) error {
		if bad(m) {
			return noAnswer(m)
		}
		return takesNothing(relay.CodeFull)(m)
	}
	sink := &picky{stops: true, refuses: full}
	gone := func(n int) {
		exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
			SELECT gen_random_uuid(), $1, 'gone', 'text/plain', 'x' FROM generate_series(1, $2::int)`, outbox.RootTenant, n)
	}
	code := func(want string) {
		t.Helper()
		waitFor(t, func() bool {
			return ask[string](t, db, `SELECT coalesce(max(away_code), '') FROM outbox.sinks`) == want
		},
			func() string { return "the sink shows the code " + want })
	}
	gone(8)
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	code(relay.CodeFull)
	publish(t, db, "there", "a", "bad")
	code(relay.CodeUnanswered)
	gone(20)
	publish(t, db, "there", "other", "1")
	code(relay.CodeWaiting)
	sink.now(func(m relay.Message) error {
		if bad(m) {
			return noAnswer(m)
		}
		return nil
	})
	sink.awaitKey(t, "other", "1")
	waitFor(t, func() bool { return len(sink.messages()) == 29 }, func() string { return "all but one are published" })
}

// The messages that wait fill a page, and nothing follows: they are tried again nevertheless.
func TestAFullPageWaitsAtTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: takesNothing(relay.CodeFull)}
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone', 'k', 'text/plain', 'x' FROM generate_series(1, 1000)`, outbox.RootTenant)
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 1000 }, func() string { return "the messages wait" })
	time.Sleep(time.Second)
	sink.now(takesAll)
	waitFor(t, func() bool { return len(sink.messages()) == 1000 }, func() string { return "they are published" })
}

// A broker that cannot be reached meets a destination that is away: the sink goes on with the others when the broker
// is back, although the first message cannot be published.
func TestABrokerComesBackWithoutADestination(t *testing.T) {
	t.Parallel()
	db := database(t)
	var down atomic.Bool
	down.Store(true)
	sink := &picky{refuses: func(m relay.Message) error {
		if down.Load() {
			return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("no connection")}
		}
		return takesNothing(relay.CodeNoDestination)(m)
	}}
	publish(t, db, "gone", "k", "1")
	publish(t, db, "there", "other", "2")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	waitFor(t, func() bool {
		return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == relay.CodeUnavailable
	},
		func() string { return "the sink is stopped" })
	down.Store(false)
	sink.awaitKey(t, "other", "2")
	sink.now(takesAll)
	sink.awaitKey(t, "k", "1")
}

// A message that breaks the broker is found although others wait for a destination: it is refused, and the sink goes
// on.
func TestAMessageThatBreaksTheBrokerIsFoundBesideAnOutage(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: func(m relay.Message) error {
		if bad(m) {
			return errors.New("connection reset")
		}
		return takesNothing(relay.CodeFull)(m)
	}}
	publish(t, db, "gone", "k", "1", "2")
	publish(t, db, "there", "a", "1", "bad", "3")
	publish(t, db, "there", "b", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	sink.awaitKey(t, "b", "4")
	time.Sleep(2 * time.Second)
	publish(t, db, "there", "b", "5")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2 },
		func() string { return "the message and the one behind it are held" })
	publish(t, db, "there", "b", "6")
	sink.awaitKey(t, "b", "4", "5", "6")
	if n := len(sink.ofKey("k")); n != 0 {
		t.Errorf("%d messages of the full destination are published", n)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "k", "1", "2")
}

// That a destination was full for more than an hour does not count when it is missing for a moment.
func TestADestinationThatWasFullIsNotMissingForAnHour(t *testing.T) {
	t.Parallel()
	db := database(t)
	var ahead atomic.Int64
	sink := &picky{refuses: takesNothing(relay.CodeFull)}
	publish(t, db, "gone", "k", "1")
	start(t, db, sink, func(c *relay.Config) {
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		c.SetClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	})
	code := func(want string) {
		t.Helper()
		waitFor(t, func() bool { return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == want },
			func() string { return "the sink shows the code " + want })
	}
	code(relay.CodeFull)
	ahead.Store(int64(2 * time.Hour))
	sink.now(takesNothing(relay.CodeNoDestination))
	code(relay.CodeNoDestination)
	twoBeats(t, db)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Errorf("%d messages are refused", n)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "k", "1")
}

// noAnswer leaves messages to destinations whose names begin with gone, and bad ones, without an answer.
func noAnswer(m relay.Message) error {
	if strings.HasPrefix(m.Destination, "gone") || bad(m) {
		return errors.New("no answer in time")
	}
	return nil
}

// A destination that does not answer holds up its own messages and no others: nothing becomes a job. It does not matter
// whether it leaves the rest of a batch unknown.
func TestASilentDestinationHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("breaks the batch off %t", stops), func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &picky{refuses: noAnswer, stops: stops}
			publish(t, db, "gone", "k", "1", "2")
			publish(t, db, "gone", "l", "1", "2")
			publish(t, db, "there", "k", "3")
			publish(t, db, "there", "other", "4")
			quick := func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) }
			start(t, db, sink, quick)
			sink.awaitKey(t, "other", "4")
			keepPublishing(t, db, "there", "c")
			waitFor(t, func() bool {
				return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == relay.CodeSilent
			}, func() string { return "the sink shows that a destination is silent" })
			time.Sleep(time.Second)
			publish(t, db, "there", "other", "5")
			sink.awaitKey(t, "other", "4", "5")
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
				t.Errorf("%d messages are held because their destination is silent", n)
			}
			if n := len(sink.ofKey("k")) + len(sink.ofKey("l")); n != 0 {
				t.Errorf("%d messages are published that wait", n)
			}
			sink.now(takesAll)
			sink.awaitKey(t, "k", "1", "2", "3")
			sink.awaitKey(t, "l", "1", "2")
			waitFor(t, func() bool {
				return ask[bool](t, db, `SELECT holes::text = '{}' AND away_code IS NULL FROM outbox.sinks`)
			}, func() string { return "nothing waits" })
			if n := ask[int](t, db, `SELECT (SELECT count(*) FROM outbox.jobs) + (SELECT count(*) FROM outbox.history)`); n != 0 {
				t.Errorf("%d jobs were made", n)
			}
		})
	}
}

// While a destination is silent, a message to another one has its attempts nevertheless, before it is refused because
// others to its destination are accepted.
func TestAMessageHasItsAttemptsBesideASilentDestination(t *testing.T) {
	t.Parallel()
	db := database(t)
	tried := 0
	sink := &picky{}
	sink.refuses = func(m relay.Message) error {
		if string(m.Body) == "slow" {
			if tried++; tried < 4 {
				return errors.New("it answers 500")
			}
		}
		return noAnswer(m)
	}
	publish(t, db, "gone", "k", "1")
	keepPublishing(t, db, "here", "c")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	waitFor(t, func() bool {
		return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == relay.CodeSilent
	}, func() string { return "the sink shows that a destination is silent" })
	publish(t, db, "here", "l", "slow", "2")
	waitFor(t, func() bool {
		return len(sink.ofKey("l")) == 2 || ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) > 0
	}, func() string { return "the message is accepted or refused" })
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Errorf("%d messages are held; the first was sent %d times", n, tried)
	}
}

// Once a destination has refused the message that it did not answer, it is not silent any more: the next message
// without an answer has all its attempts before another is tried.
func TestADestinationThatRefusesIsNotSilent(t *testing.T) {
	t.Parallel()
	db := database(t)
	var tried atomic.Int64
	slow := func(m relay.Message) error {
		switch {
		case strings.HasPrefix(m.Destination, "gone"):
			return &relay.RefusedError{Code: relay.CodeRefused, Err: errors.New("it answers 400")}
		case bad(m):
			tried.Add(1)
		}
		return noAnswer(m)
	}
	sink := &picky{stops: true, refuses: noAnswer}
	publish(t, db, "gone", "k", "1")
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	sink.awaitKey(t, "other", "4")
	keepPublishing(t, db, "there", "c")
	code := func(want string) {
		t.Helper()
		waitFor(t, func() bool { return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == want },
			func() string { return fmt.Sprintf("the sink shows the code %q", want) })
	}
	code(relay.CodeSilent)
	sink.now(slow)
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 1 },
		func() string { return "the message is held" })
	code("")
	publish(t, db, "here", "l", "bad")
	code(relay.CodeSilent)
	if n := tried.Load(); n < 4 {
		t.Errorf("the message was sent %d times before its destination was silent, want 4 at the least", n)
	}
}

// A message that its destination does not answer is refused once the destination has accepted another, which may come
// later.
func TestAMessageThatBreaksItsDestinationIsRefused(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: noAnswer}
	publish(t, db, "here", "k", "bad", "2")
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	sink.awaitKey(t, "other", "4")
	keepPublishing(t, db, "there", "c")
	waitFor(t, func() bool {
		return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == relay.CodeSilent
	}, func() string { return "the sink shows that a destination is silent" })
	publish(t, db, "here", "l", "1", "2")
	sink.awaitKey(t, "l", "1", "2")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2 },
		func() string { return "the message and the one behind it are held" })
}

// An attempt of a refused message that has no answer counts only if its own destination accepts others.
func TestASilentDestinationSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	db := database(t)
	var refused atomic.Bool
	sink := &picky{refuses: func(m relay.Message) error {
		if bad(m) && !refused.Swap(true) {
			return &relay.RefusedError{Code: relay.CodeRefused, Err: errors.New("no")}
		}
		return noAnswer(m)
	}}
	publish(t, db, "here", "k", "bad")
	start(t, db, sink, nil)
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 1 },
		func() string { return "the message is held" })
	stop := keepPublishing(t, db, "there", "c")
	time.Sleep(3 * time.Second)
	stop()
	if spent := ask[int](t, db, `SELECT max(attempt) FROM outbox.jobs`); spent > 1 { // one may be in progress
		t.Errorf("%d attempts are spent while the destination accepts nothing", spent)
	}
	keepPublishing(t, db, "here", "d")
	deadLetters(t, db, 1)
}

// A message that breaks its destination, to which nothing goes but messages of its key, is refused after an hour, and
// becomes a dead letter another hour later. Nothing else can show that the destination is not silent.
func TestAMessageThatBreaksTheDestinationOfItsKeyIsRefused(t *testing.T) {
	t.Parallel()
	db := database(t)
	var ahead atomic.Int64
	sink := &picky{refuses: noAnswer}
	publish(t, db, "here", "k", "bad", "2")
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) {
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		c.SetClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	})
	sink.awaitKey(t, "other", "4")
	keepPublishing(t, db, "there", "c")
	waitFor(t, func() bool {
		return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == relay.CodeSilent
	}, func() string { return "the sink shows that a destination is silent" })
	twoBeats(t, db)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Fatalf("%d messages are held at once", n)
	}
	ahead.Store(int64(61 * time.Minute))
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2 },
		func() string { return "the message and the one behind it are held" })
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT bool_or(unavailable_since IS NOT NULL) FROM outbox.jobs`) },
		func() string { return "the message is tried again" })
	if spent := ask[int](t, db, `SELECT max(attempt) FROM outbox.jobs`); spent > 1 { // one may be in progress
		t.Errorf("%d attempts are spent at once", spent)
	}
	ahead.Store(int64(122 * time.Minute))
	deadLetters(t, db, 1)
}

// A silent destination of several keys is silent for as long as it is: none of its messages is refused.
func TestASilentDestinationOfSeveralKeysMayStaySilent(t *testing.T) {
	t.Parallel()
	db := database(t)
	var ahead atomic.Int64
	var tried atomic.Int64
	sink := &picky{refuses: func(m relay.Message) error {
		if m.Key == "k" && ahead.Load() > 0 {
			tried.Add(1)
		}
		return noAnswer(m)
	}}
	publish(t, db, "gone", "k", "1")
	publish(t, db, "gone", "l", "1")
	publish(t, db, "there", "other", "4")
	start(t, db, sink, func(c *relay.Config) {
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		c.SetClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	})
	sink.awaitKey(t, "other", "4")
	keepPublishing(t, db, "there", "c")
	waitFor(t, func() bool {
		return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == relay.CodeSilent
	}, func() string { return "the sink shows that a destination is silent" })
	twoBeats(t, db)
	ahead.Store(int64(61 * time.Minute))
	waitFor(t, func() bool { return tried.Load() > 2 }, func() string { return "the first message is tried" })
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Errorf("%d messages are held because their destination is silent", n)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "k", "1")
	sink.awaitKey(t, "l", "1")
}

// Of several destinations that do not answer, a round waits for one, however many messages wait for them. They take
// turns.
func TestSeveralSilentDestinationsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	db := database(t)
	var mu sync.Mutex
	tried := map[string]int{}
	last, inARow := "", 0 // the destination tried last, if none has accepted since; how often another followed it
	sink := &picky{stops: true, refuses: func(m relay.Message) error {
		err := noAnswer(m)
		if err != nil {
			time.Sleep(600 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			last = ""
			return nil
		case last != "" && last != m.Destination:
			inARow++
		}
		last = m.Destination
		tried[m.Destination]++
		return err
	}}
	waiting := func(n int) {
		t.Helper()
		waitFor(t, func() bool {
			return ask[int](t, db, `SELECT count(*) FROM outbox.events e JOIN outbox.sinks ON e.position <@ holes
				WHERE topic LIKE 'gone%'`) == n
		}, func() string { return fmt.Sprintf("%d messages wait", n) })
	}
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(300*time.Millisecond, 300*time.Millisecond) })
	keepPublishing(t, db, "there", "c")
	for n, topic := range []string{"gone a", "gone b", "gone c"} {
		publish(t, db, topic, topic, "1")
		waiting(n + 1)
	}
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone ' || substr('abc', 1 + i % 3, 1), 'text/plain', 'x'
		FROM generate_series(1, 6000) AS i`, outbox.RootTenant)
	waiting(6003)
	mu.Lock()
	clear(tried)
	inARow = 0
	mu.Unlock()
	for i := range 10 {
		publish(t, db, "there", "other", fmt.Sprint(i))
		began := time.Now()
		sink.awaitKey(t, "other", strings.Split("0123456789", "")[:i+1]...)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a message to another destination took %v", took)
		}
	}
	waitFor(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return tried["gone a"] > 1 && tried["gone b"] > 1 && tried["gone c"] > 1
	}, func() string { return "each of them is tried" })
	mu.Lock()
	if all := tried["gone a"] + tried["gone b"] + tried["gone c"]; inARow > all/3 {
		t.Errorf("of %d trials, %d followed that of another destination at once", all, inARow)
	}
	mu.Unlock()
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Errorf("%d messages are held because their destinations are silent", n)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "gone a", "1")
	sink.awaitKey(t, "gone b", "1")
	sink.awaitKey(t, "gone c", "1")
	waiting(0)
}

// divided is a sink with topics in two partitions: keys that begin with gone are in one, all others in the other.
type divided struct{ picky }

func (*divided) Part(m relay.Message) string {
	if strings.HasPrefix(m.Key, "gone") {
		return "0"
	}
	return "1"
}

// A partition without a leader holds up its own keys, and no others of its topic; one message shows in each round
// whether it has one again.
func TestAPartitionWithoutALeaderHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &divided{}
	var tried atomic.Int64
	sink.refuses = func(m relay.Message) error {
		if sink.Part(m) == "0" {
			tried.Add(1)
			return &relay.UnavailableError{Code: relay.CodeNoLeader, Err: errors.New("no leader")}
		}
		return nil
	}
	for i := range 50 {
		publish(t, db, "t", fmt.Sprintf("gone %d", i), "1", "2")
	}
	publish(t, db, "t", "other", "4")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(time.Second, time.Second) })
	sink.awaitKey(t, "other", "4")
	time.Sleep(1500 * time.Millisecond)
	publish(t, db, "t", "other", "5")
	sink.awaitKey(t, "other", "4", "5")
	if n := tried.Load(); n > 60 {
		t.Errorf("%d messages were sent to the partition in a few rounds", n)
	}
	sink.now(takesAll)
	sink.awaitKey(t, "gone 0", "1", "2")
	sink.awaitKey(t, "gone 49", "1", "2")
}

// Two events share a position, as after a copy of the log without its sequences. One waits for its destination, and the
// other one is left because it was unknown: the log is read on after both, and a later message of the other's key does
// not overtake it.
func TestAMessageBesideOneThatWaitsIsNotOvertaken(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, `INSERT INTO outbox.events (position, id, tenant_id, topic, key, content_type, payload)
		SELECT position, gen_random_uuid(), $1, topic, key, 'text/plain', body::bytea
		FROM (VALUES (7, 'gone', 'a', 'A'), (7, 'there', 'b', 'B1'), (8, 'there', 'b', 'B2')) AS e (position, topic, key, body)`,
		outbox.RootTenant)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 8)`)
	unknown := true
	sink := &picky{refuses: func(m relay.Message) error {
		if string(m.Body) == "B1" && unknown {
			unknown = false
			return errors.New("connection reset")
		}
		return takesNothing(relay.CodeNoDestination)(m)
	}}
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	sink.awaitKey(t, "b", "B1", "B2")
	sink.now(takesAll)
	sink.awaitKey(t, "a", "A")
}

// A destination may have a secret in its query. A destination that accepts nothing is shown and stored without it.
func TestASecretInADestinationIsNotShown(t *testing.T) {
	t.Parallel()
	for code, refuses := range map[string]func(relay.Message) error{
		relay.CodeNoDestination: takesNothing(relay.CodeNoDestination), relay.CodeSilent: noAnswer,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &picky{refuses: refuses}
			var log said
			publish(t, db, "gone", "k", "1")
			publish(t, db, "there", "other", "4")
			start(t, db, sink, func(c *relay.Config) {
				c.Logger = log.logger(t)
				c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
				c.Sinks[0].Routes[0].Destination = "{topic}?token=s3cret"
			})
			sink.awaitKey(t, "other", "4")
			keepPublishing(t, db, "there", "c")
			waitFor(t, func() bool {
				return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) == code
			}, func() string { return "the sink shows that a destination accepts nothing" })
			twoBeats(t, db)
			if row := ask[string](t, db, `SELECT to_json(sinks)::text FROM outbox.sinks`); strings.Contains(row, "s3cret") ||
				!strings.Contains(row, " gone") {
				t.Errorf("the sink's row has the secret, or not the destination: %s", row)
			}
			sink.now(takesAll)
			waitFor(t, func() bool { return log.has("destination accepts messages again") },
				func() string { return "the log says that the destination accepts messages" })
			if log.has("s3cret") {
				t.Error("the log has the secret")
			}
		})
	}
}
