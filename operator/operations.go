package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrOperationNotFound reports that there is no operation with the id: it never existed, or it ended more than 90 days
// ago.
var ErrOperationNotFound = errors.New("operation not found")

// ErrTooManyOperations reports that 100 operations of the tenant, or of all tenants, are under way, or 1000 are
// unfinished: wait for one of them to end.
var ErrTooManyOperations = errors.New("100 operations are under way, or 1000 are unfinished: wait for one to end")

// OperationAct is what an operation does to dead letters or to open jobs.
type OperationAct string

// These act on dead letters, like [Operator.ReplayDeadLetters] and [Operator.DismissDeadLetters].
const (
	ReplayLetters  OperationAct = "replay"
	DismissLetters OperationAct = "dismiss"
)

// OperationSpec describes an act on many jobs, for any process that runs operations.
type OperationSpec struct {
	// ID identifies the operation. Starting one with an existing ID does nothing and returns the existing one: a form
	// that is sent twice starts one operation. The zero ID means a new one.
	ID  outbox.ID
	Act OperationAct
	// Filter selects dead letters. With the FailedUntil of [Operator.MatchDeadLetters] it selects those that were
	// counted, and none that became a dead letter later; without it, those that exist now. After has no effect here.
	Filter DeadLetterFilter
	// Jobs selects the open jobs for CancelJobs, ReleaseJobs, RetryJobs and EditJobs; Filter then has no effect. With
	// the AsOf of [Operator.MatchOpenJobs] it selects those that were counted; without it, those that exist now.
	Jobs OpenFilter
	// Edit sets what EditJobs changes.
	Edit JobEdit
	// PerSecond limits how many become due per second, as for ReplayDeadLetters, or are acted on; 0 means no limit. It
	// does not apply to a dismissal.
	PerSecond float64
}

// Operation is the progress of an act on many jobs.
type Operation struct {
	ID        outbox.ID
	Tenant    outbox.ID // zero means all tenants
	Act       OperationAct
	Filter    DeadLetterFilter // of an act on dead letters
	Jobs      OpenFilter       // of an act on open jobs; without AsOf, because the jobs are known by now
	Edit      JobEdit          // of EditJobs
	PerSecond float64
	Matched   int64 // jobs at the beginning
	// Collecting reports that the operation has not acted yet: its steps store first which jobs it concerns, if they
	// are many. Collected is how many they have stored by now.
	Collecting bool
	Collected  int64 // 0 once Collecting is over
	Done       int64
	// Passed counts the jobs that were skipped: something else happened to them meanwhile, their deadline has passed,
	// or the database refused the act on them.
	Passed     int64
	Actor      string
	Reason     string
	RequestID  string // of its entries in the audit
	StartedAt  time.Time
	StoppedAt  time.Time // zero unless an operator has stopped it
	FinishedAt time.Time // zero while it is not done
	Failure    string    // of the latest step, which is tried again; "" if none
	// Overdue reports that the next step has been due for more than a minute: no process runs operations, or those that
	// do are busy with others.
	Overdue bool
}

// ForTenant returns the operation for a reader who is bound to one tenant: its Failure only states that there is one.
// The text comes from the database and contains names and addresses that are for operators of all tenants.
func (o Operation) ForTenant() Operation {
	if o.Failure != "" {
		o.Failure = "the step failed; operators of all tenants see why"
	}
	return o
}

// letters is a filter in stored form.
type letters struct {
	Kind         string    `json:"kind,omitempty"`
	Queue        string    `json:"queue,omitempty"`
	Status       string    `json:"status,omitempty"`
	ErrorCode    string    `json:"error_code,omitempty"`
	Fingerprint  string    `json:"fingerprint,omitempty"`
	Key          string    `json:"key,omitempty"`
	Tenant       string    `json:"tenant,omitempty"`
	CreatedSince time.Time `json:"created_since,omitzero"`
	CreatedUntil time.Time `json:"created_until,omitzero"`
	FailedSince  time.Time `json:"failed_since,omitzero"`
	FailedUntil  time.Time `json:"failed_until,omitzero"`
}

func (f DeadLetterFilter) stored() ([]byte, error) {
	l := letters{
		Kind: f.Kind, Queue: f.Queue, Status: string(f.Status), ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint,
		Key:          f.Key,
		CreatedSince: f.CreatedSince, CreatedUntil: f.CreatedUntil, FailedSince: f.FailedSince,
		FailedUntil: f.FailedUntil,
	}
	if !f.Tenant.IsZero() {
		l.Tenant = f.Tenant.String()
	}
	return json.Marshal(l)
}

