package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/promote"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Inline is a dispatcher without its loops. Each call of [Inline.Work] claims, runs and settles with the statements and
// the decisions of [Dispatcher.Run], over the connection or transaction that it was given. It keeps no lease for longer
// than Config.LeaseTTL, notifies nobody, ignores the limits of a queue (but does not work a paused queue), and does not
// stop claiming a kind that is unavailable. Only one goroutine may use it at a time.
//
// Inline exists for package outboxtest, which works jobs in a test's own transaction, and may change in any release.
// Programs use [New].
type Inline struct {
	d        *Dispatcher
	conn     outbox.DB
	handlers outbox.Beginner
}

// InlineFlow selects jobs of one kind, queue, tenant and priority, with a key or without one. Like [Inline], it exists
// for package outboxtest and may change in any release.
type InlineFlow struct {
	Queue, Kind string
	Tenant      outbox.ID
	Priority    int
	Keyed       bool
}

// InlineEnd reports the result of a handler. The database knows what became of the job. Like [Inline], it exists for
// package outboxtest and may change in any release.
type InlineEnd struct {
	Job *outbox.Claimed
	Err error // what the handler returned, or why it was not called
}

// NewInline checks config and registers the mux's death hooks. conn runs the dispatcher's statements; several
// goroutines use it, one at a time. Jobs get handlers as their DB. The contexts of handlers derive from ctx. Like
// [Inline], it exists for package outboxtest and may change in any release.
func NewInline(ctx context.Context, conn outbox.DB, handlers outbox.Beginner, mux *Mux,
	config Config,
) (*Inline, error) {
	d, err := New(nil, mux, config)
	if err != nil {
		return nil, err
	}
	p := d.common
	p.handlerContext = ctx
	d.composeParts(conn, sqlgen.New(conn))
	bound, cancel := bounded(ctx)
	defer cancel()
	if !registerHooks(bound, p, d.db, d.deathHooks) {
		return nil, fmt.Errorf("dispatcher: register death hooks: %w",
			errors.Join(p.health.Err(), context.Cause(bound)))
	}
	return &Inline{d, conn, handlers}, nil
}

// Work claims the flow's first due job that may run now, or a batch of them if the kind's jobs are handled together,
// runs the handler and stores the outcome. It returns nothing if there is no such job: its queue is paused, or others
// of its key come first. A handler that ends its goroutine has failed, as in Dispatcher.
func (i *Inline) Work(ctx context.Context, f InlineFlow) ([]InlineEnd, error) {
	p := i.d.common
	r := p.routes[f.Kind]
	if r == nil {
		return nil, fmt.Errorf("dispatcher: kind %q has no handler", f.Kind)
	}
	var reported []*attempt
	recorder := i.d.newRecorder(func(a report.Owner) { reported = append(reported, a.(*attempt)) })
	claimed, err := i.claim(ctx, f, r, recorder)
	if err != nil || len(claimed) == 0 {
		return nil, errors.Join(err, i.d.promoter.Once())
	}
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		recorder.Run()
	}()
	p.phase.Store(claiming)
	ran := make([]*attempt, 0, len(claimed))
	for _, a := range claimed {
		if a.returned { // without its payload, because the jobs before it were large: it is a later call's
			a.outcome = outcome.Interrupted
		} else {
			ran = append(ran, a)
		}
	}
	runInline(p, r, ran)
	var ended []*attempt
	for _, a := range claimed {
		if !a.reports.End() { // else the recorder hands it on
			ended = append(ended, a)
		}
	}
	recorder.Stop()
	<-stored
	if err := i.settle(append(ended, reported...)); err != nil {
		return nil, err
	}
	ends := make([]InlineEnd, len(ran))
	for n, a := range ran {
		ends[n] = InlineEnd{a.job, a.err}
	}
	return ends, i.d.promoter.Once()
}

