package mutants

var lease = []Mutant{
	{
		Name:      "reapers look at the row only",
		Breaks:    "a handler whose own transaction outlasts the lease loses its job at the commit",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits:     []Edit{{"internal/sqlgen.ExpireLeases", `AND beside.expires_at > statement_timestamp()`, `AND false`}},
		Checks:    []Check{test("dispatcher", "TestATransactionThatOutlastsTheLeaseKeepsItsJob/Guard,_root$", "a reaper took the job")},
	},
	{
		Name:      "an extension of any epoch",
		Breaks:    "what a worker that lost its lease leaves behind keeps its successor's job from being taken over",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits:     []Edit{{"internal/sqlgen.ExpireLeases", `AND beside.epoch = jobs.epoch`, ``}},
		Checks:    []Check{test("dispatcher", "TestAnExtensionIsOfOneEpoch", "a reaper does not take the job")},
	},
	{
		Name:      "no epoch in extend",
		Breaks:    "a worker that lost its lease extends that of its replacement",
		Invariant: "Fenced",
		Edits: []Edit{
			{"internal/sqlgen.ExtendLeases", `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch` + joinStart + `
    FOR NO KEY UPDATE`, `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id])
    FOR NO KEY UPDATE`},
			{
				"internal/sqlgen.ExtendLeases", `WHERE (input.id, input.epoch, input.started_at) NOT IN (SELECT extended.id, extended.epoch, extended.started_at FROM extended)`,
				`WHERE input.id NOT IN (SELECT extended.id FROM extended)`,
			},
		},
		Checks: []Check{
			test("dispatcher", "TestFence/root/extend_after_claimed_by_another", "took effect = true"),
			row("B1", "refused because the lease was lost: extend"),
		},
	},
	{
		Name:      "no start in the fence",
		Breaks:    "a worker whose claim a failover has lost extends the lease of the next claim, and settles its job",
		Invariant: "Fenced",
		Edits: []Edit{
			{"internal/sqlgen.ExtendLeases", joinStart + "\n    FOR", "\n    FOR"},
			{"internal/sqlgen.SettleUnfinished", startFence, ``},
			{"internal/sqlgen.SettleSucceeded", startFence, ``},
			{"internal/sqlgen.GuardLease", `AND coalesce($3::timestamptz, started_at) = started_at`, `AND $3::timestamptz IS NOT NULL`},
		},
		Checks: []Check{
			test("dispatcher", "TestAClaimLostInAFailoverIsFenced/root/extend_after_the_claim_of_another_worker", "stored before"),
			test("dispatcher", "TestAClaimLostInAFailoverIsFenced/root/fail_after_the_claim_of_another_worker", "took effect = true"),
			test("dispatcher", "TestAClaimLostInAFailoverIsFenced/root/Complete_after_the_claim_of_worker", "took effect = true"),
			test("dispatcher", "TestAClaimLostInAFailoverIsFenced/root/Guard_after_the_claim_of_worker", "took effect = true"),
		},
	},
	{
		Name:      "worker-name fence",
		Breaks:    "a lease is known by its worker's name, which a later claim of the same worker has too",
		Invariant: "Fenced",
		Edits:     workerNameFence,
		Checks: []Check{
			test("dispatcher", "TestZombieHandlersChangeNothing", "in vain: every outcome is refused"),
			row("B2", "refused because the lease was lost: succeed"),
		},
	},
	{
		Name:      "an extension waits for locked rows",
		Breaks:    "one handler's open transaction lets the leases of all others lapse",
		Invariant: "Handlers cannot exhaust the leases' connections",
		Edits: []Edit{{"internal/sqlgen.ExtendLeases", `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch` + joinStart + `
    FOR NO KEY UPDATE SKIP LOCKED`, `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch` + joinStart + `
    FOR NO KEY UPDATE`}},
		Checks: []Check{test("dispatcher", "TestExtensionDoesNotWaitForLockedRows/Guard", "lease lost")},
	},
	{
		Name:      "a locked row is not extended beside it",
		Breaks:    "a handler whose transaction outlasts the lease loses its job at the COMMIT",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits:     []Edit{{"internal/sqlgen.ExtendLeases", `    WHERE NOT missed.lost`, `    WHERE false`}},
		Checks: []Check{
			test("dispatcher", "TestATransactionThatOutlastsTheLeaseKeepsItsJob/Guard,_root$", "a reaper took the job"),
			test("dispatcher", "TestTheJobOfATransactionWhoseWorkerDiesIsTakenOver", "a reaper takes the job during its extension"),
		},
	},
	{
		Name:      "extensions on the handlers' connections",
		Breaks:    "handlers that use up their pool let every lease lapse",
		Invariant: "Handlers cannot exhaust the leases' connections",
		Edits: []Edit{{
			"dispatcher.Dispatcher.Run", `d.compose(ctx, pool, extending)`,
			`d.compose(ctx, pool, d.callerPool)`,
		}},
		Checks: []Check{test("dispatcher", "TestHandlersThatUseUpThePoolKeepTheirLeases", "its context ended with")},
	},
	{
		Name:      "a handler is not told that its lease is lost",
		Breaks:    "a zombie goes on beside its replacement",
		Invariant: "One live lease",
		Edits: []Edit{{"dispatcher/internal/lease.Keeper.extendSome", `		default:
			l.End(outbox.ErrLeaseLost)
		}
	}
	k.mu.Unlock()`, `		default:
		}
	}
	k.mu.Unlock()`}},
		Checks: []Check{test("dispatcher", "TestHandlerLearnsThatItsLeaseIsLost", "by the lapse of the lease, not by its extension")},
	},
	{
		Name:      "a lease is trusted for ever",
		Breaks:    "a handler whose lease could not be extended goes on when another may start the job",
		Invariant: "One live lease",
		Edits:     []Edit{{"dispatcher/internal/lease.Lease.lapsed", `return now.After(l.until)`, `return false`}},
		Checks:    []Check{test("dispatcher", "TestHandlerStopsWhenItsLeaseCannotBeExtended", "in vain for the handler's context to end")},
	},
	{
		Name:      "time stands still while the machine is suspended",
		Breaks:    "a process goes on with leases that have lapsed meanwhile, and takes its own sleep for an outage",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits:     []Edit{{"internal/clock.Elapsed", `max(b.Sub(a), b.Round(0).Sub(a.Round(0)))`, `b.Sub(a)`}},
		Checks: []Check{
			test("dispatcher/internal/lease", "TestASuspendedMachineExtendsItsLeasesAtOnce", "suspended: the lease needs to be extended: false"),
			test("reaper", "TestWhatIsAnOutage", "the machine was suspended: an outage of"),
		},
	},
	{
		Name:      "a refused extension costs all leases",
		Breaks:    "a trigger of the user's that refuses one job's row stops every handler of the process that runs for long",
		Invariant: "A lease lasts for as long as its worker keeps it",
		Edits: []Edit{{"dispatcher/internal/lease.Keeper.extend", `err := pgsession.Apart(batch, func(part []*Lease) error { return k.extendSome(ctx, part) }, func(`, `err := k.extendSome(ctx, batch)
		_ = pgsession.Apart(batch, func(part []*Lease) error { return nil }, func(`}},
		Checks: []Check{test("dispatcher/internal/lease", "TestARefusedExtensionCostsOneLease", "is lost: true")},
	},
}

