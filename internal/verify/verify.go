// Package verify is the fault harness: each row of its scorecard starts real
// worker and producer processes on a Postgres of its own, injects faults from a
// schedule that the seed decides, heals, lets everything drain, and holds what
// ledgers outside of the database say against the database. `posthaste-proof verify` is
// its face.
//
// A run proves something only if its faults were injected: rows fail that
// injected too few.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Tier is how much a run takes on.
type Tier string

// Tiers.
const (
	TierP Tier = "P" // with every change: seconds
	TierS Tier = "S" // a soak on demand, with the scorecard's figures
)

// Row is one line of the scorecard. Its texts are what docs/proof.md says of it.
type Row struct {
	Name     string // "A2"
	Title    string // in a few words, for tables and headings
	Fault    string
	Workload string
	Pass     string // the criterion
	Tiers    []Tier

	// Timed says that the criterion is about times: the row runs the binary as it is
	// shipped. Alone says that they are so short that it needs the machine for itself.
	Timed, Alone bool

	// Test is a Go test that does the same, but less of it, whenever the tests are run; the test of
	// the scorecard leaves the row to it.
	Test string

	Settings map[string]string // of the row's server, beyond the durable defaults

	// disks is where the row's server is to keep its data, and how to give that
	// place back; nil is anywhere.
	disks func(*Run) (folder string, giveBack func() error, err error)

	// direct says that a pooler can have no part in the row.
	direct bool

	// elsewhere says that the row makes its database on servers of its own.
	elsewhere bool

	serverEnv func(*Run) ([]string, error) // nil adds nothing to the server's environment

	run func(context.Context, *Run) error
}

// Runs reports whether the row has something to do at a tier.
func (r Row) Runs(t Tier) bool { return slices.Contains(r.Tiers, t) }

// ErrUnknownRow is returned for a name that the scorecard does not have.
var ErrUnknownRow = errors.New("unknown row")

// Find is the rows of the given names, or without names those of a tier.
func Find(tier Tier, names ...string) (rows []Row, err error) {
	if len(names) == 0 {
		for _, row := range Scorecard() {
			if row.Runs(tier) {
				rows = append(rows, row)
			}
		}
		return rows, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(Scorecard(), func(r Row) bool { return strings.EqualFold(r.Name, name) })
		if i < 0 {
			return nil, fmt.Errorf("%w %q", ErrUnknownRow, name)
		}
		row := Scorecard()[i]
		if !row.Runs(tier) {
			return nil, fmt.Errorf("row %s has no tier %s, only %v", row.Name, tier, row.Tiers)
		}
		rows = append(rows, row)
	}
	return rows, nil
}
