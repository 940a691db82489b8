package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// stopPatience bounds how long a graceful stop may take.
const stopPatience = 45 * time.Second

// Worker starts a worker. Settings in env override those of the run.
func (r *Run) Worker(name string, env ...string) (*child.Process, error) {
	return r.start(name, "verify-worker", r.workerEnv(name, env), nil)
}

func (r *Run) workerEnv(name string, env []string) []string {
	return append([]string{
		"OUTBOX_ADMIN_ADDR=127.0.0.1:0", "OUTBOX_POLL_INTERVAL=1s",
		"OUTBOX_LEASE_TTL=" + r.Lease.String(), "OUTBOX_WORKER=" + name, "VERIFY_RETRY=200ms",
	}, env...)
}

// Producer starts a producer. Package probe lists what env can set.
func (r *Run) Producer(name string, env ...string) (*child.Process, error) {
	p, err := r.start(name, "verify-producer", env, nil)
	if err == nil {
		p.MayEnd()
	}
	return p, err
}

// start starts a command of the posthaste-proof binary. A process with the name of an earlier one continues its ledger.
// See [child.Start] for prepare.
func (r *Run) start(name, command string, env []string, prepare func(pid int) error) (*child.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := filepath.Join(r.Dir, fmt.Sprintf("%03d-%s.log", len(r.processes), name))
	all := []string{"OUTBOX_DATABASE_URL=" + r.processURL(), "VERIFY_NAME=" + name, "VERIFY_LEDGER=" + r.ledgerOf(name)}
	if r.pooled != "" {
		all = append(all, "OUTBOX_LISTEN_URL="+r.URL)
	}
	p, err := child.Start(name, log, r.programOf(name), append(all, env...), prepare, command)
	if err != nil {
		return nil, err
	}
	r.processes = append(r.processes, p)
	return p, nil
}

// serve starts posthaste serve of the build in a folder.
func (r *Run) serve(name, folder string, env ...string) (*child.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := filepath.Join(r.Dir, fmt.Sprintf("%03d-%s.log", len(r.processes), name))
	all := []string{"OUTBOX_DATABASE_URL=" + r.URL, "OUTBOX_ADMIN_ADDR=127.0.0.1:0", "OUTBOX_API_ADDR=127.0.0.1:0"}
	p, err := child.Start(name, log, filepath.Join(folder, "posthaste"), append(all, env...), nil, "serve")
	if err != nil {
		return nil, err
	}
	r.processes = append(r.processes, p)
	return p, nil
}

// processURL returns the URL by which processes reach the database, except for LISTEN.
func (r *Run) processURL() string { return cmp.Or(r.pooled, r.URL) }

func (r *Run) ledgerOf(name string) string { return filepath.Join(r.ledgers(), name+ledger.Suffix) }

// stop terminates processes and checks that they exit with status 0. It first waits until each has begun: SIGTERM kills
// a process that does not handle signals yet.
func (r *Run) stop(ctx context.Context, processes ...*child.Process) error {
	for _, p := range processes {
		if err := p.Begun(ctx); err != nil {
			return err
		}
		if err := p.Terminate(); err != nil {
			return err
		}
	}
	for _, p := range processes {
		select {
		case <-p.Ended():
			r.Expect("exit status after SIGTERM", float64(p.ExitCode()), "=", 0, p.Name)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(stopPatience):
			return fmt.Errorf("%s still runs %s after SIGTERM", p.Name, stopPatience)
		}
	}
	return nil
}

// endProcesses kills all processes of the run.
func (r *Run) endProcesses() {
	for _, p := range r.all() {
		_ = p.Kill9() // it fails if the process has ended
	}
}

func (r *Run) all() []*child.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*child.Process(nil), r.processes...)
}

// fates returns a line for each process that ended in a way in which it must not.
func (r *Run) fates() (bad []string) {
	for _, p := range r.all() {
		if fate := p.Fate(); fate != "" {
			bad = append(bad, fate)
		}
	}
	return bad
}

// crew is a set of workers, in which each killed worker is replaced.
type crew struct {
	run     *Run
	env     []string
	workers []*child.Process
}

// Crew starts n workers.
func (r *Run) Crew(n int, env ...string) (*crew, error) {
	c := &crew{run: r, env: env}
	for range n {
		p, err := c.hire()
		if err != nil {
			return nil, err
		}
		c.workers = append(c.workers, p)
	}
	return c, nil
}

func (c *crew) hire() (*child.Process, error) {
	c.run.hired++
	return c.run.Worker(fmt.Sprintf("w%d", c.run.hired-1), c.env...)
}

// replace kills a worker with SIGKILL and starts another. It first waits until the worker has begun: killing it earlier
// would prove nothing.
func (c *crew) replace(ctx context.Context, i int) error {
	victim := c.workers[i]
	if err := victim.Begun(ctx); err != nil {
		return err
	}
	c.run.Faults.Begin("kill -9 worker", victim.Name)()
	err := victim.Kill9()
	next, failed := c.hire()
	c.workers[i] = next
	return errors.Join(err, failed)
}
