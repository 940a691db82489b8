package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// zombieVerbs are what a zombie tries: the names in package probe, and those in a record.
var zombieVerbs = []struct{ verb, name string }{
	{"succeed", "succeed"},
	{"result", "result write"},
	{"fail", "fail"},
	{"snooze", "snooze"},
	{"extend", "extend"},
	{"fail-late", "give back"},
	{"guard", "guarded write"},
	{"complete", "Complete in a transaction"},
}

// zombieRounds is how many jobs of each verb a stopped worker holds.
const zombieRounds = 150

// zombies runs row B1.
func zombies(ctx context.Context, r *Run) error { return runZombies(ctx, r, "", false) }

func runZombies(ctx context.Context, r *Run, worker string, retried bool) error {
	z := &zombie{Run: r, worker: worker, refused: map[string]int{}}
	stops := r.Size(1, 7)
	var err error
	for n := 0; n < stops && err == nil; n++ {
		err = z.round(ctx, n, retried)
	}
	z.expect(stops) // before err is checked: a zombie's write may keep the jobs from completing
	if err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	if retried {
		return z.checkNamesakes(ctx, stops)
	}
	return nil
}

func (z *zombie) expect(stops int) {
	for _, v := range zombieVerbs {
		z.Expect("refused because the lease was lost: "+v.name, float64(z.refused[v.verb]), "=",
			float64(stops*zombieRounds))
	}
	z.None("rows that the resumed worker changed", z.changed)
	z.None("handlers of the resumed worker whose context did not end with ErrLeaseLost", z.unaware)
	z.Figure("context_ended_max_s", z.slowest.Seconds())
	z.Figure("woken_max_s", z.woken.Seconds())
	// A handler that waits for its context is scheduled twice: when it is woken and when its context ends. A handler
	// that waits for nothing is scheduled once.
	z.Expect("seconds from SIGCONT until a handler's context ended, worst, less the machine's wake-up time",
		max(z.slowest-2*z.woken, 0).Seconds(), "<=", (z.Lease / 3).Seconds())
	z.atLeast(stops, "SIGSTOP of a worker")
}

// zombie is a worker that is stopped while it holds jobs, and continued while its replacement runs them; its writes
// must be refused.
type zombie struct {
	*Run
	worker       string // the worker name of both; "" gives each its own
	a, b         *child.Process
	zombieLedger *ledger.Tail // the ledger of a

	refused map[string]int // by verb
	changed []string
	unaware []string
	slowest time.Duration // from SIGCONT to the end of a handler that waits for its context
	woken   time.Duration // and of one that waits for nothing: how long the machine takes to schedule all of them
}

func (z *zombie) round(ctx context.Context, n int, retried bool) error {
	jobs := zombieRounds * len(zombieVerbs)
	list := tasks(jobs, func(i int) probe.Task {
		return probe.Task{Do: "stall", Verb: zombieVerbs[i%len(zombieVerbs)].verb}
	})
	healed, err := z.stopA(ctx, n, list, retried)
	if err != nil {
		return err
	}
	if err := z.replace(ctx, n, jobs, retried); err != nil {
		return err
	}
	if err := z.wake(ctx, jobs, healed); err != nil {
		return err
	}
	if _, err := z.DB.Exec(ctx, `INSERT INTO gates DEFAULT VALUES`); err != nil {
		return err
	}
	if err := z.Drain(ctx, jobs*(n+1), time.Minute); err != nil {
		return err
	}
	if err := z.stop(ctx, z.b); err != nil {
		return err
	}
	_, err = z.DB.Exec(ctx, `DELETE FROM gates`)
	return err
}

func (z *zombie) env(more ...string) []string {
	env := []string{fmt.Sprint("VERIFY_CONCURRENCY=", zombieRounds*len(zombieVerbs)), "VERIFY_POOL=16"}
	if z.worker != "" {
		env = append(env, "OUTBOX_WORKER="+z.worker)
	}
	return append(env, more...)
}

