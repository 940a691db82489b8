package relay_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

func exec(t *testing.T, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// gauge returns the value of a metric of the only sink, 0 if it has none.
func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}

var away = &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("connection refused")}

func TestASinkThatIsPausedInAnOutageStaysPaused(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	sink.set(func(relay.Message) error { return away }, away)
	start(t, db, &sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 100*time.Millisecond) })
	publish(t, db, "t", "k", "1", "2")
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT away_since IS NOT NULL FROM outbox.sinks`) }, func() string { return "it stands still" })
	exec(t, db, `UPDATE outbox.sinks SET paused_at = now()`)
	twoBeats(t, db)
	sink.set(nil, nil)
	twoBeats(t, db) // it would have been tried meanwhile
	if got := sink.bodies(); len(got) > 0 {
		t.Errorf("%q were published although the sink is paused", got)
	}
	exec(t, db, `UPDATE outbox.sinks SET paused_at = NULL`)
	sink.await(t, "1", "2")
}

// A pause waits for what is under way, and is no failure of the broker.
func TestAPauseLetsABatchEnd(t *testing.T) {
	t.Parallel()
	db := database(t)
	reg := prometheus.NewRegistry()
	sink := &slow{}
	start(t, db, sink, func(c *relay.Config) { c.Registerer = reg })
	publish(t, db, "t", "k", "1")
	waitFor(t, func() bool { return sink.calls.Load() == 1 }, func() string { return "a batch is under way" })
	exec(t, db, `UPDATE outbox.sinks SET paused_at = now()`)
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 1 }, func() string { return "its end is stored" })
	time.Sleep(time.Second)
	if families, err := reg.Gather(); err != nil {
		t.Fatal(err)
	} else {
		for _, f := range families {
			if f.GetName() == "outbox_relay_failures_total" {
				t.Errorf("a pause counts as a failure of the broker: %v", f.GetMetric())
			}
		}
	}
	if n := sink.calls.Load(); n != 1 {
		t.Errorf("Publish was called %d times, want once", n)
	}
}

// slow takes three seconds, or until it is cut off.
type slow struct {
	recorder
	calls atomic.Int64
}

func (s *slow) Publish(ctx context.Context, batch []relay.Message) []error {
	s.calls.Add(1)
	outcomes := make([]error, len(batch))
	select {
	case <-ctx.Done():
		for i := range outcomes {
			outcomes[i] = ctx.Err()
		}
	case <-time.After(3 * time.Second):
	}
	return outcomes
}

// statements counts those that begin, by what they have in them.
type statements struct {
	with string
	n    atomic.Int64
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, s.with) {
		s.n.Add(1)
	}
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAPausedSinkIsQuiet(t *testing.T) {
	t.Parallel()
	db := database(t)
	stores := &statements{with: "-- name: AdvanceSink "}
	config := db.Config()
	config.ConnConfig.Tracer = stores
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traced.Close)
	var sink recorder
	start(t, traced, &sink, nil)
	exec(t, db, `UPDATE outbox.sinks SET paused_at = now()`)
	twoBeats(t, db)
	before, began := stores.n.Load(), time.Now()
	for i := 0; time.Since(began) < 3*time.Second; i++ {
		publish(t, db, "t", "k", fmt.Sprint(i))
		time.Sleep(2 * time.Millisecond)
	}
	took := time.Since(began)
	if n := stores.n.Load() - before; n > int64(6*took.Seconds()) { // three a second are renewals
		t.Errorf("beside many publishers a paused sink was stored %d times in %s", n, took)
	}
	if got := sink.bodies(); len(got) > 0 {
		t.Errorf("%q were published although the sink is paused", got)
	}
}

// One row with odd headers, which SQL by hand can store, stops no sink that it is not for.
func TestAnEventThatCannotBeReadConcernsItsRouteOnly(t *testing.T) {
	t.Parallel()
	db := database(t)
	var mine, theirs recorder
	start(t, db, &mine, func(c *relay.Config) {
		c.Sinks[0].Routes[0].Topics = []string{"mine"}
		c.Sinks = append(c.Sinks, relay.SinkConfig{Name: "other", Sink: &theirs, Routes: []relay.Route{{Topics: []string{"theirs"}, CloudEvents: relay.CloudEventsOff}}})
	})
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers) VALUES ($1, $2, 'theirs', 'k', 'text/plain', 'x', '{"n": 1}')`,
		outbox.NewID(), outbox.RootTenant)
	publish(t, db, "mine", "k", "1")
	publish(t, db, "theirs", "k", "2")
	mine.await(t, "1")
	waitFor(t, func() bool {
		return strings.Contains(ask[string](t, db, `SELECT coalesce(max(last_error_message), '') FROM outbox.jobs WHERE kind = 'relay:other' AND status = 'dead'`), "a header is not a string")
	}, func() string { return "the other sink's dead letter says why" })
}

