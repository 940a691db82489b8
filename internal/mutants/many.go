package mutants

var batches = []Mutant{
	{
		Name:      "one lost lease ends the batch",
		Breaks:    "a job that an operator cancels takes the others of its batch with it",
		Invariant: "A batch's jobs are as separate as others",
		Edits:     []Edit{{"dispatcher.batch.end", `if b.left--; b.left == 0 || errors.Is(cause, ErrShutdown) {`, `if b.left--; b.left >= 0 || errors.Is(cause, ErrShutdown) {`}},
		Checks:    []Check{test("dispatcher", "TestALostLeaseConcernsItsJobOnly", "want only the first ended")},
	},
	{
		Name:      "a stop forgets open batches",
		Breaks:    "what was being gathered is neither run nor given back, until its leases lapse",
		Invariant: "A batch's jobs are as separate as others",
		Edits:     []Edit{{"dispatcher.Dispatcher.endWorkers", `q.batches.giveBack()`, ``}},
		Checks:    []Check{test("dispatcher", "TestStopGivesBackWhatIsGathered", `want "pending attempt=0`)},
	},
	{
		Name:      "outcomes are not counted",
		Breaks:    "a handler that forgets some jobs has them succeed, or brings the process down",
		Invariant: "A batch's jobs are as separate as others",
		Edits:     []Edit{{"dispatcher.ofThose", `if len(answers) != len(admitted) {`, `if len(answers) < len(admitted) {`}},
		Checks:    []Check{test("dispatcher", "TestABatchThatGoesWrongFailsEveryJob/too_many_outcomes", "in vain: both batches fail")},
	},
	{
		Name:      "a batch inline has jobs without payloads",
		Breaks:    "in a test, the handler of a batch gets jobs whose payloads the claim has dropped",
		Invariant: "A batch's jobs are as separate as others",
		Edits:     []Edit{{"dispatcher.Inline.Work", `if a.returned {`, `if false {`}},
		Checks:    []Check{test("dispatcher", "TestABatchInlineHasEveryPayload", "a job comes with 0 bytes of its 102")},
	},
}
