package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// lastOf returns n requests whose last one is another.
func lastOf(n int, last Request) []Request {
	return append(numbered(n-1), last)
}

// Of more than two steps, the first is sent before the last is made: what is wrong
// with that undoes all.
func TestABadRequestAmongThoseThatAreBeingSentUndoesAll(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2 * copyStep, 2*copyStep + 1, 9*copyStep + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			requests := lastOf(n, Request{greet{"bob"}, Options{Queue: "no blanks"}})
			tx := begin(t, db, pgx.ReadCommitted)
			before, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for name, through := range map[string]DB{"a pool": db, "a transaction": tx} {
				ids, err := EnqueueMany(t.Context(), through, requests)
				if bad, ok := errors.AsType[*RequestError](err); ids != nil || !ok || bad.Index != n-1 || len(mistakes(err)) != 1 {
					t.Errorf("through %s: %d ids, %v; want an error about request %d alone", name, len(ids), err, n-1)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := payloads(t, db, []ID{before}); len(got) != 1 || countJobs(t, db) != 1 {
				t.Errorf("%d jobs, want the one before", countJobs(t, db))
			}
		})
	}
}

// onlyCopies is somebody's own DB that begins no transactions.
type onlyCopies struct {
	DB
	copier
}

// Where nothing takes back what was sent, all is validated first.
func TestWithoutATransactionNothingIsSentBeforeAllIsValid(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	bad := lastOf(3*copyStep, Request{greet{"bob"}, Options{Queue: "no blanks"}})
	bad[copyStep].Options.Priority = 7 // the COPY before it would be complete
	if _, err := EnqueueMany(t.Context(), onlyCopies{db, db}, bad); len(mistakes(err)) != 1 {
		t.Errorf("got %v, want an error about the last request", err)
	}
	if n := countJobs(t, db); n != 0 {
		t.Errorf("%d jobs are stored, want none", n)
	}
}

type explosive struct{}

func (explosive) Kind() string                 { return "greet" }
func (explosive) MarshalJSON() ([]byte, error) { panic("boom") }

// What panics is the caller's, who may go on: with its transaction, too.
func TestAPanicOfArgsIsTheCallersAndUndoesAll(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tx := begin(t, db, pgx.ReadCommitted)
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("recovered %v, want boom", got)
			}
		}()
		ids, err := EnqueueMany(t.Context(), tx, lastOf(3*copyStep, Request{Args: explosive{}}))
		t.Errorf("got %d ids, %v; want a panic", len(ids), err)
	}()
	if _, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := countJobs(t, db); n != 1 {
		t.Errorf("%d jobs, want the one behind", n)
	}
}

// A COPY sends no column that none of its jobs needs: the first job that needs one
// more begins another; those behind it that need fewer do not.
func TestAJobThatNeedsAnotherColumnBeginsAnotherCopy(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	requests := numbered(5 * copyStep)
	requests[2*copyStep].Options.Priority = 7
	requests[3*copyStep+1].Options.Queue = "mail"
	requests[4*copyStep].Options.Priority = -7
	copies := 0
	tx := copySpy{begin(t, db, pgx.ReadCommitted), &copies}
	ids, err := EnqueueMany(t.Context(), tx, requests)
	if err != nil || copies != 3 {
		t.Fatalf("%d COPYs, %v; want 3", copies, err)
	}
	rows, err := tx.Query(t.Context(), `
		SELECT convert_from(payload, 'UTF8') || ' ' || priority || ' ' || queue FROM outbox.jobs
		ORDER BY run_at, id`) // as they are claimed
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(got) != len(ids) {
		t.Fatalf("%d jobs of %d ids, %v", len(got), len(ids), err)
	}
	for i, r := range requests {
		queue := r.Options.Queue
		if queue == "" {
			queue = engine.DefaultQueue
		}
		if want := fmt.Sprintf(`{"name":"%d"} %d %s`, i, r.Options.Priority, queue); got[i] != want {
			t.Errorf("job %d is %q, want %q", i, got[i], want)
		}
	}
}

// The database's error comes back, however much is not made yet.
func TestACopyThatFailsEndsTheMaking(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	poison(t, db)
	requests := numbered(40 * copyStep)
	requests[3].Args = poisoned
	if _, err := EnqueueMany(t.Context(), db, requests); err == nil || !strings.Contains(err.Error(), "poisoned") {
		t.Errorf("got %v, want the database's error", err)
	}
	if n := countJobs(t, db); n != 0 {
		t.Errorf("%d jobs, want none", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	requests[3].Args = canceller{cancel}
	if _, err := EnqueueMany(ctx, db, requests); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	if n := countJobs(t, db); n != 0 {
		t.Errorf("%d jobs after one that was cancelled, want none", n)
	}
}

type canceller struct{ cancel context.CancelFunc }

func (canceller) Kind() string                   { return "greet" }
func (c canceller) MarshalJSON() ([]byte, error) { c.cancel(); return []byte(`{}`), nil }

// Where COPY is refused, jobs of many steps go by INSERT, the first time and after it.
func TestManyStepsGoByInsertWhereCopyIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	exec(t, conn, `SET ROLE outbox_producer; SET app.tenant_id = '00000000-0000-0000-0000-000000000001'`)
	for range 2 {
		requests := numbered(3*copyStep + 1)
		ids, err := EnqueueMany(t.Context(), conn, requests)
		if err != nil {
			t.Fatal(err)
		}
		got := payloads(t, db, ids)
		if len(got) != len(requests) || got[len(got)-1] != fmt.Sprintf(`{"name":"%d"}`, len(got)-1) {
			t.Errorf("%d jobs of %d, the last %q", len(got), len(requests), got[len(got)-1])
		}
		bad := lastOf(3*copyStep, Request{greet{"bob"}, Options{Queue: "no blanks"}})
		if _, err := EnqueueMany(t.Context(), conn, bad); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("request %d:", 3*copyStep-1)) {
			t.Errorf("got %v, want an error about request %d", err, 3*copyStep-1)
		}
	}
	if n := countJobs(t, db); n != 2*(3*copyStep+1) {
		t.Errorf("%d jobs, want %d", n, 2*(3*copyStep+1))
	}
}

// slowSeal notes, the first two times, who was in a transaction while it sealed.
type slowSeal struct {
	db   DB
	seen []int
}

func (s *slowSeal) Seal(ctx context.Context, _ Part, c Content) (Content, error) {
	if len(s.seen) < 2 {
		var n int
		err := s.db.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity, pg_sleep(0.2)
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'`).Scan(&n)
		if err != nil {
			return c, err
		}
		s.seen = append(s.seen, n)
	}
	return c, nil
}

func (s *slowSeal) Open(_ context.Context, _ Part, c Content) (Content, error) { return c, nil }

// A seal may ask others, and takes its time: no transaction waits for that.
func TestNoTransactionWaitsForSeals(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	seal := &slowSeal{db: db}
	requests := numbered(3 * copyStep)
	for _, i := range []int{0, len(requests) - 1} {
		requests[i].Options.Protect = seal
	}
	if _, err := EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seal.seen, []int{0, 0}) {
		t.Errorf("in transactions while payloads were sealed: %v, want none", seal.seen)
	}
}
