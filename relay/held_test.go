package relay_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
	"github.com/posthaste-dev/posthaste/relay"
)

// picky is a sink as brokers are: it refuses some messages, and publishes the others of a batch
// but for those of their keys.
type picky struct {
	recorder
	refuses func(relay.Message) error // nil accepts; it is called with the lock
	stops   bool                      // after the first refusal the rest of a batch is not tried
}

func (p *picky) Publish(_ context.Context, batch []relay.Message) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	outcomes := make([]error, len(batch))
	failed := map[string]bool{}
	stopped := false
	for i, m := range batch {
		if stopped || m.Key != "" && failed[m.Key] {
			outcomes[i] = relay.ErrNotTried
			continue
		}
		if outcomes[i] = p.refuses(m); outcomes[i] != nil {
			failed[m.Key], stopped = true, p.stops
			continue
		}
		p.got = append(p.got, m)
	}
	return outcomes
}

func (p *picky) now(refuses func(relay.Message) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuses
}

func takesAll(relay.Message) error { return nil }

func tooLarge(is func(relay.Message) bool) func(relay.Message) error {
	return func(m relay.Message) error {
		if is(m) {
			return &relay.RefusedError{Code: relay.CodeTooLarge, Err: errors.New("too large")}
		}
		return nil
	}
}

func bad(m relay.Message) bool { return strings.HasPrefix(string(m.Body), "bad") }

// looked waits for the time of some looks at the held messages.
func looked(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	for range 3 {
		twoBeats(t, db)
	}
}

// deadLetters waits for so many of the sink, and returns the first.
func deadLetters(t *testing.T, db *pgxpool.Pool, n int) outbox.ID {
	t.Helper()
	waitFor(t, func() bool {
		return ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'relay:s' AND status IN ('failed', 'dead')`) == n
	}, func() string { return fmt.Sprintf("there are %d dead letters", n) })
	id, err := outbox.ParseID(ask[string](t, db, `SELECT id::text FROM outbox.jobs WHERE kind = 'relay:s' AND status IN ('failed', 'dead') ORDER BY line_position LIMIT 1`))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// ofKey returns the bodies of a key's messages, in the order in which they came first.
func (p *picky) ofKey(key string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, m := range p.got {
		if m.Key == key && !slices.Contains(all, string(m.Body)) {
			all = append(all, string(m.Body))
		}
	}
	return all
}

func (p *picky) awaitKey(t *testing.T, key string, want ...string) {
	t.Helper()
	waitFor(t, func() bool { return len(p.ofKey(key)) >= len(want) }, func() string { return fmt.Sprintf("got %q of %s, want %q", p.ofKey(key), key, want) })
	if got := p.ofKey(key); !slices.Equal(got, want) {
		t.Fatalf("got %q of key %s, want %q", got, key, want)
	}
}

// nothingIsOpen checks that the sink needs no dispatcher.
func nothingIsOpen(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	rows, err := sqlgen.New(db).LookAtHeld(t.Context(), "relay:s", "s")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.IsOpen {
			t.Errorf("job %s waits for a person, and is to be carried out", row.JobID)
		}
	}
}

// A message of a thousand is refused: those of its key wait behind it, and no others. When it is
// replayed they follow, and the key goes on by the cursor.
func TestARefusedMessageHoldsItsKeyOnly(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("the sink stops %t", stops), func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &picky{refuses: tooLarge(bad), stops: stops}
			reg := prometheus.NewRegistry()
			var want []string
			exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
				SELECT gen_random_uuid(), $1, 't', CASE WHEN i % 50 = 0 THEN 'k' ELSE 'other' || i % 7 END, 'text/plain',
				       convert_to(CASE i WHEN 500 THEN 'bad' ELSE i::text END, 'UTF8'), '{"trace": "x"}'
				FROM generate_series(1, 1000) AS i ORDER BY i`, outbox.RootTenant)
			for i := 50; i <= 1000; i += 50 {
				if want = append(want, fmt.Sprint(i)); i == 500 {
					want[len(want)-1] = "bad"
				}
			}
			start(t, db, sink, func(c *relay.Config) { c.Registerer = reg })
			letter := deadLetters(t, db, 1)
			waitFor(t, func() bool { return len(sink.bodies()) == 980+9 }, func() string { return fmt.Sprintf("%d of 989 came", len(sink.bodies())) })
			sink.awaitKey(t, "k", want[:9]...)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'relay:s' AND key = 'k'`); n != 11 {
				t.Errorf("%d jobs, want 11", n)
			}
			job, err := operator.New(db).Job(t.Context(), letter)
			if err != nil {
				t.Fatal(err)
			}
			if job.ErrorCode != relay.CodeTooLarge || string(job.Payload) != "bad" || !strings.Contains(string(job.Headers), `"trace": "x"`) || job.Queue != "relay:s" {
				t.Errorf("the dead letter is %+v", job)
			}
			if messages, keys := gauge(t, reg, "outbox_relay_held_messages"), gauge(t, reg, "outbox_relay_held_keys"); messages != 11 || keys != 1 {
				t.Errorf("%v messages of %v keys are held, want 11 of 1", messages, keys)
			}
			publish(t, db, "t", "k", "1050")
			publish(t, db, "t", "other", "x")
			sink.awaitKey(t, "other", "x")
			sink.awaitKey(t, "k", want[:9]...)
			sink.now(takesAll)
			end(t, func(ctx context.Context) error { return operator.New(db).Retry(ctx, letter) })
			sink.awaitKey(t, "k", append(want, "1050")...)
			for _, m := range sink.messages() {
				if string(m.Body) == "bad" && (m.ID != ask[string](t, db, `SELECT id::text FROM outbox.events WHERE payload = 'bad'`) || m.Position != 500 || len(m.Headers) != 1) {
					t.Errorf("the message is %+v", m)
				}
			}
			waitFor(t, func() bool { return gauge(t, reg, "outbox_relay_held_messages") == 0 }, func() string { return "nothing is held any more" })
			publish(t, db, "t", "k", "1100")
			sink.awaitKey(t, "k", append(want, "1050", "1100")...)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE kind = 'relay:s'`); n != 12 {
				t.Errorf("%d jobs were made, want 12", n)
			}
		})
	}
}

