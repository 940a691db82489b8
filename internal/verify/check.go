package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/checker"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/rebuilt"
	"github.com/posthaste-dev/posthaste/outbox"
)

// books holds what the ledgers recorded, by job and by key.
type books struct {
	queue      *checker.Queue
	executions map[outbox.ID][]checker.Execution
	keys       map[outbox.ID]string
	effects    map[string]bool // by "job epoch": their commit was acknowledged
	open       map[string]bool // by "job epoch": executions of "effect" that recorded no success
	inVain     int             // executions that ended with an error
	unended    []string        // executions whose end is not known

	names map[string]string // one copy of each process's name: a soak has millions of entries
}

// read reads all ledgers. An execution whose process did not record its end ended with the process.
func (r *Run) read() (*books, error) {
	b := &books{
		queue: checker.NewQueue(), executions: map[outbox.ID][]checker.Execution{}, keys: map[outbox.ID]string{},
		effects: map[string]bool{}, open: map[string]bool{}, names: map[string]string{},
	}
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return nil, err
		}
		if e.Epoch > 0 {
			b.worker(e)
		} else {
			b.producer(e)
		}
	}
	gone := map[string]time.Time{}
	for _, p := range r.all() {
		gone[p.Name] = p.EndedAt()
	}
	for job, executions := range b.executions {
		for i := range executions {
			x := &executions[i]
			if !x.End.IsZero() {
				continue
			}
			if x.End = gone[x.Process]; x.End.IsZero() {
				b.unended = append(b.unended, fmt.Sprintf("%s at epoch %d by %s", job, x.Epoch, x.Process))
			}
		}
	}
	return b, nil
}

func (b *books) producer(e ledger.Entry) {
	switch e.Event {
	case ledger.Attempted:
		b.queue.Attempted(e.Key)
	case ledger.Acked:
		b.queue.Acked(e.Key)
	case ledger.Failed:
		b.queue.Failed(e.Key)
	case ledger.Unknown:
		b.queue.Unknown(e.Key)
	}
}

func (b *books) worker(e ledger.Entry) {
	lease := leaseOf(e.Job.String(), e.Epoch)
	if _, known := b.names[e.Worker]; !known {
		b.names[e.Worker] = e.Worker
	}
	switch e.Event {
	case ledger.Start:
		b.keys[e.Job] = e.Key
		if e.Do == "effect" {
			b.open[lease] = true
		}
		b.executions[e.Job] = append(b.executions[e.Job], checker.Execution{
			Epoch: e.Epoch, Process: b.names[e.Worker],
			Start: e.At,
		})
	case ledger.End:
		executions := b.executions[e.Job]
		for i := range executions {
			if x := &executions[i]; x.Epoch == e.Epoch && x.Process == e.Worker && x.End.IsZero() {
				x.End = e.At
				break
			}
		}
		if e.Error == "" {
			delete(b.open, lease)
			b.queue.Delivered(e.Key)
		} else {
			b.inVain++
		}
	case ledger.Effect:
		b.effects[lease] = true
	}
}

func leaseOf(job string, epoch int64) string { return fmt.Sprintf("%s %d", job, epoch) }

// Check compares ledgers, recorded moves and tables with each other after all processes have ended: the total queue,
// orphans in both directions, the legal moves, L1 (two live leases), L2 (overlapping executions) and L3 (effects), and
// the events of streamed jobs. It returns the number of executions that neither completed a job nor returned an error.
func (r *Run) Check(ctx context.Context) (wasted int, err error) {
	r.Progress("check", 0, 0)
	b, err := r.read()
	if err != nil {
		return 0, err
	}
	if err := r.checkEffects(ctx, b); err != nil {
		return 0, err
	}
	v := b.queue.Verdict()
	r.None("lost jobs: acknowledged to a producer, never completed", v.Lost)
	r.None("unexpected jobs: completed, never enqueued", v.Unexpected)
	for name, n := range map[string]int{
		"attempted": v.Attempted, "acknowledged": v.Acked, "outcome unknown": v.Unknown, "completed": v.Delivered,
		"completed after an unknown outcome": len(v.Recovered), "completed more than once": len(v.Duplicated),
		"executions that returned an error": b.inVain,
	} {
		r.Count(name, n)
	}
	if err := r.checkOrphans(ctx); err != nil {
		return 0, err
	}
	moves, err := r.checkMoves(ctx)
	if err != nil {
		return 0, err
	}
	executions, err := r.checkOverlaps(ctx, b, moves.GivenUp)
	if err != nil {
		return 0, err
	}
	if err := r.checkStreams(ctx); err != nil {
		return 0, err
	}
	r.None(noCrashes, r.fates())
	return executions - b.inVain - v.Delivered, nil
}

// checkStreams rebuilds the streamed jobs from their events. It checks that they equal the jobs in the database in
// every field, and that the events of each job are numbered without a gap.
func (r *Run) checkStreams(ctx context.Context) error {
	found, err := rebuilt.Compare(ctx, r.DB, nil)
	if err != nil {
		return fmt.Errorf("rebuild the streamed jobs: %w", err)
	}
	r.Count("streamed jobs", found.Jobs)
	r.Count("events of streamed jobs", found.Events)
	r.None("streamed jobs that differ from what their events rebuild", found.Differences)
	return nil
}

