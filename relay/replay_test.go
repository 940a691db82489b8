package relay_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// replayOf returns the value of the header that messages of a replay have, "" for others.
func replayOf(m relay.Message) string {
	for _, h := range m.Headers {
		if h.Name == relay.HeaderReplay {
			return h.Value
		}
	}
	return ""
}

// replayed returns the messages of replays so far.
func (r *recorder) replayed() (all []relay.Message) {
	for _, m := range r.messages() {
		if replayOf(m) != "" {
			all = append(all, m)
		}
	}
	return all
}

func bodiesOf(messages []relay.Message) []string {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = string(m.Body)
	}
	return all
}

func startReplay(t *testing.T, db *pgxpool.Pool, r operator.EventReplay) operator.Replay {
	t.Helper()
	if r.Since.IsZero() {
		r.Since = time.Now().Add(-time.Hour)
	}
	started, err := operator.New(db).ReplayEvents(t.Context(), "s", r)
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// awaitReplay returns the replay once it has ended.
func awaitReplay(t *testing.T, db *pgxpool.Pool, r operator.Replay) operator.Replay {
	t.Helper()
	waitFor(t, func() bool {
		var err error
		if r, err = operator.New(db).Replay(t.Context(), "s", outbox.ID{}, r.ID); err != nil {
			t.Fatal(err)
		}
		return !r.EndedAt.IsZero()
	}, func() string { return fmt.Sprintf("the replay ends; it is %+v", r) })
	return r
}

func publishOf(t *testing.T, db *pgxpool.Pool, tenant outbox.ID, topic, key, body string) outbox.ID {
	t.Helper()
	id, err := outbox.Publish(t.Context(), db, outbox.Raw{KindName: topic, Payload: []byte(body), ContentType: "text/plain"}, outbox.EventOptions{Tenant: tenant, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A replay publishes what is meant and nothing else, and leaves the cursor alone.
func TestAReplayPublishesAgain(t *testing.T) {
	t.Parallel()
	db := database(t)
	other := outbox.NewID()
	ids := []outbox.ID{
		publishOf(t, db, outbox.RootTenant, "order.paid", "7", "1"), publishOf(t, db, other, "order.paid", "7", "2"),
		publishOf(t, db, outbox.RootTenant, "order.sent", "8", "3"), publishOf(t, db, outbox.RootTenant, "stock.low", "", "4"),
		publishOf(t, db, other, "stock.low", "7", "5"),
	}
	if _, err := db.Exec(t.Context(), `UPDATE outbox.events SET at = at - interval '2 hours' WHERE position = 4`); err != nil {
		t.Fatal(err)
	}
	var sink recorder
	start(t, db, &sink, nil)
	sink.await(t, "1", "2", "3", "4", "5")
	cursor := func() string {
		return ask[string](t, db, `SELECT format('%s %s %s', top, holes, published) FROM outbox.sinks`)
	}
	waitFor(t, func() bool { return cursor() == "5 {} 5" }, func() string { return "the cursor is stored; it is " + cursor() })
	type filter = operator.EventFilter
	for _, tt := range []struct {
		filter filter
		want   []string
	}{
		{filter{}, []string{"1", "2", "3", "5"}},
		{filter{Since: time.Now().Add(-3 * time.Hour)}, []string{"1", "2", "3", "4", "5"}},
		{filter{Since: time.Now().Add(-3 * time.Hour), Until: time.Now().Add(-time.Hour)}, []string{"4"}},
		{filter{Topics: []string{"order.*"}}, []string{"1", "2", "3"}},
		{filter{Topics: []string{"order.sent", "stock.low"}}, []string{"3", "5"}},
		{filter{Key: "7"}, []string{"1", "2", "5"}},
		{filter{Tenant: other}, []string{"2", "5"}},
		{filter{Tenant: outbox.RootTenant, Topics: []string{"*"}, Key: "7"}, []string{"1"}},
	} {
		for _, again := range []bool{false, true} {
			had := len(sink.replayed())
			r := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{EventFilter: tt.filter, Again: again}))
			got := sink.replayed()[had:]
			if !slices.Equal(bodiesOf(got), tt.want) || r.Events != int64(len(tt.want)) || r.Published != r.Events || r.Refused != 0 || r.State() != "finished" {
				t.Errorf("of %+v it published %q, and is %+v; want %q", tt.filter, bodiesOf(got), r, tt.want)
			}
			for _, m := range got {
				id := ids[m.Position-1].String()
				if again {
					id += "/" + r.ID.String()
				}
				if m.ID != id || replayOf(m) != r.ID.String() {
					t.Errorf("again = %v: a message has the id %s, want %s, and is of the replay %s, want %s", again, m.ID, id, replayOf(m), r.ID)
				}
			}
		}
	}
	if got := cursor(); got != "5 {} 5" {
		t.Errorf("the cursor is %s: a replay has moved it", got)
	}
	var others []string
	for _, m := range sink.messages() {
		if replayOf(m) == "" {
			others = append(others, string(m.Body))
		}
	}
	slices.Sort(others) // of an owner whose lease lapsed there may be repeats
	if others = slices.Compact(others); !slices.Equal(others, []string{"1", "2", "3", "4", "5"}) {
		t.Errorf("%q are of no replay, want what was published", others)
	}
}

// An owner that ends in the middle of a replay is followed by one that goes on from there.
func TestTheNextOwnerGoesOnWithAReplay(t *testing.T) {
	t.Parallel()
	db := database(t)
	const events = 60
	var want []string
	for i := range events {
		want = append(want, fmt.Sprint(i))
	}
	publish(t, db, "t", "k", want...)
	var first recorder
	stop := start(t, db, &first, nil)
	first.await(t, want...)
	r := startReplay(t, db, operator.EventReplay{PerSecond: 50})
	waitFor(t, func() bool { return len(first.replayed()) >= 20 }, func() string { return "a part is published" })
	stop()
	had := bodiesOf(first.replayed())
	var second recorder
	start(t, db, &second, nil)
	r = awaitReplay(t, db, r)
	got := bodiesOf(second.replayed())
	if len(had) == events || len(got) == 0 || len(got) > events-20+5 || !slices.Equal(append(had[:events-len(got):events-len(got)], got...), want) {
		t.Errorf("the first has published %q, the next %q", had, got)
	}
	if r.Events != events || r.Published < events-5 || r.Published > events+5 {
		t.Errorf("it is %+v", r)
	}
}

// What the sink refuses in a replay is passed by, also where it is the first of a key.
func TestAReplayPassesByWhatIsRefused(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3")
	publish(t, db, "t", "other", "4")
	var sink recorder
	start(t, db, &sink, func(c *relay.Config) { c.SetOutage(time.Millisecond, time.Millisecond) })
	sink.await(t, "1", "2", "3", "4")
	for name, outcome := range map[string]error{
		"refused":                          &relay.RefusedError{Code: relay.CodeTooLarge, Err: errors.New("too large")},
		"no destination":                   &relay.UnavailableError{Code: relay.CodeNoDestination, Err: errors.New("no such topic")},
		"unknown, though the sink answers": errors.New("500"),
	} {
		for _, onward := range []bool{false, true} { // what comes behind it in a batch is accepted once all the same
			before := len(sink.replayed())
			sink.set(func(m relay.Message) error {
				if replayOf(m) != "" && string(m.Body) == "2" {
					return outcome
				}
				return nil
			}, nil)
			sink.goOn(onward)
			r := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{StopLive: true}))
			got := bodiesOf(sink.replayed()[before:])
			slices.Sort(got)
			if !slices.Equal(got, []string{"1", "3", "4"}) || r.Published != 3 || r.Refused != 1 {
				t.Errorf("%s, onward %t: it published %q, and is %+v", name, onward, got, r)
			}
		}
	}
}

