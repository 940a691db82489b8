package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	groupTimeout = 10 * time.Second       // for the statements of one group
	keyPatience  = 250 * time.Millisecond // for a transaction that uses the same idempotency key
	keyGlance    = 10 * time.Millisecond  // the same, for each request of a group after one has delayed it
	keyedGroup   = 64                     // most requests with idempotency keys in a group, which wait for each other
)

// NewJob is a job to enqueue.
type NewJob struct {
	Kind           string            `json:"kind" minLength:"1" maxLength:"128" doc:"Kind of the job, which selects its handler" example:"receipt.send"`
	Payload        json.RawMessage   `json:"payload,omitempty" doc:"Arguments of the handler: any JSON, stored as it is written; {} if omitted"`
	Queue          string            `json:"queue,omitempty" maxLength:"128" doc:"Queue of the job; default if omitted"`
	Priority       int               `json:"priority,omitempty" minimum:"-32768" maximum:"32767" doc:"Higher is claimed first"`
	DelaySeconds   float64           `json:"delaySeconds,omitempty" minimum:"0" maximum:"3153600000" doc:"It is due this long after it is stored"`
	RunAt          time.Time         `json:"runAt,omitzero" doc:"It is due at this time; excludes delaySeconds"`
	MaxAttempts    int               `json:"maxAttempts,omitempty" minimum:"1" maximum:"32767" doc:"At most this many attempts; 25 if omitted"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty" minimum:"0" maximum:"3153600000" doc:"Timeout of one attempt; the worker's if omitted"`
	BackoffSeconds []float64         `json:"backoffSeconds,omitempty" maxItems:"64" doc:"Waits after the first failed attempt, the second and so on, the last one repeated, each up to 100 years; the worker's if omitted" example:"[5, 30, 120]"`
	Deadline       time.Time         `json:"deadline,omitzero" doc:"Time from which on it neither starts nor succeeds, but expires"`
	Hold           bool              `json:"hold,omitempty" doc:"Store it as created: it does not run before it is released"`
	Streamed       bool              `json:"streamed,omitempty" doc:"Each change of the job is stored as an event, for relays to publish"`
	Key            string            `json:"key,omitempty" maxLength:"512" doc:"Jobs of a queue with the same key run one at a time, or by the rules below"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty" minLength:"1" maxLength:"512" doc:"A repeat with the same key and kind stores nothing and gets the response of the first"`
	Headers        map[string]string `json:"headers,omitempty" doc:"Headers for the handler. traceparent, tracestate, caller-user and correlation-id default to those of the request; caller-service is always the token"`

	KeyRules
}

// KeyRules are the rules of a job with a key. Each job has its own.
type KeyRules struct {
	MaxActive        int     `json:"maxActive,omitempty" minimum:"1" maximum:"1000" doc:"How many jobs of the key may run at once, this one included; 1 if omitted"`
	Ordered          bool    `json:"ordered,omitempty" doc:"Start only as the first unfinished one of the key's ordered jobs"`
	Sequence         int64   `json:"sequence,omitempty" minimum:"1" doc:"Position in that order; by the order of commits if omitted"`
	OnDeath          string  `json:"onDeath,omitempty" enum:"skip,park" doc:"Once it is dead, the ordered jobs behind it run (skip), or the key is set aside (park); if omitted, they wait"`
	ParkAfterSeconds float64 `json:"parkAfterSeconds,omitempty" minimum:"0" maximum:"3153600000" doc:"With park: set the key aside only after this time"`
	OnLapse          string  `json:"onLapse,omitempty" enum:"fail-stale,block" doc:"When its lease lapses, it is closed as stale (fail-stale), or it is dead and the key is set aside (block); if omitted, it runs again"`
	MaxQueued        int     `json:"maxQueued,omitempty" minimum:"1" maximum:"100000" doc:"Store it only if fewer jobs of the key are waiting. Excludes idempotencyKey, and is refused in batches"`
	WhenFull         string  `json:"whenFull,omitempty" enum:"coalesce,replace-oldest" doc:"At maxQueued, a waiting job of its kind stands for it (coalesce), or it replaces the oldest one of its kind (replace-oldest); if omitted, the request fails with key_full"`
}

