package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/jobs"
	"github.com/posthaste-dev/posthaste/relay/kafka"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// sink answers as it is made to, and keeps what it has accepted.
type sink struct {
	mu       sync.Mutex
	answer   func(batch []relay.Message) []error
	accepted []relay.Message
}

func (s *sink) Publish(_ context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := s.answer(batch)
	for i, err := range outcomes {
		if err == nil && i < len(batch) {
			s.accepted = append(s.accepted, batch[i])
		}
	}
	return outcomes
}

func (s *sink) Probe(context.Context) error                              { return nil }
func (s *sink) Check(context.Context, []string) ([]relay.Finding, error) { return nil, nil }
func (s *sink) Close() error                                             { return nil }

var (
	away       = &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errors.New("connection refused")}
	missing    = &relay.UnavailableError{Code: relay.CodeNoDestination, Err: errors.New("no such stream")}
	tooMuch    = &relay.RefusedError{Code: relay.CodeTooLarge, Err: errors.New("too large")}
	errSilence = errors.New("no answer")
)

// run runs a dispatcher with the kind order.announce until the test ends.
func run(t *testing.T, db *pgxpool.Pool, s relay.Sink, mapping jobs.Mapping) {
	t.Helper()
	var mux dispatcher.Mux
	jobs.Handle(&mux, "order.announce", s, mapping)
	d, err := dispatcher.New(db, &mux, dispatcher.Config{FallbackPollInterval: 20 * time.Millisecond, Backoff: dispatcher.Waits(0)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func enqueue(t *testing.T, db *pgxpool.Pool, payload string, opts outbox.Options) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "order.announce", Payload: []byte(payload)}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// ended returns how many jobs have ended, and how.
func ended(t *testing.T, db *pgxpool.Pool) (all map[string]int) {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT status || ' at ' || attempt || CASE status WHEN 'succeeded' THEN '' ELSE ' ' || last_error_code END FROM (
			SELECT status::text, attempt, last_error_code FROM outbox.history UNION ALL
			SELECT status::text, attempt, last_error_code FROM outbox.jobs WHERE status::text IN ('failed', 'dead')) AS all_of_them`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all = map[string]int{}
	for rows.Next() {
		var how string
		if err := rows.Scan(&how); err != nil {
			t.Fatal(err)
		}
		all[how]++
	}
	return all
}

// Every job is published at its first attempt, though the sink is away, tries only the first of a batch, or has not got
// to it: of root and of another tenant, with a key and without.
func TestAJobEndsAsItsMessageDid(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	other := outbox.NewID()
	const each = 40
	for i := range each {
		for _, tenant := range []outbox.ID{outbox.RootTenant, other} {
			enqueue(t, db, `{}`, outbox.Options{Tenant: tenant, MaxAttempts: 3})
			enqueue(t, db, `{}`, outbox.Options{Tenant: tenant, MaxAttempts: 3, Key: outbox.KeyRules{Name: fmt.Sprint("k", i%5), MaxActive: 1, Ordered: true}})
		}
	}
	calls := 0
	s := &sink{answer: func(batch []relay.Message) []error {
		outcomes := slices.Repeat([]error{relay.ErrNotTried}, len(batch))
		if calls++; calls <= 3 {
			outcomes[0] = away
			return outcomes
		}
		for i := range min(7, len(batch)) {
			outcomes[i] = nil
		}
		return outcomes
	}}
	run(t, db, s, jobs.Mapping{Destination: "all", Batch: dispatcher.BatchConfig{Max: 20, Wait: 5 * time.Millisecond}})
	want := map[string]int{"succeeded at 1": 4 * each}
	deadline := time.Now().Add(30 * time.Second)
	for !cmp.Equal(ended(t, db), want) && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		if got := ended(t, db); got["succeeded at 1"] < sum(got) {
			t.Fatalf("jobs have spent attempts: %v", got)
		}
	}
	if got := ended(t, db); !cmp.Equal(got, want) {
		t.Fatalf("in vain: %v, want %v", got, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for _, m := range s.accepted {
		ids[m.ID] = true
	}
	if len(ids) != 4*each || len(s.accepted) != len(ids) {
		t.Errorf("%d of %d are missing, %d were published twice", 4*each-len(ids), 4*each, len(s.accepted)-len(ids))
	}
}

func sum(of map[string]int) (n int) {
	for _, one := range of {
		n += one
	}
	return n
}

func TestWhatASinkSaysBecomesOfTheJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer error
		want   string
	}{
		"it is stored":                {nil, "succeeded at 1"},
		"refused waits for a person":  {tooMuch, "failed at 1 relay_too_large"},
		"no answer is tried again":    {errSilence, "dead at 2 relay_unanswered"},
		"another number than wanted":  {errMiscounted, "dead at 2 relay_unanswered"},
		"a destination that is not a": {errBadDestination, "failed at 1 relay_bad_destination"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			s := &sink{answer: func(batch []relay.Message) []error {
				if errors.Is(c.answer, errMiscounted) {
					return nil
				}
				return slices.Repeat([]error{c.answer}, len(batch))
			}}
			mapping := jobs.Mapping{}
			if errors.Is(c.answer, errBadDestination) {
				mapping.Destination = "{header.none}"
			}
			enqueue(t, db, `{}`, outbox.Options{MaxAttempts: 2})
			run(t, db, s, mapping)
			want := map[string]int{c.want: 1}
			for deadline := time.Now().Add(20 * time.Second); !cmp.Equal(ended(t, db), want); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("in vain: %v, want %v", ended(t, db), want)
				}
			}
		})
	}
}

var errMiscounted, errBadDestination = errors.New("no outcomes"), errors.New("no destination")

// Jobs of a kind that go to different places wait for their own, and those behind one of them are not tried in vain.
func TestAMissingDestinationKeepsItsOwnJobs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var batches int
	s := &sink{answer: func(batch []relay.Message) []error {
		batches++
		outcomes := make([]error, len(batch))
		first := true
		for i, m := range batch {
			if strings.HasSuffix(m.Destination, "none") {
				outcomes[i] = relay.ErrNotTried
				if first {
					outcomes[i] = missing
				}
				first = false
			}
		}
		return outcomes
	}}
	for i := range 100 {
		enqueue(t, db, `{}`, outbox.Options{Headers: map[string]string{"to": []string{"here", "none"}[i%2]}})
	}
	run(t, db, s, jobs.Mapping{Destination: "events.{header.to}", Batch: dispatcher.BatchConfig{Max: 10, Wait: 5 * time.Millisecond}})
	for deadline := time.Now().Add(20 * time.Second); ended(t, db)["succeeded at 1"] < 50; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %v", ended(t, db))
		}
	}
	time.Sleep(300 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if batches > 40 {
		t.Errorf("%d batches for a hundred jobs: those of the place that is missing are tried again and again", batches)
	}
}

func TestAJobsMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	got := make(chan relay.Message, 1)
	s := &sink{answer: func(batch []relay.Message) []error { got <- batch[0]; return []error{nil} }}
	run(t, db, s, jobs.Mapping{Destination: "shop.{topic}.{key|token}", Source: "shop"})
	id := enqueue(t, db, `{ "n": 7 }`, outbox.Options{Key: outbox.KeyRules{Name: "order 7"}, Headers: map[string]string{"user": "ada"}})
	m := <-got
	if m.ID != id.String() || m.Destination != "shop.order.announce.order_7" || m.Key != "order 7" || string(m.Body) != `{ "n": 7 }` || m.ContentType != "application/json" {
		t.Errorf("%+v", m)
	}
	headers := map[string]string{}
	for _, h := range m.Headers {
		headers[h.Name] = h.Value
	}
	want := map[string]string{
		"ce-specversion": "1.0", "ce-id": m.ID, "ce-source": "shop", "ce-type": "order.announce", "ce-time": headers["ce-time"],
		"ce-subject": "order 7", "ce-partitionkey": "order 7", "user": "ada",
	}
	if diff := cmp.Diff(want, headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// A job that is enqueued again is the same message, unless it is to be another.
func TestAJobThatIsEnqueuedAgainIsTheSameMessage(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		db := pgtest.New(t)
		got := make(chan relay.Message, 1)
		s := &sink{answer: func(batch []relay.Message) []error { got <- batch[0]; return make([]error, len(batch)) }}
		run(t, db, s, jobs.Mapping{Destination: "{id}"})
		first := enqueue(t, db, `{"n": 7}`, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k"}})
		<-got
		for ended(t, db)["succeeded at 1"] == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		for _, again := range []bool{false, true} {
			replay, _, err := operator.New(db).ReplayHistory(t.Context(), operator.JobReplay{Kind: "order.announce", Tenant: tenant, Again: again})
			if err != nil {
				t.Fatal(err)
			}
			m := <-got
			if (m.ID == first.String()) == again || m.Destination != m.ID || m.Key != "k" || string(m.Body) != `{"n": 7}` {
				t.Errorf("again = %v: %+v", again, m)
			}
			if !slices.Contains(m.Headers, relay.Header{Name: relay.HeaderReplay, Value: replay.String()}) {
				t.Errorf("again = %v: headers %v, want the replay's id", again, m.Headers)
			}
		}
	}
}

func TestAMappingThatIsNotValidPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "{nothing} is no placeholder") {
			t.Errorf("%v", r)
		}
	}()
	jobs.Handle(new(dispatcher.Mux), "k", &sink{}, jobs.Mapping{Destination: "{nothing}"})
}

func TestASinkForOneProcessIsNotForWorkers(t *testing.T) {
	t.Parallel()
	s, err := kafka.Open(kafka.Config{Brokers: []string{"h:1"}, TransactionalID: "posthaste-x"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if fault := fmt.Sprint(recover()); !strings.Contains(fault, "one process at a time") {
			t.Errorf("Handle: %s", fault)
		}
	}()
	var mux dispatcher.Mux
	jobs.Handle(&mux, "order.announce", s, jobs.Mapping{})
}

// busy is a sink that executes one call at a time, and whose broker does not answer about messages of one kind.
type busy struct {
	relay.Turns
	sink
}

func (s *busy) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if batch[0].Destination == "silent" {
		<-ctx.Done()
		return slices.Repeat([]error{ctx.Err()}, len(batch))
	}
	return make([]error, len(batch))
}

// A kind whose messages are not answered does not keep another of the same sink from publishing.
func TestKindsThatShareASinkTakeTurns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := &busy{}
	var mux dispatcher.Mux
	jobs.Handle(&mux, "silent", s, jobs.Mapping{})
	jobs.Handle(&mux, "quick", s, jobs.Mapping{})
	for _, kind := range []string{"silent", "silent", "silent", "quick"} {
		if _, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: kind, Payload: []byte("{}")}, outbox.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	d, err := dispatcher.New(db, &mux, dispatcher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	for deadline := time.Now().Add(40 * time.Second); ended(t, db)["succeeded at 1"] == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %v", ended(t, db))
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
