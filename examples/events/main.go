// Command events is an example: a shop publishes OrderPaid in the transaction that marks an order as paid, the relay
// publishes it to NATS JetStream, and a consumer with a database of its own (examples/points) credits points for it.
//
// It starts everything that it needs, and makes it hard: the broker is killed in the middle, the consumer is killed
// again and again, and every message is published a second time. Then it checks that each event has had its effect
// once.
//
// Your program would have what is in order.go, which publishes, and in examples/points, which consumes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/source"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	relaynats "github.com/posthaste-dev/posthaste/relay/nats"
)

func main() {
	orders := flag.Int("orders", 1000, "how many orders are paid")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *orders); err != nil {
		fmt.Fprintln(os.Stderr, "events:", err)
		os.Exit(1)
	}
}

// patience is how long after the last order everything has to be done.
const patience = time.Minute

// run sets everything up, pays the orders, and looks what has become of them.
func run(ctx context.Context, orders int) (err error) {
	dir, err := os.MkdirTemp("", "posthaste-events-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	postgres, err := pgdev.Start(ctx, pgdev.Options{
		DatabaseURL: os.Getenv("DATABASE_URL"), Major: os.Getenv("PG"),
		Container: true, Log: os.Stdout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	shop, dropShop, err := database(ctx, postgres, "shop")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dropShop()) }()
	points, dropPoints, err := database(ctx, postgres, "points")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dropPoints()) }()
	broker, err := startBroker(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { _ = broker.kill() }()
	fmt.Printf("%s, a database for the shop and one for the points; nats-server at %s\n\n", postgres, broker.url)

	if err := migrate.Up(ctx, shop); err != nil {
		return err
	}
	if _, err := shop.Exec(ctx, shopTables); err != nil {
		return err
	}
	if err := broker.makeStream(ctx); err != nil {
		return err
	}
	d := &demo{orders: orders, shop: shop, points: points, broker: broker, consumer: filepath.Join(dir, "points")}
	if err := source.Build(ctx, "examples/points", d.consumer); err != nil {
		return err
	}
	return d.run(ctx)
}

// database makes a database, which drop drops.
func database(ctx context.Context, postgres *pgdev.Server,
	name string,
) (db *pgxpool.Pool, drop func() error, err error) {
	url, remove, err := pgdev.CreateDatabase(ctx, postgres.URL(), fmt.Sprintf("posthaste_events_%s_%08x", name,
		rand.Uint32()))
	if err != nil {
		return nil, nil, err
	}
	if db, err = pgxpool.New(ctx, url); err != nil {
		return nil, nil, err
	}
	return db, func() error {
		db.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return remove(ctx)
	}, nil
}

// demo is the story.
type demo struct {
	orders       int
	shop, points *pgxpool.Pool
	broker       *broker
	consumer     string       // its program
	lives        atomic.Int64 // of the consumer
}

func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	relayed, err := d.startRelay(ctx)
	if err != nil {
		return err
	}
	consumed := make(chan struct{})
	go func() {
		defer close(consumed)
		d.consumeThroughDeaths(ctx)
	}()
	err = d.awaitCount(ctx, 1, `SELECT count(*) FROM pg_tables WHERE tablename = 'points'`,
		"the consumer has made its tables")
	if err == nil {
		err = d.payAll(ctx)
	}
	if err == nil {
		err = d.awaitCount(ctx, d.orders, `SELECT count(*) FROM outbox.inbox`, "every event has had its effect")
	}
	if err == nil {
		err = d.repeat(ctx)
	}
	cancel()
	<-consumed
	return errors.Join(err, <-relayed)
}

