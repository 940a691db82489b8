package outboxtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// everything are options of each kind that is compared.
func everything() outbox.Options {
	return outbox.Options{
		Queue: "mail", Priority: 3, Delay: time.Hour, MaxAttempts: 4, Timeout: time.Minute, IdempotencyKey: "order 7",
		Key: outbox.KeyRules{Name: "ada", MaxActive: 2}, Headers: map[string]string{"trace": "1", "other": "2"},
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
	outboxtest.RequireNotEnqueued[sum](t, db)
	outboxtest.RequireNotEnqueued(t, db, receipt{Order: 2}, receipt{Order: 7})
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
