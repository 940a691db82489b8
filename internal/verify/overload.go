package verify

// overload returns family D: a slow, full or stopping system loses no job.
func overload() []Row {
	return []Row{
		{
			Name: "D1", Timed: true, Alone: true, Title: "A held snapshot blocks vacuum",
			Fault: "an idle transaction holds back xmin for 6 s (S: 10 min) over 300,000 dead rows", Tiers: both,
			run:      heldSnapshot,
			Workload: "about 500 jobs per second from one producer to 2 workers, before and during the fault",
			Pass:     jobsSafe + "; claim p99 ≤ 5 × that before; throughput ≥ 80 % of that before; claims are as fast as before ≤ 60 s after the release",
		},
		{
			Name: "D3", Timed: true, Alone: true, Title: "Connection pool exhausted",
			Fault: "handlers hold every connection of their pool for 9 s (S: 60 s), three times the lease and more, and others wait for one", Tiers: both, run: poolExhausted,
			Workload: "4 jobs that hold a connection, 60 that need one; a second worker that would take over lost jobs",
			Pass:     jobsSafe + "; no lease expires; lease extensions are late by ≤ 200 ms (p99); exactly one execution per job",
		},
		{
			Name: "D4", Timed: true, Title: "Slow database",
			Fault: "500 ms per round trip to the database, and one response in ten held back for 7 s (S: 30 s)",
			Tiers: both, run: slowDatabase,
			Workload: "about 100 jobs per second to 2 workers, before, during and after 10 s (S: 150 s) of the fault; S: at least 20,000 jobs",
			Pass:     jobsSafe + "; no database call without a deadline, none that returns more than 1 s after it; no goroutines left; full speed ≤ 5 s after the fault",
		},
		{
			Name: "D5", Timed: true, Alone: true, Title: "Large backlog",
			Fault: "a backlog of 200,000 due jobs (S: 10,000,000)", Tiers: both, run: backlog,
			Workload: "4 workers that claim a few jobs at a time, with 10,000 due jobs and with the backlog",
			Pass:     "claim p99 ≤ 2 × that with 10,000 due jobs; no lost jobs; no second attempts",
		},
		{
			Name: "D7", Timed: true, Title: "Workers stopped under load",
			Fault: "workers are stopped under load: SIGTERM; SIGTERM twice; SIGTERM, then SIGKILL at the deadline (3 times each, S: 200 times each)", Tiers: both, run: stopsUnderLoad,
			Workload: "1,500 jobs (S: 60,000) of up to 1.5 s, one in 20 of 6 s, from 2 producers that retry; 3 workers",
			Pass:     jobsSafe + "; exit status and duration of each stop as documented; no lease left after a graceful stop; no goroutines left; expired leases are taken away within 3 s",
		},
		{
			Name: "D10", Title: "Behind PgBouncer",
			Fault: "PgBouncer in transaction mode in front of Postgres; after a third of the jobs has run without faults, kill -9 of a worker every second and an immediate restart of Postgres every 4 s; S: after that, the faults of the other rows", Tiers: both, run: behindAPooler,
			Workload: "3,000 jobs (S: 100,000) from 4 producers that retry, 3 workers; LISTEN connects to Postgres itself; S: every other row of tier P on PostgreSQL 15 and 18, without the pooler and, for those that have processes and one server, behind it",
			Pass:     jobsSafe + "; every order acknowledged by the end; no second attempts before the faults; S: no row of tier P fails",
		},
		{
			Name: "D11", Timed: true, Alone: true, Title: "New tenants beside a busy one",
			Fault: "an idle transaction holds back xmin over 200,000 dead rows of one tenant, which is busy",
			Tiers: both, run: newTenants,
			Workload: "20,000 jobs (S: 400,000) of the busy tenant to 2 workers; during them and for 4 s after, single jobs of new tenants, without and with a key, and of quiet tenants",
			Pass:     jobsSafe + "; single jobs of each sort: commit to start ≤ 20 ms (median), ≤ 1 s (worst)",
		},
		{
			Name: "D12", Timed: true, Alone: true, Title: "Webhook host down",
			Fault: "the host of a webhook is down for 20 s (S: 5 min)", Tiers: both, run: hostAway,
			Workload: "20,000 due jobs for it, of the root tenant and another, with and without keys; one worker",
			Pass:     "during the outage ≤ 200 claims, ≤ 100 log lines, ≤ 2 MiB of WAL, no attempts used; the log reports its beginning, every ten seconds that it goes on, and its end; every job delivered ≤ 10 s after the host is back, once and on its first attempt",
		},
	}
}