// workerNameFence makes every write of a worker check lease_owner instead of the epoch. The statements for handlers'
// own transactions know the name as well, because the job has it.
var workerNameFence = []Edit{
	{"internal/sqlgen.SettleSucceeded", `      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id, jobs.tenant_id`, `      AND jobs.lease_owner = $5::text
    RETURNING jobs.id, jobs.tenant_id`},
	{"internal/sqlgen.SettleSucceededParams", `	Results [][]byte
}`, `	Results [][]byte
	Worker  string
}`},
	{"internal/sqlgen.Queries.SettleSucceeded", `		arg.Results,
	)`, `		arg.Results,
		arg.Worker,
	)`},
	{"internal/sqlgen.SettleStreamedParams", `	Results [][]byte
}`, `	Results [][]byte
	Worker  string
}`}, // unused: store makes it of SettleSucceededParams
	{"dispatcher.successes", `	p.Ids, p.Epochs, p.Starts = fencesOf(batch)`, `	p.Ids, p.Epochs, p.Starts = fencesOf(batch)
	p.Worker = batch[0].job.Worker`},
	{"internal/sqlgen.SettleInPlace", placeFence, `jobs.id = ANY ($2::uuid[]) AND $3::bigint[] IS NOT NULL AND $4::timestamptz[] IS NOT NULL AND jobs.lease_owner = $5::text`},
	{"internal/sqlgen.SettleInPlaceParams", `	Starts []pgtype.Timestamptz
}`, `	Starts []pgtype.Timestamptz
	Worker string
}`},
	{"internal/sqlgen.Queries.SettleInPlace", `		arg.Starts,
	)`, `		arg.Starts,
		arg.Worker,
	)`},
	{"dispatcher.store.storeInPlace", `	var p sqlgen.SettleInPlaceParams`, `	p := sqlgen.SettleInPlaceParams{Worker: s.worker}`},
	{"outbox.Claimed.settle", `Results: [][]byte{c.Result},
	}`, `Results: [][]byte{c.Result}, Worker: c.Worker,
	}`},
	{"internal/sqlgen.SettleUnfinished", `      AND jobs.epoch = input.epoch` + startFence + `
    RETURNING jobs.id, jobs.epoch`, `      AND jobs.lease_owner = $11::text
    RETURNING jobs.id, jobs.epoch`},
	{"internal/sqlgen.ExtendLeases", `    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch` + joinStart + `
    FOR NO KEY UPDATE`, `    JOIN outbox.jobs ON jobs.id = input.id AND jobs.lease_owner = $5::text
    FOR NO KEY UPDATE`},
	{
		"internal/sqlgen.ExtendLeases", `WHERE (input.id, input.epoch, input.started_at) NOT IN (SELECT extended.id, extended.epoch, extended.started_at FROM extended)`,
		`WHERE input.id NOT IN (SELECT extended.id FROM extended)`,
	},
	{"internal/sqlgen.ExtendLeasesParams", `	LeaseTtl pgtype.Interval
}`, `	LeaseTtl pgtype.Interval
	Worker   string
}`},
	{"internal/sqlgen.Queries.ExtendLeases", `		arg.LeaseTtl,
	)`, `		arg.LeaseTtl,
		arg.Worker,
	)`},
	{
		"dispatcher/internal/lease.Keeper.extendSome", `params := sqlgen.ExtendLeasesParams{LeaseTtl: pgvalue.Interval(k.TTL)}`,
		`params := sqlgen.ExtendLeasesParams{LeaseTtl: pgvalue.Interval(k.TTL), Worker: batch[0].Job.Worker}`,
	},
}
