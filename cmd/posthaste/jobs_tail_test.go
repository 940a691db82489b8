package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// tailing is a tail whose looks a test makes itself.
type tailing struct {
	*tail
	t       *testing.T
	from    found
	printed []string // "kind: from → to"
	said    []string
}

func newTail(t *testing.T, from found) *tailing {
	t.Helper()
	f := &tailing{t: t, from: from}
	f.tail = &tail{
		known: map[outbox.ID]mark{},
		print: func(from outbox.Status, j operator.Job) error {
			f.printed = append(f.printed, j.Kind+": "+string(from)+" → "+string(j.Status))
			return nil
		},
		comment: func(text string) { f.said = append(f.said, text) },
	}
	if err := f.begin(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	return f
}

// want looks and compares what was printed.
func (f *tailing) want(printed ...string) {
	f.t.Helper()
	f.printed = nil
	if err := f.look(f.t.Context(), f.from); err != nil {
		f.t.Fatal(err)
	}
	if !slices.Equal(f.printed, printed) {
		f.t.Errorf("told %q, want %q", f.printed, printed)
	}
}

func sqlExec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

const (
	claimSQL = `UPDATE outbox.jobs SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'w', lease_expires_at = now(), started_at = now() WHERE kind = $1`
	failSQL  = `UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, last_error_code = 'http_500' WHERE kind = $1`
)

func store(t *testing.T, db outbox.DB, kind string) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: kind, Payload: []byte(`{}`)}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTailTellsEachChangeOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := operator.New(db)
	store(t, db, "old")
	gone := store(t, db, "gone")
	if _, err := o.Cancel(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	f := newTail(t, o)
	f.want() // what was there is not printed

	store(t, db, "new")
	f.want("new:  → pending")
	f.want()
	sqlExec(t, db, claimSQL, "new")
	sqlExec(t, db, claimSQL, "old")
	f.want("old: pending → running", "new: pending → running")
	// Two changes between two looks: the status is the same, the attempt is another.
	sqlExec(t, db, failSQL, "new")
	sqlExec(t, db, claimSQL, "new")
	f.want("new: running → running")
	sqlExec(t, db, failSQL, "new")
	f.want("new: running → retrying")
	id := store(t, db, "short")
	if _, err := o.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	f.want("short:  → cancelled")
	f.want()
}

// An id is made before its transaction commits:
//
//	A: id 1, not committed
//	B: id 2, commits
//	   the tail sees 2
//	A: commits
//
// So 1 is new although it is older than the newest.
func TestTailFindsAJobThatCommitsLate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newTail(t, operator.New(db))
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	store(t, tx, "late")
	store(t, db, "early")
	f.want("early:  → pending")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.want("late:  → pending")
}

// A producer's clock that is ahead makes ids that stay the newest.
func TestTailIsNotBlindedByAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newTail(t, operator.New(db))
	ahead := store(t, db, "ahead")
	sqlExec(t, db, `UPDATE outbox.jobs SET id = 'ffffffff-0000-7000-8000-000000000001' WHERE id = $1`, ahead)
	f.want("ahead:  → pending")
	store(t, db, "right")
	f.want("right:  → pending")
}

func TestTailSaysWhenItLeavesJobsOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newTail(t, operator.New(db))
	requests := make([]outbox.Request, 1100)
	for i := range requests {
		requests[i].Args = outbox.Raw{KindName: "many", Payload: []byte(`{}`)}
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	if err := f.look(t.Context(), f.from); err != nil {
		t.Fatal(err)
	}
	if len(f.printed) != 1000 || len(f.said) != 1 || !strings.Contains(f.said[0], "left out") {
		t.Errorf("told %d, said %q, want 1000 and that some were left out", len(f.printed), f.said)
	}
	if f = newTail(t, operator.New(db)); len(f.said) != 1 || !strings.Contains(f.said[0], "more than 1000 open jobs") {
		t.Errorf("said %q, want that not all are followed", f.said)
	}
}

