package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

func TestEventsArePublishedInTheirOrderAndOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "order.paid", "7", "1", "2", "3")
	var first recorder
	stop := start(t, db, &first, nil)
	first.await(t, "1", "2", "3")
	publish(t, db, "order.paid", "7", "4")
	first.await(t, "1", "2", "3", "4")
	stop()
	if !first.closed {
		t.Error("the sink is not closed")
	}
	publish(t, db, "order.paid", "7", "5")
	var second recorder
	start(t, db, &second, nil)
	second.await(t, "5")
}

// What a transaction has not committed yet is passed by, and published when it has.
func TestAnOpenTransactionHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	stop := start(t, db, &sink, nil)
	late, never := begin(t, db), begin(t, db)
	publish(t, late, "t", "a", "a1", "a2")
	publish(t, never, "t", "b", "b1")
	publish(t, db, "t", "c", "c1")
	sink.await(t, "c1")
	end(t, late.Commit)
	sink.await(t, "c1", "a1", "a2")
	end(t, never.Rollback)
	holes := `SELECT holes::text FROM outbox.sinks`
	waitFor(t, func() bool { return ask[string](t, db, holes) == "{}" }, func() string {
		return "the hole of a transaction that was rolled back is closed; there are " + ask[string](t, db, holes)
	})
	stop()
	if top := ask[int](t, db, `SELECT top FROM outbox.sinks`); top != 4 {
		t.Errorf("top = %d, want 4", top)
	}
}

// Beyond a thousand holes, here, a sink waits for the transactions that may fill them, and loses
// nothing meanwhile.
func TestTooManyGapsWaitForTheirTransactions(t *testing.T) {
	t.Parallel()
	db := database(t)
	const events = 1_100
	open := begin(t, db)
	if _, err := open.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.events (position, id, tenant_id, topic, content_type, payload)
			SELECT 0 * nextval('outbox.events_position_seq') + nextval('outbox.events_position_seq'), gen_random_uuid(), $2, 't', 'text/plain', ''
			FROM generate_series(1, $1)`, events, outbox.RootTenant); err != nil {
		t.Fatal(err)
	}
	var sink recorder
	start(t, db, &sink, nil)
	published := func() int { return len(sink.messages()) }
	waitFor(t, func() bool { return published() >= 1_000 }, func() string { return fmt.Sprintf("1,000 are published, there are %d", published()) })
	publish(t, db, "t", "", "the last")
	twoBeats(t, db)
	if n := published(); n >= events {
		t.Errorf("%d are published beside 1,000 gaps that may be filled", n)
	}
	code := func() string { return ask[string](t, db, `SELECT coalesce(away_code, '') FROM outbox.sinks`) }
	if got := code(); got != relay.CodeHoles {
		t.Errorf("the sink waits with the code %q", got)
	}
	end(t, open.Commit)
	waitFor(t, func() bool { return published() == events+1 }, func() string { return fmt.Sprintf("all are published, there are %d", published()) })
	waitFor(t, func() bool { return ask[string](t, db, `SELECT holes::text FROM outbox.sinks`) == "{}" }, func() string { return "the holes are closed" })
	waitFor(t, func() bool { return code() == "" }, func() string { return "it does not wait any more" })
}

// A hole is remembered by the next owner, too.
func TestTheNextOwnerKnowsTheHoles(t *testing.T) {
	t.Parallel()
	db := database(t)
	late := begin(t, db)
	publish(t, late, "t", "a", "a1")
	publish(t, db, "t", "c", "c1")
	var first recorder
	stop := start(t, db, &first, nil)
	first.await(t, "c1")
	stop()
	var second recorder
	start(t, db, &second, nil)
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT epoch = 2 FROM outbox.sinks`) }, func() string { return "a second owner" })
	twoBeats(t, db) // it would have closed the hole
	end(t, late.Commit)
	second.await(t, "a1")
}

