// Package jobs runs jobs by publishing them through a sink of package relay: publishing a message is the job.
//
//	sink, err := nats.Open(nats.Config{URLs: …})
//	jobs.Handle(&mux, "order.announce", sink, jobs.Mapping{Destination: "shop.{topic}.{key|token}"})
//
// Such a job has everything that a job can have: a time, a deadline, a priority, attempts, a dead letter that can be
// edited and replayed. An event of package outbox has none of that, costs less, and always keeps the order of its key.
//
// The sink's outcome for the message decides the job's:
//
//	nil                        it has succeeded
//	[*relay.RefusedError]      it waits for a person, with the sink's code
//	[*relay.UnavailableError]  an outage, which spends no attempt: see [dispatcher.Unavailable]
//	[relay.ErrNotTried]        it goes back, with its attempt
//	any other                  it is tried again by its backoff, with the code relay_unanswered and the same ID
//
// Messages are published in the order of their jobs: jobs with an ordered key one after the other, and others as they
// come.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// Mapping sets how a job becomes a message. {topic} is the job's kind, {key} its key, and {id} its id, which is also
// the message's; for a job that was enqueued again, that of its first time.
type Mapping struct {
	Destination string            // as in [relay.Route]; "" means "{topic}"
	CloudEvents relay.CloudEvents // "" means binary
	Source      string            // as in [relay.Config]

	// Batch sets how many jobs are published together. A sealed payload is published sealed, unless Batch.Protect opens
	// it.
	Batch dispatcher.BatchConfig
}

// Handle registers a handler that publishes the jobs of a kind as messages to the sink. Several kinds, and a relay, may
// share one of the sinks in package relay's folders: each batch waits for its turn, for as long as its attempt lasts,
// and then has ten seconds. Several workers call another sink's Publish concurrently, unless it embeds a [relay.Turns].
// The caller closes the sink after the dispatcher has ended.
//
// An invalid mapping is a bug in the program: Handle then panics, as [dispatcher.HandleMany] does. It also panics for a
// sink by which only one process at a time may publish, such as Kafka's with a TransactionalID: every worker would take
// it away from the others.
func Handle(m *dispatcher.Mux, kind string, sink relay.Sink, mapping Mapping, config ...dispatcher.KindConfig) {
	mapper, err := relay.NewMapper(relay.Route{Destination: mapping.Destination, CloudEvents: mapping.CloudEvents},
		mapping.Source)
	if err != nil {
		panic(fmt.Errorf("jobs: %w", err))
	}
	if s, ok := sink.(interface{ Exclusive() bool }); ok && s.Exclusive() {
		panic(fmt.Errorf("jobs: by the sink of kind %s one process at a time may publish: open it without a TransactionalID", kind))
	}
	h := &handler{
		sink: relay.NewCaller(sink), mapper: mapper,
		varies: strings.Contains(strings.ReplaceAll(cmp.Or(mapping.Destination, "{topic}"), "{topic}", ""), "{"),
	}
	m.HandleManyRaw(kind, h.publish, mapping.Batch, config...)
}

// A handler publishes the jobs of a kind.
type handler struct {
	sink   *relay.Caller
	mapper *relay.Mapper
	varies bool // jobs of the kind may have different destinations
}

// publish handles a batch: it publishes the jobs' messages to the sink, and returns one outcome for each job.
func (h *handler) publish(ctx context.Context, claimed []*outbox.Claimed) []error {
	outcomes := make([]error, len(claimed))
	batch := make([]relay.Message, 0, len(claimed))
	places := make([]int, 0, len(claimed)) // of the messages among the jobs
	for i, c := range claimed {
		message, err := h.mapper.Message(event(c))
		if err != nil {
			outcomes[i] = h.outcome(err)
			continue
		}
		batch, places = append(batch, message), append(places, i)
	}
	if len(batch) == 0 {
		return outcomes
	}
	answers := h.sink.Publish(ctx, batch)
	away := map[string]error{} // missing destinations
	for i, err := range answers {
		if isMissing(err) {
			away[batch[i].Destination] = err
		}
	}
	for i, place := range places {
		err := answers[i]
		if missing := away[batch[i].Destination]; missing != nil && errors.Is(err, relay.ErrNotTried) {
			err = missing // it would find the same, one batch later
		}
		outcomes[place] = h.outcome(err)
	}
	return outcomes
}

// HeaderOriginal is the header of a job that was enqueued again ("posthaste jobs replay --kind"): its value is the id
// of the original job, which is also the message's.
const HeaderOriginal = "posthaste-original-id"

// event returns a job in the form from which messages are made.
func event(c *outbox.Claimed) *relay.Event {
	e := &relay.Event{
		At: c.CreatedAt, ID: c.ID, Tenant: c.Tenant, Topic: c.Kind, Key: c.Key, ContentType: c.ContentType,
		Payload: c.Payload, Headers: c.Headers(),
	}
	if original, err := outbox.ParseID(e.Headers[HeaderOriginal]); err == nil {
		e.ID = original
	}
	return e
}

func isMissing(err error) bool {
	unavailable, ok := errors.AsType[*relay.UnavailableError](err)
	return ok && unavailable.Code == relay.CodeNoDestination
}

// outcome returns the job's outcome for the message's.
func (h *handler) outcome(err error) error {
	refused, isRefused := errors.AsType[*relay.RefusedError](err)
	unavailable, isUnavailable := errors.AsType[*relay.UnavailableError](err)
	switch {
	case err == nil:
		return nil
	case isRefused:
		return dispatcher.Discard(dispatcher.WithCode(refused.Code, err))
	case isUnavailable && isMissing(err) && h.varies:
		return dispatcher.TargetUnavailable(dispatcher.WithCode(unavailable.Code, err), 0)
	case isUnavailable:
		return dispatcher.Unavailable(dispatcher.WithCode(unavailable.Code, err), 0)
	case errors.Is(err, relay.ErrNotTried):
		return outcome.ErrNotBegun
	}
	return dispatcher.WithCode(relay.CodeUnanswered, err)
}
