package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	heldAttempts    = 5
	heldConcurrency = 8
	heldLinger      = 30 * time.Second          // how long the dispatcher runs on after the last held message
	heldGrace       = publishTimeout / 2        // for messages in progress at a stop
	heldOutage      = 10 * 365 * 24 * time.Hour // outages spend no attempts, because no outage of a sink loses messages
	heldTimeout     = 10 * time.Minute          // nearly all of it is for waiting for the message's turn
)

// heldWaits are the waits between attempts.
var heldWaits = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// A heldRunner runs the jobs of a sink that this process owns.
type heldRunner struct {
	*publisher
	o *ownership
}

// run runs the sink's jobs while there are any besides dead letters and jobs that wait for one, and the sink is not
// stopped. So a sink without messages to retry needs no dispatcher, and a process that publishes to a sink also handles
// the messages that the sink refuses.
func (c *heldRunner) run(ctx context.Context) {
	for c.o.awaitHeld(ctx, true) == nil {
		working, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			for c.o.awaitHeld(working, false) == nil {
				if c.lingers(working) {
					return
				}
			}
		}()
		if err := c.dispatch(working); err != nil {
			c.complain(ctx, "refused messages are not tried again", err)
			_ = backoff.Sleep(ctx, time.Second)
		}
		stop()
	}
}

// lingers waits a little if messages are to be published, and reports whether there is still nothing to run.
func (c *heldRunner) lingers(ctx context.Context) bool {
	o := c.o
	o.mu.Lock()
	stopped := o.isStopped()
	o.mu.Unlock()
	if !stopped {
		_ = backoff.Sleep(ctx, heldLinger)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isStopped() || o.held.open == 0
}

// dispatch runs a dispatcher of the sink's jobs until ctx ends.
func (c *heldRunner) dispatch(ctx context.Context) error {
	kind := engine.HeldKind(c.name)
	mux := new(dispatcher.Mux)
	mux.HandleRaw(kind, c.publishHeld,
		dispatcher.KindConfig{Timeout: heldTimeout, Backoff: dispatcher.Waits(heldWaits...), OutageLimit: heldOutage})
	d, err := dispatcher.New(c.callerPool, mux, dispatcher.Config{
		Queues: map[string]dispatcher.QueueConfig{kind: {Concurrency: heldConcurrency}},
		Worker: c.owner, Wake: c.heldWake, GracePeriod: heldGrace, Logger: c.log,
	})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// publishHeld publishes the message that a job holds.
func (c *heldRunner) publishHeld(ctx context.Context, job *outbox.Claimed) error {
	defer c.o.noteRun()
	if err := c.checkHeld(ctx, job); err != nil {
		return err
	}
	m, r, err := c.messageOfJob(job)
	if err != nil {
		return err
	}
	return c.publishInTurn(ctx, m, job.Key != "" && r.OnRefused == RefusedSkip)
}

// publishInTurn publishes a message when it is its turn. With skips, later messages of its key wait only for its
// attempts: a missing destination spends them, and so may the answer of a proxy.
func (c *heldRunner) publishInTurn(ctx context.Context, m Message, skips bool) error {
	if err := c.heldTurn.take(ctx); err != nil {
		return dispatcher.Unavailable(err, 0)
	}
	defer c.heldTurn.give()
	err := c.deliver(ctx, []outgoing{{Message: m}}, c.config.patience)[0]
	if err == nil {
		c.metrics.accepted(1)
		c.o.count()
		return nil
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return dispatcher.WithCode(refused.Code, err)
	}
	if away, ok := errors.AsType[*UnavailableError](err); ok {
		if away.Code == CodeNoDestination && skips { // for an hour, or its message is behind a refused one
			return dispatcher.WithCode(away.Code, err)
		}
		if isOfDestination(away.Code) {
			return dispatcher.TargetUnavailable(dispatcher.WithCode(away.Code, err), 0)
		}
		return dispatcher.Unavailable(dispatcher.WithCode(away.Code, err), 0)
	}
	if errors.Is(err, ErrMaybeAway) && !skips { // try others all the same
		return dispatcher.TargetUnavailable(dispatcher.WithCode(CodeUnavailable, err), 0)
	}
	if ctx.Err() != nil || c.probe(ctx) != nil { // the message is not at fault
		return dispatcher.Unavailable(dispatcher.WithCode(CodeUnavailable, err), 0)
	}
	return c.unanswered(m, err)
}

// unanswered returns the outcome of an attempt that is unknown although the sink answers a probe. Either the message
// breaks its receiver, or the destination, or the whole sink, accepts no message, as a receiver that answers 500 to
// each, or a queue without a majority. So the attempt counts only if the destination has accepted a message since the
// last attempt to it without an answer: a message that breaks a receiver in use becomes a dead letter, and an outage in
// which the receiver accepts nothing spends at most one attempt of one message. A receiver of one key cannot show that:
// after an hour without a message of another key, it is enough that the sink accepts messages.
func (c *heldRunner) unanswered(m Message, err error) error {
	err = dispatcher.WithCode(CodeUnanswered, err)
	if c.isAtFault(m) {
		return err
	}
	if why := c.o.outage(); why != nil && (why.code == CodeUnanswered || why.code == CodeUnavailable) {
		return dispatcher.Unavailable(err, 0)
	}
	return dispatcher.TargetUnavailable(err, 0) // try others all the same
}

// checkHeld refuses a job that hold has not made. A login that can store one against the rule of [engine.KindFault], as
// the schema's owner can, could otherwise publish anything through it.
func (c *heldRunner) checkHeld(ctx context.Context, job *outbox.Claimed) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	is, err := sqlgen.New(c.pool).IsHeld(ctx, c.name, pgvalue.UUID(job.ID))
	switch {
	case err != nil:
		return dispatcher.Unavailable(fmt.Errorf("look whether the job is a message: %w", err), 0)
	case !is:
		return dispatcher.Discard(
			dispatcher.WithCode(CodeForbidden, fmt.Errorf("it was not made of a message that sink %s has refused",
				c.name)))
	}
	return nil
}

// messageOfJob returns the message from which hold made a job, and its route.
func (c *heldRunner) messageOfJob(job *outbox.Claimed) (Message, *route, error) {
	e := Event{
		Tenant: job.Tenant, Key: job.Key, ContentType: job.ContentType, Payload: job.Payload,
		Headers: job.Headers(),
	}
	about, err := engine.ParseHeldEvent(e.Headers[engine.HeaderHeld])
	if err == nil {
		e.ID, err = outbox.ParseID(about.ID)
	}
	if err != nil {
		return Message{}, nil,
			dispatcher.Discard(dispatcher.WithCode(CodeRefused, fmt.Errorf("header %s: %w", engine.HeaderHeld, err)))
	}
	delete(e.Headers, engine.HeaderHeld)
	e.Topic, e.Position, e.At = about.Topic, about.Position, about.At
	if about.Fault != "" {
		e.fault = errors.New(about.Fault)
	}
	r := routeOf(c.routes, e.Topic)
	if r == nil {
		return Message{}, nil,
			dispatcher.Discard(dispatcher.WithCode(CodeNoRoute,
				fmt.Errorf("no route to the sink has the topic %s any more", e.Topic)))
	}
	m, err := messageOf(&e, r, c.config.Source)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return m, r, dispatcher.WithCode(refused.Code, err)
	}
	return m, r, err
}
