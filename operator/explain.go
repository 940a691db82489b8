package operator

import (
	"context"
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
	var f facts
	err := o.atOneMoment(ctx, func(tx pgx.Tx) (err error) {
		f, err = findFacts(ctx, tx, id)
		return err
	})
	if err != nil && !f.unknown {
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
	queue      sqlgen.ExplainQueueRow
	workers    []sqlgen.ExplainWorkersRow
	away       sqlgen.ExplainOutageRow
	key        sqlgen.ExplainKeyRow
	ahead      int64
	unknown    bool // how many are ahead: the look was given up
	perSecond  float64
}

func (f *facts) due() bool {
	return !f.job.RunAt.Time.After(f.job.Now.Time) && f.job.RunAt.InfinityModifier != pgtype.Infinity
}

// findFacts asks what it takes: one statement for a job that has ended, two for one that runs, up to seven for one
// that waits.
func findFacts(ctx context.Context, tx pgx.Tx, id outbox.ID) (f facts, err error) {
	db, tenant := sqlgen.New(tx), tiedTo(ctx)
	f.everything = tenant.IsZero()
	found, err := db.ExplainJob(ctx, pgvalue.UUID(id), pgvalue.UUIDOrNull(tenant))
	if err != nil {
		return f, err
	}
	if len(found) == 0 {
		return f, ErrNotFound
	}
	f.job = found[0]
	switch status := outbox.Status(f.job.Status); {
	case status.Closed() || status == outbox.Failed || status == outbox.Dead:
		return f, nil
	case status == outbox.Running:
		if f.everything {
			f.owner, err = db.ExplainWorker(ctx, pgvalue.Interval(missingAfter), f.job.Worker)
		}
		return f, err
	}
	return f, f.findWaits(ctx, tx, db)
}

// findWaits asks what a job that waits may wait for.
func (f *facts) findWaits(ctx context.Context, tx pgx.Tx, db *sqlgen.Queries) (err error) {
	j := f.job
	if f.queue, err = db.ExplainQueue(ctx, j.Queue, f.everything); err != nil {
		return err
	}
	if f.everything {
		if f.workers, err = db.ExplainWorkers(ctx, sqlgen.ExplainWorkersParams{Fresh: pgvalue.Interval(missingAfter), Queue: j.Queue, Kind: j.Kind}); err != nil {
			return err
		}
	}
	f.away, err = db.ExplainOutage(ctx, sqlgen.ExplainOutageParams{Kind: j.Kind, Queue: j.Queue, TenantID: j.TenantID, Priority: j.Priority})
	if err == nil && j.Key != "" {
		f.key, err = db.ExplainKey(ctx, sqlgen.ExplainKeyParams{
			TenantID: j.TenantID, Queue: j.Queue, Key: j.Key, Ordered: j.Ordered, LinePosition: j.LinePosition, ID: j.ID, RunAt: j.RunAt, Priority: int32(j.Priority),
		})
	}
	if err != nil || !f.due() || j.Status == string(outbox.Blocked) || j.Status == string(outbox.Created) {
		return err
	}
	if f.perSecond, err = endings(ctx, tx, j); err != nil {
		return err
	}
	// At last, because to be given up aborts the transaction: while somebody holds a snapshot, the index begins with
	// entries of jobs that are long done.
	if _, err := tx.Exec(ctx, `SELECT set_config('statement_timeout', $1, true)`, oldestPatience); err != nil {
		return err
	}
	f.ahead, err = db.ExplainTurn(ctx, sqlgen.ExplainTurnParams{
		Keyed: j.Key != "", Queue: j.Queue, TenantID: j.TenantID, Priority: j.Priority, RunAt: j.RunAt, ID: j.ID,
	})
	f.unknown = isStatementTimeout(err)
	return err
}

// The end of today's history, as [Operator.Overview] reads it: what of a tenant's queue ended last.
const endingsSQL = `
SELECT count(*), coalesce(extract(epoch FROM statement_timestamp() - min(finished_at)), 0)::float8
FROM outbox.history
WHERE finished_at >= date_trunc('day', statement_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
  AND finished_at >= statement_timestamp() - interval '5 minutes'
  AND ctid >= (
      SELECT format('(%s,0)', greatest(0, coalesce(pg_relation_size(to_regclass(today.name)) / current_setting('block_size')::bigint, 0) - $1::bigint))::tid
      FROM (SELECT 'outbox.history_' || to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD') AS name) AS today)
  AND queue = $2
  AND tenant_id = $3`

// fewestEndings are too few to tell a rate by.
const fewestEndings = 5

func endings(ctx context.Context, tx pgx.Tx, j sqlgen.ExplainJobRow) (perSecond float64, err error) {
	var n int64
	var seconds float64
	if err := tx.QueryRow(ctx, endingsSQL, recentBlocks, j.Queue, j.TenantID).Scan(&n, &seconds); err != nil {
		return 0, err
	}
	if n < fewestEndings || seconds <= 0 {
		return 0, nil
	}
	return float64(n) / seconds, nil
}
