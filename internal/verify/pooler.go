package verify

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/freeport"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// poolSize is how many sessions the pooler shares among all clients.
const poolSize = 20

// behindAPooler runs row D10: first a third of the jobs without faults, as A1, then the kills and restarts of A2.
// Everything but LISTEN goes through PgBouncer in transaction mode. In tier S, every other row of tier P follows.
func behindAPooler(ctx context.Context, r *Run) error {
	const workers = 3
	p, err := r.startPooler(ctx)
	if err != nil {
		return err
	}
	calm := time.Time{}
	jobs := r.Size(3_000, 100_000)
	f := flow{
		jobs: jobs, producers: 4, workers: workers, concurrency: 16,
		producerEnv: insisting(r.pace("30ms", "2ms")),
		least:       map[string]int{"kill -9 worker": 2, "restart Postgres -m immediate": 1},
	}
	f.faults = func(ctx context.Context, c *crew) error {
		err := r.Await(ctx, time.Duration(r.Size(2, 15))*time.Minute, "a third of the jobs to be done",
			func(ctx context.Context) (bool, error) {
				n, err := r.closed(ctx)
				return n > jobs/3, err
			})
		if ctx.Err() != nil { // production is over: the count of the faults will show that there were none
			return nil
		}
		if err != nil {
			return err
		}
		calm = time.Now()
		return r.beat(acts{
			"kill":    func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
			"restart": r.restartPostgres,
		}, fault.Beat{Kind: "kill", Every: time.Second, Targets: workers},
			fault.Beat{Kind: "restart", Every: 4 * time.Second})(ctx)
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	r.allAcked(f.jobs)
	again, err := r.Texts(
		ctx, `SELECT id::text FROM outbox.history WHERE finished_at < $1 AND (attempt <> 1 OR lost_leases > 0)`, calm)
	if err != nil {
		return err
	}
	r.None("jobs that needed a second attempt before the faults began", again)
	transactions, err := p.transactions(ctx)
	if err != nil {
		return err
	}
	r.Expect("transactions through the pooler", float64(transactions), ">=", float64(f.jobs))
	if r.Tier == TierS {
		return r.everyRow(ctx)
	}
	return nil
}

// pooler is a PgBouncer in front of the run's database, known by the address of its console.
type pooler struct{ console string }

// startPooler starts PgBouncer, which must be installed. Processes that are started from then on connect through it.
// PgBouncer refuses to run as root: if we do, it runs as nobody.
func (r *Run) startPooler(ctx context.Context) (*pooler, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			return nil, notPossible("pgbouncer is not installed")
		}
	}
	version, err := exec.Command(program, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("pgbouncer --version: %w", err)
	}
	fmt.Fprintf(r.Log, "     %s: %s\n", r.Row.Name, strings.SplitN(string(version), "\n", 2)[0])
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	database, err := url.Parse(r.URL)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(r.Dir, "pgbouncer.ini")
	if err := os.WriteFile(config, fmt.Appendf(nil, `[databases]
verify = host=%s port=%s dbname=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = %d
max_client_conn = 1000
server_login_retry = 1
`, database.Hostname(), database.Port(), strings.TrimPrefix(database.Path, "/"), database.User.Username(), port, poolSize), 0o644); err != nil {
		return nil, err
	}
	args := []string{config}
	if os.Geteuid() == 0 {
		args = []string{"-u", "nobody", config}
	}
	process, err := child.Start("pgbouncer", filepath.Join(r.Dir, "pgbouncer.log"), program, nil, nil, args...)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.processes = append(r.processes, process)
	r.mu.Unlock()
	at := "postgres://postgres@127.0.0.1:" + port
	r.pooled = at + "/verify?sslmode=disable&default_query_exec_mode=exec"
	p := &pooler{at + "/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol"}
	return p, r.Await(ctx, 10*time.Second, "the pooler to answer", func(ctx context.Context) (bool, error) {
		_, err := p.transactions(ctx)
		return err == nil, err
	})
}

// transactions returns how many transactions the pooler has passed on.
func (p *pooler) transactions(ctx context.Context) (n int64, err error) {
	conn, err := pgx.Connect(ctx, p.console)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.PgConn().Exec(ctx, `SHOW STATS`).ReadAll()
	if err != nil {
		return 0, err
	}
	for _, result := range results {
		for _, row := range result.Rows {
			if string(row[0]) != "verify" {
				continue
			}
			for i, column := range result.FieldDescriptions {
				if column.Name == "total_xact_count" {
					return strconv.ParseInt(string(row[i]), 10, 64)
				}
			}
		}
	}
	return 0, nil
}

func freePort() (string, error) {
	port, err := freeport.Pick()
	return strconv.Itoa(port), err
}
