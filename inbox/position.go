package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// MaxSourceBytes is how long the name of a source may be.
const MaxSourceBytes = 512

// Partition is an ordered sequence of messages, as one consumer reads it.
type Partition struct {
	Consumer string // named like a kind: letters, digits and _ . : / -
	// Source is the topic or stream. One that was deleted and made again counts from the beginning: give it
	// another name, with the identity that the broker has for it (the time of a stream's creation, a topic's
	// ID), or [Reset] its partitions. Otherwise its messages are taken for repeats.
	Source string
	Number int // of the partition in its topic; 0 where there are none
}

// ErrFenced is the error of a consumer whose partition another one has taken over, or somebody has reset. It has
// to stop reading, and may [Seek] again if the partition is given to it again.
var ErrFenced = errors.New("another consumer has taken the partition over, or it was reset")

// Position is how far a consumer has come in a partition that it has taken over by [Seek]. Like the partition's
// messages, it belongs to one goroutine.
type Position struct {
	partition Partition
	next      int64
	epoch     int64
	// pending are the positions that Advance was asked for and that may not be committed, in ascending order: those of
	// one transaction, and what was to come after one that was rolled back.
	pending []int64
	xid     int64 // of the transaction that moved it last
}

// Seek takes a partition over: from now on [Position.Advance] of a consumer that had it before fails, so a process
// that was thought dead, or that a rebalance has passed over, has no effect any more. Call it when the broker
// assigns the partition, with a connection or a pool, and read from [Position.Next] on. A transaction that
// advances the position is waited for.
func Seek(ctx context.Context, db outbox.DB, p Partition) (*Position, error) {
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("seek position: %w", err)
	}
	row, err := sqlgen.New(db).SeekPosition(ctx, sqlgen.SeekPositionParams{Consumer: p.Consumer, Source: p.Source, Partition: int32(p.Number)})
	if err != nil {
		return nil, fmt.Errorf("seek position of %s in %s/%d: %w", p.Consumer, p.Source, p.Number, explain(err))
	}
	return &Position{partition: p, next: row.Position + 1, epoch: row.Epoch}, nil
}

// Reset makes next the position from which the partition is read, whatever has been read, and takes the partition
// from the consumer that reads it. A lower one repeats messages with all their effects.
func Reset(ctx context.Context, db outbox.DB, p Partition, next int64) error {
	if err := errors.Join(p.validate(), validPosition("next", next)); err != nil {
		return fmt.Errorf("reset position: %w", err)
	}
	err := sqlgen.New(db).ResetPosition(ctx, sqlgen.ResetPositionParams{
		Consumer: p.Consumer, Source: p.Source, Partition: int32(p.Number), Position: next - 1,
	})
	if err != nil {
		return fmt.Errorf("reset position of %s in %s/%d: %w", p.Consumer, p.Source, p.Number, explain(err))
	}
	return nil
}

// Next is the position of the first message that had not been handled when Seek was called; 0 for a partition that
// nobody has read. Kafka's offsets begin with 0, JetStream's sequences with 1.
func (p *Position) Next() int64 { return p.next }

// Advance moves the position to that of a message, in the transaction that also makes the message's effect, and
// reports whether the message is new. Make the effect only if it is. Positions may have gaps: of compacted topics,
// transactions, or messages that are not for this consumer. A message that its producer has stored twice is at two
// positions, and new at both: [Once] tells these.
//
// Messages are handled in their order. After a transaction that was rolled back, or of which nobody knows whether
// it was committed, handle its messages again, from the first one on: Advance to a later one is an error until then,
// as it would skip those before it. If the broker no longer has one of them, [Seek] again.
//
// The error is [ErrFenced] once the partition belongs to somebody else. At REPEATABLE READ and SERIALIZABLE it may
// be a serialization failure instead (SQLSTATE 40001), and ErrFenced in the next transaction.
func (p *Position) Advance(ctx context.Context, tx outbox.DB, position int64) (isNew bool, err error) {
	if err := validPosition("position", position); err != nil {
		return false, fmt.Errorf("advance position: %w", err)
	}
	isNew, err = p.advance(ctx, sqlgen.New(tx), position)
	if err != nil {
		return false, fmt.Errorf("advance position of %s in %s/%d to %d: %w", p.partition.Consumer, p.partition.Source, p.partition.Number, position, explain(err))
	}
	return isNew, nil
}

// advance moves the position only if it has come to the largest of the pending ones below: what is between them may
// never have been committed.
//
// It asks why only if nothing was moved. Epochs never fall, and without a new one positions do not either: if
// the epoch is ours then, it was ours when nothing was moved, and the position was at least as low as it is now.
func (p *Position) advance(ctx context.Context, q *sqlgen.Queries, position int64) (isNew bool, err error) {
	i, again := slices.BinarySearch(p.pending, position)
	if !again {
		p.pending = slices.Insert(p.pending, i, position)
	}
	least := int64(-1)
	if i > 0 {
		least = p.pending[i-1]
	}
	of := p.partition
	xids, err := q.AdvancePosition(ctx, sqlgen.AdvancePositionParams{
		Consumer: of.Consumer, Source: of.Source, Partition: int32(of.Number), Position: position, Epoch: p.epoch, Least: least,
	})
	if err != nil {
		return false, err
	}
	if len(xids) == 1 {
		if xids[0] != p.xid { // what it was moved from was committed, by another transaction
			p.pending, p.xid = slices.Delete(p.pending, 0, i), xids[0]
		}
		return true, nil
	}
	rows, err := q.PositionMoved(ctx, sqlgen.PositionMovedParams{Consumer: of.Consumer, Source: of.Source, Partition: int32(of.Number)})
	switch {
	case err != nil:
		return false, err
	case len(rows) == 0 || rows[0].Epoch != p.epoch:
		return false, ErrFenced
	case rows[0].Position < position:
		return false, fmt.Errorf("it is at %d, and %d was rolled back: handle what follows %[1]d again before this one", rows[0].Position, least)
	}
	if !again { // a repeat of what was committed long ago
		p.pending = slices.Delete(p.pending, i, i+1)
	}
	return false, nil
}

func (p Partition) validate() error {
	return errors.Join(validConsumer(p.Consumer), validText("source", p.Source, MaxSourceBytes), validPartition(p.Number))
}

func validPartition(n int) error {
	if n < 0 || n > math.MaxInt32 {
		return invalid.Field("partition", "is %d, want 0 to %d", n, math.MaxInt32)
	}
	return nil
}

func validPosition(field string, position int64) error {
	if position < 0 {
		return invalid.Field(field, "is %d, want 0 or more", position)
	}
	return nil
}
