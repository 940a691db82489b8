package outboxtest_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// everything returns options of each kind that is compared.
func everything() outbox.Options {
	return outbox.Options{
		Queue: "mail", Priority: 3, Delay: time.Hour, MaxAttempts: 4, Timeout: time.Minute, IdempotencyKey: "order 7",
		Key: outbox.KeyRules{Name: "ada", MaxActive: 2, OnLapse: outbox.FailStale}, Backoff: outbox.Backoff{0, 90 * time.Second}, Streamed: true,
		Caller: outbox.Caller{Service: "shop", User: "7"}, Headers: map[string]string{"trace": "1", "other": "2"},
		Deadline: time.Date(2090, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func TestRequireEnqueued(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{Order: 1}, outbox.Options{})
	id := enqueue(t, db, receipt{Order: 7, To: "ada"}, everything())

	got := outboxtest.RequireEnqueued(t, db, receipt{Order: 7, To: "ada"})
	if got.ID != id || got.Args.To != "ada" || got.Queue != "mail" || got.Key != "ada" || got.Headers["trace"] != "1" || got.Priority != 3 || got.Deadline.Year() != 2090 {
		t.Errorf("got %+v", got)
	}
	want := everything()
	delete(want.Headers, "other")
	outboxtest.RequireEnqueued(t, db, receipt{Order: 7, To: "ada"}, want)
	outboxtest.RequireEnqueued(t, db, outbox.Raw{KindName: "receipt.send", Payload: []byte(`{"To":"ada","Order":7}`)})
	if n := len(outboxtest.Enqueued[receipt](t, db)); n != 2 {
		t.Errorf("%d jobs", n)
	}
	for order, key := range []outbox.KeyRules{
		{Name: "one at once", MaxActive: 1},
		{Name: "a line", Ordered: true, Sequence: 3, OnDeath: outbox.ParkKey, ParkAfter: time.Hour, OnLapse: outbox.BlockLapsed},
	} {
		enqueue(t, db, receipt{Order: 10 + order}, outbox.Options{Key: key})
		outboxtest.RequireEnqueued(t, db, receipt{Order: 10 + order}, outbox.Options{Key: key})
	}
	enqueue(t, db, secret{"x"}, outbox.Options{})
	outboxtest.RequireEnqueued(t, db, secret{"x"})
	outboxtest.RequireNotEnqueued(t, db, secret{"y"})
	enqueue(t, db, parcel{[]string{"air"}}, outbox.Options{})
	outboxtest.RequireEnqueued(t, db, parcel{[]string{"air"}}, outbox.Options{Queue: "air"})
	outboxtest.RequireNotEnqueued[sum](t, db)
	outboxtest.RequireNotEnqueued(t, db, receipt{Order: 2}, receipt{Order: 7})
}

// parcel is a job whose options need its arguments.
type parcel struct{ Labels []string }

func (parcel) Kind() string                     { return "parcel" }
func (p parcel) DefaultOptions() outbox.Options { return outbox.Options{Queue: p.Labels[0]} }

// secret is a job whose payload is sealed: written backwards.
type secret struct{ Word string }

func (secret) Kind() string                   { return "secret" }
func (secret) DefaultOptions() outbox.Options { return outbox.Options{Protect: backwards{}} }

type backwards struct{}

func (backwards) Check(string, outbox.Content) error { return nil }

func (backwards) Seal(_ context.Context, _ outbox.Part, plain outbox.Content) (outbox.Content, error) {
	slices.Reverse(plain.Bytes)
	return outbox.Content{Type: "backwards", Bytes: plain.Bytes}, nil
}

func (backwards) Open(_ context.Context, of outbox.Part, sealed outbox.Content) (outbox.Content, error) {
	if of.Job.IsZero() || of.Tenant != outbox.RootTenant || of.Column != "payload" || sealed.Type != "backwards" {
		return outbox.Content{}, errors.New("not sealed by this")
	}
	plain := slices.Clone(sealed.Bytes)
	slices.Reverse(plain)
	return outbox.Content{Type: "application/json", Bytes: plain}, nil
}

// A job that was stored without any option is not what a test wants that sets one, whichever it is.
func noOptionIsPassedOver(t *testing.T, db *outboxtest.DB) {
	enqueue(t, db, receipt{Order: 8}, outbox.Options{})
	values := []any{"x", int64(1e9), true, outbox.ID{15: 9}, outbox.Backoff{1e9}, map[string]string{"a": "b"}, outbox.Caller{User: "ada"}, time.Unix(4e9, 0), backwards{}}
	var want outbox.Options
	var try func(of reflect.Value)
	try = func(of reflect.Value) {
		for n := range of.NumField() {
			f, name := of.Field(n), of.Type().Field(n).Name
			switch {
			case name == "watched" || name == "Protect": // which are not set by hand, and open the payload
				continue
			case name == "Key":
				try(f)
				continue
			}
			at := slices.IndexFunc(values, func(v any) bool {
				of := reflect.TypeOf(v)
				return of.ConvertibleTo(f.Type()) && (of.Kind() == f.Kind() || f.CanInt() || f.Kind() == reflect.Interface)
			})
			if at < 0 {
				t.Fatalf("no value for %s: add one", name)
			}
			f.Set(reflect.ValueOf(values[at]).Convert(f.Type()))
			t.Run(name, func(t *testing.T) {
				fails(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, db, receipt{Order: 8}, want) })
			})
			f.SetZero()
		}
	}
	try(reflect.ValueOf(&want).Elem())
}

