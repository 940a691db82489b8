package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	leaseTTL         = 10 * time.Second
	standbyPause     = time.Second // between two attempts to take the bridge
	statementTimeout = 5 * time.Second
)

var (
	errNotOurs = errors.New("another process fetches")
	errLapsed  = errors.New("the lease has lapsed: the database has not extended it in time")
)

// isLost reports whether an error means that another process fetches, or may fetch.
func isLost(err error) bool { return errors.Is(err, errNotOurs) || errors.Is(err, errLapsed) }

// own waits until this process is the one that fetches. An answer of the database ends an outage that this process
// recorded before, also while another process fetches.
func (b *bridge) own(ctx context.Context) (epoch int64, err error) {
	for {
		sent := time.Now()
		bound, cancel := context.WithTimeout(ctx, statementTimeout)
		rows, err := sqlgen.New(b.pool).OwnBridge(bound, b.Name, pgvalue.Interval(leaseTTL))
		cancel()
		if err != nil {
			return 0, fmt.Errorf("own the bridge: %w", err)
		}
		b.answered.Store(true)
		b.goesOn()
		if len(rows) == 1 {
			b.extended(sent)
			return rows[0], nil
		}
		if err := backoff.Sleep(ctx, standbyPause); err != nil {
			return 0, err
		}
	}
}

// extended records that a statement that was sent at the given time has extended the lease.
func (b *bridge) extended(sent time.Time) { b.until = sent.Add(leaseTTL) }

// isOurs reports whether this process still has the lease, by the monotonic clock. A process that cannot reach the
// database must find that out by itself, and must release its source: a broker that divides messages among connected
// processes, as Kafka does, would keep this one's share from the next owner.
func (b *bridge) isOurs() bool { return time.Now().Before(b.until) }

// keep extends the lease, in a transaction that stores the given number of messages or on its own, and stores what
// keeps the bridge from storing messages, if anything.
func (b *bridge) keep(ctx context.Context, db sqlgen.DBTX, epoch int64, stored int, why *away) error {
	params := sqlgen.KeepBridgeParams{
		Bridge: b.Name, Epoch: epoch, LeaseTtl: pgvalue.Interval(leaseTTL),
		Stored: int64(stored), Lag: b.lag,
	}
	if why != nil {
		params.AwayFor = pgvalue.Interval(time.Since(why.since))
		params.AwayMessage = new(pgvalue.ASCII(pgvalue.Text(why.message, maxReason), maxReason)) // fits any encoding
	}
	n, err := sqlgen.New(db).KeepBridge(ctx, params)
	switch {
	case err != nil:
		return fmt.Errorf("keep the bridge: %w", err)
	case n == 0:
		return errNotOurs
	}
	return nil
}

// leave lets another process fetch at once.
func (b *bridge) leave(ctx context.Context, epoch int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	if err := sqlgen.New(b.pool).LeaveBridge(ctx, b.Name, epoch); err != nil {
		b.log.LogAttrs(ctx, slog.LevelWarn, "bridge not left, its lease lapses", slog.Any("err", err))
	}
}

// inTx runs fn, which stores the given number of messages, in a transaction that succeeds only while this process is
// the one that fetches.
func (b *bridge) inTx(ctx context.Context, epoch int64, stored int, fn func(pgx.Tx) error) error {
	sent := time.Now()
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if err := b.keep(ctx, tx, epoch, stored, nil); err != nil {
			return err
		}
		return fn(tx)
	})
	if err == nil {
		b.extended(sent)
	}
	return err
}
