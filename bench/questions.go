package main

import (
	"fmt"
	"slices"
	"strings"
)

// measurement is one workload with one kind of settings.
type measurement struct {
	name     string
	workload string
	args     []string
	quick    []string // args of a run that only checks that everything works
	profile  string   // names the kind of a system's settings
	systems  []string
	together bool // all systems at once: timers are measured, not work
	once     bool // in the first round only
}

const (
	ours         = "posthaste"
	river        = "river"
	watermillSQL = "watermill-sql" // a relay, not a queue of jobs
	graphile     = "graphile-worker"
	floor        = "bare SQL"
)

var measurements = []measurement{
	{
		name: "burndown", workload: "burndown", profile: throughput, systems: []string{ours, river, graphile, floor},
		args: []string{"--jobs", "100000"}, quick: []string{"--jobs", "5000"},
	},
	{
		name: "bulk", workload: "bulk", profile: bulk, systems: []string{ours, river, graphile, floor},
		args: []string{"--jobs", "1200000"}, quick: []string{"--jobs", "20000"},
	},
	{
		name: "bulk-one", workload: "bulk", profile: oneClient, systems: []string{ours, river, graphile, floor},
		args: []string{"--jobs", "600000"}, quick: []string{"--jobs", "20000"},
	},
	{
		name: "steady", workload: "steady", profile: throughput, systems: []string{ours, river, graphile, floor},
		args: []string{"--duration", "5s"}, quick: []string{"--duration", "1s"},
	},
	{
		name: "enqueue", workload: "enqueue", profile: commits, systems: []string{ours, river, graphile},
		args: []string{"--duration", "4s"}, quick: []string{"--duration", "1s"},
	},
	{
		name: "latency", workload: "latency", profile: defaults, systems: []string{ours, river, graphile},
		args: []string{"--jobs", "500", "--every", "10ms"}, quick: []string{"--jobs", "50", "--every", "10ms"},
	},
	{
		name: "latency-best", workload: "latency", profile: lowLatency, systems: []string{ours, river, graphile},
		args: []string{"--jobs", "500", "--every", "10ms"}, quick: []string{"--jobs", "50", "--every", "10ms"},
	},
	{
		name: "latency-idle", workload: "latency", profile: defaults, systems: []string{ours, river, graphile},
		args: []string{"--jobs", "50", "--every", "150ms"}, quick: []string{"--jobs", "10", "--every", "20ms"},
	},
	{
		name: "held-snapshot", workload: "held-snapshot", profile: throughput, systems: []string{ours, river, graphile},
		args: []string{"--jobs", "150000"}, quick: []string{"--jobs", "5000"},
	},
	{
		name: "recovery", workload: "recovery", profile: recovery, systems: []string{ours, river}, together: true,
	},
	{
		name: "idle", workload: "idle", profile: defaults, systems: []string{ours, river, graphile}, together: true,
		once: true,
		args: []string{"--duration", "1m"}, quick: []string{"--duration", "5s"},
	},
	{
		name: "relay", workload: "relay", profile: relaying, systems: []string{ours, watermillSQL},
		args: []string{"--events", "400000"}, quick: []string{"--events", "20000"},
	},
	{
		name: "future", workload: "future", profile: defaults, systems: []string{ours}, once: true,
		args: []string{"--jobs", "1000000"}, quick: []string{"--jobs", "20000"},
	},
	{
		name: "backlog", workload: "backlog", profile: defaults, systems: []string{ours}, once: true,
		args: []string{"--jobs", "1000000"}, quick: []string{"--jobs", "20000"},
	},
}

func names() (all []string) {
	for _, m := range measurements {
		all = append(all, m.name)
	}
	return all
}

