package mutants

var enqueue = []Mutant{
	{
		Name:      "a job outside the transaction",
		Breaks:    "a job is stored on a connection of its own, and stays when the business change rolls back",
		Invariant: "Atomic",
		Edits: []Edit{{"outbox.storeJob", `	job.Notify = notify
`, `	job.Notify = notify
	if tx, ok := db.(pgx.Tx); ok {
		conn, err := pgx.ConnectConfig(ctx, tx.Conn().Config())
		if err != nil {
			return Submitted{}, err
		}
		defer conn.Close(ctx)
		db = conn
	}
`}},
		Checks: []Check{test("outbox", "TestAJobExistsExactlyWhenTheTransactionCommits", "others see 1 jobs before the end, want 0")},
	},
	{
		Name:      "a batch in parts",
		Breaks:    "the first half of a batch is stored although the second fails",
		Invariant: "Atomic",
		Edits: []Edit{{
			"outbox.atomically", `return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return both(tx) })`,
			`return both(db.(DB))`,
		}},
		Checks: []Check{test("outbox", "TestABatchIsStoredWholeOrNotAtAll/by_INSERT", "got 5000 jobs, want 0")},
	},
	{
		Name:      "rows are written over while they are sent",
		Breaks:    "jobs of a large batch are stored twice, and others not at all",
		Invariant: "Nothing lost",
		Edits: []Edit{{"outbox.copySource.take", `	if len(s.rows) > 0 {
		s.made.done(s.rows)
	}
	s.rows, s.err = s.made.next()
`, `	s.rows, s.err = s.made.next()
	if len(s.rows) > 0 {
		s.made.done(s.rows)
	}
`}},
		// The database may refuse a row that it has already, or have one that is not what was enqueued.
		Checks: []Check{test("outbox", "TestAJobThatNeedsAnotherColumnBeginsAnotherCopy", "want ")},
	},
	{
		Name:      "a message as large as its first row",
		Breaks:    "of rows that are larger than what is read at once, the rest is lost",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"outbox.copyStream.Read", `	case s.read < len(s.bytes):`, `	case s.read < len(s.bytes) && s.read == 0:`}},
		Checks:    []Check{test("outbox", "TestAStreamStoresRowsOfEverySize", "enqueue 2007 jobs:")},
	},
	{
		Name:      "a stream outlives its connection",
		Breaks:    "after a broken COPY somebody waits for rows for ever, or reads what is the caller's again",
		Invariant: "Nothing lost",
		Edits: []Edit{
			{"outbox.copyStream.copy", `s.reading.Lock()`, ``},
			{"outbox.copyStream.copy", `defer s.reading.Unlock()`, ``},
		},
		Checks: []Check{test("outbox", "TestNobodyReadsAStreamWhoseConnectionIsBroken", "somebody still reads")},
	},
	{
		Name:      "a refusal before BEGIN is forgotten",
		Breaks:    "a transaction whose first statement failed commits the rest",
		Invariant: "Atomic",
		Edits:     []Edit{{"outbox.producerTx.closeBatch", `		t.aborted = err`, `		_ = err`}},
		Checks:    []Check{test("outbox", "TestARefusalEndsTheTransaction", "1 jobs and 1 rows are stored")},
	},
	{
		Name:      "deferred jobs of a statement that is not sent",
		Breaks:    "a job is lost, and the business change committed, when a later statement's context had ended",
		Invariant: "Atomic",
		Edits:     []Edit{{"outbox.producerTx.notStored", `		t.deferred = sent`, `		t.deferred = nil`}},
		Checks:    []Check{test("outbox", "TestAStatementThatIsNotSentLosesNoJob/cache_statement/QueryRow$", "1 rows, 0 jobs and 0 events are stored")},
	},
	{
		Name:      "a failure that Postgres does not know is forgotten",
		Breaks:    "a job is lost, and the business change committed, when an argument of a later statement cannot be sent",
		Invariant: "Atomic",
		Edits:     []Edit{{"outbox.producerTx.notStored", `		t.aborted = err`, `		_ = err`}},
		Checks:    []Check{test("outbox", "TestAStatementThatIsNotSentLosesNoJob/exec/rewriting", "1 rows, 0 jobs and 0 events are stored")},
	},
	{
		Name:      "a deferred payload is the caller's buffer",
		Breaks:    "a job is stored with what the caller has written to its buffer since",
		Invariant: "Atomic",
		Edits:     []Edit{{"outbox.keep", `return bytes.Clone(payload)`, `return bytes.TrimSpace(payload)`}},
		Checks:    []Check{test("outbox", "TestADeferredPayloadIsTheOneThatWasGiven", "stored 22, want 11")},
	},
	{
		Name:      "idempotency race",
		Breaks:    "two producers that use a key at once both store their job",
		Invariant: "Atomic",
		Edits: []Edit{{"internal/sqlgen.EnqueueJobOnce", `    VALUES ($2, $3, $4, $5, nullif($6::boolean, false))
    ON CONFLICT DO NOTHING
`, `    SELECT $2, $3, $4, $5, nullif($6::boolean, false)
    WHERE NOT EXISTS (SELECT FROM outbox.idempotency_keys WHERE tenant_id = $2 AND kind = $3 AND key = $4)
    ON CONFLICT (tenant_id, kind, key) DO UPDATE SET job_id = excluded.job_id
`}},
		Checks: []Check{test("outbox", "TestAHundredConcurrentCallersMakeOneJob/when_the_first_commits", "jobs, want 1")},
	},
	{
		Name:      "an enqueue locks what others need",
		Breaks:    "transactions that enqueue wait for one another",
		Invariant: "Producers never wait for dispatchers",
		Edits:     []Edit{{"internal/sqlgen.EnqueueJob", `RETURNING CASE WHEN $24::boolean THEN pg_notify('outbox_jobs', '') END`, `RETURNING CASE WHEN $24::boolean THEN pg_notify('outbox_jobs', '') END, pg_advisory_xact_lock(1)`}},
		Checks:    []Check{test("outbox", "TestPlainEnqueuesDoNotWaitForOneAnother", "lock timeout")},
	},
	{
		Name:      "due by the producer's clock",
		Breaks:    "a producer whose clock is ahead stores jobs that start late",
		Invariant: "The database's clock decides",
		Edits: []Edit{
			{"outbox.makeRow", `	opts.Key.into(into)`, `	if opts.RunAt.IsZero() {
		into.RunAt = pgtype.Timestamptz{Time: producersNow().Add(opts.Delay), Valid: true}
	}
	opts.Key.into(into)`},
			{"outbox.Exponential", `func Exponential(`, `func producersNow() time.Time { return time.Now() }

func Exponential(`},
		},
		Checks: []Check{test("outbox", "TestAProducersClockDoesNotMatter", "is due")},
	},
	{
		Name:      "an enqueue that does not wait for the disk",
		Breaks:    "a committed job is forgotten in a crash, and the business change with it",
		Invariant: "Nothing lost",
		Edits:     []Edit{{"internal/sqlgen.EnqueueJob", `RETURNING CASE WHEN $24::boolean THEN pg_notify('outbox_jobs', '') END`, `RETURNING CASE WHEN $24::boolean THEN pg_notify('outbox_jobs', '') END, set_config('synchronous_commit', 'off', true)`}},
		Checks: []Check{
			test("dispatcher", "TestWhatWasAcknowledgedSurvivesACrash", "the enqueue"),
			row("A5", "lost jobs: acknowledged to a producer, never completed"),
		},
	},
	{
		Name:      "jobs are kept back beside a savepoint",
		Breaks:    "a savepoint that is rolled back leaves a job that was enqueued meanwhile",
		Invariant: "Atomic",
		Edits: []Edit{{"outbox.producerTx.Begin", `	t.deferOff = true
`, ``}},
		Checks: []Check{
			test("outbox", "TestASavepointThatIsTakenBackTakesEveryJobSince/through_the_outer", "1 jobs, want 0"),
			row("A11", "orphans: jobs without their business row"),
		},
	},
	{
		Name:      "jobs are kept back beside the connection",
		Breaks:    "a savepoint of the connection that is rolled back leaves a job that was enqueued meanwhile",
		Invariant: "Atomic",
		Edits: []Edit{{"outbox.producerTx.Conn", `	t.deferOff = true
`, ``}},
		Checks: []Check{
			test("outbox", "TestASavepointThatIsTakenBackTakesEveryJobSince/the_connection$", "1 jobs, want 0"),
			row("A11", "orphans: jobs without their business row"),
		},
	},
}