// repeater is a sink that repeats the outcome of a key's message for those behind it, as a sink may that has sent them.
type repeater struct{ picky }

func (r *repeater) Publish(_ context.Context, batch []relay.Message) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	outcomes := make([]error, len(batch))
	failed := map[string]error{}
	for i, m := range batch {
		if outcomes[i] = failed[m.Key]; outcomes[i] != nil {
			continue
		}
		if outcomes[i] = r.refuses(m); outcomes[i] != nil {
			failed[m.Key] = outcomes[i]
			continue
		}
		r.got = append(r.got, m)
	}
	return outcomes
}

// An outcome that a sink repeats for messages behind a refused one says nothing of them: a replay publishes them.
func TestAReplayPublishesWhatIsBehindARefusedMessage(t *testing.T) {
	t.Parallel()
	db := database(t)
	sink := &repeater{picky{refuses: takesAll}}
	publish(t, db, "t", "k", "1", "bad", "3", "4")
	start(t, db, sink, nil)
	sink.awaitKey(t, "k", "1", "bad", "3", "4")
	sink.now(func(m relay.Message) error {
		if bad(m) {
			return &relay.RefusedError{Code: relay.CodeTooLarge, Err: errors.New("too large")}
		}
		return nil
	})
	r := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{}))
	if got := bodiesOf(sink.replayed()); !slices.Equal(got, []string{"1", "3", "4"}) || r.Published != 3 || r.Refused != 1 {
		t.Errorf("it published %q, and is %+v", got, r)
	}
}