// A stop stores what was published, and no statement that was sent before comes after it.
func TestAStopIsTheLastToStoreTheCursor(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1")
	// The server gets to the first store of the cursor late, whatever the client does meanwhile, and before it gets to
	// the leaving, which would make the store void.
	exec(t, db, `CREATE SEQUENCE stores; CREATE SEQUENCE leaves;
		CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE seconds float := CASE WHEN current_query() LIKE '%name: AdvanceSink %' AND nextval('stores') = 1 THEN 1
			WHEN current_query() LIKE '%name: LeaveSink %' AND nextval('leaves') = 1 THEN 2 ELSE 0 END;
		BEGIN
			FOR tenth IN 1..10 * seconds LOOP
				BEGIN PERFORM pg_sleep(0.1); EXCEPTION WHEN query_canceled THEN NULL; END;
			END LOOP;
			RETURN NULL;
		END $$;
		CREATE TRIGGER late BEFORE UPDATE ON outbox.sinks EXECUTE FUNCTION late()`)
	var first, second recorder
	stop := start(t, db, &first, nil)
	first.await(t, "1")
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT is_called FROM stores`) }, func() string { return "the cursor is being stored" })
	stop()
	start(t, db, &second, nil)
	publish(t, db, "t", "k", "2")
	second.await(t, "2")
}

// The order of a key is that of the transactions that held its row, however they overlap, and for every sink of a
// process, of which one is away now and then.
func TestTheOrderOfAKeyIsThatOfItsLock(t *testing.T) {
	t.Parallel()
	for _, sinks := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d sinks", sinks), func(t *testing.T) {
			t.Parallel()
			orderOfAKey(t, make([]recorder, sinks))
		})
	}
}

func orderOfAKey(t *testing.T, sinks []recorder) {
	db := database(t)
	const keys, producers, each = 20, 8, 60
	if _, err := db.Exec(t.Context(), `CREATE TABLE orders AS SELECT id, 0 AS n FROM generate_series(1, $1::integer) AS id`, keys); err != nil {
		t.Fatal(err)
	}
	start(t, db, &sinks[0], func(c *relay.Config) {
		for i := range sinks[1:] {
			c.Sinks = append(c.Sinks, relay.SinkConfig{Name: fmt.Sprint("s", i), Sink: &sinks[i+1], Routes: c.Sinks[0].Routes})
		}
	})
	var committed sync.Map
	var producing sync.WaitGroup
	for seed := range producers {
		producing.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(seed)))
			for range each {
				if err := placeOrder(t.Context(), db, random, keys, &committed); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	if last := &sinks[len(sinks)-1]; len(sinks) > 1 {
		time.Sleep(100 * time.Millisecond)
		last.set(func(relay.Message) error {
			return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("away")}
		}, nil)
		time.Sleep(100 * time.Millisecond)
		last.set(nil, nil)
	}
	producing.Wait()
	want := map[string]bool{}
	committed.Range(func(body, _ any) bool { want[body.(string)] = true; return true })
	for i := range sinks {
		checkOrders(t, &sinks[i], want)
	}
}

// checkOrders waits until a sink has what was committed, and checks its order.
func checkOrders(t *testing.T, sink *recorder, want map[string]bool) {
	t.Helper()
	waitFor(t, func() bool { return len(sink.bodies()) >= len(want) }, func() string { return fmt.Sprintf("%d of %d events", len(sink.bodies()), len(want)) })
	seen, last := map[string]bool{}, map[string]int{}
	for _, m := range sink.messages() {
		if seen[string(m.Body)] || !want[string(m.Body)] {
			t.Errorf("%q was published twice, or not committed", m.Body)
		}
		seen[string(m.Body)] = true
		var n int
		if _, err := fmt.Sscanf(string(m.Body), m.Key+":%d", &n); err != nil {
			t.Fatal(err)
		}
		if n <= last[m.Key] {
			t.Errorf("of key %s %d was published after %d", m.Key, n, last[m.Key])
		}
		last[m.Key] = n
	}
}

// What comes to a hole after a look at it, and its successor, which can be seen at once, are
// published in their order:
//
//	reader   looks at the holes                                        reads what is newer
//	A                             its event at the hole, commits
//	B                                                     the next of the key, commits
func TestNothingOvertakesWhatComesToAHole(t *testing.T) {
	t.Parallel()
	db := database(t)
	a := begin(t, db)
	publish(t, a, "t", "k", "a")
	publish(t, db, "t", "other", "c")
	config := db.Config()
	config.ConnConfig.Tracer = &between{first: "EventsAtHoles", second: "EventsAfter", do: func() {
		end(t, a.Commit)
		publish(t, db, "t", "k", "b")
	}}
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traced.Close)
	var sink recorder
	start(t, traced, &sink, nil)
	sink.await(t, "c", "a", "b")
}

// between does something once, after one statement has begun and before another begins.
type between struct {
	first, second string
	do            func()

	mu    sync.Mutex
	begun bool
	done  sync.Once
}

func (b *between) begins(sql string) {
	b.mu.Lock()
	if strings.Contains(sql, "-- name: "+b.first+" ") {
		b.begun = true
	}
	fire := b.begun && strings.Contains(sql, "-- name: "+b.second+" ")
	b.mu.Unlock()
	if fire {
		b.done.Do(b.do)
	}
}

func (b *between) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	b.begins(data.SQL)
	return ctx
}

func (b *between) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		b.begins(q.SQL)
	}
	return ctx
}

func (b *between) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (b *between) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (b *between) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// placeOrder locks one to three orders in turn, publishes an event of each with its next
// number, waits between the two as it happens, and commits nine times in ten.
func placeOrder(ctx context.Context, db interface {
	outbox.Beginner
}, random *rand.Rand, keys int, committed *sync.Map,
) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	ids := random.Perm(keys)[:1+random.IntN(3)]
	slices.Sort(ids) // no deadlock
	var bodies []string
	for _, id := range ids {
		var n int
		if err := tx.QueryRow(ctx, `UPDATE orders SET n = n + 1 WHERE id = $1 RETURNING n`, id+1).Scan(&n); err != nil {
			return err
		}
		time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
		key := fmt.Sprint(id + 1)
		body := fmt.Sprintf("%s:%d", key, n)
		if _, err := tx.Exec(ctx, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload) VALUES ($1, $2, 'order.placed', $3, 'text/plain', $4)`,
			outbox.NewID(), outbox.RootTenant, key, []byte(body)); err != nil {
			return err
		}
		bodies = append(bodies, body)
		time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
	}
	if random.IntN(10) == 0 {
		return nil
	}
	for _, body := range bodies {
		committed.Store(body, true)
	}
	return tx.Commit(ctx)
}