// A thousand events with headers from before there was a limit are too much for the time of a page, and for the memory
// of a process. Those of one tenant hold up no other.
func TestLargeHeadersAreReadInSmallPages(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, `ALTER TABLE outbox.events DROP CONSTRAINT events_headers`)
	exec(t, db, `CREATE TABLE large AS SELECT jsonb_build_object('h', repeat('x', 2000000)) AS headers`)
	store := func(n int) {
		exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload, headers)
			SELECT gen_random_uuid(), $1, 'theirs', 'text/plain', 'x', headers FROM large, generate_series(1, $2)`, outbox.NewID(), n)
	}
	store(20)
	publish(t, db, "mine", "k", "1")
	store(980)
	var sink recorder
	start(t, db, &sink, func(c *relay.Config) { c.Sinks[0].Routes[0].Topics = []string{"mine"} })
	sink.await(t, "1")
}

// A page that does not come in time, as over a slow line, is read again in smaller ones.
func TestALogIsReadOverASlowLine(t *testing.T) {
	t.Parallel()
	db := database(t)
	line := newLine(t, db)
	line.slowness.Store(int64(time.Millisecond))
	exec(t, db, `ALTER TABLE outbox.events ALTER payload SET STORAGE EXTERNAL`)
	exec(t, db, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		SELECT gen_random_uuid(), $1, 't', 'text/plain', repeat('x', 7000)::bytea FROM generate_series(1, 1000)`, outbox.RootTenant)
	behind, err := pgxpool.NewWithConfig(t.Context(), line.through(db))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(behind.Close)
	var sink recorder
	start(t, behind, &sink, nil)
	waitFor(t, func() bool { return len(sink.bodies()) >= 1000 }, func() string { return fmt.Sprintf("%d of 1000", len(sink.bodies())) })
}

// The age of what waits shows where it waits at a hole, and the reason names the event.
func TestAnEventThatWaitsAtAHoleShows(t *testing.T) {
	t.Parallel()
	db := database(t)
	reg := prometheus.NewRegistry()
	var sink recorder
	sink.set(func(m relay.Message) error {
		if m.Key == "a" {
			return errors.New("no answer")
		}
		return nil
	}, nil)
	start(t, db, &sink, func(c *relay.Config) { c.Registerer = reg })
	tx := begin(t, db)
	publish(t, tx, "t", "a", "bad")
	publish(t, tx, "t", "b", "good")
	end(t, tx.Commit)
	waitFor(t, func() bool { return gauge(t, reg, "outbox_relay_lag_seconds") > 1 }, func() string { return "the lag rises" })
	id := ask[string](t, db, `SELECT id::text FROM outbox.events ORDER BY position LIMIT 1`)
	if message := ask[string](t, db, `SELECT away_message FROM outbox.sinks`); !strings.Contains(message, "event "+id+", topic t, position 1") {
		t.Errorf("outbox.sinks says %q, which does not name the event", message)
	}
}

// lookSlowly is a tracer under which the look for the oldest event that waits takes all the time that it has.
type lookSlowly struct{ looks atomic.Int64 }

func (l *lookSlowly) TraceQueryStart(ctx context.Context, _ *pgx.Conn, query pgx.TraceQueryStartData) context.Context {
	if strings.Contains(query.SQL, "name: SinkWaits") {
		<-ctx.Done()
		l.looks.Add(1)
	}
	return ctx
}

func (*lookSlowly) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// For how long the oldest event has waited is a number for operators: the sink goes on where that takes long to find.
func TestASlowLookAtWhatWaitsCostsNoOwnership(t *testing.T) {
	t.Parallel()
	db := database(t)
	slowly := &lookSlowly{}
	config := db.Config().Copy()
	config.ConnConfig.Tracer = slowly
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traced.Close)
	var sink recorder
	var log said
	start(t, traced, &sink, func(c *relay.Config) { c.Logger = log.logger(t) })
	waitFor(t, func() bool { return slowly.looks.Load() == 1 && log.count("level=WARN") == 1 }, func() string { return "a look takes too long, and the log says so" })
	publish(t, db, "t", "k", "1")
	sink.await(t, "1")
	twoBeats(t, db)
	if epoch := ask[int](t, db, `SELECT epoch FROM outbox.sinks`); epoch != 1 {
		t.Errorf("the sink was owned %d times, want once", epoch)
	}
}