func TestEachOptionIsCompared(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{Order: 7}, everything())
	for name, want := range map[string]outbox.Options{
		"Queue: other":               {Queue: "other"},
		"Priority: 4":                {Priority: 4},
		"Delay: 2h0m0s":              {Delay: 2 * time.Hour},
		"RunAt: 2030":                {RunAt: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)},
		"MaxAttempts: 5":             {MaxAttempts: 5},
		"Timeout: 2m0s":              {Timeout: 2 * time.Minute},
		"Key.Name: bob":              {Key: outbox.KeyRules{Name: "bob"}},
		"Key.MaxActive: 3":           {Key: outbox.KeyRules{Name: "ada", MaxActive: 3}},
		"Key.Ordered: true":          {Key: outbox.KeyRules{Name: "ada", Ordered: true}},
		"IdempotencyKey: order 8":    {IdempotencyKey: "order 8"},
		`Headers["trace"]: 2`:        {Headers: map[string]string{"trace": "2"}},
		"Backoff: [0s]":              {Backoff: outbox.Backoff{0}},
		`Headers["caller-user"]: 8`:  {Caller: outbox.Caller{User: "8"}},
		"Deadline: 2091":             {Deadline: time.Date(2091, 1, 1, 0, 0, 0, 0, time.UTC)},
		"Hold: true":                 {Hold: true},
		"Tenant: 00000000-0000-0000": {Tenant: outbox.ID{15: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			said := fails(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, db, receipt{Order: 7}, want) })
			if !strings.Contains(said, "    - "+name) || !strings.Contains(said, "      \"Order\": 7") && !strings.Contains(said, `"Order": 7`) {
				t.Errorf("said\n%s", said)
			}
		})
	}
	noOptionIsPassedOver(t, db)
}

func TestAFailureShowsWhatWasEnqueued(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{Order: 7, To: "ada"}, outbox.Options{Queue: "mail"})
	for _, c := range []struct {
		name, want string
		test       func(t testing.TB)
	}{
		{"another payload", "      {\n    -   \"Order\": 8,\n    +   \"Order\": 7,\n        \"To\": \"ada\"\n      }\n      Queue: mail\n", func(t testing.TB) {
			outboxtest.RequireEnqueued(t, db, receipt{Order: 8, To: "ada"}, outbox.Options{Queue: "mail"})
		}},
		{"another kind", "no job of kind sum was enqueued; in this transaction there are:\n  receipt.send in queue mail, pending, due ", func(t testing.TB) {
			outboxtest.RequireEnqueued(t, db, sum{A: 1})
		}},
		{"an unwanted kind", "jobs of kind receipt.send were enqueued, and should not have been:\n  receipt.send in queue mail", func(t testing.TB) {
			outboxtest.RequireNotEnqueued[receipt](t, db)
		}},
		{"an unwanted payload", "should not have been", func(t testing.TB) {
			outboxtest.RequireNotEnqueued(t, db, receipt{Order: 1}, receipt{Order: 7, To: "ada"})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if said := fails(t, c.test); !strings.Contains(said, c.want) {
				t.Errorf("said\n%s\nwhich has no\n%s", said, c.want)
			}
		})
	}
}

func TestOnlyTheTransactionsOwnJobsCount(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	enqueue(t, pool, receipt{Order: 1}, outbox.Options{})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	outboxtest.RequireNotEnqueued[receipt](t, tx) // nor has it a number
	enqueue(t, tx, sum{A: 1}, outbox.Options{})
	enqueue(t, pool, receipt{Order: 2}, outbox.Options{}) // later than the transaction, and visible
	if _, err := outbox.Publish(t.Context(), pool, paid{2}, outbox.EventOptions{}); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireNotEnqueued[receipt](t, tx)
	outboxtest.RequireNotPublished(t, tx, "order.paid")

	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	enqueue(t, inner, receipt{Order: 3}, outbox.Options{})
	outboxtest.RequireEnqueued(t, tx, receipt{Order: 3})
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireNotEnqueued[receipt](t, tx)
	if err := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
		enqueue(t, tx, receipt{Order: 4}, outbox.Options{})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireEnqueued(t, tx, receipt{Order: 4})
}

func TestRequireEnqueuedFindsWhatWasWorked(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{Order: 7}, outbox.Options{})
	outboxtest.NewWorker(t, db, handle(done), outboxtest.Config{}).Drain()
	if got := outboxtest.RequireEnqueued(t, db, receipt{Order: 7}); got.Status != outbox.Succeeded {
		t.Errorf("got %s", got.Status)
	}
}

func TestRequirePublished(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	said := fails(t, func(t testing.TB) { outboxtest.RequirePublished(t, db, paid{7}) })
	if want := "no event of topic order.paid was published; in this transaction there are:\n  no events\n"; !strings.Contains(said, want) {
		t.Errorf("said\n%s", said)
	}
	id, err := outbox.Publish(t.Context(), db, paid{7}, outbox.EventOptions{Key: "7", Headers: map[string]string{"trace": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	opts := outbox.EventOptions{Key: "7", ID: id, Headers: map[string]string{"trace": "1"}}
	if got := outboxtest.RequirePublished(t, db, paid{7}, opts); got != id {
		t.Errorf("got %s", got)
	}
	opts.Key = "8"
	said = fails(t, func(t testing.TB) { outboxtest.RequirePublished(t, db, paid{8}, opts) })
	if want := "    -   \"Order\": 8\n    +   \"Order\": 7\n"; !strings.Contains(said, want) || !strings.Contains(said, "    - Key: 8\n    + Key: 7\n") {
		t.Errorf("said\n%s", said)
	}
	said = fails(t, func(t testing.TB) { outboxtest.RequireNotPublished(t, db, "order.paid") })
	if !strings.Contains(said, "should not have been") {
		t.Errorf("said %s", said)
	}
	outboxtest.RequireNotPublished(t, db, "order.placed")
}
