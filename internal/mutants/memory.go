package mutants

var inMemory = []Mutant{
	{
		Name:      "jobs that wait for another attempt take no room",
		Breaks:    "an outage of what handlers need fills the memory",
		Invariant: "A queue in memory is bounded",
		Edits:     []Edit{{"memory.store.add", `if len(s.pending)+s.later >= s.capacity {`, `if len(s.pending) >= s.capacity {`}},
		Checks:    []Check{test("memory", "TestAJobThatWaitsForAnotherAttemptTakesRoom", "got <nil>")},
	},
	{
		Name:      "jobs in memory are remembered for ever",
		Breaks:    "results fill the memory",
		Invariant: "A queue in memory is bounded",
		Edits:     []Edit{{"memory.store.forget", `len(s.ended)-n > maxKept || `, ``}},
		Checks:    []Check{test("memory", "TestOnlySoManyJobsAreRemembered", "remembers 10001")},
	},
}