// An owner that outlives a failover reads nothing from the new timeline before it has read
// its cursor anew: what was given out there since would overtake what it has to repeat.
func TestOrderOutlivesAFailover(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	start(t, db, &sink, nil)
	publish(t, db, "t", "k", "1", "2", "3", "4")
	sink.await(t, "1", "2", "3", "4")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 4 }, func() string { return "the cursor is stored" })
	tx := begin(t, db) // what the new primary has
	exec(t, tx, `DELETE FROM outbox.events WHERE position > 2`)
	exec(t, tx, `UPDATE outbox.sinks SET top = 2`)
	exec(t, tx, `SELECT setval('outbox.events_position_seq', 2)`)
	exec(t, tx, `CREATE OR REPLACE FUNCTION outbox.timeline() RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'another' $$`)
	publish(t, tx, "t", "k", "new 3", "new 4", "new 5")
	end(t, tx.Commit)
	sink.await(t, "1", "2", "3", "4", "1", "2", "new 3", "new 4", "new 5")
}

// Where a copy of the tables came without the sequence, positions would be given out that
// the sink has passed: it says what to do, and goes on when that is done, with what was stored meanwhile.
func TestASequenceBehindTheLogIsSaid(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3")
	var sink recorder
	stop := start(t, db, &sink, nil)
	sink.await(t, "1", "2", "3")
	stop()
	exec(t, db, `UPDATE outbox.sinks SET timeline = '1/00000001', rewind_top = 3, mark_top = 3`)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 1, false)`)
	publish(t, db, "t", "k", "since the copy")
	var next recorder
	var log said
	start(t, db, &next, func(c *relay.Config) { c.Logger = log.logger(t) })
	waitFor(t, func() bool { return log.has("SELECT setval('outbox.events_position_seq', 3)") }, func() string { return "it says what to do" })
	publish(t, db, "t", "k", "before it is done")
	if got := next.bodies(); len(got) > 0 {
		t.Errorf("%q were published", got)
	}
	exec(t, db, `SELECT setval('outbox.events_position_seq', 3)`)
	publish(t, db, "t", "k", "4")
	waitFor(t, func() bool { return slices.Contains(next.bodies(), "4") }, func() string { return "it goes on" })
	for _, body := range []string{"since the copy", "before it is done"} {
		if got := next.bodies(); !slices.Contains(got, body) {
			t.Errorf("%q were published, without %q", got, body)
		}
	}
}

// Newer events wait until all that has come to holes is read, however much that is.
func TestALateTransactionIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	db := database(t)
	late := begin(t, db)
	exec(t, late, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 't', 'k', 'text/plain', convert_to(i::text, 'UTF8') FROM generate_series(1, 2500) AS i`, outbox.RootTenant)
	publish(t, db, "t", "other", "c")
	var first recorder
	stop := start(t, db, &first, nil)
	first.await(t, "c")
	stop()
	end(t, late.Commit)
	publish(t, db, "t", "k", "2501")
	var second recorder
	start(t, db, &second, nil)
	waitFor(t, func() bool { return len(second.bodies()) >= 2501 }, func() string { return fmt.Sprintf("%d of 2501", len(second.bodies())) })
	for i, body := range second.bodies() {
		if body != fmt.Sprint(i+1) {
			t.Fatalf("number %d is %s", i+1, body)
		}
	}
}

// A process that has lost its sink, as in an outage of the database, does not report that the sink has no lag.
func TestWhoDoesNotOwnASinkReportsNoLag(t *testing.T) {
	t.Parallel()
	db := database(t)
	var sink recorder
	reg := prometheus.NewRegistry()
	start(t, db, &sink, func(c *relay.Config) { c.Registerer = reg })
	gauges := []string{"lag_seconds", "lag_events", "away_seconds", "holes", "held_messages", "held_keys"}
	reported := func() (names []string) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range gauges {
			if slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "outbox_relay_"+name }) {
				names = append(names, name)
			}
		}
		return names
	}
	waitFor(t, func() bool { return slices.Equal(reported(), gauges) && gauge(t, reg, "outbox_relay_owned") == 1 },
		func() string { return fmt.Sprintf("the owner reports %q", reported()) })
	exec(t, db, `UPDATE outbox.sinks SET owner = 'other', epoch = epoch + 1, lease_expires_at = now() + interval '5 minutes'`)
	waitFor(t, func() bool { return gauge(t, reg, "outbox_relay_owned") == 0 && len(reported()) == 0 },
		func() string { return fmt.Sprintf("who is not the owner reports %q", reported()) })
}