// startRelay runs a relay in this process. In production it is "posthaste serve --relay-config relay.yaml".
func (d *demo) startRelay(ctx context.Context) (done <-chan error, err error) {
	sink, err := relaynats.Open(relaynats.Config{URLs: []string{d.broker.url}})
	if err != nil {
		return nil, err
	}
	r, err := relay.New(d.shop, relay.Config{
		Source: "shop", Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		Sinks: []relay.SinkConfig{{
			Name: "nats", Sink: sink,
			Routes: []relay.Route{{
				Topics: []string{"order.*"}, Destination: "shop.{topic}.{key|token}",
				CloudEvents: relay.CloudEventsBinary,
			}},
		}},
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return ended, nil
}

// consumeThroughDeaths runs the consumer, kills it now and then, with an effect under way, and starts it again, as an
// orchestrator does. It also ends while the broker is away.
func (d *demo) consumeThroughDeaths(ctx context.Context) {
	for ctx.Err() == nil {
		life, end := context.WithTimeout(ctx, 200*time.Millisecond+rand.N(time.Second))
		process := exec.CommandContext(life, d.consumer)
		process.Env = append(os.Environ(), "POINTS_DATABASE_URL="+d.points.Config().ConnString(), "NATS_URL="+
			d.broker.url)
		_ = process.Run()
		end()
		d.lives.Add(1)
		_ = sleep(ctx, 50*time.Millisecond)
	}
}

// payAll places and pays the orders. In the middle the broker is killed; nobody who pays notices.
func (d *demo) payAll(ctx context.Context) error {
	producer := outbox.NewProducer(d.shop, outbox.NotifyCoalesced)
	began := time.Now()
	for i := range d.orders {
		var order int64
		err := d.shop.QueryRow(ctx, `INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id`,
			[]string{"Ada", "Grace", "Edsger", "Barbara"}[rand.IntN(4)], 100+rand.IntN(900)).Scan(&order)
		if err != nil {
			return err
		}
		if err := pay(ctx, producer, order); err != nil {
			return err
		}
		switch i {
		case d.orders / 3:
			fmt.Printf("kill -9 of the broker, after %d orders\n", i)
			if err := d.broker.kill(); err != nil {
				return err
			}
		case d.orders * 2 / 3:
			fmt.Printf("the broker starts again, after %d orders\n", i)
			if err := d.broker.start(ctx); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d orders are paid, in %.1f s; no payment has waited for the broker\n", d.orders,
		time.Since(began).Seconds())
	return producer.Flush(ctx)
}

// repeat has every message delivered again.
func (d *demo) repeat(ctx context.Context) error {
	n, err := d.broker.publishAgain(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("all %d messages are published a second time\n", n)
	err = d.broker.use(ctx, func(js jetstream.JetStream) error {
		for range int(patience / (100 * time.Millisecond)) {
			c, err := js.Consumer(ctx, stream, consumer)
			if err != nil {
				return err
			}
			if info := c.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 {
				return nil
			}
			if err := sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
		return errors.New("the repeats are not consumed")
	})
	if err != nil {
		return err
	}
	return d.prove(ctx)
}

// awaitCount waits until the consumer's database has so many of what the query counts.
func (d *demo) awaitCount(ctx context.Context, want int, query, what string) error {
	n := 0
	for range int(patience / (50 * time.Millisecond)) {
		if err := d.points.QueryRow(ctx, query).Scan(&n); err != nil {
			return err
		}
		if n == want {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("not within %s: %s; %d of %d", patience, what, n, want)
}

// prove compares what customers have paid with the points that they have.
func (d *demo) prove(ctx context.Context) error {
	var paid, credited, events int
	err := d.shop.QueryRow(ctx, `SELECT sum(cents), (SELECT count(*) FROM outbox.events) FROM orders WHERE paid`).Scan(
		&paid, &events)
	if err == nil {
		err = d.points.QueryRow(ctx, `SELECT sum(points) FROM points`).Scan(&credited)
	}
	if err != nil {
		return err
	}
	fmt.Printf("\n%d events, %d lives of the consumer; paid %d cents, credited %d points\n", events, d.lives.Load(),
		paid, credited)
	if paid != credited || events != d.orders {
		return fmt.Errorf("want one event for each of %d orders and a point for each cent", d.orders)
	}
	fmt.Println("✔ every event had its effect exactly once")
	return nil
}
