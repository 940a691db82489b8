package verify

import (
	"cmp"
	"fmt"
	"slices"
)

var both = []Tier{TierP, TierS}

// Scorecard returns every row, in the order of the names.
func Scorecard() []Row {
	rows := slices.Concat(nothingLost(), shortages(), leases(), modelled(), wakeUps(), overload(), events(),
		consumers(), badInput(), semantics())
	slices.SortFunc(rows, func(a, b Row) int { return compareNames(a.Name, b.Name) })
	return rows
}

// compareNames orders A3b between A3 and A4, and A10 after A9.
func compareNames(a, b string) int {
	type parts struct {
		group, suffix string
		number        int
	}
	var of [2]parts
	for i, name := range []string{a, b} {
		_, _ = fmt.Sscanf(name, "%1s%d%s", &of[i].group, &of[i].number, &of[i].suffix) // most have no suffix
	}
	return cmp.Or(cmp.Compare(of[0].group, of[1].group), cmp.Compare(of[0].number, of[1].number),
		cmp.Compare(of[0].suffix, of[1].suffix))
}

// jobsSafe names what Check checks, eventsSafe what checkPublished checks.
const (
	jobsSafe   = "no lost or unexpected jobs, no orphans, no illegal status changes, every job closed; L1, L2 and L3 hold"
	eventsSafe = "no event missing or unexpected, none out of order, none published again under another id"
)