// A receiver that answers each message with an error is away: of a replay it costs one message at most.
func TestAReplayWaitsForAReceiverThatFailsAtAll(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3")
	var sink recorder
	start(t, db, &sink, func(c *relay.Config) { c.SetOutage(time.Millisecond, time.Millisecond) })
	sink.await(t, "1", "2", "3")
	sink.set(func(relay.Message) error { return errors.New("500") }, nil)
	r := startReplay(t, db, operator.EventReplay{StopLive: true})
	refused := func() int { return ask[int](t, db, `SELECT refused FROM outbox.replays`) }
	waitFor(t, func() bool { return refused() == 1 }, func() string { return "one is passed by" })
	calls := sink.called()
	waitFor(t, func() bool { return sink.called() > calls+20 }, func() string { return "it is tried again and again" })
	if n := refused(); n != 1 {
		t.Errorf("%d messages are passed by, want 1", n)
	}
	sink.set(nil, nil)
	if r := awaitReplay(t, db, r); r.Published != 2 || r.Refused != 1 {
		t.Errorf("it is %+v", r)
	}
}

// New events are published while a replay cannot go on, and while it does: they wait for one
// of its pages at most.
func TestNewEventsDoNotWaitForAReplay(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2")
	away := func(m relay.Message) error {
		if replayOf(m) != "" {
			return &relay.UnavailableError{Code: relay.CodeFull, Err: errors.New("the stream is full")}
		}
		return nil
	}
	var sink recorder
	sink.set(away, nil)
	var log said
	start(t, db, &sink, func(c *relay.Config) { c.Logger = log.logger(t) })
	sink.await(t, "1", "2")
	r := startReplay(t, db, operator.EventReplay{})
	waits := func() string { return ask[string](t, db, `SELECT coalesce(failure, '') FROM outbox.replays`) }
	waitFor(t, func() bool { return strings.Contains(waits(), "the stream is full") }, func() string { return "the replay says what it waits for; it says " + waits() })
	var took []time.Duration
	for i := range 20 {
		publish(t, db, "t", "k", fmt.Sprint(3+i))
		published := time.Now()
		waitFor(t, func() bool { return len(sink.bodies()) == 3+i }, func() string { return "a new event is published" })
		took = append(took, time.Since(published))
		time.Sleep(50 * time.Millisecond)
	}
	if slices.Sort(took); took[len(took)/2] > time.Second { // one that is late is so on a busy machine
		t.Errorf("half of the new events have waited for %v or longer beside a replay that waits", took[len(took)/2])
	}
	if log.has("sink stopped") {
		t.Error("new events wait beside a replay that waits: the sink stood still")
	}
	sink.set(nil, nil)
	if r = awaitReplay(t, db, r); r.Published != 2 || r.Failure != "" {
		t.Errorf("it is %+v", r)
	}
}

// A replay that stops what is new has no message between its own, of an event that comes meanwhile: it waits, and the
// sink says why.
func TestAReplayStopsWhatIsNew(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3", "4", "5")
	var sink recorder
	start(t, db, &sink, nil)
	sink.await(t, "1", "2", "3", "4", "5")
	r := startReplay(t, db, operator.EventReplay{StopLive: true, PerSecond: 10})
	waitFor(t, func() bool { return len(sink.replayed()) > 0 }, func() string { return "the replay begins" })
	publish(t, db, "t", "k", "6", "7")
	why := func() string {
		return ask[string](t, db, `SELECT coalesce(away_code || ' ' || away_message, '') FROM outbox.sinks`)
	}
	waitFor(t, func() bool { return strings.HasPrefix(why(), relay.CodeReplay+" replay "+r.ID.String()) }, func() string { return "the sink says that it waits; it says " + why() })
	if r = awaitReplay(t, db, r); r.Published != 5 || !r.StopLive {
		t.Errorf("it is %+v", r)
	}
	sink.await(t, "1", "2", "3", "4", "5", "1", "2", "3", "4", "5", "6", "7")
	waitFor(t, func() bool { return why() == "" }, func() string { return "the sink goes on; it says " + why() })
}

