package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/inbox"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Task is a job that says what its handler does.
type Task struct {
	N   int    `json:"n"`
	Do  string `json:"do"`
	Ms  int    `json:"ms,omitempty"`
	Key string `json:"key,omitempty"` // of the business row; for receive, of the message
	// Verb is what stall tries after the process was continued.
	Verb string `json:"verb,omitempty"`
	// Fails is how many of the first attempts fail.
	Fails int `json:"fails,omitempty"`
	// Limit is the MaxActive of the job, Seq its position in the order of its key's commits; 0 means none.
	Limit int   `json:"limit,omitempty"`
	Seq   int64 `json:"seq,omitempty"`
}

// Kind returns "verify.task".
func (Task) Kind() string { return "verify.task" }

type handlers struct {
	pool   *pgxpool.Pool
	book   *ledger.Writer
	stalls bool
	woken  chan struct{} // closed at the first SIGCONT

	watch sync.Once     // starts the goroutine that waits for the gate
	gate  chan struct{} // closed when the gate is open
}

func newHandlers(ctx context.Context, pool *pgxpool.Pool, book *ledger.Writer) *handlers {
	h := &handlers{
		pool: pool, book: book, stalls: os.Getenv("VERIFY_STALL") == "on", woken: make(chan struct{}),
		gate: make(chan struct{}),
	}
	if h.stalls {
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		go func() {
			defer signal.Stop(continued)
			select {
			case <-continued:
				close(h.woken)
			case <-ctx.Done(): // the process is about to end
			}
		}()
	}
	return h
}

// handle runs an attempt, and writes its start and end to the ledger.
func (h *handlers) handle(ctx context.Context, job *outbox.Job[Task]) (err error) {
	h.book.Write(of(ledger.Start, job))
	defer func() {
		entry := of(ledger.End, job)
		if value := recover(); value != nil {
			entry.Error = "panic"
			defer panic(value)
		} else {
			entry.Error, entry.Detail, entry.Cause = class(err), text(err), text(causeOf(ctx))
		}
		h.book.Write(entry)
	}()
	return h.do(ctx, job)
}

func (h *handlers) do(ctx context.Context, job *outbox.Job[Task]) error {
	wait := time.Duration(job.Args.Ms) * time.Millisecond
	if job.Attempt <= job.Args.Fails {
		return fmt.Errorf("it was asked to fail %d times", job.Args.Fails)
	}
	switch job.Args.Do {
	case "nothing":
		return nil
	case "sleep":
		return backoff.Sleep(ctx, wait)
	case "ignore": // ignores the end of its context, the first time
		if job.Epoch == 1 {
			time.Sleep(wait)
		}
		return nil
	case "linger":
		return h.linger(ctx, job)
	case "hold":
		return h.hold(ctx, job, wait)
	case "block":
		<-ctx.Done()
		return ctx.Err()
	case "fail":
		return errors.New("it was asked to fail")
	case "panic":
		panic("it was asked to panic")
	case "exit":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "gorge":
		return gorge(ctx)
	case "hog":
		return h.hog(ctx, wait)
	case "effect":
		return h.effect(ctx, job, wait)
	case "enrich":
		return h.enrich(ctx, job, wait)
	case "receive":
		return h.receive(ctx, job, wait)
	case "once":
		return h.once(ctx, job, wait)
	case "flaky":
		return h.flaky(ctx, job, wait)
	case "wait":
		return h.awaitGate(ctx)
	case "gated":
		return h.gated(ctx, job)
	case "stall":
		if h.stalls {
			return h.stall(ctx, job)
		}
		return h.gated(ctx, job)
	}
	return dispatcher.Discard(fmt.Errorf("nobody knows how to do %q", job.Args.Do))
}

// hold keeps the job's row locked for a time, in a transaction that it commits, and runs on for another second.
func (h *handlers) hold(ctx context.Context, job *outbox.Job[Task], wait time.Duration) error {
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		if err := job.Guard(ctx, tx); err != nil {
			return err
		}
		return backoff.Sleep(ctx, wait)
	})
	if err != nil {
		return err
	}
	job.Result = []byte(`"held"`)
	return backoff.Sleep(ctx, time.Second)
}

// Lingering is how long the first execution of a job that lingers takes.
const Lingering = 6 * time.Second

// linger outlives the grace period of a stopped worker, once: the job is given back, and its next execution ends at
// once.
func (h *handlers) linger(ctx context.Context, job *outbox.Job[Task]) error {
	if job.Epoch > 1 {
		return nil
	}
	return backoff.Sleep(ctx, Lingering)
}

// gorge allocates more memory than its worker may have. It gives up if the worker survives that.
func gorge(ctx context.Context) error {
	const portion, most = 8 << 20, 1 << 30
	var eaten [][]byte
	for len(eaten)*portion < most && ctx.Err() == nil {
		eaten = append(eaten, bytes.Repeat([]byte{1}, portion)) // written to, so that it counts as used
	}
	return dispatcher.Discard(fmt.Errorf("nobody minded %d MiB", len(eaten)*portion>>20))
}

