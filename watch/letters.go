package watch

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// maxLetterGroups bounds the filters whose groups are remembered: each has up to 200 of them.
const maxLetterGroups = 100

// LetterGroups are groups of dead letters, for which all of them are read. However many callers ask for those of a
// filter, they are read at most once in five seconds, or in thirty if that takes more than half a second, and not at
// all while nobody asks.
type LetterGroups struct {
	operator *operator.Operator
	shared   shared[groupsOf, GroupedLetters]
}

type groupsOf struct {
	filter operator.DeadLetterFilter
	limit  int
}

// GroupedLetters are groups as they were at an instant.
type GroupedLetters struct {
	AsOf   time.Time // what is grouped is at least as new
	Groups []operator.DeadLetterGroup
}

// NewLetterGroups returns groups that are read by o.
func NewLetterGroups(o *operator.Operator) *LetterGroups { return &LetterGroups{operator: o} }

// Look returns the groups of a filter as [operator.Operator.DeadLetterGroups] does, thirty seconds old at most. The
// caller may see the jobs of the filter's tenant or, if it is zero, those of all.
func (g *LetterGroups) Look(ctx context.Context, f operator.DeadLetterFilter, limit int) (GroupedLetters, error) {
	return g.shared.look(ctx, groupsOf{f, limit}, overviewFor, maxLetterGroups,
		func(ctx context.Context) (GroupedLetters, error) {
			asOf := time.Now().UTC()
			groups, err := g.operator.DeadLetterGroups(operator.WithTenant(ctx, f.Tenant), f, limit)
			return GroupedLetters{asOf, groups}, err
		})
}

// Outdate drops all groups, because something was done that may have changed them: the next caller reads them again.
func (g *LetterGroups) Outdate() { g.shared.forget() }
