package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// everyWay enqueues jobs of the root tenant and of another one, with and without a key, each with one attempt.
func (s *story) everyWay(n int, job func(i int) task) (ids []outbox.ID) {
	s.Helper()
	tenant := outbox.NewID()
	for i := range n {
		options := outbox.Options{MaxAttempts: 1}
		if i%2 == 1 {
			options.Tenant = tenant
		}
		if i%4 > 1 {
			options.Key.Name = fmt.Sprint(i)
		}
		ids = append(ids, s.enqueue(job(i), options))
	}
	return ids
}

// spentNothing checks that all jobs have succeeded on their only attempt, and returns how many of them had to be
// started more than once.
func (s *story) spentNothing(ids []outbox.ID) (again int) {
	s.Helper()
	s.awaitClosed(len(ids))
	s.checkClosed(ids)
	if n := s.count(`SELECT count(*) FROM outbox.history WHERE attempt <> 1 OR lost_leases <> 0`); n != 0 {
		s.Errorf("%d of %d jobs spent an attempt, or lost a lease that counts", n, len(ids))
	}
	return s.count(`SELECT count(*) FROM outbox.history WHERE epoch > 1`)
}

// Postgres hangs, or cannot be reached, for longer than the leases: a lapsed lease then proves nothing about its
// worker, which is alive. The server's start time stays the same, so only clients can detect the outage.
func TestA14AnOutageOfTwoLeasesSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	const lease, away = 5 * time.Second, 10 * time.Second
	for name, outage := range map[string]func(s *story){
		"the server stands still": func(s *story) {
			postmaster := s.postmaster()
			s.freeze(append(s.childrenOf(postmaster), postmaster)...)(away)
		},
		"a backend is killed and the recovery takes long": func(s *story) {
			postmaster := s.postmaster()
			thaw := s.freeze(postmaster) // otherwise it recovers before we look
			for _, pid := range s.childrenOf(postmaster) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					s.Error(err)
				}
			}
			thaw(away)
		},
		"the table is locked": func(s *story) {
			tx, err := s.db.Begin(background)
			if err != nil {
				s.Fatal(err)
			}
			defer func() { _ = tx.Rollback(background) }()
			if _, err := tx.Exec(background, `LOCK TABLE outbox.jobs`); err != nil {
				s.Fatal(err)
			}
			time.Sleep(away)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFaultStory(t)
			env := []string{"OUTBOX_LEASE_TTL=" + lease.String()}
			s.worker("a", env...).ready()
			s.worker("b", env...).ready()
			started := s.texts(`SELECT pg_postmaster_start_time()::text`)
			ids := s.everyWay(16, func(i int) task { return task{N: i, Do: "ignore", Ms: 40_000} })
			s.awaitEntries(len(ids), "start")
			outage(s)
			again := s.spentNothing(ids)
			if again == 0 {
				s.Error("no lease has lapsed: the story proves nothing")
			}
			if now := s.texts(`SELECT pg_postmaster_start_time()::text`); now[0] != started[0] {
				s.Errorf("the server started at %s, and before at %s: the story is of a restart", now, started)
			}
		})
	}
}

// postmaster returns the number of the server's main process.
func (s *story) postmaster() int {
	s.Helper()
	return parentOf(s, s.backends()[0])
}

// backends returns the numbers of the processes of the story's sessions.
func (s *story) backends() (pids []int) {
	s.Helper()
	rows, _ := s.db.Query(s.Context(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database()`)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(pids) == 0 {
		s.Fatalf("sessions: %v, %v", pids, err)
	}
	return pids
}

// childrenOf returns the processes that a process has started.
func (s *story) childrenOf(parent int) (pids []int) {
	s.Helper()
	all, err := os.ReadDir("/proc")
	if err != nil {
		s.Skip("there is no /proc here")
	}
	for _, entry := range all {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && parentOf(s, pid) == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf returns the parent of a process, or 0 if the process is gone.
func parentOf(s *story, pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have blanks
	fields := strings.Fields(rest)
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		s.Fatal(err)
	}
	return parent
}

// freeze stops processes, and returns a function that continues them after a time.
func (s *story) freeze(pids ...int) (thaw func(after time.Duration)) {
	s.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			s.Errorf("stop process %d: %v", pid, err)
		}
	}
	return func(after time.Duration) {
		time.Sleep(after)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may be gone
		}
	}
}