func TestAnOutageLosesNothingAndShows(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	away := &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("connection refused")}
	sink.set(func(m relay.Message) error {
		if string(m.Body) == "3" {
			return away
		}
		return nil
	}, away)
	reg := prometheus.NewRegistry()
	stop := start(t, db, &sink, func(c *relay.Config) { c.Registerer = reg })
	publish(t, db, "t", "k", "1", "2", "3", "4")
	waitFor(t, func() bool { return gauge(t, reg, "outbox_relay_lag_seconds") > 1 }, func() string { return "the lag rises" })
	code := `SELECT coalesce(away_code || ': ' || away_message, '') FROM outbox.sinks`
	waitFor(t, func() bool { return strings.Contains(ask[string](t, db, code), "relay_unavailable") }, func() string { return "the outage is in outbox.sinks" })
	if got := ask[string](t, db, code); !strings.HasSuffix(got, "connection refused") {
		t.Errorf("outbox.sinks says %q", got)
	}
	stop() // the next owner knows since when the sink is away
	exec(t, db, `UPDATE outbox.sinks SET away_since = away_since - interval '1 hour'`)
	start(t, db, &sink, nil)
	twoBeats(t, db)
	if got := ask[string](t, db, code+` WHERE away_since < now() - interval '59 minutes'`); !strings.HasSuffix(got, "connection refused") {
		t.Errorf("with the next owner outbox.sinks says %q of the last hour", got)
	}
	sink.set(nil, nil)
	sink.await(t, "1", "2", "3", "4")
	waitFor(t, func() bool { return ask[string](t, db, code) == "" }, func() string { return "the end of the outage is in outbox.sinks" })
}

