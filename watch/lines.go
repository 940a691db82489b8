package watch

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// linesFor is how long lines are shown before they are read again; they change once a minute.
const linesFor = 20 * time.Second

// Lines are what was open of each queue, or of each kind. However many callers ask for those of a tenant, they are read
// once in twenty seconds, and not at all while nobody asks.
type Lines struct {
	operator *operator.Operator
	shared   shared[linesOf, Drawn]
}

type linesOf struct {
	tenant   outbox.ID
	byKind   bool
	of, step time.Duration
}

// Drawn is what [operator.Operator.Sparks] returns of a time.
type Drawn struct {
	Since, Until time.Time
	Open         map[string][]operator.Spark
	Measured     []time.Time
}

// NewLines returns lines that are read by o.
func NewLines(o *operator.Operator) *Lines { return &Lines{operator: o} }

// Look returns the lines of a tenant or, if it is zero, of all, over so long a time until now. They are shared: do not
// change them.
func (l *Lines) Look(ctx context.Context, tenant outbox.ID, byKind bool, of, step time.Duration) (Drawn, error) {
	return l.shared.look(ctx, linesOf{tenant, byKind, of, step}, linesFor, maxTenants,
		func(ctx context.Context) (d Drawn, err error) {
			d.Until = time.Now().UTC()
			d.Since = d.Until.Add(-of).Truncate(step)
			f := operator.SeriesFilter{Tenant: tenant, Since: d.Since, Until: d.Until, Step: step}
			d.Open, d.Measured, err = l.operator.Sparks(operator.WithTenant(ctx, tenant), f, byKind)
			return d, err
		})
}
