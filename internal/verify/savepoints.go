package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// savepoints runs row A11: random transactions of a Producer, which buffers enqueued jobs until the next statement or
// the COMMIT. Rolling a savepoint back must discard exactly the jobs that were enqueued since it began, through any
// handle: the jobs of the orders that it discards.
func savepoints(ctx context.Context, r *Run) (err error) {
	const writers = 4
	transactions := r.Size(600, 20_000)
	worker, err := r.Worker("w0", "VERIFY_CONCURRENCY=16")
	if err != nil {
		return err
	}
	book, err := ledger.Open(r.ledgerOf("harness"), "harness")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	producer := outbox.NewProducer(r.DB, outbox.NotifyOff)
	tenants := []outbox.ID{{}, outbox.NewID()}
	writes := make([]writer, writers)
	errs := make([]error, writers)
	var writing sync.WaitGroup
	for i := range writes {
		w := &writes[i]
		*w = writer{
			Run: r, book: book, random: fault.Random(r.Seed, fmt.Sprintf("savepoints %d", i)), tenants: tenants,
			name: fmt.Sprintf("s%d", i),
		}
		writing.Go(func() {
			for n := 0; n < transactions/writers && errs[i] == nil; n++ {
				errs[i] = w.transaction(ctx, producer)
			}
		})
	}
	writing.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	kept := 0
	for i := range writes {
		kept += writes[i].kept
		r.Count("jobs enqueued in savepoints that were rolled back", writes[i].undone)
		r.Count("savepoints rolled back", writes[i].rolledBack)
	}
	if err := r.Drain(ctx, kept, patience); err != nil {
		return err
	}
	if err := r.stop(ctx, worker); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.Expect("jobs stored, compared with those not rolled back", float64(r.record.Counts["jobs"]), "=", float64(kept))
	r.Expect("savepoints rolled back", float64(r.record.Counts["savepoints rolled back"]), ">=",
		float64(transactions/4))
	r.Expect("jobs enqueued in savepoints that were rolled back",
		float64(r.record.Counts["jobs enqueued in savepoints that were rolled back"]), ">=", float64(transactions/4))
	return nil
}

// writer runs transactions, one after the other.
type writer struct {
	*Run
	book    *ledger.Writer
	random  *rand.Rand
	tenants []outbox.ID
	name    string
	placed  int
	conn    *pgx.Conn // the connection of the transaction, if it was asked for

	kept, undone, rolledBack int
}

// level is the transaction, or an open savepoint in it.
type level struct {
	tx   pgx.Tx
	sql  string   // the name of a savepoint that was begun on the connection; tx is then the level around it
	keys []string // of the jobs that were enqueued while this level was the innermost
}

func (w *writer) transaction(ctx context.Context, producer *outbox.Producer) error {
	tx, err := producer.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a COMMIT it does nothing
	levels := []level{{tx: tx}}
	if w.conn = nil; w.random.IntN(3) == 0 {
		w.conn = tx.Conn()
	}
	for range 4 + w.random.IntN(12) {
		innermost := &levels[len(levels)-1]
		switch act := w.random.IntN(10); {
		case act < 5:
			key, err := w.place(ctx, levels)
			if err != nil {
				return err
			}
			innermost.keys = append(innermost.keys, key)
		case act < 8 && len(levels) < 4:
			inner, err := w.begin(ctx, innermost.tx, len(levels))
			if err != nil {
				return err
			}
			levels = append(levels, inner)
		case len(levels) > 1:
			if levels, err = w.leave(ctx, levels); err != nil {
				return err
			}
		}
	}
	for len(levels) > 1 {
		if levels, err = w.leave(ctx, levels); err != nil {
			return err
		}
	}
	if w.random.IntN(8) == 0 {
		w.undone += len(levels[0].keys)
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	w.kept += len(levels[0].keys)
	for _, key := range levels[0].keys {
		w.book.Write(ledger.Entry{Event: ledger.Acked, Key: key})
	}
	return nil
}

// begin begins a savepoint, through the transaction or directly on its connection.
func (w *writer) begin(ctx context.Context, tx pgx.Tx, depth int) (level, error) {
	if w.conn != nil && w.random.IntN(2) == 0 {
		l := level{tx: tx, sql: fmt.Sprint("by_hand_", depth)}
		_, err := w.conn.Exec(ctx, "SAVEPOINT "+l.sql)
		return l, err
	}
	inner, err := tx.Begin(ctx)
	return level{tx: inner}, err
}

// leave ends the innermost savepoint, with RELEASE or with ROLLBACK TO.
func (w *writer) leave(ctx context.Context, levels []level) ([]level, error) {
	last := len(levels) - 1
	inner, outer := levels[last], &levels[last-1]
	release, byHand := w.random.IntN(2) == 0, "ROLLBACK TO "
	if release {
		byHand = "RELEASE "
		outer.keys = append(outer.keys, inner.keys...)
	} else {
		w.undone += len(inner.keys)
		w.rolledBack++
	}
	switch {
	case inner.sql != "":
		_, err := w.conn.Exec(ctx, byHand+inner.sql)
		return levels[:last], err
	case release:
		return levels[:last], inner.tx.Commit(ctx)
	}
	return levels[:last], inner.tx.Rollback(ctx)
}

// place stores an order and its job: the order with a plain statement, the job through the transaction, one of its
// savepoints, or the connection that they share.
func (w *writer) place(ctx context.Context, levels []level) (key string, err error) {
	key = fmt.Sprintf("%s-%d", w.name, w.placed)
	w.placed++
	task := probe.Task{N: w.placed, Do: "nothing", Key: key}
	o := outbox.Options{Tenant: w.tenants[w.random.IntN(len(w.tenants))]}
	if w.random.IntN(2) == 0 {
		o.Key.Name = fmt.Sprint(w.random.IntN(50))
	}
	w.book.Write(ledger.Entry{Event: ledger.Attempted, Key: key})
	order := func() error {
		_, err := levels[w.random.IntN(len(levels))].tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, key)
		return err
	}
	var through outbox.DB = levels[w.random.IntN(len(levels))].tx
	if w.conn != nil && w.random.IntN(6) == 0 {
		through = w.conn
	}
	job := func() error {
		_, err := outbox.Enqueue(ctx, through, task, o)
		return err
	}
	both := []func() error{order, job}
	if w.random.IntN(2) == 0 {
		slices.Reverse(both)
	}
	for _, do := range both {
		if err := do(); err != nil {
			return "", fmt.Errorf("place %s: %w", key, err)
		}
	}
	return key, nil
}