// What becomes of a refused message and of those behind it is the route's to say.
func TestOnRefused(t *testing.T) {
	t.Parallel()
	for _, policy := range []relay.OnRefused{relay.RefusedHold, relay.RefusedSkip, relay.RefusedPark, relay.RefusedDrop} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &picky{refuses: tooLarge(bad)}
			reg := prometheus.NewRegistry()
			start(t, db, sink, func(c *relay.Config) {
				c.Registerer = reg
				c.Sinks[0].Routes[0].OnRefused = policy
			})
			publish(t, db, "t", "k", "1", "bad", "3")
			if policy == relay.RefusedDrop {
				sink.awaitKey(t, "k", "1", "3")
				if n := ask[int](t, db, `SELECT count(*) FROM outbox.idempotency_keys`); n != 0 {
					t.Errorf("%d jobs were made", n)
				}
				return
			}
			letter := deadLetters(t, db, 1)
			if policy == relay.RefusedSkip {
				sink.awaitKey(t, "k", "1", "3")
			}
			if policy == relay.RefusedPark {
				waitFor(t, func() bool { return ask[int](t, db, `SELECT count(parked_at) FROM outbox.keys`) == 1 }, func() string { return "the key is parked" })
				end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, letter) })
			}
			publish(t, db, "t", "k", "4")
			publish(t, db, "t", "", "x")
			sink.awaitKey(t, "", "x")
			switch policy {
			case relay.RefusedHold:
				looked(t, db)
				sink.awaitKey(t, "k", "1")
				nothingIsOpen(t, db)
				end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, letter) })
				sink.awaitKey(t, "k", "1", "3", "4")
			case relay.RefusedSkip:
				sink.awaitKey(t, "k", "1", "3", "4")
			case relay.RefusedPark:
				looked(t, db)
				sink.awaitKey(t, "k", "1")
				nothingIsOpen(t, db)
				end(t, func(ctx context.Context) error {
					_, err := operator.New(db).Unblock(ctx, operator.KeyName{Queue: "relay:s", Key: "k"})
					return err
				})
				sink.awaitKey(t, "k", "1", "3", "4")
			}
		})
	}
}

// A parked key without a job stays parked until an operator unblocks it, or removes the sink.
func TestAParkedKeyOutlivesItsJobs(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	parked := func() int { return ask[int](t, db, `SELECT count(parked_at) FROM outbox.keys`) }
	stop := start(t, db, sink, func(c *relay.Config) { c.Sinks[0].Routes[0].OnRefused = relay.RefusedPark })
	publish(t, db, "t", "k", "bad")
	letter := deadLetters(t, db, 1)
	waitFor(t, func() bool { return parked() == 1 }, func() string { return "the key is parked" })
	end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, letter) })
	looked(t, db)
	publish(t, db, "t", "k", "2")
	publish(t, db, "t", "other", "x")
	sink.awaitKey(t, "other", "x")
	sink.awaitKey(t, "k")
	end(t, func(ctx context.Context) error {
		_, err := operator.New(db).Unblock(ctx, operator.KeyName{Queue: "relay:s", Key: "k"})
		return err
	})
	sink.awaitKey(t, "k", "2")
	publish(t, db, "t", "k", "bad")
	letter = deadLetters(t, db, 1)
	waitFor(t, func() bool { return parked() == 1 }, func() string { return "the key is parked again" })
	stop()
	end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, letter) })
	end(t, func(ctx context.Context) error { return operator.New(db).RemoveSink(ctx, "s", false) })
	if n := parked(); n != 0 {
		t.Errorf("%d keys of a sink that is removed are parked", n)
	}
}

// A message that is replayed with another payload is published with it, under the same ID.
func TestAnEditedReplayMendsAMessage(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	start(t, db, sink, nil)
	publish(t, db, "t", "k", "bad 1", "2")
	letter := deadLetters(t, db, 1)
	end(t, func(ctx context.Context) error { return operator.New(db).ReplayEdited(ctx, letter, []byte("good 1")) })
	sink.awaitKey(t, "k", "good 1", "2")
	if id := ask[string](t, db, `SELECT id::text FROM outbox.events WHERE payload = 'bad 1'`); sink.messages()[0].ID != id {
		t.Errorf("it has the ID %s, want %s", sink.messages()[0].ID, id)
	}
}

