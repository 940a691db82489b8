package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// ear is a session that listens to the channel.
type ear struct {
	t    *testing.T
	db   *pgxpool.Pool
	conn *pgx.Conn
}

func listen(t *testing.T, db *pgxpool.Pool) *ear {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	exec(t, conn, `LISTEN `+engine.Channel)
	return &ear{t, db, conn}
}

// heard returns how many notifications were committed since the last call. Postgres delivers in the order of commits,
// so a last one of our own ends the wait.
func (e *ear) heard() (n int) {
	e.t.Helper()
	exec(e.t, e.db, `SELECT pg_notify($1, 'enough')`, engine.Channel)
	for {
		notification, err := e.conn.WaitForNotification(e.t.Context())
		if err != nil {
			e.t.Fatal(err)
		}
		if notification.Payload == "enough" {
			return n
		}
		if notification.Payload != "" {
			e.t.Errorf("a notification carries %q, want nothing", notification.Payload)
		}
		n++
	}
}

func flush(t *testing.T, p *Producer) {
	t.Helper()
	if err := p.Flush(t.Context()); err != nil {
		t.Error(err)
	}
}

// ways is how a job can be stored through a transaction.
var ways = map[string]func(context.Context, DB) error{
	"Enqueue": func(ctx context.Context, db DB) error {
		_, err := Enqueue(ctx, db, greet{"ada"}, Options{})
		return err
	},
	"Enqueue with an idempotency key": func(ctx context.Context, db DB) error {
		_, err := Enqueue(ctx, db, greet{"ada"}, Options{IdempotencyKey: NewID().String()})
		return err
	},
	"EnqueueMany by COPY": func(ctx context.Context, db DB) error {
		_, err := EnqueueMany(ctx, db, numbered(copyFrom))
		return err
	},
	"EnqueueMany by INSERT": func(ctx context.Context, db DB) error {
		_, err := EnqueueMany(ctx, db, numbered(3))
		return err
	},
	"several": func(ctx context.Context, db DB) error {
		for range 10 {
			if _, err := Enqueue(ctx, db, greet{"ada"}, Options{}); err != nil {
				return err
			}
		}
		_, err := EnqueueMany(ctx, db, numbered(copyFrom))
		return err
	},
	"in a savepoint": func(ctx context.Context, db DB) error {
		return pgx.BeginFunc(ctx, db.(pgx.Tx), func(tx pgx.Tx) error {
			_, err := Enqueue(ctx, tx, greet{"ada"}, Options{})
			return err
		})
	},
}

func TestWakeUpsFollowTheCommitInEveryMode(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ear := listen(t, db)
	want := map[NotifyMode]int{"": 1, NotifyCoalesced: 1, NotifyTransactional: 1, NotifyOff: 0}
	for mode, want := range want {
		t.Run("mode "+string(mode), func(t *testing.T) {
			p := NewProducer(db, mode)
			for name, enqueue := range ways {
				tx, err := p.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := enqueue(t.Context(), tx); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				flush(t, p)
				if got := ear.heard(); got != 0 {
					t.Errorf("%s: %d notifications before the commit", name, got)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				flush(t, p)
				if got := ear.heard(); got != want {
					t.Errorf("%s: %d notifications after the commit, want %d", name, got, want)
				}
			}
		})
	}
}

// A commit takes its time; a wake-up that overtakes it would find nothing, and the
// job then wait for the poll:
//
//	producer     COMMIT …                              done   NOTIFY
//	dispatcher              (woken here: sees no job)
//
// The commit is held up by a constraint that is checked at its end and waits for a
// lock of ours.
func TestNobodyIsWokenWhileTheCommitIsUnderWay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON outbox.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	ear := listen(t, db)
	gate := begin(t, db, pgx.ReadCommitted)
	exec(t, gate, `SELECT pg_advisory_xact_lock(1)`)

	p := NewProducer(db, NotifyCoalesced)
	done := make(chan error, 1)
	go func() {
		done <- p.InTx(t.Context(), func(tx pgx.Tx) error {
			_, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{})
			return err
		})
	}()
	pgtest.AwaitLocks(t, db, 1)
	flush(t, p)
	if got := ear.heard(); got != 0 {
		t.Errorf("%d notifications before the commit, want 0", got)
	}
	if err := gate.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	flush(t, p)
	if got := ear.heard(); got != 1 {
		t.Errorf("%d notifications after the commit, want 1", got)
	}
}