// A queue that is nearly full accepts as many messages as its consumers have taken, and then refuses the next; a broker
// that is overloaded may do the same.
func TestASinkThatStopsAgainAndAgainIsLoggedEveryTenSeconds(t *testing.T) {
	t.Parallel()
	for code, lines := range map[string][]string{
		relay.CodeUnavailable: {"sink stopped", "sink resumed"},
		relay.CodeFull:        {"destination accepts nothing", "destination accepts messages again"},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			stopsAgainAndAgain(t, code, lines)
		})
	}
}

func stopsAgainAndAgain(t *testing.T, code string, lines []string) {
	db := database(t)
	var sink recorder
	stops, accepted := 0, 0
	sink.set(func(relay.Message) error {
		if accepted++; accepted%20 == 0 { // after more than what tries whether it accepts messages again
			stops++
			return &relay.UnavailableError{Code: code, Err: errors.New("queue is full")}
		}
		return nil
	}, nil)
	var log said
	began := time.Now()
	start(t, db, &sink, func(c *relay.Config) {
		c.Logger = log.logger(t)
		c.SetOutage(time.Millisecond, time.Millisecond)
	})
	var bodies []string
	for i := range 500 {
		bodies = append(bodies, fmt.Sprint(i))
	}
	publish(t, db, "t", "k", bodies...)
	sink.await(t, bodies...)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if stops < 20 {
		t.Fatalf("the sink has stopped %d times, want 20 at least", stops)
	}
	most := 1 + int(time.Since(began)/(10*time.Second))
	for _, message := range lines {
		if n := log.count(message); n < 1 || n > most {
			t.Errorf("%q is logged %d times in %s, want one line in ten seconds", message, n, time.Since(began))
		}
	}
}

func TestAFaultySinkLosesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func([]relay.Message) []error{
		"panics":            func([]relay.Message) []error { panic("odd") },
		"too few outcomes":  func([]relay.Message) []error { return nil },
		"tries nothing":     func(batch []relay.Message) []error { return slices.Repeat([]error{relay.ErrNotTried}, len(batch)) },
		"answers something": func(batch []relay.Message) []error { return slices.Repeat([]error{errors.New("odd")}, len(batch)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &faulty{fault: fault}
			start(t, db, sink, nil)
			publish(t, db, "t", "k", "1", "2")
			waitFor(t, func() bool { return ask[bool](t, db, `SELECT away_since IS NOT NULL FROM outbox.sinks`) }, func() string { return "the sink stands still" })
			sink.mend()
			sink.await(t, "1", "2")
		})
	}
}

type faulty struct {
	recorder
	fault func([]relay.Message) []error
	whole bool
}

func (f *faulty) mend() { f.mu.Lock(); defer f.mu.Unlock(); f.whole = true }

func (f *faulty) Publish(ctx context.Context, batch []relay.Message) []error {
	f.mu.Lock()
	whole := f.whole
	f.mu.Unlock()
	if whole {
		return f.recorder.Publish(ctx, batch)
	}
	return f.fault(batch)
}

// Of two relays one publishes; when it has died the other one takes over.
// deaf does not return from its first call until it is let go, whatever its context says.
type deaf struct {
	recorder
	called, letGo chan struct{}
	n             atomic.Int64
}

func (d *deaf) Publish(ctx context.Context, batch []relay.Message) []error {
	if d.n.Add(1) == 1 {
		close(d.called)
		<-d.letGo
	}
	return d.recorder.Publish(ctx, batch)
}

