package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Numbers for poison jobs, and for the workers that they kill.
const (
	poisons        = 10
	poisonAttempts = 3
	workerMemory   = 256 << 20
)

// outOfMemory runs row A10.
func outOfMemory(ctx context.Context, r *Run) (err error) {
	const slots = 3
	r.Lease = 3 * time.Second // each attempt at a poison job costs a lease
	var ward ward
	for i := range slots {
		group, err := newMemoryGroup(fmt.Sprintf("w%d", i), workerMemory)
		if err != nil {
			return errors.Join(err, ward.close())
		}
		ward.slots = append(ward.slots, &slot{run: r, number: i, group: group})
	}
	defer func() {
		r.endProcesses() // a group that has processes cannot be removed
		err = errors.Join(err, ward.close())
	}()
	jobs := r.Size(2_000, 10_000)
	ids, err := r.placePoison(ctx)
	if err != nil {
		return err
	}
	producer, err := r.Producer("p0", fmt.Sprint("VERIFY_JOBS=", jobs), "VERIFY_CLIENTS=4",
		"VERIFY_MIX=effect,once,nothing,sleep", "VERIFY_MS=30")
	if err != nil {
		return err
	}
	if err := ward.open(); err != nil {
		return err
	}
	if err := r.Drain(ctx, jobs+poisons, 3*time.Minute); err != nil {
		return err
	}
	workers := ward.discharge()
	r.Expect("workers running at the end", float64(len(workers)), "=", slots)
	if err := errors.Join(r.awaitStatus(ctx, "ready", workers...), ward.failed()); err != nil {
		return err
	}
	if err := r.stop(ctx, append(workers, producer)...); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.Expect("jobs completed", float64(r.record.Counts["completed"]), "=", float64(jobs))
	return errors.Join(ward.judge(r), r.judgePoison(ctx, ids))
}

// placePoison enqueues jobs that need more memory than there is. They never complete, so no producer's ledger lists
// them.
func (r *Run) placePoison(ctx context.Context) (ids []outbox.ID, err error) {
	err = pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) error {
		for i := range poisons {
			key := fmt.Sprintf("poison-%d", i)
			if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, key); err != nil {
				return err
			}
			id, err := outbox.Enqueue(ctx, tx, probe.Task{N: i, Do: "gorge", Key: key},
				outbox.Options{MaxAttempts: poisonAttempts})
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

// judgePoison checks that each poison job used exactly the attempts that it may. An attempt counts from the claim: a
// worker may claim two poison jobs, and be killed by one before the other has started. A worker that survives, but is
// stalled by lack of memory, may find that its lease is about to lapse and give the job back, which uses no attempt.
func (r *Run) judgePoison(ctx context.Context, ids []outbox.ID) error {
	executions := map[outbox.ID]int{}
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		if e.Event == ledger.Start {
			executions[e.Job]++
		}
	}
	var misspent, executed, notDead []string
	unbegun := 0
	for _, id := range ids {
		var claims, spent int
		var status string
		err := r.DB.QueryRow(ctx, `
			SELECT count(*) FILTER (WHERE became = 'running' AND was <> 'running'), count(*) FILTER (WHERE was = 'running' AND became IN ('retrying', 'dead')),
			       (SELECT status::text FROM outbox.jobs WHERE id = $1)
			FROM verify.moves WHERE job = $1`, id).Scan(&claims, &spent, &status)
		if err != nil {
			return err
		}
		where := fmt.Sprintf("%s: claimed %d times, executed %d times, spent %d attempts, %s", id, claims,
			executions[id], spent, status)
		if spent != poisonAttempts {
			misspent = append(misspent, where)
		}
		if n := executions[id]; n < 1 || n > claims {
			executed = append(executed, where)
		}
		if status != "dead" {
			notDead = append(notDead, where)
		}
		unbegun += claims - executions[id]
	}
	r.Count("claims of poison jobs whose worker died before the handler started", unbegun)
	r.None(fmt.Sprintf("poison jobs that did not use exactly %d attempts", poisonAttempts), misspent)
	r.None("poison jobs never executed, or executed more often than claimed", executed)
	r.None("poison jobs not dead at the end", notDead)
	return nil
}

// slot runs one worker at a time, with limited memory, and replaces a worker that was killed, as a supervisor does.
type slot struct {
	run    *Run
	number int
	group  *memoryGroup

	mu     sync.Mutex
	worker *child.Process
	starts int
	closed bool
}

func (s *slot) hire() (*child.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	p, err := s.run.Worker(fmt.Sprintf("w%d-%d", s.number, s.starts), "VERIFY_CONCURRENCY=16")
	if err != nil {
		return nil, err
	}
	p.MayEnd() // the kernel may kill it
	s.starts++
	s.worker = p
	return p, s.group.add(p)
}

// staff keeps the slot filled until it is closed.
func (s *slot) staff(first *child.Process) error {
	for p := first; p != nil; {
		<-p.Ended()
		if p.ExitCode() == -1 {
			s.run.Faults.Begin("worker killed by the OOM killer", p.Name)()
		}
		next, err := s.hire()
		if err != nil {
			return err
		}
		p = next
	}
	return nil
}

// ward holds all slots.
type ward struct {
	slots    []*slot
	staffing sync.WaitGroup
	mu       sync.Mutex
	errs     []error
}

func (w *ward) open() error {
	for _, s := range w.slots {
		first, err := s.hire()
		if err != nil {
			return err
		}
		w.staffing.Go(func() {
			if err := s.staff(first); err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.errs = append(w.errs, err)
			}
		})
	}
	return nil
}

// discharge stops replacing workers, and returns those that are alive.
func (w *ward) discharge() (workers []*child.Process) {
	for _, s := range w.slots {
		s.mu.Lock()
		s.closed = true
		if s.worker != nil && s.worker.Alive() {
			workers = append(workers, s.worker)
		}
		s.mu.Unlock()
	}
	return workers
}

func (w *ward) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}

// judge checks that only the kernel ended workers.
func (w *ward) judge(r *Run) error {
	killed, ended := 0, 0
	for _, s := range w.slots {
		n, err := s.group.killed()
		if err != nil {
			return err
		}
		killed, ended = killed+n, ended+s.starts-1
	}
	r.Count("workers killed by the OOM killer", killed)
	// An attempt can also end while its worker survives: lack of memory stalls the worker until its leases lapse, which
	// stops the handlers and frees their memory.
	r.Expect("workers killed by the OOM killer", float64(killed), ">=", 1)
	r.Expect("workers that ended for another reason", float64(ended-killed), "=", 0)
	return nil
}

func (w *ward) close() error {
	w.discharge()
	w.staffing.Wait()
	var errs []error
	for _, s := range w.slots {
		errs = append(errs, s.group.remove())
	}
	return errors.Join(errs...)
}