func TestNothingIsWokenWithoutACommittedJob(t *testing.T) {
	t.Parallel()
	db, errBusiness := pgtest.New(t), errors.New("out of stock")
	ear := listen(t, db)
	for name, c := range map[string]struct {
		fn   func(context.Context, pgx.Tx) error
		want error
	}{
		"when fn fails": {func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(ways["several"](ctx, tx), errBusiness)
		}, errBusiness},
		"when the commit finds a failed transaction": {func(ctx context.Context, tx pgx.Tx) error {
			err := ways["several"](ctx, tx)
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return err
		}, pgx.ErrTxCommitRollback},
		"when the commit breaks a constraint": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				CREATE TABLE parents (id int PRIMARY KEY);
				CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
				INSERT INTO children VALUES (1)`)
			return errors.Join(err, ways["several"](ctx, tx))
		}, errAny},
		"when nothing was enqueued": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT 1`)
			return err
		}, nil},
	} {
		for _, mode := range []NotifyMode{NotifyCoalesced, NotifyTransactional, NotifyOff} {
			t.Run(name+", "+string(mode), func(t *testing.T) {
				p := NewProducer(db, mode)
				err := p.InTx(t.Context(), func(tx pgx.Tx) error { return c.fn(t.Context(), tx) })
				if !errors.Is(err, c.want) && (c.want != errAny || err == nil) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				flush(t, p)
				if got := ear.heard(); got != 0 {
					t.Errorf("got %d notifications, want none", got)
				}
				if got := countJobs(t, db); got != 0 {
					t.Errorf("got %d jobs, want none", got)
				}
			})
		}
	}
}

var errAny = errors.New("any error")