// A sink that does not return in time stands still, and is not called again until it has; its owner keeps it, says so,
// and can end.
func TestASinkThatDoesNotReturnIsNotCalledAgain(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprint("stops=", stops), func(t *testing.T) {
			t.Parallel()
			db := database(t)
			sink := &deaf{called: make(chan struct{}), letGo: make(chan struct{})}
			stop := start(t, db, sink, func(c *relay.Config) { c.SetPatience(time.Second) })
			publish(t, db, "t", "k", "1", "2")
			<-sink.called
			publish(t, db, "t", "k", "3")
			waitFor(t, func() bool {
				return ask[bool](t, db, `SELECT coalesce(away_code = 'relay_unanswered' AND epoch = 1 AND lease_expires_at > now(), false) FROM outbox.sinks`)
			}, func() string { return "the owner says that the sink does not return" })
			if stops {
				began := time.Now()
				stop()
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("the relay took %s to end", took)
				}
				if sink.closed {
					t.Error("the sink was closed while it was called")
				}
				close(sink.letGo)
				return
			}
			time.Sleep(3 * time.Second)
			if n := sink.n.Load(); n != 1 {
				t.Errorf("it was called %d times before it had returned", n)
			}
			close(sink.letGo)
			waitFor(t, func() bool { return slices.Contains(sink.bodies(), "3") }, func() string { return "it goes on" })
			var firsts []string
			for _, body := range sink.bodies() {
				if !slices.Contains(firsts, body) {
					firsts = append(firsts, body)
				}
			}
			if !slices.Equal(firsts, []string{"1", "2", "3"}) {
				t.Errorf("got %q", sink.bodies())
			}
		})
	}
}

func TestOneOwnerAtATime(t *testing.T) {
	t.Parallel()
	db := database(t)
	var first, second recorder
	asShipped := func(c *relay.Config) {
		c.LeaseTTL = 6 * time.Second
		c.SetRenewInterval(0)
	}
	stop := start(t, db, &first, asShipped)
	publish(t, db, "t", "k", "1")
	first.await(t, "1")
	epoch := ask[int](t, db, `SELECT epoch::int FROM outbox.sinks`)
	start(t, db, &second, asShipped)
	publish(t, db, "t", "k", "2")
	first.await(t, "1", "2")
	time.Sleep(8 * time.Second) // longer than a lease that nobody extends
	if now := ask[int](t, db, `SELECT epoch::int FROM outbox.sinks`); now != epoch {
		t.Errorf("the sink has had %d more owners, want that the first one extends its lease", now-epoch)
	}
	publish(t, db, "t", "k", "3")
	first.await(t, "1", "2", "3")
	left := time.Now()
	stop()
	publish(t, db, "t", "k", "4")
	second.await(t, "4")
	t.Logf("taken over after %v", time.Since(left))
}

// A failover to a server whose clock is behind leaves leases that end far in the future. Their owners may be gone.
func TestALeaseFromBeforeTheClockWasSetBackIsOver(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1")
	exec(t, db, `INSERT INTO outbox.sinks (sink, owner, epoch, lease_expires_at) VALUES ('s', 'gone', 7, now() + interval '1 hour')`)
	sinks, err := sqlgen.New(db).ListSinks(t.Context())
	if err != nil || len(sinks) != 1 || sinks[0].Owner != "" {
		t.Errorf("the sinks are %+v, %v, want one without an owner", sinks, err)
	}
	var sink recorder
	start(t, db, &sink, nil)
	sink.await(t, "1")
	if epoch := ask[int](t, db, `SELECT epoch::int FROM outbox.sinks`); epoch <= 7 {
		t.Errorf("its epoch is %d, which does not fence the former owner", epoch)
	}
}

