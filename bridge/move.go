package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	maxBatch   = 500
	fetchWait  = 3 * time.Second // after which the lease is extended
	fullPause  = time.Second     // between two checks whether a full queue has room, or ten times a check's duration
	fullMost   = 4 * time.Second // upper limit, because of the lease
	recount    = 5 * time.Second // after which others may have filled the queue
	ackTimeout = 5 * time.Second
)

const notMade = "messages are not made jobs"

// move fetches, stores and acknowledges until ctx ends, or until another process has the bridge or may have it.
func (b *bridge) move(ctx context.Context, epoch int64) error {
	retry := backoff.Backoff{Max: leaseTTL / 4}
	b.room = room{}
	for ctx.Err() == nil {
		if !b.isOurs() {
			return errLapsed
		}
		err := b.step(ctx, epoch)
		switch {
		case err == nil:
			retry.Reset()
		case ctx.Err() != nil:
			return nil
		case isLost(err):
			return err
		default:
			b.complain(ctx, notMade, err)
			pgsession.LeaveReadOnly(err, b.pool, b.user)
			_ = retry.Wait(ctx)
		}
	}
	return nil
}

// step moves one batch.
func (b *bridge) step(ctx context.Context, epoch int64) error {
	most, err := b.mayFetch(ctx)
	if err != nil {
		return err
	}
	if most == 0 {
		b.complain(ctx, "bridge waits for its queue", fmt.Errorf("%d jobs of queue %s wait, and MaxQueued is %d",
			b.room.waiting, b.queue(), b.MaxQueued))
		return errors.Join(b.keepAlone(ctx, epoch, b.away),
			backoff.Sleep(ctx, min(max(fullPause, 10*b.room.took), fullMost)))
	}
	batch, err := b.fetch(ctx, most)
	switch {
	case err != nil:
		b.stand(notMade, err)
		return errors.Join(err, b.keepAlone(ctx, epoch, b.away))
	case len(batch) == 0:
		err := b.keepAlone(ctx, epoch, nil)
		if err == nil {
			b.goesOn()
		}
		return err
	}
	b.metrics.received.Add(float64(len(batch)))
	if err := b.storeUntilDone(ctx, epoch, batch); err != nil {
		return err
	}
	b.goesOn()
	b.ack(ctx, len(batch))
	return nil
}

func (b *bridge) fetch(ctx context.Context, most int) ([]Message, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	batch, err := b.Source.Fetch(ctx, most)
	if err != nil {
		return nil, fmt.Errorf("fetch messages: %w", err)
	}
	if s, ok := b.Source.(Lagging); ok {
		b.lag = new(s.Lag())
		b.metrics.lag.Set(float64(*b.lag))
	}
	return batch, nil
}

// ack acknowledges what is stored, even after ctx has ended. Messages that are not acknowledged come again and find
// their jobs.
func (b *bridge) ack(ctx context.Context, messages int) {
	b.room.waiting += int64(messages)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	if err := b.Source.Ack(ctx); err != nil {
		b.complain(ctx, "messages not acknowledged, they come again", err)
	}
}

func (b *bridge) keepAlone(ctx context.Context, epoch int64, why *away) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	sent := time.Now()
	err := b.keep(ctx, b.pool, epoch, 0, why)
	if err == nil {
		b.extended(sent)
	}
	return err
}

// room is the known number of waiting jobs in the queue.
type room struct {
	waiting int64
	counted time.Time
	took    time.Duration // how long counting took
}

// mayFetch returns how many messages may be fetched.
func (b *bridge) mayFetch(ctx context.Context) (int, error) {
	if b.MaxQueued == 0 {
		return maxBatch, nil
	}
	if most := int64(b.MaxQueued); b.room.waiting >= most || time.Since(b.room.counted) > recount {
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, statementTimeout)
		defer cancel()
		waiting, err := sqlgen.New(b.pool).CountWaiting(ctx, sqlgen.CountWaitingParams{
			Queue: b.queue(), TenantID: pgvalue.UUID(b.tenant()), Most: int32(most),
		})
		if err != nil {
			return 0, fmt.Errorf("count waiting jobs: %w", err)
		}
		b.room = room{waiting, time.Now(), time.Since(began)}
	}
	return int(max(0, min(maxBatch, int64(b.MaxQueued)-b.room.waiting))), nil
}