// request returns the job to store, for the principal's tenant: a body cannot name another.
func (j NewJob) request(ctx context.Context) outbox.Request {
	return outbox.Request{
		Args: outbox.Raw{KindName: j.Kind, Payload: j.payload()},
		Options: outbox.Options{
			Queue: j.Queue, Priority: j.Priority, Delay: pgvalue.Seconds(j.DelaySeconds), RunAt: j.RunAt,
			MaxAttempts: j.MaxAttempts,
			Timeout:     pgvalue.Seconds(j.TimeoutSeconds), Backoff: backoff(j.BackoffSeconds),
			IdempotencyKey: j.IdempotencyKey,
			Deadline:       j.Deadline, Hold: j.Hold, Streamed: j.Streamed,
			Key: outbox.KeyRules{
				Name: j.Key, MaxActive: j.MaxActive, Ordered: j.Ordered, Sequence: j.Sequence,
				OnDeath: outbox.DeathPolicy(j.OnDeath), ParkAfter: pgvalue.Seconds(j.ParkAfterSeconds),
				OnLapse: outbox.LapsePolicy(j.OnLapse), MaxQueued: j.MaxQueued,
				WhenFull: outbox.DepthPolicy(j.WhenFull),
			},
			Headers: withTrace(ctx, engine.Caller(callerIn(ctx)).AddTo(j.Headers)), Tenant: principal(ctx).Tenant,
		},
	}
}

func (j NewJob) payload() []byte {
	if j.Payload == nil {
		return []byte("{}")
	}
	return j.Payload
}

func backoff(waits []float64) (b outbox.Backoff) {
	for _, wait := range waits {
		b = append(b, pgvalue.Seconds(wait))
	}
	return b
}

// Accepted confirms that a job is stored.
type Accepted struct {
	ID     string `json:"id" format:"uuid"`
	Status string `json:"status" doc:"The status in which the job was stored: pending, or created if it is held; GET /jobs/{id} returns the present one" example:"pending"`

	Verdict  string `json:"verdict,omitempty" enum:"accepted,coalesced,replaced" doc:"With maxQueued. accepted: the job is stored. coalesced: no job is stored, and the waiting job with this id stands for it. replaced: the job is stored, and another one was closed"`
	Replaced string `json:"replaced,omitempty" format:"uuid" doc:"The job that was closed as skipped"`
}

