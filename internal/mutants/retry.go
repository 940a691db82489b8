package mutants

var retry = []Mutant{{
	Name:      "epoch reset on retry",
	Breaks:    "an operator's retry starts the epochs anew, and a zombie of the first round has one that counts",
	Invariant: "One live lease",
	Edits: []Edit{
		{"internal/sqlgen.RetryJob", `        epoch       = jobs.epoch + 1,
        attempt     = CASE`, `        epoch       = 0,
        attempt     = CASE`},
		anyMove,
	},
	Checks: []Check{
		test("operator", "TestARetryFencesAZombie", "the zombie's outcome was accepted"),
		row("B2", "refused because the lease was lost: succeed"),
	},
}}
