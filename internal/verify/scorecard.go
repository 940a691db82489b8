package verify

import "slices"

var both = []Tier{TierP, TierS}

// Scorecard is every row, in its order.
func Scorecard() []Row {
	return slices.Concat(nothingLost(), shortages(), leases(), modelled(), wakeUps(), overload(), events(), consumers(), badInput(), semantics())
}