// Messages without a key hold up nothing, and each is a dead letter by itself.
func TestRefusedMessagesWithoutAKey(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	start(t, db, sink, nil)
	publish(t, db, "t", "", "bad 1", "2", "bad 3", "4")
	sink.await(t, "2", "4")
	deadLetters(t, db, 2)
	publish(t, db, "t", "", "5")
	sink.await(t, "2", "4", "5")
}

// A held message of a topic that no route leads to the sink any more becomes a dead letter with a code of its own,
// which the steps that give a destination a sink of its own dismiss. Meanwhile it blocks its key. The message is
// published once the sink has a route for it again.
func TestAHeldMessageWithoutARoute(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	stop := start(t, db, sink, nil)
	publish(t, db, "moved", "k", "bad 1")
	dead := deadLetters(t, db, 1)
	stop()
	sink.now(takesAll)
	retry := func() {
		t.Helper()
		end(t, func(ctx context.Context) error { return operator.New(db).Retry(ctx, dead) })
	}
	retry()
	stop = start(t, db, sink, func(c *relay.Config) { c.Sinks[0].Routes[0].Topics = []string{"stays"} })
	publish(t, db, "stays", "k", "2")
	publish(t, db, "stays", "other", "3")
	sink.awaitKey(t, "other", "3")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2 },
		func() string { return "the message behind it is held" })
	deadLetters(t, db, 1)
	if code := ask[string](t, db, `SELECT last_error_code FROM outbox.jobs WHERE status IN ('failed', 'dead')`); code != relay.CodeNoRoute {
		t.Errorf("the dead letter has the code %q, want %q", code, relay.CodeNoRoute)
	}
	if got := sink.ofKey("k"); len(got) != 0 {
		t.Errorf("these are published of the key: %q", got)
	}
	stop()
	start(t, db, sink, nil)
	retry()
	sink.awaitKey(t, "k", "bad 1", "2")
}

// Beyond MaxHeld a sink stands still and says so, and nothing is lost.
func TestTooManyRefusedMessagesStopTheSink(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	start(t, db, sink, func(c *relay.Config) { c.MaxHeld, c.Sinks[0].MaxHeld = 1, 3 })
	publish(t, db, "t", "k", "bad 1", "2")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2 }, func() string { return "two are held" })
	publish(t, db, "t", "", "bad 3")
	letter := deadLetters(t, db, 2)
	publish(t, db, "t", "", "bad 4", "5", "6")
	waitFor(t, func() bool {
		return ask[bool](t, db, `SELECT coalesce(away_code = 'relay_stuck' AND away_message LIKE '3 messages%; 2 of them have the key "k" of tenant %too large%', false)
			FROM outbox.sinks`)
	}, func() string { return "the sink is stuck" })
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 3 {
		t.Errorf("%d messages are held, want 3", n)
	}
	end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, letter) })
	sink.awaitKey(t, "k", "2")
	sink.awaitKey(t, "", "5", "6")
	deadLetters(t, db, 2)
}

// A streamed job may have headers that brokers refuse. Its events go without them, and none is held.
func TestEventsOfAJobHaveNoHeaderThatSinksRefuse(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: func(m relay.Message) error {
		for _, h := range m.Headers {
			if len(h.Value) > 1024 || strings.ContainsFunc(h.Value, unicode.IsControl) {
				return &relay.RefusedError{Code: relay.CodeRefused, Err: fmt.Errorf("header %s cannot be", h.Name)}
			}
		}
		return nil
	}}
	longest := strings.Repeat("é", 512)
	want := []string{"[{traceparent t}]", "[]", "[]", "[{correlation-id " + longest + "}]", "[]"}
	for _, headers := range []map[string]string{
		{"correlation-id": "a\nb", "traceparent": "t"},
		{"tracestate": "\x7f", "traceparent": "t\x01"},
		{"correlation-id": longest + "x"},
		{"correlation-id": longest},
		{"other": "\r"},
	} {
		if _, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "k", Payload: []byte("{}")}, outbox.Options{Streamed: true, Headers: headers}); err != nil {
			t.Fatal(err)
		}
	}
	start(t, db, sink, nil)
	held := func() int { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) }
	waitFor(t, func() bool { return len(sink.messages())+held() == len(want) }, func() string { return "each event is published or held" })
	got := make([]string, len(sink.messages()))
	for i, m := range sink.messages() {
		got[i] = fmt.Sprint(m.Headers)
	}
	if n := held(); n != 0 || !slices.Equal(got, want) {
		t.Errorf("%d are held, and these are published with %q; want %q", n, got, want)
	}
}

// What cannot be stored as a job is not lost: an operator may leave it out.
func TestAMessageThatCannotBecomeAJobIsSkipped(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	exec(t, db, `ALTER TABLE outbox.jobs ADD CONSTRAINT none CHECK (kind <> 'relay:s')`)
	start(t, db, sink, nil)
	publish(t, db, "t", "k", "1", "bad", "3")
	waitFor(t, func() bool {
		return ask[bool](t, db, `SELECT coalesce(away_code = 'relay_stuck' AND away_message LIKE '%there are 2,%event ' || events.id || ', topic t, position 2: %"none"%', false)
			FROM outbox.sinks, outbox.events WHERE payload = 'bad'`)
	}, func() string { return "the sink says why it stands still" })
	id, err := outbox.ParseID(ask[string](t, db, `SELECT id::text FROM outbox.events WHERE payload = 'bad'`))
	if err != nil {
		t.Fatal(err)
	}
	end(t, func(ctx context.Context) error { return operator.New(db).SkipEvent(ctx, "s", id) })
	sink.awaitKey(t, "k", "1", "3")
}