// hog holds a connection of the handlers' pool.
func (h *handlers) hog(ctx context.Context, wait time.Duration) error {
	conn, err := h.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return backoff.Sleep(ctx, wait)
}

// effect waits, and then makes a row and completes the job in one transaction.
func (h *handlers) effect(ctx context.Context, job *outbox.Job[Task], wait time.Duration) error {
	if err := backoff.Sleep(ctx, wait); err != nil {
		return err
	}
	err := inTx(ctx, h.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effects (job_id, epoch, n, worker) VALUES ($1, $2, $3, $4)`, job.ID,
			job.Epoch, job.Args.N, h.book.Name()); err != nil {
			return err
		}
		return job.Complete(ctx, tx)
	})
	h.note(job, err)
	return err
}

// enrich changes the state of an item if it is still the one for which the job was enqueued: the pattern for effects
// that Complete does not tie to the job. It waits after the effect, so that it can be killed before the job is settled.
func (h *handlers) enrich(ctx context.Context, job *outbox.Job[Task], wait time.Duration) error {
	changed := false
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		var state string
		if err := tx.QueryRow(ctx, `SELECT state FROM items WHERE id = $1 FOR UPDATE`, job.Args.N).Scan(
			&state); err != nil || state != "enriching" {
			return err
		}
		changed = true
		_, err := tx.Exec(ctx, `UPDATE items SET state = 'ready', changes = changes + 1, changed_by = $2 WHERE id = $1`,
			job.Args.N, job.ID)
		return err
	})
	if err != nil || !changed {
		return err
	}
	h.note(job, nil)
	return backoff.Sleep(ctx, wait)
}

// receive does the same as enrich, for a consumer that identifies messages by their id.
func (h *handlers) receive(ctx context.Context, job *outbox.Job[Task], wait time.Duration) error {
	first := false
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) (err error) {
		if first, err = inbox.Once(ctx, tx, "stories", job.Args.Key); err != nil || !first {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE items SET changes = changes + 1, changed_by = $2 WHERE id = $1`, job.Args.N,
			job.ID)
		return err
	})
	if err != nil || !first {
		return err
	}
	h.note(job, nil)
	return backoff.Sleep(ctx, wait)
}

// once makes its effect in a transaction of its own, guarded by the inbox: the job is settled separately.
func (h *handlers) once(ctx context.Context, job *outbox.Job[Task], wait time.Duration) error {
	if err := backoff.Sleep(ctx, wait); err != nil {
		return err
	}
	first := false
	err := inTx(ctx, h.pool, func(tx pgx.Tx) (err error) {
		if first, err = inbox.Once(ctx, tx, "verify", job.ID.String()); err != nil || !first {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO effects (job_id, epoch, n, worker) VALUES ($1, $2, $3, $4)`, job.ID,
			job.Epoch, job.Args.N, h.book.Name())
		return err
	})
	if err != nil || first {
		h.note(job, err)
	}
	return err
}

// flaky fails on its first N attempts.
func (h *handlers) flaky(ctx context.Context, job *outbox.Job[Task], wait time.Duration) error {
	if err := backoff.Sleep(ctx, wait); err != nil {
		return err
	}
	if job.Attempt <= job.Args.N {
		return fmt.Errorf("it was asked to fail %d times", job.Args.N)
	}
	return nil
}

// gated waits until the gate opens, and then makes its effect.
func (h *handlers) gated(ctx context.Context, job *outbox.Job[Task]) error {
	if err := h.awaitGate(ctx); err != nil {
		return err
	}
	return h.effect(ctx, job, 0)
}

// awaitGate waits for a row in gates. One goroutine polls for all handlers that wait, for as long as the process lives.
func (h *handlers) awaitGate(ctx context.Context) error {
	h.watch.Do(func() {
		go func() {
			for open := false; !open; time.Sleep(50 * time.Millisecond) {
				// It stays shut while the database is away.
				_ = h.pool.QueryRow(context.Background(), `SELECT EXISTS (SELECT FROM gates)`).Scan(&open)
			}
			close(h.gate)
		}()
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.gate:
		return nil
	}
}

// note records how a transaction ended. An unknown outcome is neither an effect nor a failure.
func (h *handlers) note(job *outbox.Job[Task], err error) {
	entry := of(ledger.Effect, job)
	switch {
	case errors.Is(err, outbox.ErrLeaseLost):
		entry.Event = ledger.Refused
	case outcomeUnknown(err):
		entry.Event = ledger.Unknown
	case err != nil:
		entry.Event = ledger.Failed
	}
	entry.Error, entry.Detail = class(err), text(err)
	h.book.Write(entry)
}
