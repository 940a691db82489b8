package main

import (
	"fmt"
	"slices"
	"strings"
)

// measurement is one workload at one kind of settings.
type measurement struct {
	name     string
	workload string
	args     []string
	quick    []string // args of a run that only tries whether all works
	profile  string   // which of a system's settings
	systems  []string
	together bool // all systems at once: it is timers that are measured, not work
	once     bool // in the first round only
}

const (
	ours         = "posthaste"
	river        = "river"
	watermillSQL = "watermill-sql" // a relay, no queue of jobs
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
		name: "idle", workload: "idle", profile: defaults, systems: []string{ours, river, graphile}, together: true, once: true,
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
	return slices.DeleteFunc(slices.Clone(measurements), func(m measurement) bool { return !slices.Contains(only, m.name) }), nil
}

// question is what a reader wants to know; its first figure is plotted.
type question struct {
	title       string
	about       string
	measurement string
	figures     []figure
}

type figure struct {
	name  string // in the results
	label string
	less  bool // is better
}

var questions = []question{
	{
		"Burn-down", "100 000 jobs that do nothing are there; from the start of the worker until the last one is settled in the database.",
		"burndown",
		[]figure{{"jobs_per_s", "jobs/s", false}, {"client_cpu_us_per_job", "CPU of the worker, µs a job", true}, {"rss_mib", "memory of the worker, MiB", true}},
	},
	{
		"Bulk enqueue", "Jobs stored in transactions of 10 000, each system's fastest way: COPY, River's `InsertManyFast` (COPY), graphile-worker's `add_jobs` in SQL. As many clients at once as served each system best; nobody works.",
		"bulk",
		[]figure{{"bulk_enqueue_per_s", "jobs/s", false}},
	},
	{
		"Bulk enqueue, one client", "The same with one client, who leaves a core to itself while it waits for the other.",
		"bulk-one",
		[]figure{{"bulk_enqueue_per_s", "jobs/s", false}},
	},
	{
		"Steady", "One producer stores batches of 1000 and waits while 20 000 jobs are open; a worker in the same process works them off.",
		"steady",
		[]figure{{"jobs_per_s", "jobs/s", false}},
	},
	{
		"Enqueue in a business transaction", "64 clients commit a row of their own and a job in one transaction, at defaults; nobody works.",
		"enqueue",
		[]figure{{"tx_per_s", "transactions/s", false}},
	},
	{
		"Latency at defaults", "One job a transaction, 100 a second: from before the insert until its handler starts, commit included.",
		"latency",
		[]figure{{"p50_ms", "p50, ms", true}, {"p99_ms", "p99, ms", true}, {"max_ms", "max, ms", true}},
	},
	{
		"Latency at best settings", "The same with each system's quickest settings (below). Ours has none: these are its defaults again.",
		"latency-best",
		[]figure{{"p50_ms", "p50, ms", true}, {"p99_ms", "p99, ms", true}, {"max_ms", "max, ms", true}},
	},
	{
		"Latency at defaults, nearly idle", "The same at seven jobs a second, which is kinder to River: it tells its workers of one insert per 100 ms and queue, so that of 100 a second most wait.",
		"latency-idle",
		[]figure{{"p50_ms", "p50, ms", true}, {"p95_ms", "p95, ms", true}, {"max_ms", "max, ms", true}},
	},
	{
		"Recovery after kill -9", "A worker with 50 running jobs is killed; until another has started each again. River's default is an hour and is not waited for: this is River told to take a job for lost " +
			"after 15 s, as ours does, which in River also bounds how long a job may run. graphile-worker's four hours are not a setting.",
		"recovery",
		[]figure{{"max_s", "the last job, s", true}, {"p50_s", "p50, s", true}},
	},
	{
		"Held snapshot", "150 000 jobs burnt down while a forgotten transaction keeps vacuum from removing anything, and what part of the rate without it that is.",
		"held-snapshot",
		[]figure{{"held_jobs_per_s", "jobs/s", false}, {"clean_jobs_per_s", "jobs/s without it", false}, {"kept", "kept", false}},
	},
	{
		"Relay to nobody", "400 000 events of 200 bytes are there; until a sink that accepts everything has all of them, in batches of 1 000. watermill-sql's subscriber is told to read as many at once; its default is 100.",
		"relay",
		[]figure{{"events_per_s", "events/s", false}},
	},
	{
		"WAL", "Bytes of write-ahead log a job, stored to settled. River keeps the finished row until a cleaner deletes it a day later, which is not counted; graphile-worker deletes it at once; " +
			"ours moves it into a history whose partitions are dropped.",
		"burndown",
		[]figure{{"wal_bytes_per_job", "bytes a job", true}},
	},
	{
		"Dead tuples", "Row versions that vacuum has to remove, a job, stored to settled.",
		"burndown",
		[]figure{{"dead_tuples_per_job", "dead tuples a job", true}},
	},
	{
		"Idle", "Statements a minute of one worker process with nothing to do, at defaults, all its connections together.",
		"idle",
		[]figure{{"queries_per_minute", "statements a minute", true}},
	},
	{
		"Beside jobs of tomorrow", "100 000 due jobs burnt down beside a million more urgent ones that are due tomorrow. Ours alone.",
		"future",
		[]figure{{"beside_jobs_per_s", "jobs/s", false}, {"alone_jobs_per_s", "jobs/s without them", false}, {"kept", "kept", false}},
	},
	{
		"Deep backlog", "The claiming statement with a million open jobs against 10 000. Ours alone.",
		"backlog",
		[]figure{{"claim_p99_ms", "claim p99, ms", true}, {"claim_p99_ms_at_10000", "at 10 000, ms", true}, {"ratio", "ratio", true}},
	},
}