// A message that is alone and has no answer four times, although the sink answers and accepts another one then, is
// refused: it must not stop the sink for ever.
func TestAMessageThatBreaksTheBrokerIsRefused(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: func(m relay.Message) error {
		if bad(m) {
			return errors.New("connection reset")
		}
		return nil
	}}
	publish(t, db, "t", "a", "1", "bad", "3")
	publish(t, db, "t", "b", "4") // with the others: accepted after the bad one, it would prove that it is at fault
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	sink.awaitKey(t, "b", "4")
	time.Sleep(2 * time.Second)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n > 0 {
		t.Errorf("%d messages are held, and the sink has accepted none meanwhile", n)
	}
	publish(t, db, "t", "b", "5")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2 }, func() string {
		return "the message and the one behind it are held"
	})
	keepPublishing(t, db, "t", "c")
	deadLetters(t, db, 1)
	if code := ask[string](t, db, `SELECT last_error_code FROM outbox.jobs WHERE status = 'dead'`); code != relay.CodeUnanswered {
		t.Errorf("the dead letter has the code %s", code)
	}
	sink.awaitKey(t, "b", "4", "5")
	sink.awaitKey(t, "a", "1")
}

// keepPublishing stores a message of a topic and a key every 50 ms until the test, or the returned function, ends it:
// the destination is in use.
func keepPublishing(t *testing.T, db *pgxpool.Pool, topic, key string) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for backoff.Sleep(ctx, 50*time.Millisecond) == nil {
			// t.Context ends before the cleanup, perhaps in the middle of a statement.
			if _, err := db.Exec(context.WithoutCancel(ctx), `WITH stored AS (
					INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
					VALUES ($1, $2, $3, $4, 'text/plain', 'x'))
				SELECT pg_notify('outbox_events', '')`, outbox.NewID(), outbox.RootTenant, topic, key); err != nil {
				t.Error(err)
			}
		}
	}()
	end = func() { stop(); <-ended }
	t.Cleanup(end)
	return end
}

// down is a sink that refuses bad messages and accepts no other: it fails at them, or does not answer.
type down struct {
	picky
	silent bool
	up     atomic.Bool
}

func (d *down) Publish(ctx context.Context, batch []relay.Message) []error {
	if d.up.Load() || bad(batch[0]) {
		return d.picky.Publish(ctx, batch)
	}
	if d.silent {
		<-ctx.Done()
	}
	return slices.Repeat([]error{errors.New("no confirmation")}, len(batch))
}

// A sink refuses a message, and then accepts nothing although it answers probes. The messages behind the refused one
// spend no attempts, and all are published when the sink is back.
func TestMessagesBehindARefusedOneOutliveAnOutage(t *testing.T) {
	t.Parallel()
	for _, onRefused := range []relay.OnRefused{relay.RefusedHold, relay.RefusedSkip} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, silent %t", onRefused, silent), func(t *testing.T) {
				t.Parallel()
				db := database(t)
				sink := &down{picky: picky{refuses: tooLarge(bad)}, silent: silent}
				publish(t, db, "t", "k", "bad", "1", "2", "3")
				publish(t, db, "t", "other", "4") // of the log: it finds the outage
				start(t, db, sink, func(c *relay.Config) {
					c.Sinks[0].Routes[0].OnRefused = onRefused
					c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
					c.SetPatience(50 * time.Millisecond)
				})
				if letter := deadLetters(t, db, 1); onRefused == relay.RefusedHold {
					end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, letter) })
				}
				time.Sleep(2 * time.Second)
				spent := ask[int](t, db, `SELECT coalesce(max(attempt), 0) FROM outbox.jobs WHERE payload <> 'bad'`)
				lost := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE payload <> 'bad' AND status IN ('failed', 'dead')`)
				if lost > 0 || spent > 1 { // one may be in progress
					t.Fatalf("%d messages are dead letters because of the outage, and one spent %d attempts", lost, spent)
				}
				sink.up.Store(true)
				sink.awaitKey(t, "k", "1", "2", "3")
			})
		}
	}
}

// Behind a message that breaks the broker are more of its key than a page has: one of another key is found.
func TestAMessageThatBreaksTheBrokerIsRefusedBeforeManyOfItsKey(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: func(m relay.Message) error {
		if bad(m) {
			return errors.New("the connection broke")
		}
		return nil
	}}
	publish(t, db, "t", "a", "bad")
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 't', 'a', 'text/plain', 'x' FROM generate_series(1, 2500)`, outbox.RootTenant)
	publish(t, db, "t", "b", "1", "2")
	start(t, db, sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	sink.awaitKey(t, "b", "1", "2")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 2501 }, func() string {
		return "the message and those behind it are held"
	})
	keepPublishing(t, db, "t", "c")
	deadLetters(t, db, 1)
	sink.awaitKey(t, "a")
}