type enqueueInput struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"512" doc:"Instead of idempotencyKey in the body"`
	Body           NewJob
}

type enqueueOutput struct {
	Location string `header:"Location" doc:"Path of the job"`
	Body     Accepted
}

// enqueue stores a job. The answer comes after the commit, and contains nothing that a repeat could not contain:
// neither a time nor whether this was the first request.
func (s *server) enqueue(ctx context.Context, in *enqueueInput) (*enqueueOutput, error) {
	byHeader := in.Body.IdempotencyKey == ""
	if p := in.takeHeader(); p != nil {
		return nil, p
	}
	out, err := s.enqueueOne(ctx, in)
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); ok && byHeader &&
		invalid.Field == "Options.IdempotencyKey" {
		return nil, invalidInput.because("", Fault{Header: "Idempotency-Key", Detail: invalid.Reason})
	}
	return out, err
}

func (s *server) enqueueOne(ctx context.Context, in *enqueueInput) (*enqueueOutput, error) {
	if p := checkJob(ctx, in.Body, s.checker(ctx)); p != nil {
		return nil, p
	}
	request := in.Body.request(ctx)
	if request.Options.Key.MaxQueued != 0 {
		return s.submit(ctx, request)
	}
	// Validate it before it joins a group: an invalid request would make the group's jobs be stored one by one.
	if _, err := outbox.Encode(request.Args, request.Options); err != nil {
		return nil, err
	}
	inserts := s.inserts
	if request.Options.IdempotencyKey != "" {
		inserts = s.keyedInserts // they may have to wait for others' transactions
	}
	job, err := inserts.ask(ctx, request)
	if err != nil {
		return nil, err
	}
	return &enqueueOutput{Location: "jobs/" + job.id.String(), Body: job.accepted()}, nil
}

// inTx runs do in a transaction with a fixed isolation level, whatever the default of the role or the database: a
// repeat with an idempotency key waits for the first request and then finds its job, and a queue is counted under the
// lock on its key. With a snapshot from before, neither would work.
func (s *server) inTx(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.config.Producer, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, do)
}

// submit stores a job in a transaction of its own, because it holds a lock on the key until the end.
func (s *server) submit(ctx context.Context, r outbox.Request) (*enqueueOutput, error) {
	leave, err := s.batches.take(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var done outbox.Submitted
	err = s.inTx(ctx, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, tieInsert, tenantOfJob(r).String(), keyPatience.String()); err != nil {
			return err
		}
		done, err = outbox.Submit(ctx, tx, r.Args, r.Options)
		return err
	})
	switch {
	case isSQL(err, lockNotAvailable):
		return nil, keyBusy.because("Others are submitting to this key, or have locked all jobs; try again.").after(1)
	case err != nil:
		return nil, err
	case done.ID.IsZero():
		return nil, keyFull.because(fmt.Sprintf("%d jobs of this key are waiting; the limit is %d.", done.Queued,
			r.Options.Key.MaxQueued))
	}
	accepted := stored{done.ID, r.Options.Hold && done.Stored}.accepted()
	switch {
	case !done.Stored:
		accepted.Verdict = "coalesced"
	case !done.Replaced.IsZero():
		accepted.Verdict, accepted.Replaced = "replaced", done.Replaced.String()
	default:
		accepted.Verdict = "accepted"
	}
	return &enqueueOutput{Location: "jobs/" + done.ID.String(), Body: accepted}, nil
}

// takeHeader moves the header into the body.
func (in *enqueueInput) takeHeader() *Problem {
	switch {
	case in.IdempotencyKey == "":
		return nil
	case in.Body.IdempotencyKey != "" && in.Body.IdempotencyKey != in.IdempotencyKey:
		return invalidInput.because(
			"", Fault{Header: "Idempotency-Key", Detail: "is not the idempotencyKey of the body"})
	}
	in.Body.IdempotencyKey = in.IdempotencyKey
	return nil
}

// stored is the part of the answer that a repeat gets too, whatever has happened to the job.
type stored struct {
	id   outbox.ID
	held bool
}

func (j stored) accepted() Accepted {
	status := outbox.Pending
	if j.held {
		status = outbox.Created
	}
	return Accepted{ID: j.id.String(), Status: string(status)}
}

// storeGroup stores the jobs of several requests in one transaction. If the database refuses it, nothing was stored,
// and each request is tried alone, so that only the bad one fails. If the outcome is unknown, all of them get that
// answer, because trying again could store jobs twice.
//
// A key that another transaction uses delays the group once. After that, each of the requests waits next to nothing,
// because requests of other tenants are behind them. Requests without a key wait for no key, but for a lock on the
// table, which each of them would wait for again: they are refused together, also beside requests with a key.
func (s *server) storeGroup(ctx context.Context, requests []outbox.Request) []answerTo[stored] {
	jobs, err := s.store(ctx, requests, keyPatience)
	switch {
	case jobs != nil:
		return answersOf(requests, jobs, err)
	case len(requests) == 1 || !wasRefused(err) ||
		isSQL(err, lockNotAvailable) && !slices.ContainsFunc(requests, hasKey):
		return all[stored](len(requests), busyKey(err, requests))
	}
	return s.storeAlone(ctx, requests)
}

// storeAlone stores the jobs of several requests, each in a transaction of its own.
func (s *server) storeAlone(ctx context.Context, requests []outbox.Request) []answerTo[stored] {
	answers := make([]answerTo[stored], 0, len(requests))
	var locked error // of the first request without a key that has waited for a lock
	for i, r := range requests {
		one := requests[i : i+1]
		if locked != nil && !hasKey(r) {
			answers = append(answers, answerTo[stored]{err: locked})
		} else if ctx.Err() != nil { // nothing of it has been sent
			answers = append(answers, answerTo[stored]{
				err: unavailable.because("Its turn did not come in time; try again.").after(1),
			})
		} else if jobs, err := s.store(ctx, one, keyGlance); jobs != nil {
			answers = append(answers, answersOf(one, jobs, err)...)
		} else {
			if isSQL(err, lockNotAvailable) && !hasKey(r) {
				locked = err
			}
			answers = append(answers, answerTo[stored]{err: busyKey(err, one)})
		}
	}
	return answers
}

// busyKey turns the error of waiting in vain for an idempotency key, if one of the requests has a key, into its
// problem, and returns any other error unchanged.
func busyKey(err error, requests []outbox.Request) error {
	if isSQL(err, lockNotAvailable) && slices.ContainsFunc(requests, hasKey) {
		return keyBusy.because("Whether it commits is not known yet, or all jobs are locked; try again.").after(1)
	}
	return err
}

// answersOf returns the answers to requests whose jobs are stored. An error means that it is unknown how those with an
// idempotency key were stored; the others need not ask again.
func answersOf(requests []outbox.Request, jobs []stored, err error) []answerTo[stored] {
	answers := make([]answerTo[stored], len(requests))
	for i, r := range requests {
		answers[i].value = jobs[i]
		if r.Options.IdempotencyKey != "" {
			answers[i].err = err
		}
	}
	return answers
}

// wasRefused reports whether the error may be the fault of one of the jobs, and nothing was stored for certain.
func wasRefused(err error) bool {
	return pgsession.IsRepeatable(err) || pgsession.Refused(err) && !pgsession.IsAway(err) && !isSQL(err, queryCanceled)
}

// store stores all of the jobs or none, those of each tenant in a context tied to it. It waits for a transaction that
// uses the same idempotency key, but no longer than most, because others wait with it. If it returns jobs they are
// stored, even with an error; a request without an idempotency key must then not store its job again.
func (s *server) store(ctx context.Context, requests []outbox.Request, most time.Duration) ([]stored, error) {
	patience := "" // no limit, or that of the pool's sessions
	if slices.ContainsFunc(requests, hasKey) {
		patience = most.String()
	}
	ids := make([]outbox.ID, len(requests))
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		for tenant, places := range byTenant(requests, tenantOfJob) {
			if _, err := tx.Exec(ctx, tieInsert, tenant.String(), patience); err != nil {
				return err
			}
			if err := storeFor(ctx, tx, requests, places, ids); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.asStored(ctx, requests, ids)
}

// asStored returns how each job was stored. For a repeat, that is how the first request's was; it is queried for all
// jobs with an idempotency key. If the query fails, asStored returns the jobs with the error: they are stored, and with
// the key asking again is safe.
func (s *server) asStored(ctx context.Context, requests []outbox.Request, ids []outbox.ID) ([]stored, error) {
	jobs := make([]stored, len(ids))
	for i, r := range requests {
		jobs[i] = stored{ids[i], r.Options.Hold}
	}
	for tenant, places := range byTenant(requests, tenantOfJob) {
		places = slices.DeleteFunc(places, func(i int) bool { return requests[i].Options.IdempotencyKey == "" })
		if len(places) == 0 {
			continue
		}
		once := make([]outbox.ID, len(places))
		for i, place := range places {
			once[i] = ids[place]
		}
		held, err := s.quick.StoredHeld(operator.WithTenant(ctx, tenant), once)
		if err != nil {
			return jobs, &lookAfterStore{err}
		}
		for _, place := range places {
			jobs[place].held = held[ids[place]]
		}
	}
	return jobs, nil
}

const tieInsert = `SELECT set_config('app.tenant_id', $1, true), CASE WHEN $2::text <> '' THEN set_config('lock_timeout', $2, true) END`

// tenantOfJob returns the tenant that will own a job.
func tenantOfJob(r outbox.Request) outbox.ID { return cmp.Or(r.Options.Tenant, outbox.RootTenant) }

// storeFor stores the jobs of one tenant.
func storeFor(ctx context.Context, tx pgx.Tx, requests []outbox.Request, places []int, ids []outbox.ID) error {
	if len(places) == 1 {
		id, err := outbox.Enqueue(ctx, tx, requests[places[0]].Args, requests[places[0]].Options)
		ids[places[0]] = id
		if _, ok := errors.AsType[*outbox.InvalidError](err); ok { // a batch names its place
			err = &outbox.RequestError{Index: places[0], Err: err}
		}
		return err
	}
	some := make([]outbox.Request, len(places))
	for i, place := range places {
		some[i] = requests[place]
	}
	stored, err := outbox.EnqueueMany(ctx, tx, some)
	if bad, ok := errors.AsType[*outbox.RequestError](err); ok {
		err = &outbox.RequestError{Index: places[bad.Index], Err: bad.Err}
	}
	for i, id := range stored {
		ids[places[i]] = id
	}
	return err
}
