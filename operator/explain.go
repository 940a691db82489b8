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

// Explanation lists why a job does not run.
type Explanation struct {
	ID      outbox.ID
	Tenant  outbox.ID
	Queue   string
	Kind    string
	Status  outbox.Status
	AsOf    time.Time // by the database's clock
	Reasons []Reason  // never empty. The first is the one that applies; the others would if it were gone
}

// Reason is a reason for which a job does not run, with its evidence and remedy.
type Reason struct {
	Code     ReasonCode
	Sentence string
	Since    time.Time // zero if not known
	Until    time.Time // when it ends without intervention; zero if it does not, or that is not known
	Evidence
	Act Act // zero if waiting is the only remedy, or none is a command
}

// ReasonCode identifies a reason to programs.
type ReasonCode string

// These are the reasons, in the order in which they are checked.
const (
	WhyClosed          ReasonCode = "closed"           // it is in the history, and does not run again
	WhyDeadLetter      ReasonCode = "dead_letter"      // it failed permanently and waits for a person
	WhyLeaseLapsed     ReasonCode = "lease_lapsed"     // its worker let the lease lapse: a reaper takes it back
	WhyCancelRequested ReasonCode = "cancel_requested" // its handler was asked to stop
	WhyRunning         ReasonCode = "running"          // leased to a worker, perhaps still in its buffer
	WhyWorkerMissing   ReasonCode = "worker_missing"   // it is running, and its worker has not been seen recently
	WhyDeadlinePassed  ReasonCode = "deadline_passed"  // it cannot run any more: a reaper closes it as expired
	WhyHeld            ReasonCode = "held"             // it was enqueued held, and nobody has released it
	WhyNotDue          ReasonCode = "not_due"          // its run_at is in the future
	WhyRetrying        ReasonCode = "retrying"         // it failed, and waits for its next attempt
	WhyAway            ReasonCode = "dependency_away"  // its kind's dependency was unavailable at the last try
	WhyQueuePaused     ReasonCode = "queue_paused"
	WhyNoDispatcher    ReasonCode = "no_dispatcher" // no present dispatcher works its queue
	WhyNoHandler       ReasonCode = "no_handler"    // no dispatcher that does has a handler for the kind
	WhyKeyParked       ReasonCode = "key_parked"    // no job of the key starts until it is unblocked
	WhyKeyDeadLetter   ReasonCode = "key_dead_letter"
	WhyKeyBusy         ReasonCode = "key_busy"      // the maximum number of the key's jobs are running
	WhyKeyBehind       ReasonCode = "key_behind"    // another job is the head of the key's line
	WhyKeyFree         ReasonCode = "key_free"      // nothing blocks it any more: it is promoted within seconds
	WhyQueueFull       ReasonCode = "queue_full"    // the maximum number of the queue's jobs are running
	WhyQueueRate       ReasonCode = "queue_rate"    // the maximum number have started within the interval of its rate
	WhyQueueLimited    ReasonCode = "queue_limited" // perhaps: a single tenant may not see what runs
	WhyWorkersBusy     ReasonCode = "workers_busy"  // the queue's dispatchers run as many jobs as they may
	WhyTurn            ReasonCode = "turn"          // it is due, and others precede it
	WhyDue             ReasonCode = "due"           // no obstacle is known: a dispatcher claims it next
)

// ReasonCodes returns every code, in the order in which reasons are checked.
func ReasonCodes() []ReasonCode {
	return []ReasonCode{
		WhyClosed, WhyDeadLetter, WhyLeaseLapsed, WhyCancelRequested, WhyRunning, WhyWorkerMissing, WhyDeadlinePassed,
		WhyHeld, WhyNotDue,
		WhyRetrying, WhyAway, WhyQueuePaused, WhyNoDispatcher, WhyNoHandler, WhyKeyParked, WhyKeyDeadLetter, WhyKeyBusy,
		WhyKeyBehind,
		WhyKeyFree, WhyQueueFull, WhyQueueRate, WhyQueueLimited, WhyWorkersBusy, WhyTurn, WhyDue,
	}
}