// A batch that has no answer in time is not tried again as it was.
func TestABatchThatIsTooMuchIsDivided(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &narrow{most: 400}
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 't', 'k', 'text/plain', convert_to(i::text, 'UTF8') FROM generate_series(1, 3000) AS i`, outbox.RootTenant)
	start(t, db, sink, nil)
	for deadline := time.Now().Add(time.Minute); len(sink.bodies()) < 3000; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %d of 3000 came", len(sink.bodies()))
		}
	}
	for i, body := range sink.bodies() {
		if body != fmt.Sprint(i+1) {
			t.Fatalf("number %d is %s", i+1, body)
		}
	}
}

// narrow does not answer for batches of more messages.
type narrow struct {
	recorder
	most int
}

func (n *narrow) Publish(ctx context.Context, batch []relay.Message) []error {
	if len(batch) > n.most {
		return slices.Repeat([]error{errors.New("no answer in time")}, len(batch))
	}
	return n.recorder.Publish(ctx, batch)
}

// An owner that has lost the sink while it published makes no jobs.
func TestADeposedOwnerMakesNoJobs(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &slowlyRefusing{under: make(chan struct{}, 10), answer: make(chan struct{})}
	stop := start(t, db, sink, nil)
	publish(t, db, "t", "k", "1")
	<-sink.under
	exec(t, db, `UPDATE outbox.sinks SET owner = 'other', epoch = epoch + 1, lease_expires_at = now() + interval '5 minutes'`)
	close(sink.answer)
	time.Sleep(time.Second)
	stop()
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 0 {
		t.Errorf("%d jobs were made", n)
	}
	if top := ask[int](t, db, `SELECT top FROM outbox.sinks`); top != 0 {
		t.Errorf("top = %d, want 0", top)
	}
}

// slowlyRefusing says that a batch is under way, and refuses it when it is told to.
type slowlyRefusing struct {
	recorder
	under, answer chan struct{}
}

func (s *slowlyRefusing) Publish(_ context.Context, batch []relay.Message) []error {
	s.under <- struct{}{}
	<-s.answer
	return slices.Repeat([]error{&relay.RefusedError{Code: relay.CodeRefused, Err: errors.New("no")}}, len(batch))
}

// After a failover the sink meets events again that are jobs, or that somebody has dismissed.
func TestARewindMakesNoJobTwice(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	start(t, db, sink, nil)
	publish(t, db, "t", "k", "1", "bad 2", "3")
	publish(t, db, "t", "gone", "bad 4")
	publish(t, db, "t", "gone", "5")
	deadLetters(t, db, 2)
	gone, err := outbox.ParseID(ask[string](t, db, `SELECT id::text FROM outbox.jobs WHERE key = 'gone' AND status = 'dead'`))
	if err != nil {
		t.Fatal(err)
	}
	end(t, func(ctx context.Context) error { return operator.New(db).Dismiss(ctx, gone) })
	sink.awaitKey(t, "gone", "5")
	tx := begin(t, db)
	exec(t, tx, `LOCK TABLE outbox.sinks`) // one that waits for the row would go on with the function that it has read
	exec(t, tx, `CREATE OR REPLACE FUNCTION outbox.timeline() RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'another' $$`)
	exec(t, tx, `UPDATE outbox.sinks SET top_id = gen_random_uuid()`) // the event at top was lost
	publish(t, tx, "t", "k", "6")
	publish(t, tx, "t", "gone", "7")
	end(t, tx.Commit)
	sink.awaitKey(t, "gone", "5", "7")
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT epoch > 1 AND top = 7 FROM outbox.sinks`) }, func() string { return "all is read again" })
	if n := ask[int](t, db, `SELECT count(*) FROM (SELECT FROM outbox.jobs WHERE payload = '1' UNION ALL SELECT FROM outbox.history WHERE payload = '1') AS made`); n != 1 {
		t.Errorf("%d jobs of the key's first message, want 1: the sink has not gone back", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM (SELECT FROM outbox.jobs WHERE payload LIKE 'bad%' UNION ALL SELECT FROM outbox.history WHERE payload LIKE 'bad%') AS made`); n != 2 {
		t.Errorf("%d jobs of refused messages, want 2", n)
	}
	sink.now(takesAll)
	end(t, func(ctx context.Context) error { return operator.New(db).Retry(ctx, deadLetters(t, db, 1)) })
	sink.awaitKey(t, "k", "1", "bad 2", "3", "6")
}

// An operator who moves a sink back, or removes it, has events published again: one that was a job, and is refused
// again, is a job again, and not passed by.
func TestWhatIsRefusedAgainIsNotLost(t *testing.T) {
	t.Parallel()
	tenant := outbox.NewID()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	stop := start(t, db, sink, nil)
	for _, e := range [][2]string{{"k", "bad 1"}, {"k", "2"}, {"", "bad 3"}} {
		publishOf(t, db, tenant, "t", e[0], e[1])
	}
	o := operator.New(db)
	for range 2 {
		end(t, func(ctx context.Context) error { return o.Dismiss(ctx, deadLetters(t, db, 2)) })
		end(t, func(ctx context.Context) error { return o.Dismiss(ctx, deadLetters(t, db, 1)) })
		sink.awaitKey(t, "k", "2")
		waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 0 }, func() string { return "nothing is held" })
		if _, err := o.SeekSink(t.Context(), "s", operator.SinkTarget{Position: new(int64(0))}); err != nil {
			t.Fatal(err)
		}
	}
	deadLetters(t, db, 2)
	stop()
	if err := o.RemoveSink(t.Context(), "s", false); !errors.Is(err, operator.ErrSinkHolds) {
		t.Errorf("to remove a sink that holds messages: %v", err)
	}
	if err := o.Because("moved").RemoveSink(t.Context(), "s", true); err != nil {
		t.Fatal(err)
	}
	if n := ask[int](t, db, `SELECT (SELECT count(*) FROM outbox.jobs) + (SELECT count(*) FROM outbox.held_messages) + (SELECT count(*) FROM outbox.sinks)`); n != 0 {
		t.Errorf("%d jobs, held messages and sinks are left", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.audit WHERE reason = 'moved' AND act IN ('job.dismiss', 'job.cancel', 'sink.remove')`); n != 4 {
		t.Errorf("%d acts are in the audit, want two that dismiss, one that cancels and one that removes", n)
	}
	next := &picky{refuses: tooLarge(bad)}
	start(t, db, next, nil)
	letter := deadLetters(t, db, 2)
	next.now(takesAll)
	end(t, func(ctx context.Context) error { return o.Retry(ctx, letter) })
	end(t, func(ctx context.Context) error { return o.Retry(ctx, deadLetters(t, db, 1)) })
	next.awaitKey(t, "k", "bad 1", "2")
	next.awaitKey(t, "", "bad 3")
}