func (i *Inline) claim(ctx context.Context, f InlineFlow, r *route, recorder *report.Recorder) ([]*attempt, error) {
	room := 1
	if r.many != nil {
		room = r.many.Max
	}
	cursor := &scheduler.Cursor{Flow: scheduler.Flow{Tenant: f.Tenant, Priority: int16(f.Priority)}}
	request := claimRequest{
		keyed: f.Keyed,
		shares: []scheduler.Share{{
			Tenant: &scheduler.Tenant{ID: f.Tenant}, Cursors: []*scheduler.Cursor{cursor},
			Quota: room,
		}},
		lookaheads: []int32{int32(max(room, scheduler.MinLookahead))},
		front:      true, kinds: []string{f.Kind}, room: room, limits: true,
	}
	claims := &claims{
		common: i.d.common, queue: f.Queue, capacity: &capacity{Waker: wake.New()}, recorder: recorder,
		handlers: i.handlers,
	}
	bound, cancel := bounded(ctx)
	defer cancel()
	b := claims.claim(bound, i.conn, request)
	if b.err != nil {
		return nil, fmt.Errorf("claim a job of %s: %w", f.Kind, b.err)
	}
	i.d.promoter.Blocked(b.tally.halted)
	i.d.leases.Add(leasesOf(b.claimed))
	for _, a := range b.claimed {
		a.arrived = time.Now()
	}
	return b.claimed, nil
}

// runInline runs the handler in a goroutine of its own, because the handler may end it.
func runInline(p *common, r *route, claimed []*attempt) {
	if r.many != nil {
		claimed[0].batch = &batch{attempts: claimed, sent: time.Now()}
	}
	ended := make(chan struct{})
	go carryOut(p, claimed[0], func(time.Duration, bool) { close(ended) })
	<-ended
}

// settle stores outcomes. It does not wait long for a database that is unavailable.
func (i *Inline) settle(ended []*attempt) error {
	p := i.d.common
	settling, cancel := bounded(context.Background())
	defer cancel()
	p.settling = settling
	defer func() { p.settling = context.Background() }()
	var refused []*attempt
	i.d.settler.setAside = func(a *attempt) { refused = append(refused, a) }
	i.d.settler.settle(ended)
	i.d.settler.reporter.failures.End()
	if err := i.d.common.health.Err(); err != nil {
		return fmt.Errorf("settle %d jobs: %w", len(ended), err)
	}
	var errs []error
	for _, a := range refused {
		if err := i.d.settler.storeRefusedAgain(a); err != nil {
			errs = append(errs, fmt.Errorf("the database refuses that job %s is %s: %w", a.job.ID, a.outcome.Status,
				err))
		}
	}
	return errors.Join(errs...)
}

// Expire does what the reaper does with lapsed leases of dead workers, and with jobs whose deadlines have come.
func (i *Inline) Expire(ctx context.Context) error {
	always, none := pgvalue.From(time.Time{}), pgtype.Interval{Valid: true}
	never := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	lapsed, err := i.d.db.ExpireLeases(ctx, sqlgen.ExpireLeasesParams{
		FromLease: always, BeforeLease: never, Overlap: none, MaxJobs: maxBatch, FromDeadline: always, Horizon: none,
		LeaseHorizon: none,
	})
	if err != nil {
		return fmt.Errorf("expire leases: %w", err)
	}
	var keys []promote.Key
	for _, row := range lapsed {
		if row.Key != "" {
			keys = append(keys, promote.Key{Tenant: row.TenantID.Bytes, Queue: row.Queue, Name: row.Key})
		}
	}
	late, err := i.d.db.ExpireDeadlines(ctx, sqlgen.ExpireDeadlinesParams{
		FromDeadline: always, BeforeDeadline: never, Overlap: none, Horizon: none, Patience: none, MaxJobs: maxBatch,
	})
	if err != nil {
		return fmt.Errorf("expire deadlines: %w", err)
	}
	for n, key := range late.Keys {
		keys = append(keys, promote.Key{Tenant: late.TenantIds[n].Bytes, Queue: late.Queues[n], Name: key})
	}
	i.d.common.log.LogAttrs(ctx, slog.LevelDebug, "expired", slog.Int64("deadlines", late.Closed))
	i.d.promoter.Blocked(keys)
	return i.d.promoter.Once()
}
