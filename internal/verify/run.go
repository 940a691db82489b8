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

// Options are how rows are run.
type Options struct {
	Tier    Tier
	Seed    uint64
	Program string // the posthaste-proof binary that the children are made of
	// Previous is a folder with posthaste and posthaste-proof of the release before, for the row
	// that runs both; "" is none.
	Previous string
	Out      string // folder for records, and for ledgers and logs of failed runs
	Major    string // of PostgreSQL; "" is any
	Pooler   bool   // the processes reach Postgres by way of PgBouncer in transaction mode, but for LISTEN
	Log      io.Writer
	// Progress gets how far a run is; nil prints nothing.
	Progress func(stage string, done, total int)
}

// Run is a row while it runs: a server, a database, ledgers, the processes.
type Run struct {
	Options
	Row    Row
	Lease  time.Duration // of the workers
	Dir    string        // for everything that the run writes
	URL    string        // of the database
	DB     *pgxpool.Pool
	Server *pgdev.Server
	Faults fault.Log

	pooled    string // of the database by way of a pooler; "" without one
	clock     string // file that the server's clock is set by; "" in rows that do not set it
	data, wal *disk  // of the server; nil in rows that do not need them to be full

	mu        sync.Mutex
	placed    int // orders of our own; see place
	hired     int // workers of all crews
	record    *Record
	processes []*child.Process
	enqueued  int // by Enqueue, which one goroutine calls
}

// Do runs a row and writes its record. The error is that of writing; how the run
// fared is in the record.
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

// conclude completes the record of a run that ended with err. One that was broken
// off has not passed, whatever it had seen by then: faults end with their context
// without an error.
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

// notPossible is returned by a row whose fault cannot be injected on this machine:
// it lacks a privilege or a program. It says which.
type notPossible string

func (n notPossible) Error() string { return "not possible here: " + string(n) }

// do makes the world of the run, runs the row in it, and ends it.
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

// keepServerLog puts the server's log to the others: it says who had locked what where
// there was a deadlock.
func (r *Run) keepServerLog() error {
	text, err := os.ReadFile(r.Server.Log())
	if errors.Is(err, fs.ErrNotExist) { // a fault took it
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the server's log: %w", err)
	}
	return os.WriteFile(filepath.Join(r.Dir, "postgres.log"), text, 0o600)
}

// Size is a number that depends on the tier.
func (r *Run) Size(p, s int) int {
	if r.Tier == TierS {
		return s
	}
	return p
}

// Figure notes what was measured.
func (r *Run) Figure(name string, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Figures = append(r.record.Figures, Figure{name, value})
}

// Count notes how many of something there were.
func (r *Run) Count(name string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Counts[name] += n
}

// maxExamples is how many violations of one expectation are printed.
const maxExamples = 5

// Expect notes what had to hold and whether it did: op is "=", "<=" or ">=". The
// row goes on, so that it tells everything that is wrong.
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

// None expects that there are no examples of a violation.
func (r *Run) None(what string, examples []string) {
	r.Expect(what, float64(len(examples)), "=", 0, examples...)
}

// patience is for what takes a moment on a quiet machine, and must not decide on a
// busy one.
const patience = time.Minute

// Await looks until cond is true. A cond that returns an error is asked again: the
// server may be away. A soak, whose tables are large, looks less often the longer a
// look takes.
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