// Connections that go silent, as when a machine loses power, hold a sink up no longer than
// its lease and a statement last.
func TestConnectionsThatGoSilentAreLeft(t *testing.T) {
	t.Parallel()
	db := database(t)
	line := newLine(t, db)
	behind, err := pgxpool.NewWithConfig(t.Context(), line.through(db))
	if err != nil {
		t.Fatal(err)
	}
	var sink recorder
	stop := start(t, behind, &sink, func(c *relay.Config) { c.LeaseTTL = 5 * time.Second })
	publish(t, db, "t", "k", "1")
	sink.await(t, "1")
	waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 1 }, func() string { return "the cursor is stored" })
	line.freeze()
	publish(t, db, "t", "k", "2")
	sink.await(t, "1", "2")
	line.close()
	stop()
	behind.Close()
}

// line forwards connections to a server, until freeze: then those that there are hang, and
// new ones work.
type line struct {
	net.Listener
	network, address string
	slowness         atomic.Int64 // the Duration that a KiB takes

	mu     sync.Mutex
	frozen []chan struct{}
	conns  []net.Conn
}

func newLine(t *testing.T, db *pgxpool.Pool) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := db.Config().ConnConfig
	l := &line{Listener: listener, network: "tcp", address: net.JoinHostPort(to.Host, fmt.Sprint(to.Port))}
	if strings.HasPrefix(to.Host, "/") {
		l.network, l.address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", to.Host, to.Port)
	}
	go l.serve()
	t.Cleanup(l.close)
	return l
}

// through returns the configuration of a pool whose connections are the line's.
func (l *line) through(db *pgxpool.Pool) *pgxpool.Config {
	config := db.Config()
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}
	return config
}

func (l *line) serve() {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial(l.network, l.address)
		if err != nil {
			_ = in.Close()
			continue
		}
		frozen := make(chan struct{})
		l.mu.Lock()
		l.frozen = append(l.frozen, frozen)
		l.conns = append(l.conns, in, out)
		l.mu.Unlock()
		go l.forward(out, in, frozen)
		go l.forward(in, out, frozen)
	}
}

func (l *line) forward(to, from net.Conn, frozen chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		time.Sleep(time.Duration(l.slowness.Load() * int64(n) >> 10))
		select {
		case <-frozen:
			return // both stay open
		default:
		}
		if n > 0 && err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			_, _ = from.Close(), to.Close()
			return
		}
	}
}

func (l *line) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.frozen {
		close(c)
	}
	l.frozen = nil
}

func (l *line) close() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// A slow sink accepts what there is time for, and leaves the rest: it does not stand still for that.
func TestABatchThatTimeDoesNotSufficeForGoesOn(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &slowRecorder{most: 3}
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
	}
	publish(t, db, "order.paid", "k", want...)
	var log said
	start(t, db, sink, func(c *relay.Config) { c.Logger = log.logger(t) })
	sink.await(t, want...)
	if log.has("sink stopped") {
		t.Error("the sink stood still")
	}
}

// slowRecorder has time for so many messages of a batch.
type slowRecorder struct {
	recorder
	most int
}

func (s *slowRecorder) Publish(ctx context.Context, batch []relay.Message) []error {
	n := min(s.most, len(batch))
	outcomes := s.recorder.Publish(ctx, batch[:n])
	for range batch[n:] {
		outcomes = append(outcomes, relay.ErrNotTried)
	}
	return outcomes
}

// Words of a broker may have bytes that the database refuses. What was published before is stored all the same.
func TestWordsThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	for name, words := range map[string]string{
		"a NUL":         "you\x00lose",
		"no UTF-8":      "you\xfflose",
		"no LATIN1":     "you\u2603lose",
		"a whole novel": strings.Repeat("you lose ", 1<<13),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			if name == "no LATIN1" {
				db = ready(t, pgtest.NewEncoded(t, "LATIN1"))
			}
			var sink recorder
			sink.set(func(m relay.Message) error {
				if string(m.Body) == "2" {
					return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New(words)}
				}
				return nil
			}, nil)
			start(t, db, &sink, nil)
			publish(t, db, "t", "k", "1", "2")
			waitFor(t, func() bool {
				return ask[bool](t, db, `SELECT top = 1 AND coalesce(away_message LIKE '%you%lose%' AND octet_length(away_message) < 5000, false) FROM outbox.sinks`)
			}, func() string { return "it stands still behind 1, and says why" })
			sink.await(t, "1")
		})
	}
}