// faulty fails as long as broken is set.
type faulty struct {
	found
	broken chan struct{} // closed once it has failed
	times  int
}

func (f *faulty) Jobs(ctx context.Context, filter operator.Filter) ([]operator.Job, error) {
	if f.times++; f.times == 4 { // begin asks three times
		defer close(f.broken)
		return nil, syscall.ECONNREFUSED
	}
	return f.found.Jobs(ctx, filter)
}

func TestTailGoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	from := &faulty{found: operator.New(db), broken: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	var said []string
	printed := make(chan string, 10)
	tl := &tail{
		known:   map[outbox.ID]mark{},
		print:   func(_ outbox.Status, j operator.Job) error { printed <- j.Kind; return nil },
		comment: func(text string) { said = append(said, text) },
	}
	ended := make(chan error, 1)
	go func() { ended <- tl.run(ctx, from, 10*time.Millisecond) }()
	<-from.broken
	store(t, db, "meanwhile")
	select {
	case kind := <-printed:
		if kind != "meanwhile" {
			t.Errorf("told of %s", kind)
		}
	case <-time.After(time.Minute):
		t.Error("told nothing")
	}
	stop()
	if err := <-ended; err != nil || len(said) != 1 || !strings.Contains(said[0], "connection refused; trying again") {
		t.Errorf("it ended with %v and said %q", err, said)
	}
}

// What nothing but a person can change is not waited for, by the word of the database or of the API; an outage is.
func TestNobodyWaitsForWhatDoesNotPass(t *testing.T) {
	t.Parallel()
	closed, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	_, refused := operator.New(closed).Jobs(t.Context(), operator.Filter{})
	for name, lasts := range map[string]error{
		"a job that is gone":     fmt.Errorf("find it: %w", operator.ErrNotFound),
		"the same, from the API": &client.Problem{Status: 404, Code: client.CodeJobNotFound},
		"a revoked token":        &client.Problem{Status: 401, Code: client.CodeUnauthenticated},
		"a capability":           &client.Problem{Status: 403, Code: client.CodeForbidden},
		"a privilege":            fmt.Errorf("list jobs: %w", &pgconn.PgError{Code: "42501"}),
		"a password":             &pgconn.PgError{Code: "28P01"},
		"an output":              &printError{syscall.EPIPE},
	} {
		passing := []error{
			refused, syscall.ECONNRESET, io.ErrUnexpectedEOF, context.DeadlineExceeded, &pgconn.PgError{Code: "57P01"},
			&pgconn.PgError{Code: "55P03"}, &client.Problem{Status: 429}, &client.Problem{Status: 503},
		}
		looks := 0
		err := lookAgain(t.Context(), time.Millisecond, func(string) {}, func() (ended bool, err error) {
			if looks++; looks <= len(passing) {
				return false, passing[looks-1]
			}
			return looks > len(passing)+1, lasts
		})
		if !errors.Is(err, lasts) || looks != len(passing)+1 {
			t.Errorf("%s: %d looks, %v; want %d and %v", name, looks, err, len(passing)+1, lasts)
		}
	}
}

func TestTailPrintsUntilItIsStopped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := env{"DATABASE_URL": db.Config().ConnString()}
	ctx, stop := context.WithCancel(t.Context())
	out, ended := new(lockedBuffer), make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"posthaste", "jobs", "tail", "-o", "json", "--status", "cancelled", "--interval", "10ms"},
			func(name string) string { return e[name] }, strings.NewReader(""), out, out)
	}()
	o := operator.New(db)
	deadline := time.Now().Add(time.Minute)
	for out.String() == "" && time.Now().Before(deadline) { // until it has begun
		id := store(t, db, "greet")
		if _, err := o.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("exit status %d, want 0\n%s", code, out)
	}
	for line := range strings.Lines(out.String()) {
		var change struct{ ID, Status, Kind string }
		if err := json.Unmarshal([]byte(line), &change); err != nil || change.Status != "cancelled" || change.Kind != "greet" {
			t.Errorf("printed %s: %v", line, err)
		}
	}
}
