package docs_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/memory"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/amqp"
	"github.com/posthaste-dev/posthaste/relay/jobs"
	"github.com/posthaste-dev/posthaste/relay/kafka"
	"github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/relay/redis"
	"github.com/posthaste-dev/posthaste/relay/watermill"
	"github.com/posthaste-dev/posthaste/relay/webhook"
	"github.com/posthaste-dev/posthaste/server"
)

// The functions of this file have the lines of Go that pages show out of context: here they compile, and
// TestGuidesOpenWithCompiledCode compares them. What a page shows stands between empty lines.

// What the fragments are about.
var (
	ctx  context.Context
	pool *pgxpool.Pool
	tx   pgx.Tx
)

func use(...any) {}

type (
	SendReceipt struct{ OrderID int64 }
	SyncTickets struct{ Origin string }
	SyncNow     struct{ Origin string }
	Count       struct{ Upload io.Reader }
	Charge      struct {
		Order int64
		Cents int
	}
	Receipt  struct{ Number string }
	Position struct{ Row int }
	Size     struct{ Width, Height int }
)

func (SendReceipt) Kind() string { return "receipt.send" }
func (SyncTickets) Kind() string { return "tickets.sync" }
func (SyncNow) Kind() string     { return "tickets.sync_now" }
func (Count) Kind() string       { return "upload.count" }
func (Charge) Kind() string      { return "order.charge" }

func sendReceipt(context.Context, *outbox.Job[SendReceipt]) error { return nil }

var payments service

type service struct{}

func (service) Charge(context.Context, int, string) (Receipt, error) { return Receipt{}, nil }
func (service) IdempotencyKey(key string) string                     { return key }

func Example_consumers() {
	id := outbox.ID{}.String()

	first, err := inbox.Once(ctx, tx, "ledger", id)

	use(first, err)
}

func Example_positions() {
	var offset int64

	position, err := inbox.Seek(ctx, pool, inbox.Partition{Consumer: "ledger", Source: "orders", Number: 3})
	// read from position.Next() on; for each message, in a transaction:
	first, err := position.Advance(ctx, tx, offset)

	use(first, err)
}

func Example_everything() {
	var mux dispatcher.Mux
	var config app.Config
	var sink relay.Sink
	var source bridge.Source
	_ = func() error {
		url := os.Getenv("DATABASE_URL")
		dispatcher.Handle(&mux, sendReceipt)
		ctx, cut := app.Signals(context.Background())
		config = app.Config{DatabaseURL: url, Cut: cut, AdminAddr: ":9090", Logger: slog.Default()}

		wake := listener.NewSignal() // set when events were stored
		events, err := listener.New(url, relay.Channel, wake, listener.Config{AppName: "shop-relay", Pool: pool, Canary: pool})
		if err != nil {
			return err
		}
		publisher, err := relay.New(pool, relay.Config{
			Sinks: []relay.SinkConfig{{Name: "orders", Sink: sink, Routes: []relay.Route{
				{Topics: []string{"order.*"}, Destination: "shop.{topic}.{key|token}"},
			}}},
			Wake: wake, Listening: events.Listening, Logger: config.Logger,
		})
		if err != nil {
			return err
		}
		fetcher, err := bridge.New(pool, bridge.Config{
			Bridges: []bridge.BridgeConfig{{Name: "payments", Source: source, Kind: "payment.settled"}},
			Logger:  config.Logger,
		})
		if err != nil {
			return err
		}
		config.Components = []app.Component{
			{Name: "relay listener", Run: events.Run},
			{Name: "relay", Run: publisher.Run, Ready: publisher.Ready, NeedsSchema: true},
			{Name: "bridge", Run: fetcher.Run, Ready: fetcher.Ready, NeedsSchema: true},
		}
		return server.Run(ctx, &mux, config, server.Config{Addr: "127.0.0.1:8080", Console: &console.Config{}})
	}
}

func Example_followUps() {
	var mux dispatcher.Mux
	thank := func(context.Context, outbox.ID) error { return nil }
	apologise := thank

	dispatcher.Handle(&mux, sendReceipt)
	dispatcher.OnSuccess(&mux, func(ctx context.Context, job *outbox.Job[dispatcher.Ended[SendReceipt]]) error {
		return thank(ctx, job.Args.ID)
	})
	dispatcher.OnDeath(&mux, func(ctx context.Context, job *outbox.Job[dispatcher.Ended[SendReceipt]]) error {
		return apologise(ctx, job.Args.ID)
	})

	sendInvoice := sendReceipt

	dispatcher.Handle(&mux, sendInvoice) // billing.send_invoice
	mux.Alias("billing.send_invoice", "send_invoice")

	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[SendReceipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error { // on the pool that the dispatcher was given, with the job's tenant

			return job.Complete(ctx, tx)
		})
	})
}

func Example_keys() {
	enqueue := func() error {
		_, err := outbox.Enqueue(ctx, tx, SyncTickets{Origin: "acme"}, outbox.Options{
			Key: outbox.KeyRules{Name: "acme", MaxActive: 2},
		})

		return err
	}

	done, err := outbox.Submit(ctx, tx, SyncNow{Origin: "acme"}, outbox.Options{
		Key: outbox.KeyRules{Name: "acme", MaxQueued: 1, WhenFull: outbox.CoalesceFull},
	})
	// done.Stored reports whether the job is new; done.ID is the job that will do the work

	use(enqueue, done, err)
}

