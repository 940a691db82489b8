// Package mutants lists bugs that are planted, one at a time, into our own code, to show that a check catches each of
// them: a check that was never seen to fail proves little.
//
// Users do not compile any of it. A mutant is data: a text of a function or another declaration, and the text that
// replaces it, with the go command's -overlay flag, for one build. docs/adr/0007-mutants-by-overlay.md says why.
// Command run plants all mutants, and command rebase updates the anchors of those whose code has moved.
//
// Each file lists the mutants of one part of the tree.
package mutants

import "slices"

// Mutant is a planted bug.
type Mutant struct {
	Name      string // short name for reports
	Breaks    string // what the bug does, in a sentence
	Invariant string // the invariant that it breaks, as docs/architecture.md names it
	Edits     []Edit
	Checks    []Check // all of them must catch it
}

// Check passes on our code and fails on the mutant. It is a row of the scorecard or a test of a package.
type Check struct {
	Row     string // for "posthaste-proof verify ROW", run by a binary with the bug
	Package string // folder of the test
	Test    string // name of the test, or a pattern for a subtest: TestFence/succeed
	// Says is part of the output of the check when it fails because of this mutant. A check that fails without it has
	// found something else.
	Says string
}

// Name returns the name of the check in reports.
func (c Check) Name() string {
	if c.Row != "" {
		return "row " + c.Row
	}
	return c.Package + " " + c.Test
}

// All returns every mutant. Each is planted into our code alone, without the others.
func All() []Mutant {
	return slices.Concat(enqueue, wake, claim, commits, lease, record, settle, expire, traces, ending, retry, failed,
		receive, keys, limit, sharing, schema, schedule, batches, inMemory, access, service, pages, chained, published, relayed, destinations, sinks, overNATS, lifecycles, operations)
}

func row(name, says string) Check { return Check{Row: name, Says: says} }

func test(folder, name, says string) Check { return Check{Package: folder, Test: name, Says: says} }