// An open transaction and thousands that were rolled back leave holes without an event before the one that waits: for
// how long that waits is found nevertheless.
func TestTheOldestEventWaitsBehindHolesWithoutAnEvent(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 30000)`)
	publish(t, db, "t", "k", "1")
	exec(t, db, `INSERT INTO outbox.sinks (sink, top, holes)
		SELECT 's', 30001, range_agg(int8range(i, i + 1)) FROM generate_series(1, 30001, 2) AS i`)
	exec(t, db, `UPDATE outbox.sinks SET holes = holes * int8multirange(int8range(12001, NULL))`)
	q := sqlgen.New(db)
	sinks, err := q.ListSinks(t.Context())
	if err != nil || len(sinks) != 1 || !sinks[0].Oldest.Valid {
		t.Errorf("the sinks are %+v, %v, want one with its oldest event", sinks, err)
	}
	if waits, err := q.SinkWaits(t.Context(), "s"); err != nil || !waits.Valid {
		t.Errorf("the oldest event waits for %+v, %v", waits, err)
	}
}

// An owner that was deposed cannot move the cursor.
func TestADeposedOwnerDoesNotMoveTheCursor(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	sink.set(func(relay.Message) error {
		once.Do(func() { close(held); <-hold })
		return nil
	}, nil)
	start(t, db, &sink, nil)
	publish(t, db, "t", "k", "1")
	<-held
	if _, err := db.Exec(t.Context(), `UPDATE outbox.sinks SET owner = 'other', epoch = epoch + 1, lease_expires_at = now() + interval '5 minutes'`); err != nil {
		t.Fatal(err)
	}
	close(hold)
	time.Sleep(time.Second)
	if top := ask[int](t, db, `SELECT top FROM outbox.sinks`); top != 0 {
		t.Errorf("top = %d, want 0: another process has the sink", top)
	}
	exec(t, db, `UPDATE outbox.sinks SET lease_expires_at = now()`)
	exec(t, db, `SELECT pg_notify('outbox_events', '')`)
	sink.await(t, "1", "1") // it is ours again, and what nobody has stored is published again
}

// After a failover that lost commits, positions are given out a second time.
func TestPositionsThatAreGivenOutAgainAreNotSkipped(t *testing.T) {
	t.Parallel()
	for name, failover := range map[string]struct {
		sql   string
		since []string // published since
	}{
		// Up to the old end and beyond, so that only the timeline tells.
		"another timeline": {`UPDATE outbox.sinks SET timeline = '1/00000001'`, []string{"3 again", "4 again", "5"}},
		"fewer positions":  {`SELECT`, []string{"3 again"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			publish(t, db, "t", "k", "1", "2", "3", "4")
			var first recorder
			stop := start(t, db, &first, nil)
			first.await(t, "1", "2", "3", "4")
			stop()
			if _, err := db.Exec(t.Context(), `DELETE FROM outbox.events WHERE position > 2`); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(t.Context(), `SELECT setval('outbox.events_position_seq', 2)`); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(t.Context(), failover.sql); err != nil {
				t.Fatal(err)
			}
			publish(t, db, "t", "k", failover.since...)
			var second recorder
			start(t, db, &second, nil)
			second.await(t, append([]string{"1", "2"}, failover.since...)...)
		})
	}
}

// An owner whose connections survive a change of timeline notices it, too.
func TestAnOwnerNoticesAnotherTimeline(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	start(t, db, &sink, nil)
	publish(t, db, "t", "k", "1", "2")
	sink.await(t, "1", "2")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 2 }, func() string { return "the cursor is stored" })
	if _, err := db.Exec(t.Context(), `UPDATE outbox.sinks SET timeline = '1/00000001', top_id = gen_random_uuid()`); err != nil {
		t.Fatal(err)
	}
	publish(t, db, "t", "k", "3")
	sink.await(t, "1", "2", "3", "1", "2", "3")
}

// A planned switchover loses nothing, and so nothing is repeated: the event that was published last is still there.
func TestASwitchoverRepeatsNothing(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	start(t, db, &sink, nil)
	publish(t, db, "t", "k", "1", "2")
	sink.await(t, "1", "2")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 2 }, func() string { return "the cursor is stored" })
	exec(t, db, `UPDATE outbox.sinks SET timeline = '1/00000001'`)
	waitFor(t, func() bool {
		return ask[bool](t, db, `SELECT timeline = outbox.timeline() AND owner IS NOT NULL FROM outbox.sinks`)
	},
		func() string { return "the sink has an owner of the new timeline" })
	publish(t, db, "t", "k", "3")
	sink.await(t, "1", "2", "3")
	time.Sleep(300 * time.Millisecond)
	sink.await(t, "1", "2", "3")
}

// A sink that is paused is so for its next owner, too, from the beginning.
//
//	operator   pauses the sink
//	relay                        owns it                    stores the cursor, and hears of a pause
//	                                       reads a page
func TestTheNextOwnerPublishesNothingOfAPausedSink(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	stop := start(t, db, &sink, nil)
	publish(t, db, "t", "k", "1")
	sink.await(t, "1")
	stop()
	exec(t, db, `UPDATE outbox.sinks SET paused_at = now()`)
	publish(t, db, "t", "k", "2")
	config := db.Config()
	config.ConnConfig.Tracer = &between{first: "OwnSink", second: "AdvanceSink", do: func() { time.Sleep(500 * time.Millisecond) }}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	start(t, slow, &sink, nil)
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT epoch = 2 FROM outbox.sinks`) }, func() string { return "the next owner" })
	time.Sleep(time.Second)
	sink.await(t, "1")
	exec(t, db, `UPDATE outbox.sinks SET paused_at = NULL`)
	exec(t, db, `SELECT pg_notify('outbox_events', '')`)
	sink.await(t, "1", "2")
}

