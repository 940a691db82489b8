// Package mutants lists bugs that are planted, one at a time, into our own code to
// see that a check catches each of them: a check that was never seen to fail
// proves little.
//
// Nothing of it is in what users compile. A mutant is data: a text of a function or
// another declaration and what is to stand in its place, which the go command's
// -overlay flag puts there for one build. docs/adr/0007-mutants-by-overlay.md says
// why; command run plants them all, and command rebase anchors those anew whose code
// has moved.
//
// The folder reads like the tree: a file lists the mutants of one verb.
package mutants

import "slices"

// Mutant is a planted bug.
type Mutant struct {
	Name      string // as one speaks of it
	Breaks    string // what it does, in a sentence
	Invariant string // that it breaks, by its name in docs/architecture.md
	Edits     []Edit
	Checks    []Check // every one of them has to catch it
}

// Check is something that passes on our code and fails on the mutant: a row of the
// scorecard, or a test of a package.
type Check struct {
	Row     string // as in "posthaste-proof verify ROW", which the mutant's own binary runs
	Package string // the folder of the test
	Test    string // and its name, or a pattern of a subtest: TestFence/succeed
	// Says is a part of what the check says when it fails because of this mutant.
	// One that fails with other words has found something else.
	Says string
}

// Name is how the check is called in a report.
func (c Check) Name() string {
	if c.Row != "" {
		return "row " + c.Row
	}
	return c.Package + " " + c.Test
}

// All returns every mutant. Each is planted into our code as it is, not on top of
// the others.
func All() []Mutant {
	return slices.Concat(enqueue, wake, claim, commits, lease, record, settle, expire, traces, ending, retry, failed,
		receive, keys, limit, sharing, schema, schedule, batches, inMemory, access, service, pages, chained, published, relayed, sinks, overNATS, lifecycles, operations)
}

func row(name, says string) Check { return Check{Row: name, Says: says} }

func test(folder, name, says string) Check { return Check{Package: folder, Test: name, Says: says} }