// Nor has one that goes on at the next owner of the sink, whose first look for replays is slow.
//
//	last owner   stops within the replay
//	next owner                              owns the sink   looks for replays   publishes
//	a client                 a new event
func TestTheNextOwnerPublishesNothingNewBesideAReplay(t *testing.T) {
	t.Parallel()
	db := database(t)
	const events = 200
	for i := range events {
		publish(t, db, "t", "k", fmt.Sprint(i))
	}
	var sink recorder
	stop := start(t, db, &sink, nil)
	waitFor(t, func() bool { return len(sink.messages()) == events }, func() string { return "all are published" })
	r := startReplay(t, db, operator.EventReplay{StopLive: true, PerSecond: 50})
	waitFor(t, func() bool { return len(sink.replayed()) > 0 }, func() string { return "the replay begins" })
	stop()
	if n := len(sink.replayed()); n == events {
		t.Fatal("the replay has ended: the test did not reach what it is for")
	}
	publish(t, db, "t", "k", "new")
	config := db.Config()
	config.ConnConfig.Tracer = &between{first: "OwnSink", second: "NextReplays", do: func() { time.Sleep(500 * time.Millisecond) }}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	start(t, slow, &sink, nil)
	awaitReplay(t, db, r)
	waitFor(t, func() bool { return slices.Contains(sink.bodies(), "new") }, func() string { return "the new one is published" })
	if got := sink.bodies(); got[len(got)-1] != "new" || len(sink.replayed()) < events {
		t.Errorf("after the new one came %d messages of the replay", len(got)-1-slices.Index(got, "new"))
	}
}

