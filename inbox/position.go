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

// MaxSourceBytes is the length limit of a source's name.
const MaxSourceBytes = 512

// A Partition is an ordered sequence of messages, as read by one consumer.
type Partition struct {
	Consumer string // named like a kind: letters, digits and _ . : / -
	// Source is the topic or stream. If one is deleted and created again, its positions start over: give it another
	// name that includes the identity that the broker has for it (the time of a stream's creation, a topic's ID), or
	// [Reset] its partitions. Otherwise its messages are taken for repeats.
	Source string
	Number int // of the partition in its topic; 0 for a source without partitions
}

// ErrFenced is returned to a consumer whose partition another one has taken over or somebody has reset. The consumer
// must stop reading, and may [Seek] again if it is assigned the partition again.
var ErrFenced = errors.New("another consumer has taken the partition over, or it was reset")

// A Position is how far a consumer has read a partition that it has taken over by [Seek]. Like the partition's
// messages, it belongs to one goroutine.
type Position struct {
	partition Partition
	next      int64
	epoch     int64
	// pending are the positions that were passed to Advance and may not be committed, in ascending order: those of one
	// transaction, and those meant to follow one that was rolled back.
	pending []int64
	xid     int64 // the transaction that moved the position last
}

// Seek takes a partition over: from now on, [Position.Advance] of the consumer that had it before fails. A process that
// was thought dead, or that a rebalance has passed over, can then have no further effect. Call Seek when the broker
// assigns the partition, with a connection or a pool, and read from [Position.Next] on. Seek waits for a transaction
// that is advancing the position.
func Seek(ctx context.Context, db outbox.DB, p Partition) (*Position, error) {
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("seek position: %w", err)
	}
	row, err := sqlgen.New(db).SeekPosition(ctx, sqlgen.SeekPositionParams{
		Consumer: p.Consumer, Source: p.Source,
		Partition: int32(p.Number),
	})
	if err != nil {
		return nil, fmt.Errorf("seek position of %s in %s/%d: %w", p.Consumer, p.Source, p.Number, explain(err))
	}
	return &Position{partition: p, next: row.Position + 1, epoch: row.Epoch}, nil
}

// Reset sets the position from which the partition is read to next, whatever has been read, and takes the partition
// from the consumer that reads it. A lower position repeats messages with all their effects.
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

// Next returns the position of the first message that had not been handled when Seek was called, or 0 for a partition
// that was never read. Kafka's offsets begin with 0, JetStream's sequences with 1.
func (p *Position) Next() int64 { return p.next }

// Advance moves the position to that of a message, in the transaction that also makes the message's effect. It returns
// true if the message was not handled before: make the effect only then. Positions may have gaps, left by compaction,
// transactions, or messages for other consumers. A message that its producer stored twice has two positions, and the
// first result is true at both; use [Once] to recognize it.
//
// Handle messages in their order. After a transaction that was rolled back, or whose outcome is unknown, handle its
// messages again from the first one on: until then, Advance to a later one returns an error, because it would skip
// those before it. If the broker no longer has one of them, [Seek] again.
//
// Advance returns [ErrFenced] once the partition belongs to another consumer. At REPEATABLE READ and SERIALIZABLE it
// may return a serialization failure instead (SQLSTATE 40001), and ErrFenced in the next transaction.
func (p *Position) Advance(ctx context.Context, tx outbox.DB, position int64) (first bool, err error) {
	if err := validPosition("position", position); err != nil {
		return false, fmt.Errorf("advance position: %w", err)
	}
	first, err = p.advance(ctx, sqlgen.New(tx), position)
	if err != nil {
		return false, fmt.Errorf("advance position of %s in %s/%d to %d: %w", p.partition.Consumer, p.partition.Source,
			p.partition.Number, position, explain(err))
	}
	return first, nil
}

// advance moves the position only if the stored one has reached the largest pending position below it: those in between
// may never have been committed.
//
// It looks for the reason only if nothing was moved. Epochs never fall, and within one epoch positions do not either:
// if the epoch is still ours at that time, it was ours when nothing was moved, and the position was then at least as
// low as it is now.
func (p *Position) advance(ctx context.Context, q *sqlgen.Queries, position int64) (first bool, err error) {
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
		Consumer: of.Consumer, Source: of.Source, Partition: int32(of.Number), Position: position, Epoch: p.epoch,
		Least: least,
	})
	if err != nil {
		return false, err
	}
	if len(xids) == 1 {
		if xids[0] != p.xid { // another transaction committed the position that this one moved from
			p.pending, p.xid = slices.Delete(p.pending, 0, i), xids[0]
		}
		return true, nil
	}
	rows, err := q.PositionMoved(ctx, sqlgen.PositionMovedParams{
		Consumer: of.Consumer, Source: of.Source,
		Partition: int32(of.Number),
	})
	switch {
	case err != nil:
		return false, err
	case len(rows) == 0 || rows[0].Epoch != p.epoch:
		return false, ErrFenced
	case rows[0].Position < position:
		return false, fmt.Errorf("it is at %d, and %d was rolled back: handle what follows %[1]d again before this one",
			rows[0].Position, least)
	}
	if !again { // a repeat of a message committed long ago
		p.pending = slices.Delete(p.pending, i, i+1)
	}
	return false, nil
}

func (p Partition) validate() error {
	return errors.Join(validConsumer(p.Consumer), validText("source", p.Source, MaxSourceBytes),
		validPartition(p.Number))
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
