// Package verify is the fault harness. Each row of its scorecard starts real worker and producer processes on its own
// Postgres, injects faults on a schedule derived from the seed, removes them, waits until the queue is empty, and
// compares ledgers kept outside the database with the database. Command `posthaste-proof verify` runs it. A row that
// injected too few faults fails.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Tier selects how much work a run does.
type Tier string

// Tiers.
const (
	TierP Tier = "P" // takes seconds; run with every change
	TierS Tier = "S" // a soak, run on demand
)

// Row is one line of the scorecard. docs/proof.md shows its texts.
type Row struct {
	Name     string // "A2"
	Title    string // in a few words, for tables and headings
	Fault    string
	Workload string
	Pass     string // the criterion
	Tiers    []Tier

	// Timed rows measure times, so they run the shipped binary. Alone rows need the machine to themselves.
	Timed, Alone bool

	// Test names a Go test that checks the same on a smaller scale; the test of the scorecard skips the row because of
	// it.
	Test string

	Settings map[string]string // of the row's server, besides the durable defaults

	// disks chooses the server's data folder, and returns how to release it; nil lets pgdev choose.
	disks func(*Run) (folder string, giveBack func() error, err error)

	// direct says that the row cannot run behind a pooler.
	direct bool

	// elsewhere says that the row creates its database on servers of its own.
	elsewhere bool

	serverEnv func(*Run) ([]string, error) // returns additions to the server's environment; may be nil

	run func(context.Context, *Run) error
}

// Runs reports whether the row runs at a tier.
func (r Row) Runs(t Tier) bool { return slices.Contains(r.Tiers, t) }

// ErrUnknownRow is returned for a name that the scorecard does not have.
var ErrUnknownRow = errors.New("unknown row")

// Find returns the named rows, or all rows of the tier if there are no names.
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
