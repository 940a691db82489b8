package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/inbox"
)

// The consumer has a database of its own, which has inbox.DDL, and nothing else of Posthaste.
const pointsTables = `CREATE TABLE points (customer text PRIMARY KEY, points int NOT NULL)`

// snippet:begin

// credit gives a customer a point for each cent of a paid order, once, however often the message is delivered. It
// returns nil if the message may be acknowledged.
func credit(ctx context.Context, db *pgxpool.Pool, m jetstream.Msg) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		first, err := inbox.Once(ctx, tx, "points", m.Headers().Get("Nats-Msg-Id"))
		if err != nil || !first {
			return err
		}
		var event OrderPaid
		if err := json.Unmarshal(m.Data(), &event); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO points VALUES ($1, $2) ON CONFLICT (customer) DO UPDATE SET points = points.points + $2`,
			event.Customer, event.Cents)
		return err
	})
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

// snippet:end