func Example_tenants() {
	var tenant outbox.ID

	err := outbox.InTenant(ctx, pool, tenant, func(tx pgx.Tx) error { // SET LOCAL app.tenant_id
		// … your own change, under your own policies
		_, err := outbox.Enqueue(ctx, tx, SendReceipt{OrderID: 7}, outbox.Options{Tenant: tenant})
		return err
	})

	use(err)

	producer := outbox.NewProducer(pool, outbox.NotifyMode(os.Getenv("OUTBOX_NOTIFY")))

	use(producer)
}

func Example_lifecycle() {
	var message struct{ Data []byte }
	_ = func(jobs map[outbox.ID]lifecycle.State) error {
		event, err := lifecycle.Decode(message.Data)
		if err != nil {
			return err
		}
		jobs[event.Job], err = lifecycle.Reduce(jobs[event.Job], event)

		return err
	}
}

func Example_memory() {
	var mux memory.Mux
	var file io.Reader
	var requestID string
	respond := func(int) {}

	queue, err := memory.New(&mux, memory.Config{}) // 4 workers, 256 jobs may wait
	go queue.Run(ctx)

	id, err := queue.Submit(Count{Upload: file}, memory.Options{IdempotencyKey: requestID})
	if errors.Is(err, memory.ErrBackpressure) {
		respond(http.StatusServiceUnavailable) // too many wait
	}
	job, err := queue.Wait(ctx, id) // or queue.Job(id), queue.Cancel(id)
	words, err := memory.Result[int](queue, id)

	use(job, words, err)
}

func Example_progress() {
	var done, total int64
	_ = func(ctx context.Context, job *outbox.Job[Charge]) error {
		if err := job.Progress(ctx, done, total, "resizing"); err != nil {
			return err
		}

		at, _, err := outbox.LoadCheckpoint[Position](ctx, job.Claimed) // the zero Position if there is none

		use(err)

		err = outbox.SaveCheckpoint(ctx, job.Claimed, at)

		use(err)

		receipt, err := dispatcher.Step(ctx, job.Claimed, "charge", func(ctx context.Context) (Receipt, error) {
			return payments.Charge(ctx, job.Args.Cents, payments.IdempotencyKey(job.ID.String()+"/charge"))
		})

		use(receipt, err)

		invoice, err := dispatcher.StepTx(ctx, job.Claimed, pool, "invoice", func(ctx context.Context, tx pgx.Tx) (id int64, err error) {
			err = tx.QueryRow(ctx, `INSERT INTO invoices (order_id) VALUES ($1) RETURNING id`, job.Args.Order).Scan(&id)
			return id, err
		})

		use(invoice)
		return err
	}
}

type Resize struct {
	outbox.Returns[Size] // stores nothing

	URL string
}

func (Resize) Kind() string { return "picture.resize" }

type OrderPaid struct {
	Order int `json:"order"`
	Cents int `json:"cents"`
}

func (OrderPaid) Topic() string { return "order.paid" }

func Example_payloads() {
	use(Resize{})

	// in the transaction that makes the change
	id, err := outbox.Publish(ctx, tx, OrderPaid{Order: 7, Cents: 1200}, outbox.EventOptions{Key: "order-7"})

	use(id, err)
}

func Example_console() {
	var principalOfYourSession func(*http.Request) (access.Principal, error)
	var logError func(error)
	var mux http.ServeMux

	handler, err := console.New(console.Config{Pool: pool, Who: principalOfYourSession})
	mux.Handle("/admin/jobs/", handler) // below any path, with the prefix stripped or not
	go operator.New(pool).RunOperations(ctx, logError)

	use(err)
}

func Example_sinks() {
	{
		sink, err := nats.Open(nats.Config{URLs: []string{"nats://nats-1:4222"}, CredentialsFile: "/run/secrets/nats.creds"})

		use(sink, err)
	}
	{
		sink, err := kafka.Open(kafka.Config{
			Brokers: []string{"kafka-1:9093", "kafka-2:9093"}, TLS: true,
			Mechanism: "SCRAM-SHA-512", User: "relay", PasswordFile: "/run/secrets/kafka",
		})

		use(sink, err)
	}
	{
		sink, err := amqp.Open(amqp.Config{
			URLs: []string{"amqps://rabbit-1:5671/shop", "amqps://rabbit-2:5671/shop"},
			User: "relay", PasswordFile: "/run/secrets/rabbitmq",
		})

		use(sink, err)
	}
	{
		sink, err := redis.Open(redis.Config{
			URL: "rediss://redis:6379/0", User: "relay", PasswordFile: "/run/secrets/redis",
		})

		use(sink, err)
	}
	{
		sink, err := webhook.Open(webhook.SinkConfig{
			URL: "https://hooks.example.com/in", Signing: webhook.Signing{File: "/run/secrets/webhook"},
		})

		use(sink, err)
	}
	{
		var publisher message.Publisher

		sink, err := watermill.Open(watermill.Config{Publisher: publisher})

		use(sink, err)
	}
	var mux dispatcher.Mux
	var sink relay.Sink

	jobs.Handle(&mux, "order.announce", sink, jobs.Mapping{Destination: "shop.{topic}.{key|token}"})
}
