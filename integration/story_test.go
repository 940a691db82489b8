package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	// patience bounds every wait. It is no limit that a story tests: other programs share the machine.
	patience = 90 * time.Second
	glance   = 20 * time.Millisecond // between two polls
)

// background is for cleaning up, which must outlive the test's own context.
var background = context.Background()

// story holds what a test works with: a database, the ledger beside it, and the processes that it started.
type story struct {
	*testing.T
	url    string
	server *pgdev.Server // nil on the shared server
	db     *pgxpool.Pool
	ledger *book
	procs  []*process
}

// newStory begins a story on the server that all tests share. It runs in parallel with others.
func newStory(t *testing.T) *story {
	t.Parallel()
	return begin(t, pgtest.URL(t), nil)
}

// newFaultStory begins a story on a durable server of its own, which it may
// restart, kill and misconfigure.
func newFaultStory(t *testing.T) *story {
	t.Parallel()
	heavy(t)
	server, err := pgdev.Start(t.Context(), pgdev.Options{Major: os.Getenv("PG"), Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stop the server: %v", err)
		}
	})
	url, _, err := pgdev.CreateDatabase(t.Context(), server.URL(), "story")
	if err != nil {
		t.Fatal(err)
	}
	posthaste(t, url, nil, "migrate", "up")
	return begin(t, url, server)
}

// room lets two stories at a time keep the machine busy.
var room = make(chan struct{}, 2)

// heavy waits for room, and holds it until the test is over.
func heavy(t *testing.T) {
	room <- struct{}{}
	t.Cleanup(func() { <-room })
}

func begin(t *testing.T, url string, server *pgdev.Server) *story {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 6
	config.ConnConfig.RuntimeParams["application_name"] = "story"
	db, err := pgxpool.NewWithConfig(background, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := &story{T: t, url: url, server: server, db: db, ledger: &book{Tail: ledger.NewTail(filepath.Join(t.ArtifactDir(), "ledger.jsonl"))}}
	t.Cleanup(s.end)
	if _, err := db.Exec(t.Context(), probe.Schema); err != nil {
		t.Fatal(err)
	}
	return s
}

// end kills all processes that still run, checks how they fared, and logs the tails of the ledger and the logs if the
// story failed.
func (s *story) end() {
	for _, p := range s.procs {
		p.close()
	}
	if !s.Failed() {
		return
	}
	s.Logf("the ledger ends:\n%s", tail(s.ledger.Path()))
	for _, p := range s.procs {
		s.Logf("the log of %s ends:\n%s", p.Name, tail(p.Log))
	}
}

// tail returns the end of a file: only a little, because the failures are printed above it.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const enough = 2 << 10
	if len(content) > enough {
		content = content[len(content)-enough:]
		if _, after, found := strings.Cut(string(content), "\n"); found {
			content = []byte("…\n" + after)
		}
	}
	return string(content)
}

// await polls until the condition holds.
func (s *story) await(what string, true func() bool) {
	s.Helper()
	s.awaitFor(patience, what, true)
}

func (s *story) awaitFor(patience time.Duration, what string, true func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !true(); time.Sleep(glance) {
		if time.Now().After(deadline) {
			s.Fatalf("after %s still waiting for %s", patience, what)
		}
	}
}

// task is a job that says what its handler does.
type task = probe.Task

// enqueue stores a job and wakes the dispatchers.
func (s *story) enqueue(job task, options ...outbox.Options) outbox.ID {
	s.Helper()
	id, err := outbox.Enqueue(s.Context(), s.db, job, first(options))
	if err != nil {
		s.Fatal(err)
	}
	return id
}

// enqueueMany stores n jobs in one transaction.
func (s *story) enqueueMany(n int, job func(i int) task, options ...outbox.Options) []outbox.ID {
	s.Helper()
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i] = outbox.Request{Args: job(i), Options: first(options)}
	}
	ids, err := outbox.EnqueueMany(s.Context(), s.db, requests)
	if err != nil {
		s.Fatal(err)
	}
	return ids
}

func first(options []outbox.Options) outbox.Options {
	if len(options) == 0 {
		return outbox.Options{}
	}
	return options[0]
}

// count returns the single integer that a query yields. It retries while the server is away.
func (s *story) count(sql string, args ...any) int {
	s.Helper()
	var n int
	s.ask(func(ctx context.Context) error { return s.db.QueryRow(ctx, sql, args...).Scan(&n) })
	return n
}

// texts returns the single column of a query's rows.
func (s *story) texts(sql string, args ...any) (column []string) {
	s.Helper()
	s.ask(func(ctx context.Context) error {
		rows, _ := s.db.Query(ctx, sql, args...)
		var err error
		column, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return column
}

func (s *story) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.db.Exec(s.Context(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

func (s *story) ask(question func(context.Context) error) {
	s.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(glance) {
		ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
		err = question(ctx)
		cancel()
		if err == nil {
			return
		}
		if mistake, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(mistake.Code, "42") {
			break
		}
	}
	s.Fatal(err)
}

// closed returns how many jobs the history holds.
func (s *story) closed() int { return s.count(`SELECT count(*) FROM outbox.history`) }

// awaitClosed waits until the history holds n jobs.
func (s *story) awaitClosed(n int) {
	s.Helper()
	s.await(fmt.Sprintf("%d closed jobs", n), func() bool { return s.closed() >= n })
}

// row holds the state of a job, open or closed.
type row struct {
	Status     string
	Attempt    int
	LostLeases int
	Epoch      int64
}

func (s *story) row(id outbox.ID) (r row) {
	s.Helper()
	s.ask(func(ctx context.Context) error {
		rows, _ := s.db.Query(ctx, `
			SELECT status::text, attempt, lost_leases, epoch FROM outbox.jobs WHERE id = $1
			UNION ALL SELECT status::text, attempt, lost_leases, epoch FROM outbox.history WHERE id = $1`, id)
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("job %s is stored %d times", id, len(found))
		}
		if err == nil {
			r = found[0]
		}
		return err
	})
	return r
}

// awaitStatus waits until a job has a status, and returns its state.
func (s *story) awaitStatus(id outbox.ID, status outbox.Status) (r row) {
	s.Helper()
	s.await(fmt.Sprintf("job %s to be %s", id, status), func() bool {
		r = s.row(id)
		return r.Status == string(status)
	})
	return r
}

// posthaste runs a command of the real binary and returns its output.
func posthaste(t *testing.T, url string, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.posthaste, args...)
	cmd.Env = child.Environment(append([]string{"OUTBOX_DATABASE_URL=" + url}, env...))
	out, err := cmd.Output()
	if err != nil {
		exit := asExit(err)
		t.Fatalf("posthaste %s: %v\n%s", strings.Join(args, " "), err, exit)
	}
	return strings.TrimSpace(string(out))
}

// percentile returns the p-th percentile of durations, rounded, for the log.
func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(d), cmp.Compare[time.Duration])
	return sorted[min(len(sorted)*p/100, len(sorted)-1)].Round(time.Millisecond)
}
