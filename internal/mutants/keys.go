package mutants

var keys = []Mutant{
	{
		Name:      "a claim without its key's lock",
		Breaks:    "two claims give the same slot away; a job is blocked behind one that has just ended",
		Invariant: "No key is stuck",
		Edits: []Edit{{"migrations.outbox.claim_keyed", `            WHERE keys.tenant_id = candidate.tenant_id AND keys.queue = of_queue AND keys.key = candidate.key
            LIMIT 1
            FOR UPDATE SKIP LOCKED`, `            WHERE keys.tenant_id = candidate.tenant_id AND keys.queue = of_queue AND keys.key = candidate.key
            LIMIT 1`}},
		Checks: []Check{test("dispatcher", "TestAClaimLeavesAKeyAloneThatIsBeingMovedOn", "a claim beside it did")},
	},
	{
		Name:      "a promotion without its key's lock",
		Breaks:    "a job that is being blocked behind one that has just ended is never promoted",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.promote_keys", `        FOR UPDATE OF keys SKIP LOCKED`, ``}},
		Checks:    []Check{test("dispatcher", "TestAPromotionPassesByTheClaimThatIsBlocking", "beside the claim")},
	},
	{
		Name:      "a promotion that waits for who has a key",
		Breaks:    "a transaction that holds a key's row for an hour stops all keys of all tenants in a process",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.promote_keys", `        FOR UPDATE OF keys SKIP LOCKED`, `        FOR UPDATE OF keys`}},
		Checks:    []Check{test("dispatcher", "TestAPromotionPassesByTheClaimThatIsBlocking", "promote k and other")},
	},
	{
		Name:      "a promotion that does not tell which key was locked",
		Breaks:    "a job that was being blocked when its slot became free waits for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.promote_keys", `IF NOT patient AND cardinality`, `IF false AND cardinality`}},
		Checks:    []Check{test("dispatcher", "TestAPromotionPassesByTheClaimThatIsBlocking", "beside the claim")},
	},
	{
		Name:      "a claim that does not look again",
		Breaks:    "a job is blocked behind one whose slot was given away a moment before",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher.claimer.take", `	c.promoter.Blocked(b.tally.halted)`, ``}},
		Checks:    []Check{test("dispatcher", "TestAClaimLooksAgainAfterItHasBlocked", "in vain: B succeeds")},
	},
	{
		Name:      "a claim that does not come back for what was locked",
		Breaks:    "jobs whose key the promoter had locked, when they were claimed, wait for the next poll",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher/internal/scheduler.Scheduler.Claimed", `			case how.Locked:`, `			case false:`}},
		Checks:    []Check{test("dispatcher/internal/scheduler", "TestWhatIsLockedIsLookedAtAgain", "the cursor has passed jobs that are due")},
	},
	{
		Name:      "a promotion that does not come back for what was locked",
		Breaks:    "a job whose row a claim had locked when its slot became free waits for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher/internal/promote.Promoter.looked", `k.look.locked = true`, `k.look.locked = false`}},
		Checks:    []Check{test("dispatcher", "TestAPromotionComesBackForWhatIsLocked/plain", "jobs succeed")},
	},
	{
		Name:      "a promotion that forgets what it has passed by",
		Breaks:    "a key runs fewer jobs than it may until the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher/internal/promote.Promoter.Free", `min(k.slots+slots, engine.MaxKeyActive)`, `min(slots, engine.MaxKeyActive)`}},
		Checks:    []Check{test("dispatcher", "TestAPromotionOwesWhatItPassedBy", "in vain: B and C run")},
	},
	{
		Name:      "a promotion during a stop that is told to nobody",
		Breaks:    "what a stopping process promotes waits for a poll of another",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher.Dispatcher.offer", `elsewhere || !d.common.phase.isClaiming() || q.capacity.room() < n`, `elsewhere || q.capacity.room() < n`}},
		Checks:    []Check{test("dispatcher", "TestOthersAreNotifiedOfWhatIsPromotedDuringAStop", "were not told: a promoted job")},
	},
	{
		Name:      "a stop that waits for keys",
		Breaks:    "a stop during an outage tries to promote until it is abandoned",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher/internal/promote.Promoter.Run", `if p.CutOff() {`, `if false {`}},
		Checks:    []Check{test("dispatcher/internal/promote", "TestAStopDuringAnOutageLeavesKeysToTheReaper", "want once")},
	},
	{
		Name:      "a stop that is told to nobody",
		Breaks:    "what was promoted for claims that a stopping process does not make waits for a poll of another, and so do retries that only its timer knew of",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher.Dispatcher.endWorkers", `d.peers.notify()`, ``}},
		Checks:    []Check{test("dispatcher", "TestOthersAreNotifiedOfWhatIsPromotedDuringAStop", "were not told: nobody claims here any more")},
	},
	{
		Name:      "a promotion that does not tell what was locked",
		Breaks:    "a job whose row a claim had locked when its slot became free waits for the sweep",
		Invariant: "No key is stuck",
		Edits: []Edit{{"migrations.outbox.promote_keys", `    FROM passed
    WHERE NOT patient;`, `    FROM passed
    WHERE false;`}},
		Checks: []Check{test("dispatcher", "TestAPromotionComesBackForWhatIsLocked/plain", "jobs succeed")},
	},
	{
		Name:      "a promotion that counts what it did not see",
		Breaks:    "a job that was edited between a promotion's snapshot and its lock waits for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.promote_keys", `line.n > coalesce(moved.n, 0)`, `line.n > coalesce(cardinality(got.places), 0)`}},
		Checks:    []Check{test("dispatcher", "TestAPromotionComesBackForWhatWasEdited/plain", "want the key")},
	},
	{
		Name:      "a trigger that raises what a missing partition does",
		Breaks:    "a job that a trigger refuses with check_violation holds up every other of its batch for ever",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"internal/pgsession.IsNoPartition", `pgErr.Routine == "ExecFindPartition"`, `pgErr.ConstraintName == ""`}},
		Checks: []Check{
			test("reaper", "TestAKeyThatIsRefusedHoldsUpNoOther/a_row", "poisoned"),
			test("internal/pgsession", "TestStatesAreDistinguished", "IsNoPartition"),
		},
	},
	{
		Name:      "a key that is refused holds up the others",
		Breaks:    "what waits for any key waits for as long as a trigger refuses to promote one job",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"internal/pgsession.Apart", `case err == nil || !IsRefusalOf(err, func() error { return do(nil) }):`, `case true:`}},
		Checks: []Check{
			test("dispatcher", "TestAKeyThatIsRefusedHoldsUpNoOther/a_job$", "in vain: the others succeed"),
			test("reaper", "TestAKeyThatIsRefusedHoldsUpNoOther/a_row", "poisoned"),
		},
	},
	{
		Name:      "a dead head is removed with jobs behind it",
		Breaks:    "after its retention a key goes on past a head that nobody has dealt with",
		Invariant: "A key's order holds",
		Edits:     []Edit{{"internal/sqlgen.TrimDeadLetters", `behind.status <> 'created' AND`, `false AND`}},
		Checks:    []Check{test("reaper", "TestADeadHeadStaysWhileJobsWaitBehindIt", "want held dead, held blocked")},
	},
	{
		Name:      "a key is parked in any number of years",
		Breaks:    "a dead head that is to park its key later than there are times fails every promotion",
		Invariant: "No key is stuck",
		Edits: []Edit{{
			"migrations.outbox.promote_keys",
			`make_interval(secs => least(greatest(extract(epoch FROM jobs.park_after), 0), extract(epoch FROM interval '100 years'))::float8) END`,
			`jobs.park_after END`,
		}},
		Checks: []Check{test("reaper", "TestAKeyThatIsRefusedHoldsUpNoOther/a_head_that_parks_it", "want both")},
	},
	{
		Name:      "an unblock of one of the jobs that lapsed",
		Breaks:    "of the jobs of a key that one worker died of all but one stay dead letters, and the key goes on",
		Invariant: "No key is stuck",
		Edits: []Edit{{
			"migrations.outbox.unblock_key",
			`AND jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered IS NULL AND jobs.status = 'dead' AND jobs.on_lapse = 'block'`,
			`AND false AND jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered IS NULL AND jobs.status = 'dead' AND jobs.on_lapse = 'block'`,
		}},
		Checks: []Check{test("operator", "TestUnblockRetriesWhatLapsesMeanwhile/root$", "unblocked with 1 retried")},
	},
	{
		Name:      "nobody sweeps",
		Breaks:    "what a process that died had freed is never given away",
		Invariant: "No key is stuck",
		Edits: []Edit{{"reaper.sweeper.sweep", `			case row.Stuck:
`, `			case row.Stuck && row.Idle:
`}},
		Checks: []Check{
			test("reaper", "TestTheSweepMovesStuckKeysOn", "want pending"),
			row("K6", "still waiting for the sweep to promote the next jobs of the dead workers' keys"),
		},
	},
	{
		Name:      "a failed job that moves no key on",
		Breaks:    "the jobs behind one that waits for another attempt wait for that, or for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"dispatcher.settler.leave", `if a.job.Key != "" && (`, `if a.job.Key != "" && a.outcome.Status != outbox.Retrying && (`}},
		Checks: []Check{
			test("dispatcher", "TestEveryEndOfAnAttemptMovesTheKeyOn/failed,_and_retried_tomorrow", "in vain: the others succeed"),
			row("K6", "seconds that a key had a free slot and a blocked job, without a sweep, worst"),
		},
	},
	{
		Name:      "an expired job that moves no key on",
		Breaks:    "the job behind one whose deadline came waits for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"reaper.deadlineExpirer.close", `e.promoter.moveOn(ctx, freed)`, ``}},
		Checks:    []Check{test("reaper", "TestAnExpiredJobMovesItsKeyOn", "want pending")},
	},
	{
		Name:      "a replaced job that moves no key on",
		Breaks:    "the job behind one that a producer replaced waits for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"internal/sqlgen.MakeRoom", `    WHERE room.moves_on`, `    WHERE room.moves_on AND false`}},
		Checks:    []Check{test("outbox", "TestTheJobBehindOneThatWasReplacedIsMovedOn", "want pending")},
	},
	{
		Name:      "a producer replaces whatever waits",
		Breaks:    "whoever may enqueue closes the jobs of another program, or the messages of a sink",
		Invariant: "A producer leaves others' jobs alone",
		Edits: []Edit{
			{"migrations.outbox.make_room", "                          AND jobs.kind = of_kind\n                        ORDER BY jobs.created_at", "                        ORDER BY jobs.created_at"},
			{"migrations.outbox.make_room", "                          AND jobs.kind = of_kind\n                        ORDER BY jobs.line_position", "                        ORDER BY jobs.line_position"},
		},
		Checks: []Check{test("outbox", "TestAJobReplacesOnlyOneOfItsKind", "the other's job was replaced")},
	},
	{
		Name:      "a queue of the relay that is not reserved",
		Breaks:    "whoever may enqueue stores a job in front of the messages that a sink has refused",
		Invariant: "A producer leaves others' jobs alone",
		Edits:     []Edit{{"migrations.outbox.secure", `no_kind_of_the_relay || ' AND (queue !~~ ''relay:%''::text)';`, `no_kind_of_the_relay;`}},
		Checks:    []Check{test("access", "TestOnlyARelayStoresJobsOfASink", "stores a job in its queue")},
	},
	{
		Name:      "a head that dies once",
		Breaks:    "a key is parked at once when its head dies again, because of the time of its first death",
		Invariant: "A key's order holds",
		Edits:     []Edit{{"migrations.outbox.promote_keys", `coalesce(head.failed_at + head.park_after, held.park_at,`, `coalesce(held.park_at, head.failed_at + head.park_after,`}},
		Checks:    []Check{test("reaper", "TestAHeadThatDiesAgainHasAllOfItsTime", "for the head's first death")},
	},
	{
		Name:      "a promotion that locks all that it may promote",
		Breaks:    "to promote one of the many jobs of a hot key writes to a thousand of them",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.promote_keys", `            LIMIT greatest(line.n, 0)`, `            LIMIT 1000`}},
		Checks:    []Check{test("reaper", "TestAPromotionLocksNoMoreThanItPromotes", "locked for nothing")},
	},
	{
		Name:      "a job with a lower limit is overtaken",
		Breaks:    "a job whose limit is lower than that of the jobs behind it waits for as long as such jobs come",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.claim_keyed", `eligible AND NOT halted AND running`, `eligible AND running`}},
		Checks:    []Check{test("dispatcher", "TestAJobWithALowerLimitIsNotOvertaken", "the later ones are blocked, too")},
	},
	{
		Name:      "as many are promoted as have left",
		Breaks:    "jobs that a job with a lower limit kept waiting stay blocked when it runs, although slots are free",
		Invariant: "No key is stuck",
		Edits: []Edit{{
			"migrations.outbox.promote_keys", `CASE WHEN first.lowest IS NOT DISTINCT FROM first.highest THEN least(line.n, first.highest - line.running) ELSE`,
			`CASE WHEN true THEN least(line.n, first.highest - line.running) ELSE`,
		}},
		Checks: []Check{test("dispatcher", "TestAPromotionOfJobsWithLimitsOfTheirOwn", "want 3 and 0")},
	},
	{
		Name:      "one more than the limit",
		Breaks:    "a key runs a job too many",
		Invariant: "A key's limit holds",
		Edits: []Edit{
			{"migrations.outbox.claim_keyed", `AND running + turn <= max_active
               AND coalesce(bool_and(running + turn <= max_active)`, `AND running + turn <= max_active + 1
               AND coalesce(bool_and(running + turn <= max_active + 1)`},
			{"migrations.jobs_slot_idx", `CREATE UNIQUE INDEX jobs_slot_idx`, `CREATE INDEX jobs_slot_idx`},
		},
		Checks: []Check{test("dispatcher", "TestAKeyNeverRunsMoreThanItsLimit", "running at once, want at most")},
	},
	{
		Name:      "any job of the line",
		Breaks:    "an ordered job overtakes one that waits for its retry",
		Invariant: "A key's order holds",
		Edits: []Edit{{
			"migrations.outbox.claim_keyed", `NOT parked AND (ordered IS NULL OR id IS NOT DISTINCT FROM first_value(head) OVER of_key) AS eligible`,
			`NOT parked AS eligible`,
		}},
		Checks: []Check{
			test("dispatcher", "TestOrderSurvivesRetriesAndLostLeases", "inversions ="),
			test("internal/verify/model", "TestKeysKeepTheirPromises", "was claimed at position"),
		},
	},
	{
		Name:      "a head that waits for its retry is passed over",
		Breaks:    "an ordered job that comes while the one before it waits for another attempt overtakes that",
		Invariant: "A key's order holds",
		Edits: []Edit{{"migrations.outbox.claim_keyed", `            WHERE queued.first AND queued.has_ordered
`, `            WHERE queued.first AND queued.has_ordered AND NOT (jobs.status = 'retrying' AND jobs.run_at > now())
`}},
		Checks: []Check{row("K2", "jobs claimed before an earlier one of their key was closed")},
	},
	{
		Name:      "a producer keeps the row of a job that has started",
		Breaks:    "its settlement waits for the producer's COMMIT, and the producer possibly for its handler",
		Invariant: "A producer leaves others' jobs alone",
		Edits: []Edit{
			{"migrations.outbox.make_room", "INTO STRICT moves_on", "INTO moves_on"},
			{"migrations.outbox.make_room", "            verdict := 'coalesced';", "            CONTINUE WHEN moves_on IS NULL;\n            verdict := 'coalesced';"},
		},
		Checks: []Check{test("outbox", "TestAJobThatStartsMeanwhileDoesNotDo", "keeps the running job's row locked")},
	},
	{
		Name:      "a job that stands for a request is not held",
		Breaks:    "it runs before what it is about has been committed, and nobody looks again",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"migrations.outbox.make_room", "                FOR SHARE;", "                ;"}},
		Checks: []Check{
			test("outbox", "TestTheJobThatStandsForARequestWaitsForItsCommit", "before the commit"),
			test("outbox", "TestAJobThatStartsMeanwhileDoesNotDo", "fewer than 1 sessions"),
		},
	},
	{
		Name:      "a cancelled job that moves no key on",
		Breaks:    "the job behind one that was called off in SQL waits for the sweep",
		Invariant: "No key is stuck",
		Edits:     []Edit{{"migrations.outbox.cancel", `        IF found.key IS NOT NULL THEN`, `        IF false THEN`}},
		Checks:    []Check{test("outbox", "TestTheJobBehindOneThatWasCancelledIsMovedOn", "want pending")},
	},
	{
		Name:      "a refused promotion fails the COMMIT",
		Breaks:    "no job of a key can be called off while the database refuses the job behind it",
		Invariant: "No key is stuck",
		Edits: []Edit{{
			"migrations.outbox.move_freed_key_on", "        NULL;\n    END;", "        RAISE;\n    END;",
		}},
		Checks: []Check{test("operator", "TestAPromotionThatIsRefusedHoldsUpNobodyElse", "want it called off")},
	},
	{
		Name:      "an edit of a priority moves no key on",
		Breaks:    "a job that may start waits for the sweep",
		Invariant: "No key is stuck",
		Edits: []Edit{{
			"internal/sqlgen.EditJobs", "WHERE edited.key IS NOT NULL",
			"WHERE edited.key IS NOT NULL AND edited.run_at > statement_timestamp()",
		}},
		Checks: []Check{test("operator", "TestAnEditOfAPriorityMovesTheKeyOn", "want pending")},
	},
}
