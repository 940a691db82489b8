package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	closedOf   = 5   // closed jobs for each open one
	askedFor   = 100 // requests of each page
	leastAsked = 20  // also if they take long
	pageTime   = 3 * time.Second
	pageBudget = 60 * time.Millisecond
)

// pages measures how long the console takes for each of its pages, one after the other, for a viewer who may see all
// tenants, with many open jobs and more closed ones.
func pages(ctx context.Context, r *rig) ([]Figure, error) {
	open := cmp.Or(r.Jobs, 1_000_000)
	if err := r.seed(ctx, open, closedOf*open); err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	return r.timePages(ctx)
}

func (r *rig) timePages(ctx context.Context) ([]Figure, error) {
	addresses, err := r.pages(ctx)
	if err != nil {
		return nil, err
	}
	addr, bearer, stop, err := r.serve(ctx, r.Console)
	if err != nil {
		return nil, err
	}
	defer stop()
	client, err := signedIn(ctx, "http://"+addr+"/", bearer)
	if err != nil {
		return nil, err
	}
	var figures []Figure
	var worst float64
	over := 0
	for _, page := range addresses {
		first, took, err := client.time(ctx, page.of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", page.name, err)
		}
		p := percentiles(took)
		name := strings.ReplaceAll(page.name, " ", "_")
		figures = append(figures, Figure{name + "_first_ms", float64(first.Microseconds()) / 1000},
			Figure{name + "_p50_ms", p[0].Value}, Figure{name + "_p95_ms", p[1].Value})
		worst = max(worst, p[1].Value)
		if p[1].Value > float64(pageBudget.Milliseconds()) {
			over++
		}
	}
	return append(figures, Figure{"worst_p95_ms", worst}, Figure{"pages_over_60_ms", float64(over)}), nil
}

// time requests the addresses in turn. The first response may wait for data that all viewers share.
func (v viewer) time(ctx context.Context, addresses []string) (first time.Duration, took []time.Duration, err error) {
	begun := time.Now()
	for i := range askedFor + 1 {
		started := time.Now()
		if i > leastAsked && started.Sub(begun) > pageTime {
			break
		}
		if _, err := v.read(ctx, addresses[i%len(addresses)]); err != nil {
			return 0, nil, err
		}
		if i == 0 {
			first = time.Since(started)
			continue
		}
		took = append(took, time.Since(started))
	}
	return first, took, nil
}

// page is a page of the console: addresses at which it shows different things.
type page struct {
	name string
	of   []string
}

// pages returns the pages that people look at, for things that exist.
func (r *rig) pages(ctx context.Context) (all []page, err error) {
	for _, path := range strings.Fields(
		"problems now jobs letters queues kinds keys schedules workers sinks operations audit system me") {
		all = append(all, page{path, []string{path}})
	}
	for name, query := range map[string]string{
		"now 14 days": "now?range=14d", "queue": "queue?queue=mail", "queue 14 days": "queue?queue=mail&range=14d",
		"kind": "kind?kind=kind.3", "queue limited": "queue?queue=reports",
		"jobs succeeded": "jobs?status=succeeded", "jobs of a kind": "jobs?kind=kind.3",
		"jobs of a queue and kind": "jobs?queue=mail&kind=kind.4&status=pending",
		"jobs running":             "jobs?status=running", "jobs of a key": "jobs?key=customer-77",
		"jobs of no kind": "jobs?kind=nothing", "jobs of no queue": "jobs?queue=nothing&status=succeeded,cancelled",
		"jobs of a tenant": "jobs?tenant=" + url.QueryEscape("70efdf2e-c9b0-8607-9795-c442636b55fb"),
		"jobs dead":        "jobs?status=dead", "jobs of an hour": "jobs?since=7d&until=6d",
		"letters of a kind": "letters?kind=kind.3", "letters of an error": "letters?error=http_503+3",
		"audit of a person": "audit?actor=person-3", "audit of nobody": "audit?actor=nobody",
		"schedule": "schedule?tenant=00000000-0000-0000-0000-000000000001&name=schedule-7", "sink": "sink?name=sink-1",
		"cancel the jobs of a kind": "jobs-cancel?kind=kind.3", "replay the dead letters": "letters-replay",
	} {
		all = append(all, page{name, []string{query}})
	}
	for name, which := range map[string]string{
		"job waiting":    `jobs WHERE status = 'pending' AND key IS NULL AND run_at < now()`,
		"job with a key": `jobs WHERE status = 'pending' AND key IS NOT NULL AND run_at < now()`,
		"job blocked":    `jobs WHERE status = 'blocked'`, "job retrying": `jobs WHERE status = 'retrying'`,
		"job running": `jobs WHERE status = 'running'`,
		"job dead":    `jobs WHERE status = 'dead'`, "job closed": `history TABLESAMPLE SYSTEM (0.01)`,
	} {
		rows, err := r.pool.Query(ctx, `SELECT 'job?id=' || id::text FROM (SELECT id FROM outbox.`+which+
			` LIMIT 100000) AS found ORDER BY random() LIMIT 40`)
		if err != nil {
			return nil, err
		}
		of, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(of) == 0 {
			return nil, fmt.Errorf("%s: %w", name, cmp.Or(err, errors.New("there is none")))
		}
		all = append(all, page{name, of})
	}
	slices.SortStableFunc(all, func(a, b page) int { return strings.Compare(a.name, b.name) })
	return all, nil
}
