// Command watermill measures the subscriber of watermill-sql, with which its forwarder reads the outbox, as `posthaste
// bench relay` measures the relay: events of 200 bytes that are already stored, to a sink that accepts everything. It
// prints the same figures.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

const topic = "bench"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "watermill:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	server := flag.String("database-url", "", "the server")
	events := flag.Int("events", 200_000, "how many")
	batch := flag.Int("batch", 1000, "SubscribeBatchSize; 100 is its default")
	gc := flag.Int("gc", 100, "percent of Go's collector")
	flag.Parse()
	debug.SetGCPercent(*gc)
	if flag.Arg(0) != "relay" {
		return fmt.Errorf("workload %q: there is relay only", flag.Arg(0))
	}
	url, drop, err := pgdev.CreateDatabase(ctx, *server, fmt.Sprintf("watermill_bench_%d", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { _ = drop(context.WithoutCancel(ctx)) }()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	rate, err := relay(ctx, pool, *events, *batch)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"workload": "relay", "events_per_s": rate})
}

// relay returns how many events per second were received and acknowledged.
func relay(ctx context.Context, pool *pgxpool.Pool, events, batch int) (float64, error) {
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		SchemaAdapter: sql.DefaultPostgreSQLSchema{
			SubscribeBatchSize:  batch,
			GeneratePayloadType: func(string) string { return "BYTEA" },
		},
		OffsetsAdapter:   sql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = subscriber.Close() }()
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return 0, err
	}
	for first := 0; first < events; first += 10_000 {
		if _, err := pool.Exec(ctx, `INSERT INTO watermill_bench (uuid, payload, metadata, transaction_id)
			SELECT gen_random_uuid()::text, convert_to(repeat('x', 200), 'UTF8'),
				'{"key": "order-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}', pg_current_xact_id()
			FROM generate_series(1, $1::integer)`, min(10_000, events-first)); err != nil {
			return 0, err
		}
	}
	for _, sql := range []string{`VACUUM ANALYZE watermill_bench`, `CHECKPOINT`} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return 0, err
	}
	for range events {
		select {
		case m := <-messages:
			m.Ack()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return float64(events) / time.Since(began).Seconds(), nil
}
