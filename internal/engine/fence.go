package engine

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Fence identifies a claim of a job. Whatever a worker writes about the job names it, and takes effect only while the
// claim is the job's last.
//
// The time of the claim distinguishes two claims with the same epoch. These occur after a failover to a standby that
// had not received the first: the new primary gives the second the same epoch.
type Fence struct {
	ID        pgtype.UUID
	Epoch     int64
	StartedAt int64 // in microseconds since 1970, the precision of the database; 0 if it is unknown
}

// FenceOf returns the fence of a claim.
func FenceOf(id [16]byte, epoch int64, startedAt time.Time) Fence {
	f := Fence{ID: pgtype.UUID{Bytes: id, Valid: true}, Epoch: epoch}
	if !startedAt.IsZero() {
		f.StartedAt = startedAt.UnixMicro()
	}
	return f
}

// Fences returns the fences of claims in the form in which statements take them. A start that is unknown is NULL, which
// matches any.
func Fences[T any](of []T, fence func(T) Fence) (ids []pgtype.UUID, epochs []int64, starts []pgtype.Timestamptz) {
	ids, epochs, starts = make([]pgtype.UUID, len(of)), make([]int64, len(of)), make([]pgtype.Timestamptz, len(of))
	for i, one := range of {
		f := fence(one)
		ids[i], epochs[i] = f.ID, f.Epoch
		starts[i] = pgtype.Timestamptz{Time: time.UnixMicro(f.StartedAt), Valid: f.StartedAt != 0}
	}
	return ids, epochs, starts
}
