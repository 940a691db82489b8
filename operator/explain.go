package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Explanation says why a job does not run.
type Explanation struct {
	ID      outbox.ID
	Tenant  outbox.ID
	Queue   string
	Kind    string
	Status  outbox.Status
	AsOf    time.Time // by the database's clock
	Reasons []Reason  // never empty. The first is the one that holds; the others would when it is gone
}

// Reason is why a job does not run, with what shows it and what helps.
type Reason struct {
	Code     ReasonCode
	Sentence string
	Since    time.Time // zero: not known
	Until    time.Time // when it ends by itself, as far as is known; zero: it does not, or nobody knows when
	Evidence
	Act Act // zero: nothing to do but to wait, or nothing that a command does
}

// ReasonCode is a reason for programs.
type ReasonCode string

// The reasons, in the order in which they are looked for.
const (
	WhyClosed          ReasonCode = "closed"           // it ended, and does not run again
	WhyDeadLetter      ReasonCode = "dead_letter"      // it failed for good and waits for a person
	WhyLeaseLapsed     ReasonCode = "lease_lapsed"     // its worker let the lease lapse: a reaper takes it back
	WhyCancelRequested ReasonCode = "cancel_requested" // its handler was asked to stop
	WhyRunning         ReasonCode = "running"          // leased to a worker, which may still have it in its buffer
	WhyWorkerMissing   ReasonCode = "worker_missing"   // it is running, and its worker has not been seen of late
	WhyDeadlinePassed  ReasonCode = "deadline_passed"  // it cannot run any more: a reaper closes it as expired
	WhyHeld            ReasonCode = "held"             // it was enqueued held, and nobody has released it
	WhyNotDue          ReasonCode = "not_due"          // its time has not come
	WhyRetrying        ReasonCode = "retrying"         // it failed, and waits for its next attempt
	WhyAway            ReasonCode = "dependency_away"  // what its kind needs was unavailable when it was tried last
	WhyQueuePaused     ReasonCode = "queue_paused"
	WhyNoDispatcher    ReasonCode = "no_dispatcher" // no present dispatcher works the queue
	WhyNoHandler       ReasonCode = "no_handler"    // none of those that do has a handler for the kind
	WhyKeyParked       ReasonCode = "key_parked"    // nothing of the key starts until it is unblocked
	WhyKeyDeadLetter   ReasonCode = "key_dead_letter"
	WhyKeyFull         ReasonCode = "key_full"      // as many jobs of the key run as may
	WhyKeyBehind       ReasonCode = "key_behind"    // another one is the head of the key's line
	WhyKeyFree         ReasonCode = "key_free"      // it is blocked by nothing any more: it is promoted within seconds
	WhyQueueFull       ReasonCode = "queue_full"    // as many jobs of the queue run as its limit allows
	WhyQueueRate       ReasonCode = "queue_rate"    // as many have started of late as its rate allows
	WhyQueueLimited    ReasonCode = "queue_limited" // perhaps: a single tenant may not see what runs
	WhyWorkersBusy     ReasonCode = "workers_busy"  // the queue's dispatchers run as many jobs as they may
	WhyTurn            ReasonCode = "turn"          // it is due, and others are before it
	WhyDue             ReasonCode = "due"           // nothing is known to keep it: a dispatcher claims it next
)

// ReasonCodes returns every code, in the order in which reasons are looked for.
func ReasonCodes() []ReasonCode {
	return []ReasonCode{
		WhyClosed, WhyDeadLetter, WhyLeaseLapsed, WhyCancelRequested, WhyRunning, WhyWorkerMissing, WhyDeadlinePassed, WhyHeld, WhyNotDue,
		WhyRetrying, WhyAway, WhyQueuePaused, WhyNoDispatcher, WhyNoHandler, WhyKeyParked, WhyKeyDeadLetter, WhyKeyFull, WhyKeyBehind,
		WhyKeyFree, WhyQueueFull, WhyQueueRate, WhyQueueLimited, WhyWorkersBusy, WhyTurn, WhyDue,
	}
}

// Evidence is what shows a reason. What does not apply is zero.
type Evidence struct {
	Job          outbox.ID // the other job that it is about: the one that runs, is dead, or is the head of the line
	JobStatus    outbox.Status
	Key          string
	Worker       string       // who holds the lease, of the job or of the other one
	Workers      []Dispatcher // that worked the queue, or had a handler for the kind; those seen last first, 10 at most
	By, Because  string       // the operator who did it, and the reason given
	Running      int64        // jobs at once, of
	Limit        int64
	Rate         Rate
	Ahead        int64   // jobs before it; 10 000 is as many or more
	PerSecond    float64 // how many jobs of its tenant's queue have ended a second of late; 0: not known
	Attempt      int
	ErrorCode    string
	ErrorMessage string
}