func choose(only []string) ([]measurement, error) {
	if only == nil {
		return measurements, nil
	}
	for _, name := range only {
		if !slices.Contains(names(), name) {
			return nil, fmt.Errorf("no measurement %q, want some of %s", name, strings.Join(names(), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(measurements), func(m measurement) bool {
		return !slices.Contains(only, m.name)
	}), nil
}

// question is one that a reader asks; its first figure is plotted.
type question struct {
	title       string
	about       string
	measurement string
	figures     []figure
}

type figure struct {
	name  string // in the results
	label string
	less  bool   // whether less is better
	peers string // name of the peers' figure, if it is another one
}

// The figures of a producer that is not attached to the worker. Every peer's producer is of that kind, so that its only
// latency is compared with ours.
var (
	apartP50 = figure{"apart_p50_ms", "p50, ms", true, "p50_ms"}
	apartP95 = figure{"apart_p95_ms", "p95, ms", true, "p95_ms"}
	apartP99 = figure{"apart_p99_ms", "p99, ms", true, "p99_ms"}
	apartMax = figure{"apart_max_ms", "max, ms", true, "max_ms"}
)

var questions = []question{
	{
		"Burn-down", "The table holds 100 000 jobs that do nothing. The time runs from the start of the worker until the last job is settled in the database.",
		"burndown",
		[]figure{{"jobs_per_s", "jobs/s", false, ""}, {
			"client_cpu_us_per_job", "CPU of the worker, µs per job", true,
			"",
		}, {"rss_mib", "memory of the worker, MiB", true, ""}},
	},
	{
		"Bulk enqueue", "Jobs are stored in transactions of 10 000, each system's fastest way: `EnqueueMany` (COPY), River's `InsertManyFast` (COPY), graphile-worker's `add_jobs` in SQL. Each system has the number of " +
			"concurrent clients that served it best; no worker runs. Our clients, like all others, connect as a superuser. PostgreSQL refuses COPY to a role that row-level security applies to, which is " +
			"every role but superusers and those with BYPASSRLS: `EnqueueMany` then sends an INSERT for every 5 000 jobs or 16 MiB, a fifth slower with 10 000 jobs ([tenants](guides/tenants.md)); this run did not measure it.",
		"bulk",
		[]figure{{"bulk_enqueue_per_s", "jobs/s", false, ""}},
	},
	{
		"Bulk enqueue, one client",
		"The same with one client. While the server works the client waits, and the other way round, so that one core is often idle.",
		"bulk-one",
		[]figure{{"bulk_enqueue_per_s", "jobs/s", false, ""}},
	},
	{
		"Steady", "One producer stores batches of 1 000 jobs and pauses while 20 000 are open; a worker in the same process runs them.",
		"steady",
		[]figure{{"jobs_per_s", "jobs/s", false, ""}},
	},
	{
		"Enqueue in a business transaction",
		"64 clients each commit a business row and a job in one transaction, at default settings; no worker runs.",
		"enqueue",
		[]figure{{"tx_per_s", "transactions/s", false, ""}},
	},
	{
		"Latency at defaults",
		"One job per transaction, 100 per second: from before the insert until the handler starts, commit included. Our producer is attached to the worker of the same program, " +
			"so that the transaction that stores a job also claims it. The peers' producers are apart from their workers.",
		"latency",
		[]figure{{"p50_ms", "p50, ms", true, ""}, {"p99_ms", "p99, ms", true, ""}, {"max_ms", "max, ms", true, ""}},
	},
	{
		"Latency at defaults, from another process",
		"The same jobs from a producer that shares nothing with the worker but the database, so that NOTIFY has to wake the worker. The peers' figures are those of the " +
			"section above, because their producers always work that way. All three producers nevertheless run in the worker's operating-system process. Our two producers alternate, 50 jobs per " +
			"second each, and each stores as many jobs as a peer's producer.",
		"latency",
		[]figure{apartP50, apartP99, apartMax},
	},
	{
		"Latency at best settings",
		"Each system with its quickest settings (below), our producer attached to the worker. Ours has no quicker settings: this is a second run with its defaults.",
		"latency-best",
		[]figure{{"p50_ms", "p50, ms", true, ""}, {"p99_ms", "p99, ms", true, ""}, {"max_ms", "max, ms", true, ""}},
	},
	{
		"Latency at best settings, from another process",
		"Each system with its quickest settings, our producer apart from the worker.",
		"latency-best",
		[]figure{apartP50, apartP99, apartMax},
	},
	{
		"Latency at defaults, nearly idle",
		"Seven jobs per second, our producer attached to the worker. This rate favours River, which notifies its workers of at most one insert per 100 ms and queue: at 100 per " +
			"second most jobs wait.",
		"latency-idle",
		[]figure{{"p50_ms", "p50, ms", true, ""}, {"p95_ms", "p95, ms", true, ""}, {"max_ms", "max, ms", true, ""}},
	},
	{
		"Latency at defaults, nearly idle, from another process",
		"Seven jobs per second, our producer apart from the worker.",
		"latency-idle",
		[]figure{apartP50, apartP95, apartMax},
	},
	{
		"Recovery after kill -9",
		"A worker with 50 running jobs is killed. The time runs until another worker has started each of them again. River's default is an hour; here it is set to rescue a job after 15 s, as ours " +
			"does, which in River also limits how long a job may run. graphile-worker is not measured: its four hours cannot be changed.",
		"recovery",
		[]figure{{"max_s", "the last job, s", true, ""}, {"p50_s", "p50, s", true, ""}},
	},
	{
		"Held snapshot", "A burn-down of 150 000 jobs while a forgotten transaction keeps vacuum from removing dead rows, compared with the same burn-down without that transaction.",
		"held-snapshot",
		[]figure{
			{"held_jobs_per_s", "jobs/s", false, ""},
			{"clean_jobs_per_s", "jobs/s without it", false, ""},
			{"kept", "kept", false, ""},
		},
	},
	{
		"Relay to a no-op sink",
		"The table holds 400 000 events of 200 bytes. The time runs until a sink that accepts everything has received all of them, in batches of 1 000. watermill-sql's subscriber is set to the same batch; its default is 100.",
		"relay",
		[]figure{{"events_per_s", "events/s", false, ""}},
	},
	{
		"WAL", "Bytes of write-ahead log per job, from the insert to settlement. River keeps the finished row until a cleaner deletes it a day later, which is not counted; graphile-worker deletes it at " +
			"once; ours moves it into a history table whose partitions are dropped.",
		"burndown",
		[]figure{{"wal_bytes_per_job", "bytes per job", true, ""}},
	},
	{
		"Dead tuples", "Row versions per job that vacuum has to remove, from the insert to settlement.",
		"burndown",
		[]figure{{"dead_tuples_per_job", "dead tuples per job", true, ""}},
	},
	{
		"Idle", "Statements per minute of one worker process without jobs, at default settings, over all its connections.",
		"idle",
		[]figure{{"queries_per_minute", "statements per minute", true, ""}},
	},
	{
		"Future jobs", "A burn-down of 100 000 due jobs in a table with a million jobs of higher priority that are due tomorrow. Ours only.",
		"future",
		[]figure{
			{"beside_jobs_per_s", "jobs/s", false, ""},
			{"alone_jobs_per_s", "jobs/s without them", false, ""},
			{"kept", "kept", false, ""},
		},
	},
	{
		"Deep backlog", "The claim statement with a million open jobs, compared with 10 000. Ours only.",
		"backlog",
		[]figure{
			{"claim_p99_ms", "claim p99, ms", true, ""},
			{"claim_p99_ms_at_10000", "at 10 000, ms", true, ""},
			{"ratio", "ratio", true, ""},
		},
	},
}
