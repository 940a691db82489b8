package watch

import (
	"context"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// MarksSince is how far back shared marks reach, like measurements.
const MarksSince = 14 * 24 * time.Hour

// Marks are those of all tenants. However many viewers there are, they are read once in five seconds, and not at all
// while there are none.
type Marks struct {
	operator *operator.Operator
	shared   shared[struct{}, []operator.Mark]
}

// NewMarks returns Marks that query through o.
func NewMarks(o *operator.Operator) *Marks { return &Marks{operator: o} }

// Look returns the marks of a series of all tenants, oldest first, as [operator.Operator.Marks] does, a few seconds old
// at most. Among acts that are alike, the first determines the queue.
func (m *Marks) Look(ctx context.Context, f operator.SeriesFilter) ([]operator.Mark, error) {
	all, err := m.shared.look(ctx, struct{}{}, overviewFor, 1, func(ctx context.Context) ([]operator.Mark, error) {
		now := time.Now()
		all := operator.SeriesFilter{Since: now.Add(-MarksSince), Until: now.Add(time.Hour), Step: time.Hour}
		return m.operator.Marks(operator.WithTenant(ctx, allTenants), all)
	})
	return slices.DeleteFunc(slices.Clone(all), func(m operator.Mark) bool {
		return !m.At.After(f.Since) || m.At.After(f.Until) || f.Queue != "" && m.Act != nil && m.Act.Queue != f.Queue
	}), err
}
