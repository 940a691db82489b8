package main

import "fmt"

// Units of Grafana.
const (
	plain   = "short"
	seconds = "s"
	share   = "percentunit"
	octets  = "bytes"
)

// boards returns all boards. deploy/prometheus records the expressions that they share with the alerts.
func boards() []*board { return []*board{overview(), queuesAndKinds(), relayAndPostgres()} }

// quantiles returns the median and the 99th percentile of a histogram.
func quantiles(histogram, matchers string) []string {
	var all []string
	for _, q := range []struct{ name, value string }{{"median", "0.5"}, {"99th percentile", "0.99"}} {
		all = append(all, fmt.Sprintf("%s: histogram_quantile(%s, sum by (le) (rate(%s_bucket%s[$__rate_interval])))",
			q.name, q.value, histogram, matchers))
	}
	return all
}

// slowest returns the 99th percentile of a histogram for each value of a label.
func slowest(histogram, label, matchers string) string {
	return fmt.Sprintf("{{%[2]s}}: histogram_quantile(0.99, sum by (le, %[2]s) (rate(%[1]s_bucket%[3]s[$__rate_interval])))", histogram, label, matchers)
}

// rate returns the rate of a counter per second, for each value of the labels.
func rate(counter, labels, legend string) string {
	return fmt.Sprintf("%s: sum by (%s) (rate(%s[$__rate_interval]))", legend, labels, counter)
}

func overview() *board {
	return newBoard("posthaste-overview", "Posthaste: overview", "Whether jobs arrive, start, end, fail or wait.", nil,
		row("Now",
			figure("Due jobs", plain, "sum(posthaste:jobs_due:max)").says(
				"Jobs that wait for a worker. Jobs that are due later, and those of paused queues, do not count."),
			figure("Oldest due job", seconds, "max(posthaste:oldest_due_age_seconds:max)").limited("PosthasteJobsWait",
				60),
			figure("Busiest queue", share, "max(posthaste:slots_busy:ratio)").limited("PosthasteSaturated", 0.9).says(
				"Share of a queue's handlers that are running."),
			figure("Dead letters", plain, "max(outbox_reaper_dead_letters)").says(
				"Jobs that failed permanently and wait for a person."),
			figure("Jobs without a handler", plain, "sum(max by (job_type) (outbox_unhandled_jobs))").limited(
				"PosthasteUnhandledKind", 0),
			figure("Dispatchers", plain, "count(count by (instance) (outbox_dispatcher_slots))").says(
				"Processes with handlers."),
		),
		row("Throughput",
			chart("Claimed a second", plain, rate("job_claimed_total", "job_type", "{{job_type}}")),
			chart("Ended a second", plain, rate("job_completed_total", "status", "{{status}}")),
			chart("Waiting, by kind", plain, "{{job_type}}: max by (job_type) (job_queue_depth)").says(
				"Also jobs that are due later."),
		),
		row("Latency",
			chart("From due to started", seconds, quantiles("outbox_dispatcher_enqueue_to_start_seconds", "")...),
			chart("Handlers", seconds, quantiles("job_processing_seconds", "")...),
			chart("Oldest due job, by queue", seconds, "{{queue}}: posthaste:oldest_due_age_seconds:max").limited(
				"PosthasteJobsWait", 60),
		),
		row("Failures",
			chart("Attempts without success a second", plain,
				rate(`outbox_dispatcher_attempts_total{outcome!="succeeded"}`, "outcome", "{{outcome}}")),
			chart("Dead letters in an hour", plain,
				`{{job_type}}: sum by (job_type) (increase(job_completed_total{status=~"failed|dead"}[1h]))`,
				"last lease lost: sum(increase(outbox_reaper_jobs_dead_total[1h]))",
				"undecodable messages: sum(increase(outbox_bridge_undecodable_total[1h]))").
				limited("PosthasteDeadLetters", 0),
			chart("Leases lapsed and lost a second", plain,
				"lapsed: sum(rate(outbox_reaper_leases_expired_total[$__rate_interval]))",
				"lost: sum(rate(outbox_dispatcher_leases_lost_total[$__rate_interval]))").limited(
				"PosthasteLeasesLost", 0),
		),
		row("The API",
			chart("Requests a second", plain, rate("outbox_api_requests_total", "status", "{{status}}")),
			chart("99th percentile, by route", seconds, slowest("outbox_api_request_seconds", "route", "")),
			chart("Refused with 429 a second", plain, "{{route}}: posthaste:api_refusals:rate5m").limited(
				"PosthasteRefusals", 0),
			chart("Share of 5xx", share, "errors: max(posthaste:api_errors:ratio5m)").limited("PosthasteAPIErrors", 0.05),
		),
		row("Processes",
			chart("Versions", plain, "{{version}}: count by (version) (outbox_build_info)"),
			chart("CPU", plain, "{{instance}}: rate(process_cpu_seconds_total[$__rate_interval]) and on (instance, job) outbox_build_info").says("Cores in use."),
			chart("Memory", octets,
				"{{instance}}: process_resident_memory_bytes and on (instance, job) outbox_build_info"),
		),
	)
}

