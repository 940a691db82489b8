package mutants

var inMemory = []Mutant{
	{
		Name:      "jobs that wait for another attempt take no room",
		Breaks:    "an outage of what handlers need fills the memory",
		Invariant: "A queue in memory is bounded",
		Edits:     []Edit{{"memory.Queue.Submit", `if len(q.pending)+q.later >= q.config.Capacity {`, `if len(q.pending) >= q.config.Capacity {`}},
		Checks:    []Check{test("memory", "TestAJobThatWaitsForAnotherAttemptTakesRoom", "got <nil>")},
	},
	{
		Name:      "jobs in memory are remembered for ever",
		Breaks:    "results fill the memory",
		Invariant: "A queue in memory is bounded",
		Edits:     []Edit{{"memory.Queue.forget", `len(q.ended)-n > maxKept || `, ``}},
		Checks:    []Check{test("memory", "TestOnlySoManyJobsAreRemembered", "remembers 10001")},
	},
}
