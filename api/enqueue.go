package api

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	groupTimeout = 10 * time.Second       // of the statements of one group
	keyPatience  = 250 * time.Millisecond // with a transaction that uses the same idempotency key
)

// NewJob is a job to enqueue.
type NewJob struct {
	Kind           string            `json:"kind" minLength:"1" maxLength:"128" doc:"What is to be done" example:"receipt.send"`
	Payload        json.RawMessage   `json:"payload,omitempty" doc:"What it is to be done with: any JSON, stored as it is written. {} if left out"`
	Queue          string            `json:"queue,omitempty" maxLength:"128" doc:"default if left out"`
	Priority       int               `json:"priority,omitempty" minimum:"-32768" maximum:"32767" doc:"Higher is more urgent"`
	DelaySeconds   float64           `json:"delaySeconds,omitempty" minimum:"0" maximum:"3153600000" doc:"Due this long after it is stored"`
	RunAt          time.Time         `json:"runAt,omitzero" doc:"Due at this time; excludes delaySeconds"`
	MaxAttempts    int               `json:"maxAttempts,omitempty" minimum:"1" maximum:"32767" doc:"25 if left out"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty" minimum:"0" maximum:"3153600000" doc:"Of one attempt; the worker's if left out"`
	Key            string            `json:"key,omitempty" maxLength:"512" doc:"What ordering or concurrency is bound to"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty" minLength:"1" maxLength:"512" doc:"A repeat with the same key and kind stores nothing and answers like the first"`
	Headers        map[string]string `json:"headers,omitempty" doc:"Handed to the handler. traceparent, tracestate, caller-user and correlation-id are those of the request if left out; caller-service is always the token"`
}

// request is what is stored of it, for the principal's tenant: a body cannot name
// another.
func (j NewJob) request(ctx context.Context) outbox.Request {
	return outbox.Request{
		Args: outbox.Raw{KindName: j.Kind, Payload: j.payload()},
		Options: outbox.Options{
			Queue: j.Queue, Priority: j.Priority, Delay: seconds(j.DelaySeconds), RunAt: j.RunAt, MaxAttempts: j.MaxAttempts,
			Timeout: seconds(j.TimeoutSeconds), Key: j.Key, IdempotencyKey: j.IdempotencyKey,
			Headers: withTrace(ctx, callerIn(ctx).AddTo(j.Headers)), Tenant: principal(ctx).Tenant,
		},
	}
}

func (j NewJob) payload() []byte {
	if j.Payload == nil {
		return []byte("{}")
	}
	return j.Payload
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// Accepted says that a job is stored.
type Accepted struct {
	ID     string `json:"id" format:"uuid"`
	Status string `json:"status" doc:"With which it was stored; GET /jobs/{id} tells the present one" example:"pending"`
}

type enqueueInput struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"512" doc:"In place of idempotencyKey in the body"`
	Body           NewJob
}

type enqueueOutput struct {
	Location string `header:"Location" doc:"Of the job"`
	Body     Accepted
}

// enqueue stores a job. The answer comes after the commit, and says nothing that a
// repeat could not say: not when, not whether it was the first.
func (s *server) enqueue(ctx context.Context, in *enqueueInput) (*enqueueOutput, error) {
	if p := in.takeHeader(); p != nil {
		return nil, p
	}
	if p := s.checkJob(ctx, in.Body); p != nil {
		return nil, p
	}
	id, err := s.inserts.ask(ctx, in.Body.request(ctx))
	if err != nil {
		return nil, err
	}
	return &enqueueOutput{Location: "jobs/" + id.String(), Body: Accepted{ID: id.String(), Status: outbox.Pending.String()}}, nil
}

// takeHeader moves the header into the body.
func (in *enqueueInput) takeHeader() *Problem {
	switch {
	case in.IdempotencyKey == "":
		return nil
	case in.Body.IdempotencyKey != "" && in.Body.IdempotencyKey != in.IdempotencyKey:
		return invalidInput.because("", Fault{Header: "Idempotency-Key", Detail: "is not the idempotencyKey of the body"})
	}
	in.Body.IdempotencyKey = in.IdempotencyKey
	return nil
}

type stored = outbox.ID

// storeGroup stores the jobs of several requests in one transaction. If the database
// refuses it, nothing was stored, and each is tried by itself: the bad one fails
// alone. If it is not known what became of it, all are told so; to try again could
// store jobs twice.
func (s *server) storeGroup(ctx context.Context, requests []outbox.Request) []answerTo[stored] {
	ids, err := s.store(ctx, requests)
	if err != nil && (len(requests) == 1 || !wasRefused(err)) {
		return all[stored](len(requests), err)
	}
	answers := make([]answerTo[stored], len(requests))
	for i := range requests {
		if err == nil {
			answers[i].value = ids[i]
			continue
		}
		alone, err := s.store(ctx, requests[i:i+1])
		if err == nil {
			answers[i].value = alone[0]
		}
		answers[i].err = err
	}
	return answers
}

// wasRefused reports whether the fault may be of one of the jobs, and certainly
// nothing was stored.
func wasRefused(err error) bool {
	if _, ok := errors.AsType[*outbox.InvalidError](err); ok {
		return true
	}
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !databaseIsAway(err) && !isSQL(err, queryCanceled)
}

// store stores all of the jobs or none. It waits for transactions that use the same
// idempotency keys, but not for ever: those of others wait with it.
func (s *server) store(ctx context.Context, requests []outbox.Request) (ids []outbox.ID, err error) {
	err = s.config.Producer.InTx(ctx, func(tx pgx.Tx) error {
		for _, r := range requests {
			if r.Options.IdempotencyKey != "" {
				if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, keyPatience.String()); err != nil {
					return err
				}
				break
			}
		}
		if len(requests) == 1 {
			id, err := outbox.Enqueue(ctx, tx, requests[0].Args, requests[0].Options)
			ids = []outbox.ID{id}
			return err
		}
		ids, err = outbox.EnqueueMany(ctx, tx, requests)
		return err
	})
	if isSQL(err, lockNotAvailable) && len(requests) == 1 {
		return nil, keyBusy.because("Whether it commits is not known yet; try again.").after(1)
	}
	return ids, err
}
