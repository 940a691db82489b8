package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// calledOff describes a job that has a deadline, or that the row cancels.
type calledOff struct {
	deadline time.Time
	answer   operator.Cancellation // "" if the job was closed before the cancellation
	answered time.Time
}

// callsOff runs row K4. The harness is both the producer and the operator: of every three jobs, one has a deadline, one
// is cancelled, and one is left alone.
func callsOff(ctx context.Context, r *Run) error {
	const workers = 3
	r.Lease = 3 * time.Second
	crew, err := r.Crew(workers, "VERIFY_CONCURRENCY=12")
	if err != nil {
		return err
	}
	jobs := r.Size(450, 40_000)
	injecting, heal := context.WithCancel(ctx)
	defer heal()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return r.beat(acts{
			"kill":    func(ctx context.Context, p fault.Planned) error { return crew.replace(ctx, p.Target) },
			"restart": r.restartPostgres,
		}, fault.Beat{Kind: "kill", Every: time.Second, Targets: workers},
			fault.Beat{Kind: "restart", Every: time.Duration(r.Size(3, 30)) * time.Second})(injecting)
	})
	called := map[outbox.ID]*calledOff{}
	group.Go(func() (err error) {
		defer heal()
		called, err = r.callOff(groupCtx, jobs)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := r.Drain(ctx, jobs, time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, crew.workers...); err != nil {
		return err
	}
	r.atLeast(3, "kill -9 worker")
	r.atLeast(1, "restart Postgres -m immediate")
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	return r.checkCalledOff(ctx, called)
}

// callOff places the jobs, one every 13 ms, and cancels a third of them, each up to 1.5 s after it was placed. It
// repeats a cancellation until the server answers; the time that the job has to end counts from the answer.
func (r *Run) callOff(ctx context.Context, jobs int) (map[outbox.ID]*calledOff, error) {
	random := fault.Random(r.Seed, "calls off")
	book, err := ledger.Open(r.ledgerOf("harness"), "harness")
	if err != nil {
		return nil, err
	}
	defer book.Close()
	o := operator.New(r.DB)
	called := map[outbox.ID]*calledOff{}
	cancels, cancelCtx := errgroup.WithContext(ctx)
	cancels.SetLimit(256)
	for n := range jobs {
		task := probe.Task{N: n, Do: "effect", Ms: random.IntN(800), Key: fmt.Sprint("harness-", n)}
		options := outbox.Options{MaxAttempts: maxAttempts, IdempotencyKey: task.Key}
		is := &calledOff{}
		if n%3 == 1 {
			is.deadline = time.Now().Add(200*time.Millisecond + time.Duration(random.IntN(3000))*time.Millisecond)
			options.Deadline = is.deadline
			if n%12 == 1 { // and some take longer than that, however idle the machine is
				task.Ms = 4000
			}
		}
		wait := time.Duration(random.IntN(1500)) * time.Millisecond
		book.Write(ledger.Entry{Event: ledger.Attempted, Key: task.Key})
		var id outbox.ID
		if err := r.ask(ctx, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) (err error) {
				if id, err = outbox.Enqueue(ctx, tx, task, options); err != nil {
					return err
				}
				_, err = tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING`, task.Key)
				return err
			})
		}); err != nil {
			return nil, err
		}
		switch n % 3 {
		case 0: // this one must be carried out
			book.Write(ledger.Entry{Event: ledger.Acked, Key: task.Key})
		case 1:
			called[id] = is
		case 2:
			called[id] = is
			cancels.Go(func() error {
				if err := backoff.Sleep(cancelCtx, wait); err != nil {
					return err
				}
				return r.cancel(cancelCtx, o, id, is)
			})
		}
		r.Progress("faults", n, jobs)
		if err := backoff.Sleep(ctx, 13*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return called, cancels.Wait()
}

func (r *Run) cancel(ctx context.Context, o *operator.Operator, id outbox.ID, is *calledOff) error {
	return r.ask(ctx, func(ctx context.Context) (err error) {
		is.answer, err = o.Cancel(ctx, id)
		is.answered = time.Now()
		if _, closed := errors.AsType[*operator.StatusError](err); closed {
			return nil
		}
		return err
	})
}

// promptly is the time within which a job must be closed after its deadline, or after it was cancelled.
const promptly = time.Second

// slack is the most that may pass between reading the clock and writing the ledger's line, or recording the move, that
// follows: a busy machine may run something else in between.
const slack = 100 * time.Millisecond

// checkCalledOff compares how the jobs ended with their deadlines and with the answers to their cancellations.
func (r *Run) checkCalledOff(ctx context.Context, called map[outbox.ID]*calledOff) error {
	b, err := r.read()
	if err != nil {
		return err
	}
	closed, err := r.closures(ctx)
	if err != nil {
		return err
	}
	tenures, err := r.tenures(ctx)
	if err != nil {
		return err
	}
	var late, wrong, again, slow []string
	counts := map[outbox.Status]int{}
	for id, is := range called {
		end := closed[id]
		counts[end.Status]++
		where := fmt.Sprintf("%s: %s at %s; deadline %s, cancel answered %q at %s", id, end.Status, stamp(end.At),
			stamp(is.deadline), is.answer, stamp(is.answered))
		since := is.answered // from when it had to end
		switch {
		case !is.deadline.IsZero():
			since = is.deadline
			if !(end.Status == outbox.Expired || end.Status == outbox.Succeeded && !end.At.After(is.deadline.Add(slack))) {
				wrong = append(wrong, where)
			}
		case is.answer == operator.Cancelled && end.Status != outbox.Cancelled,
			is.answer == operator.CancelRequested && end.Status != outbox.Cancelled && end.Status != outbox.Succeeded,
			is.answer == "" && end.Status != outbox.Succeeded:
			wrong = append(wrong, where)
		}
		for _, x := range b.executions[id] {
			if !is.deadline.IsZero() && x.Start.After(is.deadline.Add(slack)) {
				late = append(late, where+", started at "+stamp(x.Start))
			}
			if x.Start.After(end.At.Add(slack)) {
				again = append(again, where+", started at "+stamp(x.Start))
			}
		}
		if held := tenures[id]; is.answer != "" && len(held) > 0 && held[len(held)-1].from.After(is.answered) {
			again = append(again, where+", claimed at "+stamp(held[len(held)-1].from))
		}
		if more := r.excused(since, end.At, tenures[id]); end.Status != outbox.Succeeded &&
			end.At.Sub(since) > promptly+more {
			slow = append(slow, fmt.Sprintf("%s; excused %s", where, more))
		}
	}
	for status, n := range counts {
		r.Count("with a deadline or cancelled, ended "+string(status), n)
	}
	r.None("executions that started at or after their deadline", late)
	r.None("jobs that ended with the wrong status", wrong)
	r.None("jobs executed after they were closed, or claimed after they were cancelled", again)
	r.None("jobs expired or cancelled too late", slow)
	for _, status := range []outbox.Status{outbox.Expired, outbox.Cancelled} {
		r.Expect("jobs "+string(status), float64(counts[status]), ">=", float64(len(called)/10))
	}
	return nil
}

// excused returns how much later than promptly a job may be closed: by a lease's time if the worker that held it was
// killed, and by the time that the server was down and that processes then took to reconnect.
func (r *Run) excused(since, until time.Time, held []tenure) (more time.Duration) {
	const comeBack = 3 * time.Second
	killed := false
	for _, f := range r.Faults.All() {
		switch {
		case f.From.After(until):
		case f.Kind == "kill -9 worker":
			killed = killed || slices.ContainsFunc(held, func(t tenure) bool {
				return strings.HasPrefix(t.owner, f.Target+"-") && t.from.Before(f.From) && t.until.After(f.From) &&
					t.until.After(since)
			})
		case f.Kind == "restart Postgres -m immediate" && f.Until.Add(comeBack).After(since):
			from := f.From
			if since.After(from) {
				from = since
			}
			more += f.Until.Add(comeBack).Sub(from)
		}
	}
	if killed {
		more += r.Lease
	}
	return more
}

// tenure is a period in which a worker held a job's lease.
type tenure struct {
	span
	owner string
}

// tenures returns the tenures of each job, in order.
func (r *Run) tenures(ctx context.Context) (map[outbox.ID][]tenure, error) {
	all := map[outbox.ID][]tenure{}
	for m, err := range r.moves(ctx) {
		if err != nil {
			return nil, err
		}
		id, err := outbox.ParseID(m.Job)
		if err != nil {
			return nil, err
		}
		switch held := all[id]; {
		case m.From != outbox.Running && m.To == outbox.Running:
			all[id] = append(held, tenure{span{from: m.At}, m.Owner})
		case m.From == outbox.Running && m.To != outbox.Running && len(held) > 0:
			held[len(held)-1].until = m.At
		}
	}
	return all, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.StampMilli) }

// closure describes how a job ended.
type closure struct {
	ID     outbox.ID
	Status outbox.Status
	At     time.Time
}

func (r *Run) closures(ctx context.Context) (map[outbox.ID]closure, error) {
	rows, _ := r.DB.Query(ctx, `SELECT id, status::text, finished_at FROM outbox.history`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[closure])
	if err != nil {
		return nil, fmt.Errorf("read what became of the jobs: %w", err)
	}
	by := make(map[outbox.ID]closure, len(all))
	for _, c := range all {
		by[c.ID] = c
	}
	return by, nil
}
