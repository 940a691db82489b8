package engine

import "github.com/jackc/pgx/v5/pgtype"

// Fence identifies a claim of a job. Whatever a worker writes about the job names it, and takes effect only while the
// claim is the job's last.
type Fence struct {
	ID    pgtype.UUID
	Epoch int64
}

// Fences returns the fences of claims in the form in which statements take them.
func Fences[T any](of []T, fence func(T) Fence) (ids []pgtype.UUID, epochs []int64) {
	ids, epochs = make([]pgtype.UUID, len(of)), make([]int64, len(of))
	for i, one := range of {
		f := fence(one)
		ids[i], epochs[i] = f.ID, f.Epoch
	}
	return ids, epochs
}