// A destination that is missing for an hour has its messages refused, and no others: they are jobs that spend no
// attempt, and are published when somebody has created it. What was sealed stays sealed, also in a replay.
func TestADestinationThatIsMissingForAnHour(t *testing.T) {
	t.Parallel()
	keys, err := protect.NewKeyring(protect.Key{ID: "k1", Secret: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	tenant := outbox.NewID()
	db := database(t)
	var ahead atomic.Int64
	gone := func(m relay.Message) error {
		if m.Destination == "gone" {
			return &relay.UnavailableError{Code: relay.CodeNoDestination, Err: errors.New("no such stream")}
		}
		return nil
	}
	sink := &picky{refuses: gone}
	start(t, db, sink, func(c *relay.Config) {
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		c.SetClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	})
	seal := func(topic, key, body string) {
		t.Helper()
		if _, err := outbox.Publish(t.Context(), db, outbox.Raw{KindName: topic, Payload: []byte(body), ContentType: "text/plain"},
			outbox.EventOptions{Tenant: tenant, Key: key, Protect: keys}); err != nil {
			t.Fatal(err)
		}
	}
	seal("gone", "k", "1")
	seal("gone", "k", "2")
	seal("gone", "", "3")
	seal("there", "other", "4")
	waitFor(t, func() bool {
		return ask[bool](t, db, `SELECT coalesce(away_code = 'relay_no_destination', false) FROM outbox.sinks`)
	}, func() string { return "the sink says what is missing" })
	ahead.Store(int64(59 * time.Minute))
	twoBeats(t, db)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`); n != 0 {
		t.Errorf("%d messages are held after 59 minutes", n)
	}
	// The next owner has a clock of its own, and goes by the hour that began before it was.
	ahead.Store(0)
	hourAgo(t, db)
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 3 }, func() string { return "three are held" })
	waitFor(t, func() bool { return len(sink.ofKey("other")) == 1 }, func() string { return "the other destination goes on" })
	var held []operator.HeldMessage
	waitFor(t, func() bool {
		var err error
		if held, err = operator.New(db).Held(t.Context(), "s", operator.HeldPlace{}, 0); err != nil {
			t.Fatal(err)
		}
		return len(held) == 3 && held[0].ErrorCode == relay.CodeNoDestination && held[2].ErrorCode == relay.CodeNoDestination
	}, func() string { return fmt.Sprintf("the jobs say what is missing; they are %+v", held) })
	for i, m := range held {
		if m.Status == outbox.Dead || m.Status == outbox.Failed || m.Attempt > 1 || m.Topic != "gone" || m.Event.IsZero() || m.Tenant != tenant || (m.ErrorCode != "") != (i != 1) {
			t.Errorf("message %d is %+v", i, m)
		}
	}
	sink.now(takesAll)
	waitFor(t, func() bool { return len(sink.ofKey("k")) == 2 && len(sink.ofKey("")) == 1 }, func() string { return "they are published" })
	waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 0 }, func() string { return "none is held" })
	r := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{EventFilter: operator.EventFilter{Tenant: tenant}}))
	if r.Published != 4 {
		t.Errorf("the replay is %+v", r)
	}
	var opened []string
	for _, m := range sink.messages() {
		id, err := outbox.ParseID(m.ID)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := keys.Open(t.Context(), outbox.Part{Tenant: tenant, Job: id, Column: "payload"}, outbox.Content{Type: m.ContentType, Bytes: m.Body})
		if err != nil || plain.Type != "text/plain" || m.ContentType == plain.Type {
			t.Fatalf("%+v opens as %+v, %v", m, plain, err)
		}
		opened = append(opened, string(plain.Bytes))
	}
	if slices.Sort(opened); !slices.Equal(opened, []string{"1", "1", "2", "2", "3", "3", "4", "4"}) {
		t.Errorf("they are %q", opened)
	}
}

// hourAgo deposes the owner of a sink that has found a destination missing more than an hour ago.
func hourAgo(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `UPDATE outbox.sinks SET epoch = epoch + 1, missing = (SELECT jsonb_object_agg(key, value::float8 - 3660) FROM jsonb_each_text(missing))`)
}

// hourLater moves the clock by which destinations are missing on by more than an hour, while messages meet them.
func hourLater(t *testing.T, db *pgxpool.Pool, ahead *atomic.Int64) {
	t.Helper()
	for range 4 {
		ahead.Add(int64(16 * time.Minute))
		twoBeats(t, db)
	}
}

func noDestination(m relay.Message) error {
	if strings.HasPrefix(m.Destination, "gone") {
		return &relay.UnavailableError{Code: relay.CodeNoDestination, Err: fmt.Errorf("no stream %s", m.Destination)}
	}
	return nil
}

// More destinations are missing than a sink remembers: the last one, too, is refused once it was missing for an hour.
func TestManyDestinationsAreMissing(t *testing.T) {
	t.Parallel()
	db := database(t)
	var ahead atomic.Int64
	sink := &picky{refuses: noDestination}
	start(t, db, sink, func(c *relay.Config) {
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		c.SetClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	})
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, 'gone.' || i, 'text/plain', 'x' FROM generate_series(1, 1001) AS i`, outbox.RootTenant)
	publish(t, db, "there", "k", "1")
	held := func(want int) func() bool {
		return func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == want }
	}
	sink.awaitKey(t, "k", "1")
	waitFor(t, func() bool {
		return ask[int](t, db, `SELECT count(*) FROM outbox.sinks, jsonb_object_keys(missing)`) == 1000
	},
		func() string { return "a thousand are remembered" })
	hourLater(t, db, &ahead)
	waitFor(t, held(1000), func() string { return "a thousand are held" })
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT missing ? 'gone.1001' FROM outbox.sinks`) },
		func() string { return "the last one is remembered" })
	hourLater(t, db, &ahead)
	waitFor(t, held(1001), func() string { return "the last one is held" })
}

// Where those behind a refused message wait for its attempts only, they do so as well if its destination is missing.
func TestADestinationThatIsMissingIsSkipped(t *testing.T) {
	t.Parallel()
	db := database(t)
	var ahead atomic.Int64
	sink := &picky{refuses: noDestination}
	start(t, db, sink, func(c *relay.Config) {
		c.Sinks[0].Routes[0].OnRefused = relay.RefusedSkip
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
		c.SetClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	})
	publish(t, db, "gone", "k", "1")
	publish(t, db, "gone", "", "2")
	publish(t, db, "there", "k", "3")
	waitFor(t, func() bool {
		return ask[bool](t, db, `SELECT coalesce(away_code = 'relay_no_destination', false) FROM outbox.sinks`)
	}, func() string { return "the sink says what is missing" })
	hourLater(t, db, &ahead)
	sink.awaitKey(t, "k", "3")
	letter := deadLetters(t, db, 1)
	job, err := operator.New(db).Job(t.Context(), letter)
	if err != nil || job.ErrorCode != relay.CodeNoDestination || job.Key != "k" {
		t.Errorf("the dead letter is %+v, %v", job, err)
	}
	publish(t, db, "there", "k", "4")
	sink.awaitKey(t, "k", "3", "4")
	sink.now(takesAll)
	sink.awaitKey(t, "", "2") // nothing waits for it, and so it waits for its destination
}

// Whatever a sink refuses, and whenever its owner dies: all messages of a key come in their
// order, and none is lost.
func TestOrderOutlivesRefusalsAndOwners(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("the sink stops %t", stops), func(t *testing.T) {
			t.Parallel()
			orderUnderRefusals(t, stops)
		})
	}
}

func orderUnderRefusals(t *testing.T, stops bool) {
	db := database(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	sink := &picky{stops: stops}
	sink.now(func(relay.Message) error {
		switch n := chance.IntN(100); {
		case n < 6:
			return &relay.RefusedError{Code: relay.CodeRefused, Err: errors.New("not now")}
		case n < 7:
			return errors.New("no answer")
		}
		return nil
	})
	both := func(c *relay.Config) { c.Sinks[0].Routes[0].OnRefused = relay.RefusedHold }
	for range 2 { // processes
		start(t, db, sink, both)
	}
	tenants := []outbox.ID{outbox.RootTenant, outbox.NewID()}
	want := map[string][]string{} // by tenant and key
	stored := map[string]int{}    // how many there are of an event without a key
	made := func() int {
		return ask[int](t, db, `SELECT (SELECT count(*) FROM outbox.jobs) + (SELECT count(*) FROM outbox.history)`)
	}
	for n := 0; n < 750 || n%100 != 0 || made() == 0; n++ {
		if n == 50_000 {
			t.Fatal("no job was made")
		}
		tenant, key := tenants[rand.IntN(2)], fmt.Sprintf("k%d", rand.IntN(12))
		if rand.IntN(5) == 0 {
			key = ""
		}
		id := outbox.NewID()
		exec(t, db, `WITH stored AS (INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload) VALUES ($1, $2, 't', nullif($3, ''), 'text/plain', $4))
			SELECT pg_notify('outbox_events', '')`, id, tenant, key, []byte(tenant.String()))
		if key == "" {
			stored[id.String()]++
		} else {
			want[tenant.String()+key] = append(want[tenant.String()+key], id.String())
		}
		if n%75 == 74 { // the owner is fenced, as if another had taken over and died
			exec(t, db, `UPDATE outbox.sinks SET owner = 'x', epoch = epoch + 1, lease_expires_at = now() + interval '100 milliseconds'`)
			waitFor(t, func() bool { return ask[bool](t, db, `SELECT owner <> 'x' FROM outbox.sinks`) }, func() string { return "the next owner" })
		}
	}
	sink.mu.Lock()
	sink.refuses = takesAll
	sink.mu.Unlock()
	letters := 0
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		for progress, err := range operator.New(db).ReplayDeadLetters(t.Context(), operator.DeadLetterFilter{}, 0) {
			if err != nil {
				t.Fatal(err)
			}
			letters = max(letters, int(progress.Matched))
		}
		if ask[bool](t, db, `SELECT top = (SELECT max(position) FROM outbox.events) AND isempty(holes) AND NOT EXISTS (SELECT FROM outbox.jobs) FROM outbox.sinks`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("in vain: all is published; %s", ask[string](t, db, `SELECT concat_ws(' ', top, holes, away_code, away_message, (SELECT string_agg(concat_ws(' ', status, key, last_error_message), '; ') FROM outbox.jobs)) FROM outbox.sinks`))
		}
	}
	jobs := ask[int](t, db, `SELECT count(*) FROM outbox.history`)
	t.Logf("%d jobs were made, up to %d dead letters", jobs, letters)
	got := map[string][]string{}
	seen := map[string]bool{}
	for _, m := range sink.messages() {
		if seen[m.ID] {
			continue
		}
		seen[m.ID] = true
		if delete(stored, m.ID); m.Key != "" {
			got[string(m.Body)+m.Key] = append(got[string(m.Body)+m.Key], m.ID)
		}
	}
	if len(stored) > 0 {
		t.Errorf("%d events without a key were lost", len(stored))
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("of %s came %d of %d, or in another order:\n%q\nwant\n%q", key, len(got[key]), len(want[key]), got[key], want[key])
		}
	}
}

// forge stores a job of the sink as if it were an event of a tenant that the sink has refused. Its parameters are the
// job, the event and the tenant.
const forge = `INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload, content_type, headers)
	VALUES ($1, $3, 'relay:s', 'relay:s', 'forged', 'text/plain',
		jsonb_build_object('posthaste-event', json_build_object('id', $2::uuid, 'topic', 't', 'position', 1, 'at', now())::text))`

// take stores the idempotency key that the job of an event has.
const take = `INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id) VALUES ($3, 'relay:s', $2::uuid::text, $1)`

// A tenant cannot have the sink wait for its transaction, nor take its job for a message, by the idempotency key that
// the job of its event will have.
func TestAProducerTakesNoKeyOfASink(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"and leaves its transaction open": {take},
		"for a job of its own":            {take, forge, "COMMIT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &picky{refuses: tooLarge(bad)}
			start(t, db, sink, nil)
			tenant, event := outbox.NewID(), outbox.NewID()
			tx := begin(t, db)
			exec(t, tx, `SELECT set_config('app.tenant_id', $1, true), set_config('role', 'outbox_producer', true)`, tenant.String())
			job := outbox.NewID()
			for _, sql := range statements {
				arguments := []any{job, event, tenant}
				if sql == "COMMIT" {
					arguments = nil
				}
				_, err := tx.Exec(t.Context(), sql, arguments...)
				if failed, ok := errors.AsType[*pgconn.PgError](err); !ok || failed.Code != "42501" {
					t.Errorf("%s: %v, want it refused by row security", sql, err)
					continue
				}
				break
			}
			exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload) VALUES ($1, $2, 't', 'k', 'text/plain', 'bad')`, event, tenant)
			publish(t, db, "t", "other", "1")
			sink.awaitKey(t, "other", "1")
			waitFor(t, func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.held_messages`) == 1 }, func() string {
				return "the message is held: " + ask[string](t, db, `SELECT coalesce(away_message, '') FROM outbox.sinks`)
			})
			deadLetters(t, db, 1)
			if got := sink.bodies(); !slices.Equal(got, []string{"1"}) {
				t.Errorf("%q were published", got)
			}
		})
	}
}

// A client that may enqueue jobs publishes nothing by them: only what the relay has made of refused messages is.
func TestAJobThatIsNoMessageIsNotPublished(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &picky{refuses: tooLarge(bad)}
	start(t, db, sink, nil)
	publish(t, db, "t", "k", "bad") // for which the sink's jobs are carried out
	forged := outbox.NewID()
	exec(t, db, forge, forged, outbox.NewID(), outbox.NewID()) // as the owner, whom no policy keeps from it
	waitFor(t, func() bool {
		return ask[bool](t, db, `SELECT EXISTS (SELECT FROM outbox.jobs WHERE id = '`+forged.String()+`' AND status = 'failed' AND last_error_code = 'relay_forbidden')`) ||
			len(sink.bodies()) > 0
	}, func() string { return "it is a dead letter" })
	if got := sink.bodies(); len(got) > 0 {
		t.Fatalf("%q was published", got)
	}
	deadLetters(t, db, 2)
}
