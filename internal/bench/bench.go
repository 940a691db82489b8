// Package bench measures this project. Each workload runs against a durable Postgres, in a database of its own, and
// prints the figures by which changes to the hot path are judged. Command `posthaste bench` runs it.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// Options are the options of the workloads; a zero field means the workload's own default.
type Options struct {
	DatabaseURL string // of a server; every workload creates a database there and drops it
	// Of burndown, bulk, latency, held-snapshot, future, backlog, keys, hot-key, tenants, processes and pages.
	Jobs         int
	Keys         int           // keys, tenants
	Duration     time.Duration // steady, enqueue, idle, api
	Every        time.Duration // latency, tenants: between two jobs
	Clients      int           // bulk, enqueue, api
	Processes    int           // processes
	Sinks        int           // relay: how many sinks to compare with one
	Overload     bool          // api: the rate that dispatch keeps beside ten times the clients
	Streamed     bool          // burndown: each change of a job is an event, too
	HoldSnapshot bool          // tenants: lone jobs of new tenants, and a held snapshot; relay: with and without
	Notify       outbox.NotifyMode
	Logger       *slog.Logger

	// Sink is the sink to which relay and relay-latency publish, under Destination; nil accepts everything. The relay
	// closes it.
	Sink        relay.Sink
	Destination string

	// System returns the system to measure, on an empty database; nil measures this project.
	System func(databaseURL string, pool *pgxpool.Pool) System
	// Worker starts a child process that works on databaseURL with all defaults,
	// as Hold does. For recovery and idle.
	Worker func(ctx context.Context, databaseURL, ledger string) (kill func() error, err error)
	// Process starts a child process that does WorkOn. For processes.
	Process func(ctx context.Context, databaseURL string) (kill func() error, err error)
	// API returns the API of pool's database, and a token for it, made with owner. For api.
	API Handler
	// Console returns the console of pool's database, and a token for it, made with owner. For console and pages.
	Console Handler
}

// Handler returns a handler that serves pool's database, and a token for it, made with owner.
type Handler func(ctx context.Context, owner, pool *pgxpool.Pool) (handler http.Handler, bearer string, err error)

// Figure is one number of a result.
type Figure struct {
	Name  string
	Value float64
}

// Result is what one workload measured.
type Result struct {
	Workload string
	Figures  []Figure
	Server   Server
}

// MarshalJSON encodes the result as one flat object, with the figures by their names.
func (r *Result) MarshalJSON() ([]byte, error) {
	line := map[string]any{
		"workload": r.Workload, "postgresql": r.Server.Version, "fsync": r.Server.Fsync,
		"synchronous_commit": r.Server.SynchronousCommit, "full_page_writes": r.Server.FullPageWrites,
		"cores": r.Server.Cores,
	}
	for _, f := range r.Figures {
		line[f.Name] = f.Value
	}
	return json.Marshal(line)
}

// Server describes the server that was measured.
type Server struct {
	Version           string
	Fsync             string
	SynchronousCommit string
	FullPageWrites    string
	Cores             int
}

// Workload is one measurement.
type Workload struct {
	Name  string
	About string
	// OursOnly says that the workload needs more than the methods of System.
	OursOnly bool
	run      func(context.Context, *rig) ([]Figure, error)
}

