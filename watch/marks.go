package watch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// marksOf is how far back marks reach, like measurements.
const marksOf = 14 * 24 * time.Hour

// Marks are those of all tenants. However many viewers there are, they are read once in five seconds, and not at all
// while there are none.
type Marks struct {
	operator *operator.Operator

	mu     sync.Mutex
	latest *latest[[]operator.Mark]
}

// NewMarks returns Marks that query through o.
func NewMarks(o *operator.Operator) *Marks { return &Marks{operator: o} }

// Look returns the marks of a series of all tenants, oldest first, as [operator.Operator.Marks] does, a few seconds old
// at most. Among acts that are alike, the first determines the queue.
func (m *Marks) Look(ctx context.Context, f operator.SeriesFilter) ([]operator.Mark, error) {
	m.mu.Lock()
	if !m.latest.serves(overviewFor) {
		m.latest = begin(lookWithin, func(ctx context.Context) ([]operator.Mark, error) {
			now := time.Now()
			all := operator.SeriesFilter{Since: now.Add(-marksOf), Until: now.Add(time.Hour), Step: time.Hour}
			return m.operator.Marks(operator.WithTenant(ctx, allTenants), all)
		})
	}
	l := m.latest
	m.mu.Unlock()
	all, err := l.wait(ctx)
	return slices.DeleteFunc(slices.Clone(all), func(m operator.Mark) bool {
		return !m.At.After(f.Since) || m.At.After(f.Until) || f.Queue != "" && m.Act != nil && m.Act.Queue != f.Queue
	}), err
}
