package main

import (
	"cmp"
	"fmt"
	"io"
)

// bar is a target of this project, compared with the medians.
type bar struct {
	what                string
	measurement, figure string
	against             string // ours divided by this system's; if empty, ours alone
	otherMeasurement    string // if not the same
	atLeast, atMost     float64
}

var bars = []bar{
	{what: "burn-down", measurement: "burndown", figure: "jobs_per_s", against: floor, atLeast: 0.7},
	{what: "burn-down", measurement: "burndown", figure: "jobs_per_s", against: river, atLeast: 3.2},
	{what: "burn-down", measurement: "burndown", figure: "jobs_per_s", against: graphile, atLeast: 1.6},
	{what: "steady", measurement: "steady", figure: "jobs_per_s", against: river, atLeast: 2.5},
	{what: "bulk enqueue", measurement: "bulk", figure: "bulk_enqueue_per_s", against: river, atLeast: 2.5},
	{
		what: "latency p50, defaults, attached producer", measurement: "latency", figure: "p50_ms", against: river,
		atMost: 1.0 / 40,
	},
	{
		what: "latency p50, attached producer, its best", measurement: "latency", figure: "p50_ms", against: river,
		otherMeasurement: "latency-best", atMost: 1,
	},
	{
		what: "latency p50, attached producer, its best", measurement: "latency", figure: "p50_ms", against: graphile,
		otherMeasurement: "latency-best", atMost: 1,
	},
	{what: "latency p50, attached producer, ms", measurement: "latency", figure: "p50_ms", atMost: 1},
	{what: "latency p99, attached producer, ms", measurement: "latency", figure: "p99_ms", atMost: 5},
	{what: "enqueue in a transaction", measurement: "enqueue", figure: "tx_per_s", against: river, atLeast: 1.8},
	{what: "relay to a no-op sink", measurement: "relay", figure: "events_per_s", atLeast: 250_000},
	{what: "relay to a no-op sink", measurement: "relay", figure: "events_per_s", against: watermillSQL, atLeast: 3},
	{what: "part of the rate kept with a held snapshot", measurement: "held-snapshot", figure: "kept", atLeast: 0.8},
	{what: "part of the rate kept with future jobs", measurement: "future", figure: "kept", atLeast: 0.9},
	{what: "WAL, bytes per job", measurement: "burndown", figure: "wal_bytes_per_job", atMost: 1140},
	{what: "memory during burn-down, MiB", measurement: "burndown", figure: "rss_mib", atMost: 100},
	{what: "recovery after kill -9, s", measurement: "recovery", figure: "max_s", atMost: 18},
	{what: "idle statements per minute", measurement: "idle", figure: "queries_per_minute", atMost: 45},
}

// read returns the measured value of the bar, and false if it was not measured.
func (b bar) read(r *results) (value float64, ok bool) {
	own, ok := of(r.samples(b.measurement, b.figure), ours)
	if b.against == "" || !ok {
		return own.median, ok
	}
	other, ok := of(r.samples(cmp.Or(b.otherMeasurement, b.measurement), b.figure), b.against)
	return own.median / other.median, ok
}

func (b bar) met(value float64) bool {
	if b.atMost > 0 {
		return value <= b.atMost
	}
	return value >= b.atLeast
}

// writeBars lists the bars and whether each is met.
func (r *results) writeBars(w io.Writer) {
	rows := [][]string{{"target", "against", "wanted", "measured", ""}}
	for _, b := range bars {
		value, ok := b.read(r)
		if !ok {
			continue
		}
		wanted, verdict, times := "≥ "+format(b.atLeast), "missed", ""
		if b.atMost > 0 {
			wanted = "≤ " + format(b.atMost)
		}
		if b.against != "" {
			times = "×"
		}
		if b.met(value) {
			verdict = "met"
		}
		rows = append(rows, []string{b.what, b.against, wanted + times, format(value) + times, verdict})
	}
	if len(rows) > 1 {
		fmt.Fprintf(w, "\n## Targets\n\nThe targets that this project sets itself, compared with the medians.\n\n")
		writeTable(w, rows)
	}
}