// stopA starts a worker that holds all jobs, and stops it. The worker runs no reaper, so that nothing touches the jobs
// while both workers exist.
func (z *zombie) stopA(ctx context.Context, n int, list []probe.Task, retried bool) (healed func(), err error) {
	if z.a, err = z.Worker(fmt.Sprintf("a%d", n), z.env("VERIFY_STALL=on", "OUTBOX_REAP=off")...); err != nil {
		return nil, err
	}
	z.zombieLedger = ledger.NewTail(z.ledgerOf(z.a.Name))
	half := 0
	if retried {
		half = len(list) / 2
	}
	if _, err := z.Enqueue(ctx, list[:half], outbox.Options{MaxAttempts: 1}); err != nil {
		return nil, err
	}
	if _, err := z.Enqueue(ctx, list[half:], outbox.Options{}); err != nil {
		return nil, err
	}
	z.Progress("hold", 0, len(list))
	if err := z.awaitEntries(ctx, z.zombieLedger, ledger.Stalled, len(list)); err != nil {
		return nil, err
	}
	healed = z.Faults.Begin("SIGSTOP of a worker", z.a.Name)
	return healed, z.a.Signal(syscall.SIGSTOP)
}

// replace starts another worker and waits until it runs all jobs. Jobs that are dead by then are retried by an
// operator.
func (z *zombie) replace(ctx context.Context, n, jobs int, retried bool) (err error) {
	// It is stopped for as long as the zombie runs, and must not lose its leases then, however slow the machine is.
	if z.b, err = z.Worker(fmt.Sprintf("b%d", n), z.env("OUTBOX_LEASE_TTL=2m")...); err != nil {
		return err
	}
	z.Progress("take over", 0, jobs)
	if retried {
		if err := z.retryDead(ctx, jobs/2); err != nil {
			return err
		}
	}
	return z.awaitEntries(ctx, ledger.NewTail(z.ledgerOf(z.b.Name)), ledger.Start, jobs)
}

func (z *zombie) retryDead(ctx context.Context, n int) error {
	var dead []string
	err := z.Await(ctx, patience, "the jobs with one attempt to be dead",
		func(ctx context.Context) (_ bool, err error) {
			dead, err = z.Texts(ctx, `SELECT id::text FROM outbox.jobs WHERE status = 'dead'`)
			return len(dead) == n, err
		})
	for _, text := range dead {
		if err != nil {
			return err
		}
		var id outbox.ID
		if id, err = outbox.ParseID(text); err == nil {
			err = operator.New(z.DB).Retry(ctx, id)
		}
	}
	return err
}

