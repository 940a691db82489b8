// Command points is an example: a consumer of the events that examples/events publishes. It has a database of its own,
// in which it credits points for paid orders.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/outbox"
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
		Durable:       "points",
		FilterSubject: "shop.order.paid.>", // the stream has the shop's other events, too
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       2 * time.Second, // a message that is not acknowledged by then is delivered again
	})
	if err != nil {
		return err
	}
	return consume(ctx, db, consumer)
}

// consume credits messages until ctx ends, or the broker or the database fails. What is not acknowledged is delivered
// again, except a message that could never be credited.
func consume(ctx context.Context, db *pgxpool.Pool, consumer jetstream.Consumer) error {
	for ctx.Err() == nil {
		m, err := consumer.Next(jetstream.FetchContext(ctx))
		if errors.Is(err, nats.ErrTimeout) || ctx.Err() != nil {
			continue // there was nothing for a while, or ctx has ended
		}
		if err != nil {
			return err
		}
		err = credit(ctx, db, m)
		if hopeless(err) {
			log.Printf("not credited: message %q of %s: %v", m.Headers().Get(jetstream.MsgIDHeader), m.Subject(), err)
			err = m.Term() // it is not delivered again
		} else if err == nil {
			err = m.Ack()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errMalformed = errors.New("not an order that was paid")

// hopeless reports whether the next delivery of a message would fail like this one, and the program with it: it cannot
// be decoded, has no id, or has a value that Postgres does not accept (SQLSTATE 22…).
func hopeless(err error) bool {
	var badID *outbox.InvalidError
	var badValue *pgconn.PgError
	return errors.Is(err, errMalformed) || errors.As(err, &badID) ||
		errors.As(err, &badValue) && strings.HasPrefix(badValue.Code, "22")
}

// credit gives a customer a point for each cent of a paid order, once, however often the message is delivered. It
// returns nil if the message may be acknowledged.
func credit(ctx context.Context, db *pgxpool.Pool, m jetstream.Msg) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		first, err := inbox.Once(ctx, tx, "points", m.Headers().Get(jetstream.MsgIDHeader))
		if err != nil || !first {
			return err
		}
		var paid struct {
			Customer string
			Cents    int32
		}
		if err := json.Unmarshal(m.Data(), &paid); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		if paid.Customer == "" || paid.Cents <= 0 {
			return errMalformed
		}
		_, err = tx.Exec(ctx,
			`INSERT INTO points VALUES ($1, $2) ON CONFLICT (customer) DO UPDATE SET points = points.points + $2`,
			paid.Customer, paid.Cents)
		return err
	})
}
