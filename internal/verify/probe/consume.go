package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// InboxSchema creates the table in which the consumer makes its effects: two rows per message, by two statements of one
// transaction.
const InboxSchema = `CREATE TABLE received (message text NOT NULL, part integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`

// consumer receives every message several times, as from a broker that has not seen the acknowledgement.
type consumer struct {
	pool *pgxpool.Pool
	book *ledger.Writer
}

// Consume runs the consumer: VERIFY_JOBS messages, VERIFY_TIMES deliveries of each, on VERIFY_CLIENTS goroutines. It
// repeats deliveries that are not acknowledged in its ledger, also those of a killed process with the same name. It
// returns when all are acknowledged.
func Consume(ctx context.Context) (err error) {
	book, pool, err := begin("consumer")
	if err != nil {
		return err
	}
	defer func() { pool.Close(); err = errors.Join(err, book.Close()) }()
	messages, err1 := number("VERIFY_JOBS")
	times, err2 := number("VERIFY_TIMES")
	clients, err3 := number("VERIFY_CLIENTS")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	due, err := unacknowledged(messages, times)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &consumer{pool, book}
	deliveries := make(chan string)
	var consuming sync.WaitGroup
	for range clients {
		consuming.Go(func() {
			for message := range deliveries {
				for c.receive(ctx, message) != nil && ctx.Err() == nil {
					_ = backoff.Sleep(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	defer consuming.Wait()
	defer close(deliveries)
	for _, message := range due {
		select {
		case deliveries <- message:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// unacknowledged returns the deliveries to be made: block by block, so that deliveries of the same message coincide,
// and new messages arrive until the end.
func unacknowledged(messages, times int) (due []string, err error) {
	entries, err := ledger.NewTail(os.Getenv("VERIFY_LEDGER")).Entries()
	if err != nil {
		return nil, err
	}
	acked := map[string]int{}
	for _, e := range entries {
		if e.Event == ledger.Acked {
			acked[e.Key]++
		}
	}
	const block = 20
	for first := 0; first < messages; first += block {
		for time := range times {
			for n := first; n < min(first+block, messages); n++ {
				if message := fmt.Sprintf("message-%d", n); acked[message] <= time {
					due = append(due, message)
				}
			}
		}
	}
	return due, nil
}

// receive handles one delivery.
func (c *consumer) receive(ctx context.Context, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), placeTimeout)
	defer cancel()
	first := false
	c.book.Write(ledger.Entry{Event: ledger.Attempted, Key: message})
	err := inTx(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if first, err = inbox.Once(ctx, tx, "verify", message); err != nil || !first {
			return err
		}
		for part := range 2 {
			if _, err := tx.Exec(ctx, `INSERT INTO received (message, part) VALUES ($1, $2)`, message,
				part); err != nil {
				return err
			}
			if err := backoff.Sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	entry := ledger.Entry{Event: ledger.Acked, Key: message, Error: class(err), Detail: text(err)}
	switch {
	case outcomeUnknown(err):
		entry.Event = ledger.Unknown
	case err != nil:
		entry.Event = ledger.Failed
	case first:
		entry.Do = "first"
	}
	c.book.Write(entry)
	return err
}