// Evidence supports a reason. Fields that do not apply are zero.
type Evidence struct {
	Job          outbox.ID // the other job involved: one that runs, is dead, or is the head of the line
	JobStatus    outbox.Status
	Key          string
	Worker       string       // holder of the lease, of the job or of the other one
	Workers      []Dispatcher // that worked the queue, or had a handler for the kind; latest seen first, 10 at most
	By, Because  string       // the operator who did it, and the reason given
	Running      int64        // jobs running at once, of
	Limit        int64
	Rate         Rate
	Ahead        int64   // jobs before it; 10 000 means at least that many
	PerSecond    float64 // rate at which jobs of its tenant's queue have recently ended; 0 if not known
	Attempt      int
	ErrorCode    string
	ErrorMessage string
}

// Dispatcher is a dispatcher named in a reason.
type Dispatcher struct {
	Name    string
	Version string
	SeenAt  time.Time
	Missing bool
}

// Act is a remedy, as a command line and as the equivalent request to the API.
type Act struct {
	Command      string // posthaste …
	Method, Path string
}

// Explain returns why a job does not run, from one snapshot of the database: every reason, the one that applies first.
// In a context that [WithTenant] has tied to a tenant, it leaves out what all tenants share: dispatchers, other running
// jobs, and who paused a queue. It returns [ErrNotFound] for an unknown job.
func (o *Operator) Explain(ctx context.Context, id outbox.ID) (Explanation, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	f, err := o.facts(ctx, id, true)
	if isStatementTimeout(err) && ctx.Err() == nil {
		// While an old snapshot is held, the index of due jobs begins with entries of finished jobs, and counting those
		// before the job takes too long.
		f, err = o.facts(ctx, id, false)
	}
	if err != nil {
		return Explanation{}, fmt.Errorf("explain job %s: %w", id, err)
	}
	j := f.job
	return Explanation{
		ID: id, Tenant: j.TenantID.Bytes, Queue: j.Queue, Kind: j.Kind, Status: outbox.Status(j.Status),
		AsOf: j.Now.Time, Reasons: f.reasons(),
	}, nil
}

// facts are what the reasons are derived from. Facts that were not queried, because they do not matter in the job's
// status, are zero.
type facts struct {
	job        sqlgen.ExplainJobRow
	everything bool // the caller may see what all tenants share
	owner      []sqlgen.ExplainWorkerRow
	waits      sqlgen.ExplainWaitsRow // of a waiting job
	workers    []workerFacts
	unknown    bool // the jobs ahead were not counted
}

// workerFacts describes a dispatcher in the form of ExplainWaits.
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

// turnPatience limits counting the jobs before one: somebody waits for the answer, which contains the rest without the
// count.
const turnPatience = "2s"

// facts queries what is needed: one statement for a job that has ended, two for one that runs or waits. The statements
// that count the jobs before it are given up after [turnPatience].
func (o *Operator) facts(ctx context.Context, id outbox.ID, count bool) (f facts, err error) {
	f.everything = tenantIn(ctx).IsZero()
	err = o.atOneMoment(ctx, func(tx pgx.Tx) error {
		db := sqlgen.New(tx)
		found, err := db.ExplainJob(ctx, pgvalue.UUID(id), pgvalue.UUIDOrNull(tenantIn(ctx)))
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

// ask queries what a waiting job may be waiting for.
func (f *facts) ask(ctx context.Context, db *sqlgen.Queries, turn bool) (err error) {
	j := f.job
	f.waits, err = db.ExplainWaits(ctx, sqlgen.ExplainWaitsParams{
		Queue: j.Queue, Everything: f.everything, Fresh: pgvalue.Interval(missingAfter), Kind: j.Kind,
		TenantID: j.TenantID, Priority: int32(j.Priority),
		Keyed: j.Key != "", Key: j.Key, Ordered: j.Ordered, LinePosition: j.LinePosition, ID: j.ID, RunAt: j.RunAt,
		Turn: turn, RecentBlocks: recentBlocks,
	})
	if err != nil {
		return err
	}
	return json.Unmarshal(f.waits.Workers, &f.workers)
}

// fewestEndings is the fewest ends from which a rate is derived.
const fewestEndings = 5

// perSecond returns how many jobs of the tenant's queue have recently ended per second; 0 if not known.
func (f *facts) perSecond() float64 {
	if f.waits.Ended < fewestEndings || f.waits.EndedSeconds <= 0 {
		return 0
	}
	return float64(f.waits.Ended) / f.waits.EndedSeconds
}