// Workloads returns all workloads, in the order in which "all" runs them.
func Workloads() []Workload {
	return []Workload{
		{
			"burndown", "enqueue in bulk, then dispatch until the last job is settled (--jobs, --streamed)", false,
			burndown,
		},
		{"bulk", "enqueue in bulk: transactions of 10 000 jobs (--jobs, --clients)", false, bulk},
		{"steady", "enqueue and dispatch at once, at most 20 000 open jobs (--duration)", false, steady},
		{"latency", "one job per transaction, all defaults: from before the insert until the handler starts, with the producer in the worker's program and apart from it (--jobs, --every)", false, latency},
		{"enqueue", "a business row and a job per transaction (--clients, --notify, --duration)", false, enqueue},
		{"held-snapshot", "burn down with and without a forgotten transaction (--jobs)", false, heldSnapshot},
		{"future", "claim due jobs in a table with many urgent ones that are due tomorrow (--jobs)", true, future},
		{"backlog", "claim latency with many open jobs, compared with 10 000 (--jobs)", true, backlog},
		{"keys", "burn down jobs that share keys, one at a time each (--jobs, --keys)", true, keyed},
		{"hot-key", "burn down while many jobs wait for one key (--jobs)", true, hotKey},
		{"tenants", "one tenant's jobs, 50 per second, alone and while many jobs of another wait, 10 ms each (--jobs, --every, --keys); or new tenants' lone jobs next to a busy tenant while a transaction holds a snapshot (--hold-snapshot, --jobs, --keys)", true, tenants},
		{
			"processes", "burn down with one process and with several on one queue, alternately (--n, --jobs)", true,
			processes,
		},
		{"recovery", "kill -9 a worker with running jobs: time until each runs again", false, recovery},
		{"api", "requests to the API and its Postgres on this machine: POST /jobs, GET /jobs/{id}; or the rate that dispatch keeps meanwhile (--clients, --duration, --overload)", true, overHTTP},
		{"console", "the console with viewers: their cost, the delay of a change, the loss of a burn-down (--clients, --duration, --jobs)", true, viewed},
		{"pages", "the time of each page of the console, with many open jobs and five times as many closed ones (--jobs)", true, pages},
		{"relay", "publish events of 200 bytes that the log already holds (--sink, --events, --keys); or with several sinks (--sinks), or during an open transaction (--hold-snapshot), compared with one alone", true, relayed},
		{"relay-latency", "one event per transaction: from before the insert until the sink has it (--sink, --events, --every)", true, relayLatency},
		{"idle", "queries per minute of an idle process (--duration)", false, idle},
	}
}

// ErrUnknownWorkload is returned for a name that Workloads does not have.
var ErrUnknownWorkload = errors.New("unknown workload")

// Run runs one workload.
func Run(ctx context.Context, name string, o Options) (*Result, error) {
	all := Workloads()
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		var names []string
		for _, w := range all {
			names = append(names, w.Name)
		}
		return nil, fmt.Errorf("%w %q, want one of %s", ErrUnknownWorkload, name, strings.Join(names, ", "))
	}
	if o.System != nil && all[i].OursOnly {
		return nil, fmt.Errorf("%s: measures nothing but this project", name)
	}
	r, err := newRig(ctx, o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	server, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	figures, err := all[i].run(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Result{Workload: name, Figures: figures, Server: server}, nil
}

// rig holds the migrated database of one run.
type rig struct {
	Options
	url    string
	pool   *pgxpool.Pool
	system System
	drop   func(context.Context) error
}

func newRig(ctx context.Context, o Options) (*rig, error) {
	name := fmt.Sprintf("posthaste_bench_%d_%d", os.Getpid(), time.Now().UnixNano()%1e9)
	url, drop, err := pgdev.CreateDatabase(ctx, o.DatabaseURL, name)
	if err != nil {
		return nil, fmt.Errorf("create a database: %w", err)
	}
	r := &rig{Options: o, url: url, drop: drop}
	config, err := pgxpool.ParseConfig(url)
	if err == nil {
		config.MaxConns = int32(max(o.Clients, 16) + 8)
		r.pool, err = pgxpool.NewWithConfig(ctx, config)
	}
	if err == nil {
		r.system = r.ours(r.pool, o.Notify)
		if o.System != nil {
			r.system = o.System(url, r.pool)
		}
		err = r.system.Migrate(ctx)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// close drops the database, also after an interrupt.
func (r *rig) close() {
	if r.pool != nil {
		r.pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := r.drop(ctx); err != nil && r.Logger != nil {
		r.Logger.LogAttrs(ctx, slog.LevelWarn, "database not dropped", slog.Any("err", err))
	}
}

// server returns a description of the server. It fails if the server's settings may lose commits: figures measured with
// them mean nothing.
func (r *rig) server(ctx context.Context) (Server, error) {
	s := Server{Cores: runtime.NumCPU()}
	err := r.pool.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync'),
		current_setting('synchronous_commit'), current_setting('full_page_writes')`).
		Scan(&s.Version, &s.Fsync, &s.SynchronousCommit, &s.FullPageWrites)
	if err != nil {
		return s, err
	}
	if s.Fsync != "on" || s.SynchronousCommit == "off" || s.FullPageWrites != "on" {
		return s, fmt.Errorf(
			"the server is not durable (fsync=%s, synchronous_commit=%s, full_page_writes=%s); nothing is measured on it",
			s.Fsync, s.SynchronousCommit, s.FullPageWrites)
	}
	return s, nil
}