// wake continues the zombie while its replacement is stopped, waits until it has tried everything, and compares what is
// stored before and after. Then it kills the zombie, which might rightly claim what the replacement gives back.
func (z *zombie) wake(ctx context.Context, jobs int, healed func()) error {
	goOn := z.Faults.Begin("SIGSTOP of a worker", z.b.Name)
	if err := z.b.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := z.Await(ctx, patience, "the statements that were under way", func(ctx context.Context) (bool, error) {
		var active int
		err := z.DB.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()`).Scan(&active)
		return active == 0, err
	})
	if err != nil {
		return err
	}
	if err := z.rename(ctx, z.b, z.a); err != nil {
		return err
	}
	before, err := z.stored(ctx)
	if err != nil {
		return err
	}
	z.Progress("resume", 0, jobs)
	resumed := time.Now()
	if err := z.a.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	healed()
	if err := z.awaitRefusals(ctx, jobs, resumed); err != nil {
		return err
	}
	after, err := z.stored(ctx)
	if err != nil {
		return err
	}
	for row := range after {
		if !before[row] {
			z.changed = append(z.changed, "new: "+row)
		}
	}
	for row := range before {
		if !after[row] {
			z.changed = append(z.changed, "gone: "+row)
		}
	}
	if err := errors.Join(z.a.Kill9(), z.rename(ctx, z.a, z.b)); err != nil {
		return err
	}
	goOn()
	return z.b.Signal(syscall.SIGCONT)
}

// awaitRefusals waits until every handler of the zombie has ended and every settlement was refused, and counts the
// refusals. It does not fail if one is missing: the count shows it.
func (z *zombie) awaitRefusals(ctx context.Context, jobs int, resumed time.Time) error {
	if err := z.awaitEntries(ctx, z.zombieLedger, ledger.End, jobs); err != nil {
		return err
	}
	refused := map[string]bool{} // jobs whose settlement was refused, by the zombie's log
	for deadline := time.Now().Add(patience); len(refused) < jobs && time.Now().Before(deadline); {
		lines, err := logged(z.a, saying("lease_lost"))
		if err != nil {
			return err
		}
		for _, l := range lines {
			refused[l.Job] = true
		}
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	entries, err := z.zombieLedger.Entries()
	if err != nil {
		return err
	}
	inTx := z.readEnds(entries, resumed)
	notExtended, err := z.extendLate(ctx, entries)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Event != ledger.Stalled {
			continue
		}
		verb := zombieVerbs[e.N%len(zombieVerbs)].verb
		all := refused[e.Job.String()]
		switch verb {
		case "guard", "complete":
			all = all && inTx[e.Job]
		case "extend":
			all = all && notExtended[e.Job]
		}
		if all {
			z.refused[verb]++
		}
	}
	return nil
}

// readEnds returns the jobs whose transaction was refused, and notes how the handlers' contexts ended. It leaves out
// the contexts of verbs that return at once.
func (z *zombie) readEnds(entries []ledger.Entry, resumed time.Time) map[outbox.ID]bool {
	inTx := map[outbox.ID]bool{}
	for _, e := range entries {
		verb := zombieVerbs[e.N%len(zombieVerbs)].verb
		switch {
		case e.Event == ledger.Refused && e.Error == "lease_lost":
			inTx[e.Job] = true
		case e.Event != ledger.End:
		case slices.Contains([]string{"extend", "fail-late"}, verb):
			z.slowest = max(z.slowest, e.At.Sub(resumed))
			fallthrough
		case slices.Contains([]string{"guard", "complete"}, verb):
			if e.Cause != outbox.ErrLeaseLost.Error() {
				z.unaware = append(z.unaware, fmt.Sprintf("%s at epoch %d: its context ended with %q", e.Job, e.Epoch,
					e.Cause))
			}
		default:
			z.woken = max(z.woken, e.At.Sub(resumed))
		}
	}
	return inTx
}

// extendLate sends the worker's own statement for the leases that the zombie held, as a network does that has delayed
// it: the zombie itself may have learned first that its leases are over, and not have sent it. It returns the jobs
// whose leases the statement reported as lost.
func (z *zombie) extendLate(ctx context.Context, entries []ledger.Entry) (map[outbox.ID]bool, error) {
	params := sqlgen.ExtendLeasesParams{LeaseTtl: pgtype.Interval{Microseconds: time.Hour.Microseconds(), Valid: true}}
	for _, e := range entries {
		if e.Event == ledger.Stalled {
			params.Ids = append(params.Ids, pgtype.UUID{Bytes: e.Job, Valid: true})
			params.Epochs = append(params.Epochs, e.Epoch)
		}
	}
	rows, err := sqlgen.New(z.DB).ExtendLeases(ctx, params)
	lost := map[outbox.ID]bool{}
	for _, row := range rows {
		lost[row.ID.Bytes] = row.Lost
	}
	return lost, err
}

// stored returns all that the database stores about jobs, leases included.
func (z *zombie) stored(ctx context.Context) (map[string]bool, error) {
	rows, err := z.Texts(ctx, `
		SELECT to_jsonb(jobs)::text FROM outbox.jobs
		UNION ALL SELECT to_jsonb(history)::text FROM outbox.history
		UNION ALL SELECT to_jsonb(attempts)::text FROM outbox.attempts
		UNION ALL SELECT to_jsonb(effects)::text FROM effects`)
	set := make(map[string]bool, len(rows))
	for _, row := range rows {
		set[row] = true
	}
	return set, err
}

// awaitEntries waits until a ledger has an event for n different jobs.
func (r *Run) awaitEntries(ctx context.Context, t *ledger.Tail, event string, n int) error {
	return r.Await(ctx, patience, fmt.Sprintf("%d × %q in %s", n, event, t.Path()),
		func(context.Context) (bool, error) {
			entries, err := t.Entries()
			jobs := map[outbox.ID]bool{}
			for _, e := range entries {
				if e.Event == event {
					jobs[e.Job] = true
				}
			}
			return len(jobs) >= n, err
		})
}