func TestAJobInASavepointThatIsTakenBackIsGoneAndTheRestIsWoken(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ear := listen(t, db)
	p := NewProducer(db, NotifyCoalesced)
	err := p.InTx(t.Context(), func(tx pgx.Tx) error {
		inner, err := tx.Begin(t.Context())
		if err != nil {
			return err
		}
		if err := ways["several"](t.Context(), inner); err != nil {
			return err
		}
		if err := inner.Rollback(t.Context()); err != nil {
			return err
		}
		_, err = Enqueue(t.Context(), tx, greet{"ada"}, Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	flush(t, p)
	if got := ear.heard(); got != 1 {
		t.Errorf("got %d notifications, want 1", got)
	}
	if got := countJobs(t, db); got != 1 {
		t.Errorf("got %d jobs, want 1", got)
	}
}

// A burst of a thousand commits is a few notifications, and the last of them is
// sent after the last commit: a dispatcher that it wakes sees every job.
func TestABurstOfCommitsIsWokenForByFewNotifications(t *testing.T) {
	t.Parallel()
	const commits = 1000
	db := pgtest.New(t)
	ear := listen(t, db)
	p := NewProducer(db, NotifyCoalesced)
	var mu sync.Mutex
	var seen []int // how many jobs were committed when each notification was sent
	send := p.wake.send
	p.wake.send = func(ctx context.Context, due channels) error {
		var n int
		err := db.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs`).Scan(&n)
		mu.Lock()
		seen = append(seen, n)
		mu.Unlock()
		return errors.Join(err, send(ctx, due))
	}

	start := time.Now()
	todo := make(chan struct{}, commits)
	for range commits {
		todo <- struct{}{}
	}
	close(todo)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range todo {
				if err := p.InTx(t.Context(), func(tx pgx.Tx) error { return ways["Enqueue"](t.Context(), tx) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	flush(t, p)
	took := time.Since(start)

	got := ear.heard()
	if most := int(took/coalesceWindow) + 2; got < 1 || got > most || got != len(seen) {
		t.Errorf("heard %d notifications of %d in %s, want 1 to %d", got, len(seen), took, most)
	}
	if last := seen[len(seen)-1]; last != commits {
		t.Errorf("when the last notification was sent %d jobs were committed, want all %d", last, commits)
	}
}

func TestWhereTheProducerDoesNotSeeTheCommitTheWakeUpIsTransactional(t *testing.T) {
	t.Parallel()
	for mode, want := range map[NotifyMode]int{NotifyCoalesced: 1, NotifyTransactional: 1, NotifyOff: 0} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			ear := listen(t, db)
			p := NewProducer(db, mode)
			for range 2 {
				tx := begin(t, db, pgx.ReadCommitted)
				_, err1 := p.Enqueue(t.Context(), tx, greet{"ada"}, Options{})
				_, err2 := p.EnqueueMany(t.Context(), tx, numbered(copyFrom))
				if err := errors.Join(err1, err2); err != nil {
					t.Fatal(err)
				}
				if got := ear.heard(); got != 0 {
					t.Errorf("%d notifications before the commit", got)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := ear.heard(); got != want {
					t.Errorf("%d notifications after the commit, want %d", got, want)
				}
			}
		})
	}
}

func TestABareEnqueueWakesAtCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ear := listen(t, db)
	for name, enqueue := range ways {
		tx := begin(t, db, pgx.ReadCommitted)
		if err := enqueue(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if got := ear.heard(); got != 0 {
			t.Errorf("%s: %d notifications before the commit", name, got)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := ear.heard(); got != 1 {
			t.Errorf("%s: %d notifications after the commit, want 1", name, got)
		}
		if err := enqueue(t.Context(), begin(t, db, pgx.ReadCommitted)); err != nil { // never committed
			t.Fatal(err)
		}
	}
	if got := ear.heard(); got != 0 {
		t.Errorf("%d notifications of open transactions", got)
	}
}

func TestARepeatThatStoresNothingWakesNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ear := listen(t, db)
	for _, want := range []int{1, 0, 0} {
		if _, err := Enqueue(t.Context(), db, greet{"ada"}, Options{IdempotencyKey: "k"}); err != nil {
			t.Fatal(err)
		}
		if got := ear.heard(); got != want {
			t.Errorf("got %d notifications, want %d", got, want)
		}
	}
}

func TestAWakeUpDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tx := begin(t, db, pgx.ReadCommitted)
	if err := newCoalescer(tx).send(t.Context(), jobsChannel); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, tx, `SHOW synchronous_commit`); got != "off" {
		t.Errorf("synchronous_commit = %s, want off", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, db, `SHOW synchronous_commit`); got == "off" {
		t.Error("the setting outlived its transaction")
	}
}

func TestABeginThatFailsSaysSo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := NewProducer(db, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.InTx(ctx, func(pgx.Tx) error { t.Error("fn was called"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestAProducerOfAnUnknownModePanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, `outbox.NewProducer: notify mode "Off" is unknown`) {
			t.Errorf("recovered %s, want the mode's name", got)
		}
	}()
	NewProducer(nil, "Off")
}

func TestACommitWhoseOutcomeIsUnknownWakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"committed":           {nil, 1},
		"the connection died": {io.ErrUnexpectedEOF, 1},
		"the context ended":   {fmt.Errorf("commit: %w", context.Canceled), 1},
		"refused":             {fmt.Errorf("commit: %w", &pgconn.PgError{Code: "23503"}), 0},
		"the server stops":    {&pgconn.PgError{Code: "57P01"}, 1},
		"the pooler lost it":  {&pgconn.PgError{Code: "08P01"}, 1},
		"rolled back":         {pgx.ErrTxCommitRollback, 0},
		"closed":              {pgx.ErrTxClosed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder()
			(&Producer{wake: r.coalescer, mode: NotifyCoalesced}).committed(jobsChannel, c.err)
			if err := r.flush(t.Context()); err != nil || len(r.sent) != c.want {
				t.Errorf("%d wake-ups, %v; want %d", len(r.sent), err, c.want)
			}
		})
	}
}

// The dispatcher in the same program is woken by every commit that enqueued,
// when the job is already there to be seen, and by no other.
func TestACommitWakesTheDispatcherOfItsProcess(t *testing.T) {
	t.Parallel()
	for mode, want := range map[NotifyMode][]int64{NotifyCoalesced: {1, 2}, NotifyTransactional: {1, 2}, NotifyOff: nil} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			testLocalWake(t, mode, want)
		})
	}
}

func testLocalWake(t *testing.T, mode NotifyMode, want []int64) {
	db := pgtest.New(t)
	p := NewProducer(db, mode)
	defer flush(t, p)
	var seen []int64 // jobs that there are when the wake-up comes
	engine.InternalOf(p).SetWake(func() {
		seen = append(seen, ask[int64](t, db, `SELECT count(*) FROM outbox.jobs`))
	})
	add := func(tx pgx.Tx) error {
		_, err := Enqueue(t.Context(), tx, greet{}, Options{})
		return err
	}
	nothing := func(pgx.Tx) error { return nil }
	refused := func(tx pgx.Tx) error { return errors.Join(add(tx), io.EOF) }
	for _, do := range []func(pgx.Tx) error{add, nothing, refused, add} {
		if err := p.InTx(t.Context(), do); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	engine.InternalOf(p).SetWake(nil)
	if err := p.InTx(t.Context(), add); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, want) {
		t.Errorf("woken with %v jobs there, want %v", seen, want)
	}
}