// Dispatcher is one as a reason names it.
type Dispatcher struct {
	Name    string
	Version string
	SeenAt  time.Time
	Missing bool
}

// Act is what helps: the same as a command line and as a request to the API.
type Act struct {
	Command      string // posthaste …
	Method, Path string
}

// Explain says why a job does not run, from one snapshot of the database: each reason that holds, the first one first.
// In a context that is [TiedTo] a tenant it says nothing of what all tenants share: dispatchers, what else runs, and by
// whom a queue was paused. It returns [ErrNotFound].
func (o *Operator) Explain(ctx context.Context, id outbox.ID) (Explanation, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	f, err := o.facts(ctx, id, true)
	if isStatementTimeout(err) && ctx.Err() == nil {
		// While somebody holds a snapshot, the index of due jobs begins with entries of jobs that are long done, and to
		// count those before it takes too long.
		f, err = o.facts(ctx, id, false)
	}
	if err != nil {
		return Explanation{}, fmt.Errorf("explain job %s: %w", id, err)
	}
	j := f.job
	return Explanation{
		ID: id, Tenant: j.TenantID.Bytes, Queue: j.Queue, Kind: j.Kind, Status: outbox.Status(j.Status), AsOf: j.Now.Time, Reasons: f.reasons(),
	}, nil
}

// facts are what the reasons follow from. What was not asked for, because it does not matter to a job in that status,
// is zero.
type facts struct {
	job        sqlgen.ExplainJobRow
	everything bool // the caller may see what all tenants share
	owner      []sqlgen.ExplainWorkerRow
	waits      sqlgen.ExplainWaitsRow // of a job that waits
	workers    []workerFacts
	unknown    bool // how many are ahead was not counted
}

// workerFacts are a dispatcher as ExplainWaits writes it.
type workerFacts struct {
	Worker      string    `json:"worker"`
	Version     string    `json:"version"`
	SeenAt      time.Time `json:"seen_at"`
	Missing     bool      `json:"missing"`
	WorksQueue  bool      `json:"works_queue"`
	HandlesKind bool      `json:"handles_kind"`
	Concurrency int32     `json:"concurrency"`
}

func (f *facts) due() bool {
	return !f.job.RunAt.Time.After(f.job.Now.Time) && f.job.RunAt.InfinityModifier != pgtype.Infinity
}

// turnPatience bounds the count of the jobs that are before one: somebody waits for the answer, which says the rest
// without it.
const turnPatience = "2s"

// facts asks what it takes: one statement for a job that has ended, two for one that runs or waits. Those that count
// how many are before the job are given up after [turnPatience].
func (o *Operator) facts(ctx context.Context, id outbox.ID, count bool) (f facts, err error) {
	f.everything = tiedTo(ctx).IsZero()
	err = o.atOneMoment(ctx, func(tx pgx.Tx) error {
		db := sqlgen.New(tx)
		found, err := db.ExplainJob(ctx, pgvalue.UUID(id), pgvalue.UUIDOrNull(tiedTo(ctx)))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return ErrNotFound
		}
		f.job = found[0]
		status := outbox.Status(f.job.Status)
		switch {
		case status.Closed() || status == outbox.Failed || status == outbox.Dead:
			return nil
		case status == outbox.Running:
			if f.everything {
				f.owner, err = db.ExplainWorker(ctx, pgvalue.Interval(missingAfter), f.job.Worker)
			}
			return err
		}
		turn := f.due() && status != outbox.Blocked && status != outbox.Created
		f.unknown = turn && !count
		if turn && count {
			if _, err := tx.Exec(ctx, `SELECT set_config('statement_timeout', $1, true)`, turnPatience); err != nil {
				return err
			}
		}
		return f.ask(ctx, db, turn && count)
	})
	return f, err
}

// ask asks what a job that waits may wait for.
func (f *facts) ask(ctx context.Context, db *sqlgen.Queries, turn bool) (err error) {
	j := f.job
	f.waits, err = db.ExplainWaits(ctx, sqlgen.ExplainWaitsParams{
		Queue: j.Queue, Everything: f.everything, Fresh: pgvalue.Interval(missingAfter), Kind: j.Kind, TenantID: j.TenantID, Priority: int32(j.Priority),
		Keyed: j.Key != "", Key: j.Key, Ordered: j.Ordered, LinePosition: j.LinePosition, ID: j.ID, RunAt: j.RunAt, Turn: turn, RecentBlocks: recentBlocks,
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(f.waits.Workers, &f.workers)
}

// fewestEndings are too few to tell a rate by.
const fewestEndings = 5

// perSecond is how many jobs of the tenant's queue have ended a second of late; 0: not known.
func (f *facts) perSecond() float64 {
	if f.waits.Ended < fewestEndings || f.waits.EndedSeconds <= 0 {
		return 0
	}
	return float64(f.waits.Ended) / f.waits.EndedSeconds
}
