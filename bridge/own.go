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

var errNotOurs = errors.New("another process fetches")

// own waits until this process is the one that fetches.
func (b *bridge) own(ctx context.Context) (epoch int64, err error) {
	for {
		bound, cancel := context.WithTimeout(ctx, statementTimeout)
		rows, err := sqlgen.New(b.pool).OwnBridge(bound, b.Name, pgvalue.Interval(leaseTTL))
		cancel()
		if err != nil {
			return 0, fmt.Errorf("own the bridge: %w", err)
		}
		b.answered.Store(true)
		if len(rows) == 1 {
			return rows[0], nil
		}
		if err := backoff.Sleep(ctx, standbyPause); err != nil {
			return 0, err
		}
	}
}

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
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if err := b.keep(ctx, tx, epoch, stored, nil); err != nil {
			return err
		}
		return fn(tx)
	})
}