// Events that the sink has yet to publish come first, or nothing would ever publish them: then the replay begins.
func TestAReplayThatStopsWhatIsNewWaitsForTheCursor(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2")
	var sink recorder
	sink.set(func(relay.Message) error {
		return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("away")}
	}, nil)
	start(t, db, &sink, nil)
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT away_since IS NOT NULL FROM outbox.sinks`) }, func() string { return "the sink stands still" })
	r := startReplay(t, db, operator.EventReplay{StopLive: true})
	sink.set(nil, nil)
	if r = awaitReplay(t, db, r); r.Published != 2 {
		t.Errorf("it is %+v", r)
	}
	sink.await(t, "1", "2", "1", "2")
}

// A replay that is stopped publishes no more.
func TestAReplayIsStopped(t *testing.T) {
	t.Parallel()
	db := database(t)
	o := operator.New(db)
	other := outbox.NewID()
	for i := range 200 {
		publish(t, db, "t", "k", fmt.Sprint(i))
	}
	var sink recorder
	start(t, db, &sink, nil)
	waitFor(t, func() bool { return len(sink.messages()) == 200 }, func() string { return "all are published" })
	r := startReplay(t, db, operator.EventReplay{PerSecond: 50})
	waitFor(t, func() bool { return len(sink.replayed()) > 0 }, func() string { return "it has begun" })
	for _, of := range []struct {
		sink   string
		tenant outbox.ID
	}{{"none", outbox.ID{}}, {"s", other}} {
		if err := o.StopReplay(t.Context(), of.sink, of.tenant, r.ID); !errors.Is(err, operator.ErrReplayNotFound) {
			t.Errorf("of %+v: %v", of, err)
		}
	}
	if err := o.StopReplay(t.Context(), "s", outbox.ID{}, r.ID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // a page that is under way
	n := len(sink.replayed())
	time.Sleep(500 * time.Millisecond)
	if r = awaitReplay(t, db, r); len(sink.replayed()) != n || n >= 150 || r.State() != "stopped" {
		t.Errorf("after it was stopped it published %d more; it is %+v", len(sink.replayed())-n, r)
	}
	next := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{}))
	if next.Published != 200 {
		t.Errorf("the next one is %+v", next)
	}
}

// A replay that an operator stops in an outage publishes nothing when the sink is back, also not the page that it had
// read before.
func TestAReplayStoppedInAnOutage(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3")
	var sink recorder
	var lines said
	start(t, db, &sink, func(c *relay.Config) {
		c.Logger = lines.logger(t)
		c.SetOutage(20*time.Millisecond, 100*time.Millisecond)
	})
	sink.await(t, "1", "2", "3")
	away := &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("away")}
	sink.set(func(relay.Message) error { return away }, away)
	publish(t, db, "t", "k", "4")
	waitFor(t, func() bool { return ask[bool](t, db, `SELECT away_code IS NOT NULL FROM outbox.sinks`) }, func() string { return "the sink is away" })
	r := startReplay(t, db, operator.EventReplay{Again: true})
	waitFor(t, func() bool { return lines.has("replay goes on") }, func() string { return "the owner knows of the replay" })
	time.Sleep(200 * time.Millisecond) // it reads a page
	end(t, func(ctx context.Context) error { return operator.New(db).StopReplay(ctx, "s", outbox.ID{}, r.ID) })
	time.Sleep(2500 * time.Millisecond)
	sink.set(nil, nil)
	sink.await(t, "1", "2", "3", "4")
	twoBeats(t, db)
	if got := bodiesOf(sink.replayed()); len(got) > 0 {
		t.Errorf("%q were published after the replay was stopped", got)
	}
	if next := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{})); next.Published != 4 {
		t.Errorf("the next one is %+v", next)
	}
}

// forgetful is a sink whose broker remembers ids.
type forgetful struct {
	recorder
	seen map[string]bool
	n    int64
}

func (f *forgetful) Publish(ctx context.Context, batch []relay.Message) []error {
	f.mu.Lock()
	for _, m := range batch {
		if f.seen[m.ID] {
			f.n++
		}
		f.seen[m.ID] = true
	}
	f.mu.Unlock()
	return f.recorder.Publish(ctx, batch)
}

func (f *forgetful) Duplicates() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

func (f *forgetful) Remembers() time.Duration { return 2 * time.Minute }

// It is said before, and counted afterwards, what a broker drops as repeats.
func TestAReplayCountsRepeats(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2", "3")
	if _, err := db.Exec(t.Context(), `UPDATE outbox.events SET at = at - interval '3 minutes' WHERE position = 1`); err != nil {
		t.Fatal(err)
	}
	sink := forgetful{seen: map[string]bool{}}
	start(t, db, &sink, nil)
	sink.await(t, "1", "2", "3")
	o, since := operator.New(db), time.Now().Add(-time.Hour)
	var plan operator.ReplayPlan
	waitFor(t, func() bool {
		var err error
		if plan, err = o.WouldReplayEvents(t.Context(), "s", operator.EventReplay{EventFilter: operator.EventFilter{Since: since}, PerSecond: 0.5}); err != nil {
			t.Fatal(err)
		}
		return plan.Remembers > 0
	}, func() string { return "it is known for how long the broker remembers ids" })
	if plan.Events != 3 || plan.Dropped != 2 || plan.Remembers != 2*time.Minute || plan.Takes != 6*time.Second || plan.Oldest.IsZero() || plan.Newest.Sub(plan.Oldest) < 3*time.Minute {
		t.Errorf("the plan is %+v", plan)
	}
	for again, repeated := range map[bool]int64{false: 3, true: 0} {
		r := operator.EventReplay{Again: again}
		if r := awaitReplay(t, db, startReplay(t, db, r)); r.Published != 3 || r.Repeated != repeated {
			t.Errorf("again = %v: it is %+v", again, r)
		}
	}
}

// Words of a broker that the database refuses keep no replay from going on where it was.
func TestAReplayWaitsWithWordsThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	for encoding, words := range map[string]string{"UTF8": "you\x00lose", "LATIN1": "you\u2603lose"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := ready(t, pgtest.NewEncoded(t, encoding))
			var sink recorder
			start(t, db, &sink, nil)
			publish(t, db, "t", "k", "1", "2")
			sink.await(t, "1", "2")
			waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 2 }, func() string { return "the cursor is stored" })
			sink.set(func(m relay.Message) error {
				if string(m.Body) == "2" {
					return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New(words)}
				}
				return nil
			}, nil)
			replay := startReplay(t, db, operator.EventReplay{})
			waitFor(t, func() bool {
				return ask[bool](t, db, `SELECT coalesce(failure LIKE '%you%lose%', false) FROM outbox.replays`)
			}, func() string { return "it says why it waits" })
			sink.set(nil, nil)
			awaitReplay(t, db, replay)
			if got := bodiesOf(sink.replayed()); !slices.Equal(got, []string{"1", "2"}) {
				t.Errorf("it published %q, want each once", got)
			}
		})
	}
}

// What waits behind a refused message is a job, and a replay does not overtake it.
func TestAReplayOvertakesNoHeldMessage(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		db := database(t)
		sink := &picky{refuses: tooLarge(bad)}
		start(t, db, sink, nil)
		for _, e := range [][2]string{{"k", "1"}, {"k", "bad"}, {"k", "3"}, {"other", "4"}, {"", "5"}} {
			publishOf(t, db, tenant, "t", e[0], e[1])
		}
		deadLetters(t, db, 1)
		waitFor(t, func() bool { return ask[int](t, db, `SELECT top FROM outbox.sinks`) == 5 }, func() string { return "the sink is past them" })
		r := awaitReplay(t, db, startReplay(t, db, operator.EventReplay{}))
		if r.Published != 3 || r.Refused != 2 {
			t.Errorf("%d published and %d passed by, want 3 and 2", r.Published, r.Refused)
		}
		if got := bodiesOf(sink.replayed()); !slices.Equal(got, []string{"1", "4", "5"}) {
			t.Errorf("replayed %q", got)
		}
		sink.awaitKey(t, "k", "1")
	}
}

// A replay with a low rate, and one that fails, keep no other waiting.
func TestReplaysTakeTurns(t *testing.T) {
	t.Parallel()
	slow := outbox.NewID()
	db := database(t)
	tenants := []outbox.ID{slow, slow, outbox.RootTenant, outbox.NewID(), outbox.NewID()}
	failing := tenants[4]
	for i := range 250 {
		for _, tenant := range tenants[1:] {
			publishOf(t, db, tenant, "t", fmt.Sprint(i%3), fmt.Sprint(i))
		}
	}
	sink := &recorder{outcome: func(m relay.Message) error {
		if replayOf(m) != "" && m.Destination == failing.String() {
			return &relay.UnavailableError{Code: relay.CodeFull, Err: errors.New("the stream is full")}
		}
		return nil
	}}
	start(t, db, sink, func(c *relay.Config) { c.Sinks[0].Routes[0].Destination = "{tenant}" })
	waitFor(t, func() bool { return len(sink.messages()) == 1000 }, func() string { return "all are published" })
	of := func(tenant outbox.ID, rate float64) operator.Replay {
		return startReplay(t, db, operator.EventReplay{EventFilter: operator.EventFilter{Tenant: tenant}, PerSecond: rate})
	}
	first, waits := of(slow, 1), of(failing, 0)
	waitFor(t, func() bool { return len(sink.replayed()) > 0 }, func() string { return "the slow one has begun" })
	for i, tenant := range tenants[1:4] {
		r := awaitReplay(t, db, of(tenant, 0))
		if r.Published != r.Events || r.Events < 250 {
			t.Errorf("%d: the fast one is %+v", i, r)
		}
		var perKey [3][]string
		for _, m := range sink.replayed() {
			if replayOf(m) == r.ID.String() && m.Destination == tenant.String() {
				perKey[m.Key[0]-'0'] = append(perKey[m.Key[0]-'0'], string(m.Body))
			}
		}
		for key, got := range perKey {
			if !slices.IsSortedFunc(got, byNumber) {
				t.Errorf("of the key %d it published %q", key, got)
			}
		}
	}
	for _, r := range []operator.Replay{first, waits} {
		if r, err := operator.New(db).Replay(t.Context(), "s", outbox.ID{}, r.ID); err != nil || r.State() != "running" {
			t.Errorf("%+v: %v; want that it still runs", r, err)
		}
	}
	sink.set(nil, nil)
	if r := awaitReplay(t, db, waits); r.Published != 250 || r.Failure != "" {
		t.Errorf("the one that failed is %+v", r)
	}
}

func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// Replays that take turns lose nothing, and no order, when pages fail and their owner is replaced again and again: what
// it has not stored is published again.
func TestReplaysOutliveTheirOwners(t *testing.T) {
	t.Parallel()
	db := database(t)
	const events = 300
	tenants := []outbox.ID{outbox.RootTenant, outbox.NewID()}
	for i := range events {
		for _, tenant := range tenants {
			publishOf(t, db, tenant, "t", fmt.Sprint(i%3), fmt.Sprint(i))
		}
	}
	failed := map[string]bool{}
	sink := &recorder{outcome: func(m relay.Message) error {
		id := replayOf(m) + string(m.Body)
		if replayOf(m) == "" || !strings.HasSuffix(string(m.Body), "50") || failed[id] {
			return nil
		}
		failed[id] = true
		return &relay.UnavailableError{Code: relay.CodeFull, Err: errors.New("full")}
	}}
	start(t, db, sink, nil)
	waitFor(t, func() bool { return len(sink.messages()) == 2*events }, func() string { return "all are published" })
	var replays []operator.Replay
	for _, tenant := range tenants {
		replays = append(replays, startReplay(t, db, operator.EventReplay{EventFilter: operator.EventFilter{Tenant: tenant}, PerSecond: 150}))
	}
	for range 6 {
		time.Sleep(300 * time.Millisecond)
		exec(t, db, `UPDATE outbox.sinks SET epoch = epoch + 1, owner = NULL, lease_expires_at = NULL`)
	}
	for _, r := range replays {
		r = awaitReplay(t, db, r)
		firsts := map[string][]string{}
		for _, m := range sink.replayed() {
			if seen := firsts[m.Key]; replayOf(m) == r.ID.String() && !slices.Contains(seen, string(m.Body)) {
				firsts[m.Key] = append(seen, string(m.Body))
			}
		}
		for key, got := range firsts {
			if len(got) != events/3 || !slices.IsSortedFunc(got, byNumber) {
				t.Errorf("of the tenant %s and the key %s it published %q", r.Tenant, key, got)
			}
		}
		if len(firsts) != 3 {
			t.Errorf("of the tenant %s it published %d keys", r.Tenant, len(firsts))
		}
	}
}

// A replay that stops new events, and cannot go on for whatever reason, does not stop them for ever.
func TestAReplayThatCannotGoOnStopsNothing(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]error{
		"a proxy gives up": fmt.Errorf("502: %w", relay.ErrMaybeAway),
		"it is full":       &relay.UnavailableError{Code: relay.CodeFull, Err: errors.New("full")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t)
			publish(t, db, "t", "k", "1", "2")
			var sink recorder
			start(t, db, &sink, func(c *relay.Config) { c.SetOutage(50*time.Millisecond, 200*time.Millisecond) })
			sink.await(t, "1", "2")
			sink.set(func(m relay.Message) error {
				if replayOf(m) != "" {
					return outcome
				}
				return nil
			}, nil)
			r := startReplay(t, db, operator.EventReplay{StopLive: true})
			calls := sink.called()
			waitFor(t, func() bool { return sink.called() > calls }, func() string { return "the replay begins" })
			publish(t, db, "t", "k", "3", "4")
			sink.await(t, "1", "2", "3", "4")
			sink.set(nil, nil)
			if r := awaitReplay(t, db, r); r.Published != 2 {
				t.Errorf("it is %+v", r)
			}
		})
	}
}

// An outage of the broker does not let new events past a replay that stops them.
func TestAReplayStopsNewEventsThroughAnOutage(t *testing.T) {
	t.Parallel()
	db := database(t)
	publish(t, db, "t", "k", "1", "2")
	var sink recorder
	start(t, db, &sink, func(c *relay.Config) { c.SetOutage(20*time.Millisecond, 50*time.Millisecond) })
	sink.await(t, "1", "2")
	var newer atomic.Bool
	sink.set(func(m relay.Message) error {
		if replayOf(m) == "" {
			newer.Store(true)
		}
		return &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("no connection")}
	}, nil)
	r := startReplay(t, db, operator.EventReplay{StopLive: true})
	calls := sink.called()
	waitFor(t, func() bool { return sink.called() > calls }, func() string { return "the replay begins" })
	publish(t, db, "t", "k", "3")
	waitFor(t, func() bool { return sink.called() > calls+10 }, func() string { return "the replay is tried again and again" })
	if newer.Load() {
		t.Error("a new event was sent in the outage")
	}
	sink.set(nil, nil)
	awaitReplay(t, db, r)
	sink.await(t, "1", "2", "1", "2", "3")
}