// What an operator has a sink skip is not published after a switchover either, which loses nothing.
func TestASwitchoverUndoesNoSkip(t *testing.T) {
	t.Parallel()
	for name, skip := range map[string]func(context.Context, *operator.Operator, outbox.ID) error{
		"an event": func(ctx context.Context, o *operator.Operator, last outbox.ID) error {
			return o.SkipEvent(ctx, "s", last)
		},
		"all that waits": func(ctx context.Context, o *operator.Operator, _ outbox.ID) error {
			_, err := o.SeekSink(ctx, "s", operator.SinkTarget{End: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			var sink recorder
			stop := start(t, db, &sink, nil)
			publish(t, db, "t", "k", "1")
			sink.await(t, "1")
			waitFor(t, func() bool { return ask[bool](t, db, `SELECT top = 1 FROM outbox.sinks`) }, func() string { return "it has stored that" })
			stop()
			publish(t, db, "t", "k", "2")
			last, err := outbox.ParseID(ask[string](t, db, `SELECT id::text FROM outbox.events WHERE payload = '2'`))
			if err != nil {
				t.Fatal(err)
			}
			end(t, func(ctx context.Context) error { return skip(ctx, operator.New(db), last) })
			exec(t, db, `UPDATE outbox.sinks SET timeline = '1/00000001'`)
			var next recorder
			start(t, db, &next, nil)
			publish(t, db, "t", "k", "3")
			next.await(t, "3")
		})
	}
}

// lossy is a sink whose broker has lost something with each batch.
type lossy struct {
	recorder
	lost atomic.Int64
}

func (l *lossy) Publish(ctx context.Context, batch []relay.Message) []error {
	l.lost.Add(1)
	return l.recorder.Publish(ctx, batch)
}

func (l *lossy) DataLosses() int64 { return l.lost.Load() }

func TestWhatABrokerHasLostIsCounted(t *testing.T) {
	t.Parallel()
	db, reg := database(t), prometheus.NewRegistry()
	var sink lossy
	start(t, db, &sink, func(c *relay.Config) { c.Registerer = reg })
	publish(t, db, "t", "k", "1")
	sink.await(t, "1")
	waitFor(t, func() bool { return counted(t, reg, "outbox_relay_data_losses_total") == float64(sink.DataLosses()) },
		func() string { return "the loss is counted" })
}

// counted returns the value of a counter of the only sink.
func counted(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

// pedantic refuses the first message of each batch, in a quarter of a second, and tries no other.
type pedantic struct {
	recorder
	batches atomic.Int64
}

func (p *pedantic) Publish(_ context.Context, batch []relay.Message) []error {
	p.batches.Add(1)
	time.Sleep(250 * time.Millisecond)
	outcomes := slices.Repeat([]error{relay.ErrNotTried}, len(batch))
	outcomes[0] = &relay.RefusedError{Code: relay.CodeRefused, Err: errors.New("no")}
	return outcomes
}

// A page that takes many batches does not delay a pause, nor a stop: the rest of it is read again.
func TestAPauseWaitsForOneBatchOfAPage(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, db *pgxpool.Pool, stop func()){
		"pause": func(t *testing.T, db *pgxpool.Pool, _ func()) {
			exec(t, db, `UPDATE outbox.sinks SET paused_at = now()`)
			twoBeats(t, db)
			time.Sleep(500 * time.Millisecond)
		},
		"stop": func(_ *testing.T, _ *pgxpool.Pool, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			for i := range 60 {
				publish(t, db, "t", fmt.Sprint(i), "x")
			}
			var sink pedantic
			stop := start(t, db, &sink, func(c *relay.Config) { c.Sinks[0].Routes[0].OnRefused = relay.RefusedDrop })
			waitFor(t, func() bool { return sink.batches.Load() > 2 }, func() string { return "some batches are sent" })
			end(t, db, stop)
			n := sink.batches.Load()
			if n > 40 {
				t.Errorf("after %d batches the sink is not at rest", n)
			}
			time.Sleep(time.Second)
			if more := sink.batches.Load() - n; more > 0 {
				t.Errorf("%d batches are sent afterwards", more)
			}
			if top := ask[int64](t, db, `SELECT top - coalesce((SELECT sum(upper(h) - lower(h)) FROM unnest(holes) AS h), 0) FROM outbox.sinks`); top != n {
				t.Errorf("%d events are stored as done, after %d batches", top, n)
			}
		})
	}
}
