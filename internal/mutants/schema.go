package mutants

// anyMove removes the trigger that refuses illegal moves, to show whether the statements alone are correct.
var anyMove = Edit{"migrations.jobs_legal_move", `    WHEN (
        NEW.epoch < OLD.epoch
        OR (OLD.status <> NEW`, `    WHEN (
        false AND NEW.epoch < OLD.epoch
        OR false AND (OLD.status <> NEW`}

var schema = []Mutant{{
	Name:      "any move is legal",
	Breaks:    "the database takes every change of a status, and an epoch that falls",
	Invariant: "Legal moves only",
	Edits:     []Edit{anyMove},
	Checks: []Check{
		test("outbox", "TestTheDatabaseRefusesEveryIllegalMove", "want a check violation"),
		test("outbox", "TestTheDatabaseRefusesNonsense", "want a check violation"),
	},
}, {
	Name:      "a build that is too old works on",
	Breaks:    "nothing compares the floor of the schema with the build",
	Invariant: "A build works with its own schema and the next one's",
	Edits:     []Edit{{"internal/release.Check", `if floor <= Revision {`, `if floor >= 0 {`}},
	Checks: []Check{
		test("migrations", "TestLookNamesTheFile", "a_floor_above_this_build"),
	},
}, {
	Name:      "no floor is stored",
	Breaks:    "a migration does not say which builds work with what it made",
	Invariant: "A build works with its own schema and the next one's",
	Edits:     []Edit{{"migrations.record", `names, revisions := []string{floors + of}, []int{floor}`, `names, revisions := []string{floors + of}, []int{0 * floor}`}},
	Checks:    []Check{test("migrations", "TestUpStoresTheFloor", "want 1 of 0.1.0")},
}, {
	Name:      "a migration waits for its locks",
	Breaks:    "it waits a second for each, and everybody else behind it",
	Invariant: "A build works with its own schema and the next one's",
	Edits:     []Edit{{"migrations.outbox.secure", `SET lock_timeout = '10ms'`, `SET lock_timeout = '1s'`}},
	Checks:    []Check{test("migrations", "TestNobodyWaitsBehindAMigration", "waited")},
}}
