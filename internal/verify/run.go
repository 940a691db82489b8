package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// Options say how rows are run.
type Options struct {
	Tier    Tier
	Seed    uint64
	Program string // the posthaste-proof binary that the child processes run
	// Previous is a folder with posthaste and posthaste-proof of the previous release, for the row that runs both
	// releases; "" in all other rows.
	Previous string
	Out      string // folder for records, and for ledgers and logs of failed runs
	Major    string // of PostgreSQL; "" allows any
	Pooler   bool   // the processes connect through PgBouncer in transaction mode, except for LISTEN
	Log      io.Writer
	// Progress, unless nil, is called with how far a run is.
	Progress func(stage string, done, total int)
}

// Run is a row while it runs: its server, database, ledgers and processes.
type Run struct {
	Options
	Row    Row
	Lease  time.Duration // of the workers
	Dir    string        // for everything that the run writes
	URL    string        // of the database
	DB     *pgxpool.Pool
	Server *pgdev.Server
	Faults fault.Log

	pooled    string // URL of the database through a pooler; "" without one
	clock     string // file that sets the server's clock; "" in rows that do not set it
	data, wal *disk  // of the server; nil in rows that do not fill them

	mu        sync.Mutex
	placed    int // orders of the harness; see place
	hired     int // workers of all crews
	record    *Record
	processes []*child.Process
	enqueued  int // by Enqueue, which one goroutine calls
}

// Do runs a row and writes its record. The error reports a failed write; the record holds the row's result.
func Do(ctx context.Context, row Row, o Options) (*Record, error) {
	r := &Run{Options: o, Row: row, Lease: 5 * time.Second, record: newRecord(row, o)}
	if r.Progress == nil {
		r.Progress = func(string, int, int) {}
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, err
	}
	r.conclude(ctx, r.do(ctx))
	rec := r.record
	var err error
	if rec.Passed || rec.Skipped != "" {
		err = os.RemoveAll(r.Dir)
	} else {
		fmt.Fprintf(o.Log, "%s: ledgers and logs are kept in %s\n", row.Name, r.Dir)
	}
	_, failed := rec.Write(o.Out)
	return rec, errors.Join(err, failed)
}

// conclude completes the record of a run that ended with err. An interrupted run has not passed, whatever it had seen
// by then: faults end with their context, without an error.
func (r *Run) conclude(ctx context.Context, err error) {
	rec := r.record
	if impossible, ok := errors.AsType[notPossible](err); ok {
		rec.Skipped, err = impossible.Error(), nil
	}
	if ctx.Err() != nil && rec.Skipped == "" {
		if err == nil {
			err = context.Cause(ctx)
		}
		err = fmt.Errorf("interrupted: %w", err)
	}
	if err != nil {
		rec.Error = err.Error()
	}
	rec.Took = time.Since(rec.Started).Seconds()
	rec.Faults = r.Faults.All()
	for _, f := range rec.Faults {
		rec.FaultCounts[f.Kind]++
	}
	rec.Passed = err == nil && rec.Skipped == "" && len(rec.Expectations) > 0 && len(rec.Violated()) == 0
}

// notPossible is the error of a row whose fault cannot be injected on this machine, because a privilege or a program is
// missing. It says which.
type notPossible string

func (n notPossible) Error() string { return "not possible here: " + string(n) }

// do starts the row's server, prepares its database, runs the row, and stops everything.
func (r *Run) do(ctx context.Context) (err error) {
	r.Dir = filepath.Join(r.Out, fmt.Sprintf("%s-%d", r.Row.Name, r.Seed))
	if err := errors.Join(os.RemoveAll(r.Dir), os.MkdirAll(r.ledgers(), 0o755)); err != nil {
		return err
	}
	var env []string
	if r.Row.serverEnv != nil {
		if env, err = r.Row.serverEnv(r); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(filepath.Dir(r.clock))) }()
	}
	r.Progress("start Postgres", 0, 0)
	server := pgdev.Options{Major: r.Major, Settings: r.Row.Settings, Env: env, Log: r.Log}
	if r.Row.disks != nil {
		var giveBack func() error
		if server.Dir, giveBack, err = r.Row.disks(r); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, giveBack()) }()
	}
	r.Server, err = pgdev.Start(ctx, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.keepServerLog(), r.Server.Stop()) }()
	if r.Row.elsewhere {
		defer r.endProcesses()
		return r.Row.run(ctx, r)
	}
	if err := r.openDatabase(ctx, r.Server.URL()); err != nil {
		return err
	}
	defer r.DB.Close()
	defer r.endProcesses()
	if r.Pooler {
		if _, err := r.startPooler(ctx); err != nil {
			return err
		}
	}
	return r.Row.run(ctx, r)
}

// keepServerLog copies the server's log to the folder of the run: after a deadlock it shows the locks of each side.
func (r *Run) keepServerLog() error {
	text, err := os.ReadFile(r.Server.Log())
	if errors.Is(err, fs.ErrNotExist) { // a fault removed it
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the server's log: %w", err)
	}
	return os.WriteFile(filepath.Join(r.Dir, "postgres.log"), text, 0o600)
}

// Size returns the number for the run's tier.
func (r *Run) Size(p, s int) int {
	if r.Tier == TierS {
		return s
	}
	return p
}

// Figure records a measurement.
func (r *Run) Figure(name string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Figures = append(r.record.Figures, Figure{name, value})
}

// Count adds n to a count.
func (r *Run) Count(name string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Counts[name] += n
}

// maxExamples is how many violations of one expectation are recorded.
const maxExamples = 5

// Expect records a check: op is "=", "<=" or ">=". The row goes on after a violation, so that it reports all of them.
func (r *Run) Expect(what string, got float64, op string, want float64, examples ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := Expectation{What: what, Got: got, Op: op, Want: want}
	switch op {
	case "=":
		e.OK = got == want
	case "<=":
		e.OK = got <= want
	case ">=":
		e.OK = got >= want
	default:
		panic("verify: Expect has no operator " + op)
	}
	if !e.OK {
		e.Examples = examples[:min(len(examples), maxExamples)]
	}
	r.record.Expectations = append(r.record.Expectations, e)
}

// None checks that there are no examples of a violation.
func (r *Run) None(what string, examples []string) {
	r.Expect(what, float64(len(examples)), "=", 0, examples...)
}

// patience bounds waits for what takes a moment on a quiet machine, so that a busy machine does not fail the row.
const patience = time.Minute

// Await calls cond until it reports true. It calls cond again after an error: the server may be away. In a soak, whose
// tables are large, it calls less often the longer cond takes.
func (r *Run) Await(ctx context.Context, patience time.Duration, what string,
	cond func(context.Context) (bool, error),
) error {
	var last error
	for deadline := time.Now().Add(patience); ; {
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, 10*time.Second)
		ok, err := cond(asking)
		cancel()
		if ok && err == nil {
			return nil
		}
		last = err
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("after %s still waiting for %s", patience, what), last)
		}
		pause := 20 * time.Millisecond
		if r.Tier == TierS {
			pause = min(max(pause, 9*time.Since(asked)), time.Second)
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}