func queuesAndKinds() *board {
	const queue, kind = `{queue=~"$queue"}`, `{job_type=~"$kind"}`
	return newBoard("posthaste-queues", "Posthaste: queues and kinds", "Each queue and each kind of job.",
		[]variable{
			labelVariable("queue", "Queue", "outbox_queue_jobs_due", "queue"),
			labelVariable("kind", "Kind", "job_queue_depth", "job_type"),
		},
		row("Queues",
			chart("Due jobs", plain, "{{queue}}: posthaste:jobs_due:max"+queue,
				"{{queue}} without a handler: max by (queue) (outbox_queue_jobs_unhandled"+queue+")"),
			chart("Oldest due job", seconds, "{{queue}}: posthaste:oldest_due_age_seconds:max"+queue).limited(
				"PosthasteJobsWait", 60),
			chart("Busy handlers", share, "{{queue}}: posthaste:slots_busy:ratio"+queue).limited("PosthasteSaturated",
				0.9),
			chart("Handlers that may run", plain, "{{queue}}: sum by (queue) (outbox_dispatcher_slots"+queue+")"),
			chart("Limits", plain, "{{queue}} {{limit}}: max by (queue, limit) (outbox_queue_limit"+queue+")",
				"{{queue}} paused: max by (queue) (outbox_queue_paused"+queue+")").says(
				"max_running: jobs at once; rate: starts a second; paused: 1 while it is."),
			chart("Claims that a limit stopped a second", plain, rate("outbox_dispatcher_limit_stops_total"+queue,
				"queue, limit", "{{queue}} {{limit}}")),
		),
		row("Kinds",
			chart("Waiting", plain, "{{job_type}}: max by (job_type) (job_queue_depth"+kind+")").says(
				"Also jobs that are due later."),
			chart("Ended a second", plain, rate("job_completed_total"+kind, "job_type, status",
				"{{job_type}} {{status}}")),
			chart("Attempts a second", plain, rate("outbox_dispatcher_attempts_total"+kind, "job_type, outcome",
				"{{job_type}} {{outcome}}")),
			chart("From due to started, 99th percentile", seconds, slowest("outbox_dispatcher_enqueue_to_start_seconds",
				"job_type", kind)),
			chart("Handlers, 99th percentile", seconds, slowest("job_processing_seconds", "job_type", kind)),
			chart("Running handlers", plain, rate("job_processing_seconds_sum"+kind, "job_type", "{{job_type}}")).says(
				"Average number of running handlers."),
			chart("Dependency unavailable", plain,
				"{{job_type}} of {{queue}}: max by (job_type, queue) (outbox_dispatcher_kind_unavailable"+kind+")").
				limited("PosthasteKindUnavailable", 0).says("1 while a dependency of the kind is unavailable."),
			chart("Without a handler", plain, "{{job_type}}: max by (job_type) (outbox_unhandled_jobs"+kind+
				")").limited("PosthasteUnhandledKind", 0),
			chart("Overrun in ten minutes", plain,
				"{{job_type}}: sum by (job_type) (increase(outbox_dispatcher_overruns_total"+kind+"[10m]))").
				limited("PosthasteHandlersOverrun", 0).says("Attempts whose handler kept running after its timeout."),
		),
		row("Keys and schedules",
			chart("Jobs that wait for their key", plain, "jobs: max(outbox_reaper_jobs_blocked)"),
			chart("Oldest job that waits for its key", seconds,
				"age: posthaste:oldest_blocked_age_seconds:max").limited("PosthasteKeysStuck", 600),
			chart("Ticks of schedules a second", plain,
				"fired: sum(rate(outbox_scheduler_ticks_total[$__rate_interval]))",
				"refused: sum(rate(outbox_scheduler_refused_total[$__rate_interval]))").limited(
				"PosthasteSchedulesRefused", 0),
		),
	)
}

