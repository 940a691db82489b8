package verify

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
)

// awayJobs wait for a webhook: root's and a tenant's, with and without keys, and more of root's.
const awayJobs = `
	INSERT INTO outbox.jobs (id, kind, run_at, payload, tenant_id)
	SELECT outbox.uuid_v7(), $1, now(), '{}', tenant::uuid
	FROM (VALUES (1, '00000000-0000-0000-0000-000000000001', $2::integer - 3000), (2, 'aaaaaaaa-0000-0000-0000-000000000001', 1000)) AS part (n, tenant, jobs)
	CROSS JOIN LATERAL generate_series(1, part.jobs)`

const awayKeyed = `
	SELECT outbox.enqueue($1, key => 'k' || n % 500, tenant_id => tenant::uuid)
	FROM unnest('{00000000-0000-0000-0000-000000000001,aaaaaaaa-0000-0000-0000-000000000001}'::text[]) AS tenant
	CROSS JOIN generate_series(1, 1000) AS n`

// hostAway runs row D12: the host of a webhook goes away and comes back.
func hostAway(ctx context.Context, r *Run) error {
	jobs, lasts := 20_000, time.Duration(r.Size(20, 300))*time.Second
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := host.Addr().String()
	if err := host.Close(); err != nil {
		return err
	}
	if _, err := r.DB.Exec(ctx, awayJobs, probe.HookKind, jobs); err != nil {
		return fmt.Errorf("fill the queue: %w", err)
	}
	if _, err := r.DB.Exec(ctx, awayKeyed, probe.HookKind); err != nil {
		return fmt.Errorf("fill the queue: %w", err)
	}
	var before string
	if err := r.DB.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&before); err != nil {
		return err
	}
	worker, err := r.Worker("w0", "VERIFY_HOOK=http://"+addr)
	if err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, lasts); err != nil {
		return err
	}
	if err := r.expectQuiet(ctx, worker, before, lasts); err != nil {
		return err
	}
	delivered, closeHost, err := serveHost(addr)
	if err != nil {
		return err
	}
	defer closeHost()
	back := time.Now()
	if err := r.Drain(ctx, jobs, patience); err != nil {
		return err
	}
	r.Expect("seconds from the host's return until every job was delivered", time.Since(back).Seconds(), "<=", 10)
	r.Expect("webhook requests received", float64(delivered.Load()), "=", float64(jobs))
	for what, sql := range map[string]string{
		"jobs that have not succeeded":           `SELECT $1 - count(*) FROM outbox.history WHERE status = 'succeeded'`,
		"jobs that needed more than one attempt": `SELECT count(*) + 0 * $1::integer FROM outbox.history WHERE attempt <> 1`,
	} {
		n, err := r.Number(ctx, sql, jobs)
		if err != nil {
			return err
		}
		r.Expect(what, float64(n), "=", 0)
	}
	again, err := logged(worker, func(l logLine) bool { return l.Msg == "kind available again" })
	if err != nil {
		return err
	}
	r.Expect("log lines that report the kind as available again", float64(len(again)), "=", 1)
	return r.stop(ctx, worker)
}

// expectQuiet checks how much the outage has cost so far, and that the log reports its beginning and then, as probes
// grow rare, about every ten seconds that it goes on.
func (r *Run) expectQuiet(ctx context.Context, worker *child.Process, before string, lasts time.Duration) error {
	for _, q := range []struct {
		what, sql string
		most      float64
	}{
		{
			"claims during the outage",
			`SELECT count(*) FROM verify.moves WHERE became = 'running' AND $1::pg_lsn IS NOT NULL`, 200,
		},
		{"bytes of WAL written during the outage", `SELECT pg_current_wal_lsn() - $1::pg_lsn`, 2 << 20},
		{
			"attempts used during the outage",
			`SELECT coalesce(sum(attempt), 0) FROM outbox.jobs WHERE status <> 'running' AND $1::pg_lsn IS NOT NULL`, 0,
		},
	} {
		n, err := r.Number(ctx, q.sql, before)
		if err != nil {
			return err
		}
		r.Expect(q.what, float64(n), "<=", q.most)
	}
	lines, err := logged(worker, func(logLine) bool { return true })
	if err != nil {
		return err
	}
	r.Expect("log lines of the worker during the outage", float64(len(lines)), "<=", 100)
	begins, goesOn := 0, 0
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line.Msg, "kind unavailable"):
			begins++
		case line.Msg == "kind still unavailable":
			goesOn++
		}
	}
	r.Expect("log lines that report the kind as unavailable", float64(begins), "=", 1)
	r.Expect("log lines that report it as still unavailable", float64(goesOn), ">=", 1)
	r.Expect("log lines that report it as still unavailable", float64(goesOn), "<=", lasts.Seconds()/10)
	return nil
}

// serveHost starts the host again, at its old address. The server counts its requests in delivered.
func serveHost(addr string) (delivered *atomic.Int64, closeHost func(), err error) {
	host, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	delivered = new(atomic.Int64)
	server := &http.Server{
		ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			delivered.Add(1)
			w.WriteHeader(http.StatusNoContent)
		}),
	}
	go func() { _ = server.Serve(host) }()
	return delivered, func() { _ = server.Close() }, nil
}
