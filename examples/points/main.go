// Command points is an example: a consumer of the events that examples/events publishes. It has a database of its own,
// in which it credits points for paid orders.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/inbox"
)

// The consumer's database has its own table and those of inbox.DDL, and nothing else of Posthaste.
const tables = inbox.DDL + `CREATE TABLE IF NOT EXISTS points (customer text PRIMARY KEY, points int NOT NULL)`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("POINTS_DATABASE_URL"), cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL)); err != nil {
		log.Fatal(err)
	}
}

// run makes the tables, and the consumer's place in the stream, if need be, and then credits messages.
func run(ctx context.Context, databaseURL, natsURL string) error {
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(ctx, tables); err != nil {
		return err
	}
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, "SHOP", jetstream.ConsumerConfig{
		Durable:   "points",
		AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:   2 * time.Second, // a message that is not acknowledged by then is delivered again
	})
	if err != nil {
		return err
	}
	return consume(ctx, db, consumer)
}

// consume credits messages until ctx ends or one fails. What is not acknowledged is delivered again.
func consume(ctx context.Context, db *pgxpool.Pool, consumer jetstream.Consumer) error {
	for ctx.Err() == nil {
		m, err := consumer.Next(jetstream.FetchContext(ctx))
		if errors.Is(err, nats.ErrTimeout) || ctx.Err() != nil {
			continue // there was nothing for a while, or ctx has ended
		}
		if err != nil {
			return err
		}
		if err := credit(ctx, db, m); err != nil {
			return err
		}
		if err := m.Ack(); err != nil {
			return err
		}
	}
	return nil
}

// credit gives a customer a point for each cent of a paid order, once, however often the message is delivered. It
// returns nil if the message may be acknowledged.
func credit(ctx context.Context, db *pgxpool.Pool, m jetstream.Msg) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		first, err := inbox.Once(ctx, tx, "points", m.Headers().Get("Nats-Msg-Id"))
		if err != nil || !first {
			return err
		}
		var paid struct {
			Customer string
			Cents    int
		}
		if err := json.Unmarshal(m.Data(), &paid); err != nil {
			return err
		}
		_, err = tx.Exec(ctx,
			`INSERT INTO points VALUES ($1, $2) ON CONFLICT (customer) DO UPDATE SET points = points.points + $2`,
			paid.Customer, paid.Cents)
		return err
	})
}