func relayAndPostgres() *board {
	const sink = `{sink=~"$sink"}`
	return newBoard("posthaste-relay-postgres", "Posthaste: relay and Postgres",
		"Whether events are published, the database keeps up, and wake-ups arrive. Dead tuples, WAL and disk are metrics of an exporter for Postgres.",
		[]variable{labelVariable("sink", "Sink", "outbox_relay_owned", "sink")},
		row("Relay",
			chart("Lag", seconds, "{{sink}}: posthaste:relay_lag_seconds:max"+sink).limited("PosthasteRelayLate",
				60).says("Age of the oldest unpublished event."),
			chart("Lag, in positions", plain, "{{sink}}: max by (sink) (outbox_relay_lag_events"+sink+")"),
			chart("Published a second", plain, rate("outbox_relay_published_total"+sink, "sink", "{{sink}}")),
			chart("A batch, 99th percentile", seconds, slowest("outbox_relay_publish_seconds", "sink", sink)),
			chart("Batches not accepted completely a second", plain,
				rate("outbox_relay_failures_total"+sink, "sink, code", "{{sink}} {{code}}")),
			chart("Refused a second", plain, rate("outbox_relay_refused_total"+sink, "sink, code", "{{sink}} {{code}}")),
			chart("Held", plain, "{{sink}} messages: max by (sink) (outbox_relay_held_messages"+sink+")",
				"{{sink}} keys: max by (sink) (outbox_relay_held_keys"+sink+")").says(
				"Refused messages, and those behind them of the same key."),
			chart("Stopped by the broker", seconds, "{{sink}}: max by (sink) (outbox_relay_away_seconds"+sink+")").says(
				"How long the broker has accepted nothing."),
			chart("Published by", plain, "{{sink}} {{instance}}: max by (sink, instance) (outbox_relay_owned"+sink+
				")").says("1 in the process that publishes to the sink."),
		),
		row("Bridges",
			chart("Stored a second", plain, rate("outbox_bridge_stored_total", "bridge", "{{bridge}}")).says(
				"Messages that are jobs or dead letters."),
			chart("Messages behind", plain, "{{bridge}}: max by (bridge) (outbox_bridge_lag_messages)"),
			chart("Stalled", seconds,
				"{{bridge}}: max by (bridge) (outbox_bridge_stalled_seconds and outbox_bridge_owned == 1)").limited(
				"PosthasteBridgeStalled", 60).says("How long the bridge has stored nothing."),
		),
		row("Postgres",
			chart("Oldest snapshot", seconds, "age: posthaste:horizon_age_seconds:max").limited("PosthasteHorizonHeld",
				1800).says("Vacuum cannot remove newer row versions."),
			chart("Oldest snapshot, in transactions", plain, "age: max(outbox_reaper_horizon_age_transactions)").says(
				"Replication slots included."),
			chart("Days with partitions ahead", plain,
				"days: max(outbox_history_partitions_ahead unless outbox_reaper_sample_timestamp_seconds == 0)").atLeast(
				"PosthastePartitionsShort", 5),
			chart("Rows trimmed a second", plain, rate("outbox_reaper_rows_trimmed_total", "table", "{{table}}")),
			chart("Days of events that a sink holds", plain, "days: max(outbox_reaper_event_partitions_held)"),
			chart("Age of the sample", seconds, "age: time() - max(outbox_reaper_sample_timestamp_seconds)").limited(
				"PosthasteNoReaper", 1800).says("One process counts depths and ages for all, twice a minute."),
		),
		row("Connections",
			chart("In use, by pool", plain, "{{pool}}: sum by (pool) (outbox_pool_acquired_conns)",
				"{{pool}} at most: sum by (pool) (outbox_pool_max_conns)"),
			chart("Waits for one a second", plain, rate("outbox_pool_empty_acquires_total", "pool", "{{pool}}")),
			chart("Waiting, a second", seconds, rate("outbox_pool_empty_acquire_wait_seconds_total", "pool", "{{pool}}")),
		),
		row("Wake-ups and batches",
			chart("Connected listeners", plain, "{{instance}}: min by (instance) (outbox_listener_connected)").atLeast(
				"PosthasteNotListening", 1),
			chart("Notifications a second", plain, rate("job_notification_received_total", "channel", "{{channel}}"),
				"looks because of a timer: sum(rate(job_poll_scanned_total[$__rate_interval]))"),
			chart("Jobs for each statement", plain,
				"claimed: sum(rate(outbox_dispatcher_claim_batch_size_sum[$__rate_interval])) / sum(rate(outbox_dispatcher_claim_batch_size_count[$__rate_interval]))",
				"settled: sum(rate(outbox_dispatcher_settle_batch_size_sum[$__rate_interval])) / sum(rate(outbox_dispatcher_settle_batch_size_count[$__rate_interval]))"),
		),
	)
}