// checkEffects checks L3. Every effect whose commit was acknowledged must be in the database. If a worker was killed at
// its COMMIT, or did not get the answer, the database decides: if it has the effect, the job is completed, no worker
// runs it again, and it counts as delivered.
func (r *Run) checkEffects(ctx context.Context, b *books) error {
	stored, err := r.Texts(ctx, `SELECT job_id || ' ' || epoch FROM effects WHERE n >= 0`)
	if err != nil {
		return err
	}
	made := make([]string, len(stored))
	for i, lease := range stored {
		job, _, _ := strings.Cut(lease, " ")
		made[i] = job
		if b.open[lease] {
			id, err := outbox.ParseID(job)
			if err != nil {
				return err
			}
			b.queue.Delivered(b.keys[id])
		}
		delete(b.effects, lease)
	}
	var vanished []string
	for lease := range b.effects {
		vanished = append(vanished, lease)
	}
	r.None("effects whose COMMIT was acknowledged, missing from the database", vanished)
	wanted, err := r.Texts(ctx, `SELECT id::text FROM outbox.history
		WHERE status = 'succeeded' AND convert_from(payload, 'UTF8')::jsonb ->> 'do' IN ('effect', 'once', 'gated', 'stall')`)
	if err != nil {
		return err
	}
	missing, duplicated, nobodys := checker.Effects(wanted, made)
	r.Count("effects", len(made))
	r.None("L3: succeeded jobs without their effect", missing)
	r.None("L3: jobs whose effect was applied twice", duplicated)
	r.None("effects of jobs that did not succeed", nobodys)
	return nil
}

func (r *Run) checkOrphans(ctx context.Context) error {
	rows, err := r.Texts(ctx, `SELECT id FROM orders`)
	if err != nil {
		return err
	}
	jobs, err := r.Texts(ctx, `SELECT convert_from(payload, 'UTF8')::jsonb ->> 'key' FROM (
		SELECT payload FROM outbox.jobs UNION ALL SELECT payload FROM outbox.history) AS all_jobs`)
	if err != nil {
		return err
	}
	noJob, noRow, twice := checker.Orphans(rows, jobs)
	r.None("orphans: business rows without their job", noJob)
	r.None("orphans: jobs without their business row", noRow)
	r.None("business rows with two jobs", twice)
	return nil
}

func (r *Run) checkMoves(ctx context.Context) (checker.Replayed, error) {
	moves, err := checker.Replay(r.moves(ctx))
	if err != nil {
		return moves, fmt.Errorf("replay the moves: %w", err)
	}
	stored, err := r.Number(
		ctx, `SELECT count(*) FROM (SELECT id FROM outbox.jobs UNION ALL SELECT id FROM outbox.history) AS stored`)
	if err != nil {
		return moves, err
	}
	if stored > moves.Jobs { // an empty recording would find nothing wrong; trimmed jobs have moves only
		r.None("jobs without a recorded history",
			[]string{fmt.Sprintf("%d jobs are stored, moves of %d were recorded", stored, moves.Jobs)})
	}
	r.Count("jobs", moves.Jobs)
	r.Count("recorded changes", moves.Moves)
	r.Count("claims", moves.Claims)
	r.Count("leases expired", moves.Expired)
	r.None("illegal status changes", moves.Illegal)
	r.None("status changes of closed jobs", moves.Regressions)
	r.None("claims that did not raise the epoch", moves.Epochs)
	r.None("L1: leases taken from a worker before they ended", moves.TwoLeases)
	r.None("jobs still open at the end", moves.Open)
	return moves, nil
}

// blinding lists the faults that keep a process from learning that its lease is over.
var blinding = map[string]bool{"SIGSTOP of a worker": true, "network partition": true}

func (r *Run) checkOverlaps(ctx context.Context, b *books,
	givenUp map[checker.Lease]time.Time,
) (executions int, err error) {
	var windows []checker.Window
	for _, f := range r.Faults.All() {
		if blinding[f.Kind] {
			windows = append(windows, checker.Window{Process: f.Target, From: f.From, Until: f.Until})
		}
	}
	if r.clock != "" {
		byStep, err := r.lapsedByStep(ctx)
		if err != nil {
			return 0, err
		}
		windows = append(windows, checker.Window{Until: time.Now(), Explains: byStep})
	}
	var overlaps checker.Overlaps
	var wentOn []string
	for job, list := range b.executions {
		executions += len(list)
		overlaps.Add(job.String(), list, windows, r.Lease*2/3) // an extension may have been under way
		// With a clock that steps, the times of the moves and those of the ledgers cannot be compared.
		if r.clock == "" {
			wentOn = append(wentOn, checker.WentOn(job.String(), list, givenUp, slack)...)
		}
	}
	r.Count("executions", executions)
	r.Count("overlapping executions explained by a fault", overlaps.Explained)
	r.None("L2: overlapping executions of a job that no fault explains", overlaps.Unexplained)
	r.None("executions that share one lease (job and epoch)", overlaps.SameLease)
	r.None("L1: leases given back while the handler was still running", wentOn)
	r.None("executions whose end is not known", b.unended)
	return executions, nil
}