func readLetters(text []byte) (f DeadLetterFilter, err error) {
	var l letters
	if err := json.Unmarshal(text, &l); err != nil {
		return f, fmt.Errorf("read the filter of an operation: %w", err)
	}
	if l.Tenant != "" {
		if f.Tenant, err = outbox.ParseID(l.Tenant); err != nil {
			return f, fmt.Errorf("read the filter of an operation: %w", err)
		}
	}
	f.Kind, f.Queue, f.Status, f.ErrorCode, f.Fingerprint, f.Key = l.Kind, l.Queue, outbox.Status(l.Status),
		l.ErrorCode, l.Fingerprint, l.Key
	f.CreatedSince, f.CreatedUntil, f.FailedSince, f.FailedUntil = l.CreatedSince, l.CreatedUntil, l.FailedSince,
		l.FailedUntil
	return f, nil
}

// Validate returns every mistake for which [Operator.StartOperation] refuses it, as [*outbox.InvalidError]s, joined.
func (n OperationSpec) Validate() error {
	var act error
	if n.Act != ReplayLetters && n.Act != DismissLetters && !n.Act.OnOpenJobs() {
		act = invalid.Field("OperationSpec.Act", "is %q, want one of %s", n.Act, strings.Join(knownActs(), ", "))
	}
	rate := validPerSecond("OperationSpec.PerSecond", n.PerSecond)
	if n.PerSecond != 0 && n.Act == DismissLetters {
		rate = invalid.Field("OperationSpec.PerSecond", "is not for a dismissal")
	}
	filter := n.Filter.validate
	if n.Act.OnOpenJobs() {
		filter = n.Jobs.validate
	}
	return errors.Join(act, rate, filter(), n.validateEdit())
}

// StartOperation leaves an act on many jobs to the processes that run operations ([Operator.RunOperations]), which go
// on when the caller has gone. Its entries in the audit have this operator's actor, reason and request; without a
// request, they have the operation's id in place of it. It may return [ErrTooManyOperations], and [ErrOldWriter] if it
// has to count open jobs: for more than 20 000 without an AsOf.
func (o *Operator) StartOperation(ctx context.Context, n OperationSpec) (Operation, error) {
	if err := n.Validate(); err != nil {
		return Operation{}, err
	}
	if n.ID.IsZero() {
		n.ID = outbox.NewID()
	}
	if o.by.requestID == "" { // its acts would not be told from those of others
		named := *o
		named.by.requestID = n.ID.String()
		o = &named
	}
	start, tenant := o.startOnLetters, n.Filter.Tenant
	if n.Act.OnOpenJobs() {
		start, tenant = o.startOnJobs, n.Jobs.Tenant
	}
	started, err := start(ctx, n)
	if errors.Is(err, pgx.ErrNoRows) {
		there, err := o.Operation(ctx, tenant, n.ID)
		if errors.Is(err, ErrOperationNotFound) {
			err = fmt.Errorf("start an operation: %w", ErrTooManyOperations)
		}
		return there, err
	}
	if err != nil {
		return Operation{}, fmt.Errorf("start an operation: %w", err)
	}
	return started, nil
}

// maxOperations limits what each step sorts to take the next operation.
const maxOperations = 100