func TestOnlyRoutedEventsArePublished(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	stop := start(t, db, &sink, func(c *relay.Config) {
		c.Source = "shop"
		c.Sinks[0].Routes = []relay.Route{
			{Topics: []string{"order.*"}, Destination: "shop.{topic}.{key|token}"},
			{Topics: []string{"user.created"}, Destination: "users", CloudEvents: relay.CloudEventsStructured},
		}
	})
	publish(t, db, "order.paid", "a.b", "1")
	publish(t, db, "orders", "a", "2")
	publish(t, db, "user.created", "", "3")
	publish(t, db, "user.deleted", "", "4")
	waitFor(t, func() bool { return len(sink.messages()) >= 2 }, func() string { return "two messages" })
	got := sink.messages()
	if got[0].Destination != "shop.order.paid.a_b" || got[1].Destination != "users" || len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	if !slices.Contains(got[0].Headers, relay.Header{Name: "ce-source", Value: "shop"}) || got[1].ContentType != "application/cloudevents+json" {
		t.Errorf("got %+v", got)
	}
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 4 }, func() string { return "the cursor goes past what is not for the sink" })
	stop()
}

// After a crash that has lost commits there may be another event at a position: a sink that begins anew does not take
// what another one has read before.
func TestAnOwnerTakesNothingThatWasReadBefore(t *testing.T) {
	t.Parallel()
	db := database(t)
	var a, b recorder
	start(t, db, &a, func(c *relay.Config) {
		c.Sinks = append(c.Sinks, relay.SinkConfig{Name: "b", Sink: &b, Routes: c.Sinks[0].Routes})
	})
	publish(t, db, "t", "k", "lost")
	a.await(t, "lost")
	b.await(t, "lost")
	exec(t, db, `WITH crash AS (DELETE FROM outbox.events RETURNING *), begins AS (UPDATE outbox.sinks SET epoch = epoch + 1, top = 0, top_id = NULL WHERE sink = 'b')
		INSERT INTO outbox.events (position, id, tenant_id, topic, key, content_type, payload)
		SELECT position, gen_random_uuid(), tenant_id, topic, key, content_type, 'found' FROM crash`)
	b.await(t, "lost", "found")
}
