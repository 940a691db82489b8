package watch

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/doctor"
	"github.com/posthaste-dev/posthaste/operator"
)

const (
	overviewFor = 5 * time.Second // how long an overview is shown before the next is made
	lookWithin  = 20 * time.Second
)

// Overviews are overviews of all tenants. However many viewers there are, one is made in five seconds, or in thirty if
// making it takes more than half a second, and none while there are no viewers.
type Overviews struct {
	operator *operator.Operator
	shared   shared[struct{}, operator.Overview]
}

// NewOverviews returns Overviews that query through o.
func NewOverviews(o *operator.Operator) *Overviews { return &Overviews{operator: o} }

// Look returns an overview, a few seconds old as a rule, thirty at most.
func (o *Overviews) Look(ctx context.Context) (operator.Overview, error) {
	return o.shared.look(ctx, struct{}{}, overviewFor, 1, func(ctx context.Context) (operator.Overview, error) {
		return o.operator.Overview(operator.WithTenant(ctx, allTenants))
	})
}

// Outdate drops the overview, because something was done that it shows: the next caller reads it again.
func (o *Overviews) Outdate() { o.shared.forget() }

// Examination is the result of package doctor.
type Examination struct {
	AsOf     time.Time
	Findings []doctor.Finding
	Facts    doctor.Facts // of the whole examination; the zero Facts if the installation is too broken to read them
}

// Examinations are those of an installation, shared by all callers.
type Examinations struct {
	examine  func(context.Context) ([]doctor.Finding, error)
	describe func(context.Context) (doctor.Facts, error) // nil for none
	brief    *Examinations                               // without the facts, and what Problems asks itself
	shared   shared[struct{}, Examination]
}

// NewExaminations returns Examinations of the installation that pool connects to.
func NewExaminations(pool *pgxpool.Pool) *Examinations {
	of := func(t doctor.Target) *Examinations {
		return &Examinations{examine: func(ctx context.Context) ([]doctor.Finding, error) {
			return doctor.Examine(ctx, t)
		}}
	}
	e := of(doctor.Target{Pool: pool})
	e.describe = func(ctx context.Context) (doctor.Facts, error) { return doctor.Describe(ctx, pool) }
	e.brief = of(doctor.Target{Pool: pool, Except: []string{"workers", "jobs"}})
	return e
}

// Look returns an examination that began no longer ago than noOlder.
func (e *Examinations) Look(ctx context.Context, noOlder time.Duration) (Examination, error) {
	return e.shared.look(ctx, struct{}{}, noOlder, 1, func(ctx context.Context) (Examination, error) {
		x := Examination{AsOf: time.Now().UTC()}
		var err error
		if x.Findings, err = e.examine(ctx); err == nil && e.describe != nil {
			if f, err := e.describe(ctx); err == nil { // what keeps it from that is among the findings
				x.Facts = f
			}
		}
		return x, err
	})
}