// startOnLetters stores an operation on dead letters. It returns [pgx.ErrNoRows] if there is one with that id, or there
// are too many.
func (o *Operator) startOnLetters(ctx context.Context, n OperationSpec) (Operation, error) {
	matched, err := o.MatchDeadLetters(ctx, n.Filter)
	if err != nil {
		return Operation{}, err
	}
	n.Filter.FailedUntil = matched.FailedUntil
	filter, err := n.Filter.stored()
	if err != nil {
		return Operation{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	started := Operation{
		ID: n.ID, Tenant: n.Filter.Tenant, Act: n.Act, Filter: n.Filter, PerSecond: n.PerSecond,
		Matched: matched.Matched,
		Actor:   o.by.actor, Reason: o.by.reason, RequestID: o.by.requestID,
	}
	at, err := o.db.StartOperation(ctx, sqlgen.StartOperationParams{
		ID: pgvalue.UUID(started.ID), TenantID: pgvalue.UUIDOrNull(started.Tenant), Act: string(n.Act), Filter: filter,
		PerSecond: n.PerSecond,
		Matched:   started.Matched, Actor: started.Actor, Reason: started.Reason, RequestID: started.RequestID,
		Most: maxOperations,
	})
	started.StartedAt = at.Time
	return started, err
}

// Operations lists up to limit operations (0 means 50; at most 200) of a tenant or, if it is zero, of all, newest
// first. For the next page, pass the last one's id as before; the zero id begins with the newest.
func (o *Operator) Operations(ctx context.Context, tenant, before outbox.ID, limit int) ([]Operation, error) {
	most, err := pageLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	params := sqlgen.ListOperationsParams{
		Before: newest, TenantID: pgvalue.UUIDOrNull(tenant),
		MaxRows: most,
	}
	if !before.IsZero() {
		params.Before = pgvalue.UUID(before)
	}
	return o.operations(ctx, params)
}

// Operation returns one of a tenant's operations or, if the tenant is zero, of any, or [ErrOperationNotFound].
func (o *Operator) Operation(ctx context.Context, tenant, id outbox.ID) (Operation, error) {
	found, err := o.operations(ctx, sqlgen.ListOperationsParams{
		Before: newest, TenantID: pgvalue.UUIDOrNull(tenant),
		ID: pgvalue.UUID(id), MaxRows: 1,
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("operation %s: %w", id, ErrOperationNotFound)
	}
	if err != nil {
		return Operation{}, err
	}
	return found[0], nil
}

func (o *Operator) operations(ctx context.Context, params sqlgen.ListOperationsParams) ([]Operation, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListOperations(ctx, params)
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	list := make([]Operation, len(rows))
	for i, row := range rows {
		if list[i], err = operationOf(row); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func operationOf(row sqlgen.ListOperationsRow) (op Operation, err error) {
	op = Operation{
		ID: row.ID.Bytes, Tenant: row.TenantID.Bytes, Act: OperationAct(strings.TrimPrefix(row.Act, collects)),
		PerSecond: row.PerSecond,
		Matched:   row.Matched, Done: row.Done, Passed: row.Passed, Actor: row.Actor, Reason: row.Reason,
		RequestID: row.RequestID,
		StartedAt: row.CreatedAt.Time, StoppedAt: row.StoppedAt.Time, FinishedAt: row.FinishedAt.Time,
		Failure: row.Failure, Overdue: row.Overdue,
	}
	if op.Act.OnOpenJobs() {
		var stored openJobs
		op.Jobs, stored, err = readOpenJobs(row.Filter)
		op.Edit = stored.Edit
		if op.Collecting = strings.HasPrefix(row.Act, collects); op.Collecting {
			op.Collected = stored.Collected
		}
	} else {
		op.Filter, err = readLetters(row.Filter)
	}
	return op, err
}

// StopOperation stops an operation of the tenant or, if that is zero, of any: after it returns, nothing more is done
// until the operation is resumed. It does not change an operation that is stopped or done. It returns the operation, or
// [ErrOperationNotFound].
func (o *Operator) StopOperation(ctx context.Context, tenant, id outbox.ID) (Operation, error) {
	return o.switchOperation(ctx, tenant, id, true)
}

// ResumeOperation lets a stopped operation continue where it was, with the dead letters that were selected at the
// beginning. It does not change an operation that is not stopped, or is done. It returns the operation, or
// [ErrOperationNotFound] or [ErrTooManyOperations].
func (o *Operator) ResumeOperation(ctx context.Context, tenant, id outbox.ID) (Operation, error) {
	return o.switchOperation(ctx, tenant, id, false)
}

func (o *Operator) switchOperation(ctx context.Context, tenant, id outbox.ID, stop bool) (Operation, error) {
	bound, cancel := context.WithTimeout(ctx, 2*statementTimeout) // a step may be in progress
	defer cancel()
	found, err := o.db.SwitchOperation(bound, sqlgen.SwitchOperationParams{
		ID: pgvalue.UUID(id), TenantID: pgvalue.UUIDOrNull(tenant), Stop: stop, Actor: o.by.actor,
		RequestID: o.by.requestID, Reason: o.by.reason, Most: maxOperations,
	})
	switch {
	case err != nil:
	case len(found) == 0:
		err = ErrOperationNotFound
	case !stop && found[0].StoppedAt.Valid && !found[0].FinishedAt.Valid:
		err = ErrTooManyOperations
	}
	if err != nil {
		return Operation{}, fmt.Errorf("%s operation %s: %w", map[bool]string{true: "stop", false: "resume"}[stop], id,
			err)
	}
	return operationOf(sqlgen.ListOperationsRow(found[0]))
}

const (
	operationPoll  = time.Second     // between looks for an operation whose step is due
	operationAgain = 5 * time.Second // after a step that failed
)

// RunOperations takes the steps of operations until ctx ends, and then returns nil. Any number of processes may run it:
// a step is one transaction, which locks its operation, and is done completely or not at all. RunOperations passes
// the errors of [Operator.StepOperation] to complain; nil discards them.
func (o *Operator) RunOperations(ctx context.Context, complain func(error)) error {
	for ctx.Err() == nil {
		pause, err := o.StepOperation(ctx)
		if err != nil && ctx.Err() == nil && complain != nil {
			complain(err)
		}
		_ = backoff.Sleep(ctx, pause)
	}
	return nil
}

// StepOperation takes a step that is due, if there is one, and returns when to look again. Of a tenant's operations it
// takes the one that is due first, and it serves all tenants equally often. It is [Operator.RunOperations] once.
//
// A step that fails is tried again. But if the database refuses the act on a single job, as your own trigger may, the
// step passes over that job, and StepOperation returns the refusal.
func (o *Operator) StepOperation(ctx context.Context) (again time.Duration, err error) {
	if o.in != nil {
		return operationPoll, errInTx
	}
	var failed sqlgen.TakeOperationRow
	var passedOver error
	bound, cancel := context.WithTimeout(ctx, 3*statementTimeout)
	defer cancel()
	everything := WithTenant(bound, outbox.ID{})
	err = pgx.BeginFunc(everything, o.txs, func(tx pgx.Tx) error {
		taken, err := sqlgen.New(tx).TakeOperation(bound, steppedActs())
		if err != nil || len(taken) == 0 {
			again = operationPoll
			return err
		}
		if again = time.Duration(taken[0].DueInSeconds * float64(time.Second)); again > 0 {
			return nil
		}
		if passedOver, err = o.step(bound, tx, taken[0]); err != nil {
			failed = taken[0]
		}
		return err
	})
	if err != nil && failed.ID.Valid {
		// Use a separate statement, after the step was rolled back.
		text := pgvalue.Text(err.Error(), maxReasonBytes)
		soon, cancel := bounded(WithTenant(ctx, outbox.ID{}))
		defer cancel()
		_ = o.db.DelayOperation(
			soon, sqlgen.DelayOperationParams{ID: failed.ID, Pause: pgvalue.Interval(operationAgain), Failure: text})
	}
	if err != nil {
		return operationAgain, fmt.Errorf("take a step of an operation: %w", err)
	}
	return again, passedOver
}

// step acts on the next page of an operation's jobs, in the transaction that locks it. If the database refuses one of
// them, it acts on the first half of the page, and so on; it passes over a job that is refused alone, and returns the
// refusal.
func (o *Operator) step(ctx context.Context, tx pgx.Tx, taken sqlgen.TakeOperationRow) (passedOver, err error) {
	if strings.HasPrefix(taken.Act, collects) {
		return nil, o.collectJobs(ctx, tx, taken)
	}
	if taken.TenantID.Valid { // for row security: this process acts for all tenants
		if _, err := tx.Exec(ctx, `SELECT set_config('app.tenant_id', $1, true)`,
			outbox.ID(taken.TenantID.Bytes).String()); err != nil {
			return nil, err
		}
	}
	inside := o.unconditional().WithTx(tx) // so that no job of the page waits for a key
	inside.by = by{actor: taken.Actor, reason: taken.Reason, requestID: taken.RequestID}
	stepOn, page := inside.stepOnLetters, actPage
	if OperationAct(taken.Act).OnOpenJobs() {
		stepOn, page = inside.stepOnJobs, jobsOfStep
	}
	perStep, spacing := pace(taken.PerSecond)
	s := operationStep{taken: taken, page: min(page, perStep), spacing: spacing}
	for {
		err := pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return stepOn(ctx, s) })
		switch {
		case err == nil && s.passOver:
			return passedOver, nil
		case !pgsession.IsRefusal(err) || s.passOver:
			return nil, err
		case s.page > 1:
			s.page /= 2
		default:
			s.passOver = true
			passedOver = fmt.Errorf("operation %s passes over a job: %w", outbox.ID(taken.ID.Bytes), err)
		}
	}
}

// An operationStep is what a step of an operation does.
type operationStep struct {
	taken    sqlgen.TakeOperationRow
	page     int // jobs, at most
	spacing  time.Duration
	passOver bool // act on none of them
}

// stepOnLetters acts on the next page of an operation's dead letters, in the transaction of its statements.
func (o *Operator) stepOnLetters(ctx context.Context, s operationStep) error {
	taken := s.taken
	filter, err := readLetters(taken.Filter)
	if err != nil {
		return err
	}
	if taken.TenantID.Valid {
		filter.Tenant = taken.TenantID.Bytes
	}
	filter.After = taken.Position.Bytes
	act := o.dismissSome
	switch {
	case s.passOver:
		act = func(context.Context, []pgtype.UUID, []int64) ([]pgtype.UUID, error) { return nil, nil }
	case OperationAct(taken.Act) == ReplayLetters:
		act = o.replaySome(s.spacing)
	}
	params := filter.params()
	params.MaxRows = int32(s.page)
	found, done, err := o.actOnPage(ctx, params, act)
	if err != nil {
		return err
	}
	return o.db.AdvanceOperation(ctx, sqlgen.AdvanceOperationParams{
		ID: taken.ID, Done: int64(done), Passed: int64(found.n - done), Position: found.last,
		Pause: pgvalue.Interval(time.Duration(done) * s.spacing), Finished: !found.more,
	})
}
