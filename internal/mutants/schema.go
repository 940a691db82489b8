package mutants

// anyMove takes the trigger away that refuses illegal moves: without it one sees
// whether the statements by themselves are right.
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
}}
