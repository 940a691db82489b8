package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Sink is the progress of publishing events to a broker.
type Sink struct {
	Sink        string    `json:"sink"`
	State       string    `json:"state" enum:"publishing,away,stuck,paused,waiting" doc:"away: the broker, or a destination, accepts nothing; messages to other destinations continue. stuck: it refuses more messages than may be held, or more wait for a destination than may. waiting: no process publishes to it"`
	Owner       string    `json:"owner,omitempty" doc:"The publishing process"`
	Published   int64     `json:"published" doc:"Messages published so far; after a crash some may be counted twice"`
	Lag         int64     `json:"lag" doc:"Positions between that of the sink and the end of the log; some have no event"`
	Holes       int64     `json:"holes" doc:"Skipped positions for which a running transaction may yet store an event"`
	Held        int64     `json:"held" doc:"Messages stored as jobs, because the sink has refused them or an earlier one of their key"`
	HeldKeys    int64     `json:"heldKeys" doc:"Number of their keys"`
	OldestAt    time.Time `json:"oldestAt,omitzero" doc:"When the oldest unpublished event was stored"`
	MovedAt     time.Time `json:"movedAt,omitzero" doc:"When messages were last published"`
	PausedSince time.Time `json:"pausedSince,omitzero"`
	Away        *Away     `json:"away,omitempty" doc:"What accepts nothing"`
}

// Away is the reason for which a sink, or a destination of it, is stopped.
type Away struct {
	Since   time.Time `json:"since"`
	Code    string    `json:"code" doc:"Such as relay_unavailable; docs/operate/relay.md lists all"`
	Message string    `json:"message" doc:"The error of the broker's client"`
}

func sinkOf(s operator.Sink) Sink {
	shown := Sink{
		Sink: s.Name, State: s.State(), Owner: s.Owner, Published: s.Published, Lag: s.Lag, Holes: s.Holes,
		Held: s.HeldMessages, HeldKeys: s.HeldKeys,
		OldestAt: utc(s.Oldest), MovedAt: utc(s.MovedAt), PausedSince: utc(s.PausedAt),
	}
	if !s.AwaySince.IsZero() {
		shown.Away = &Away{Since: utc(s.AwaySince), Code: s.AwayCode, Message: s.AwayReason}
	}
	return shown
}

type sinksOutput struct {
	Body struct {
		Sinks []Sink `json:"sinks" nullable:"false" doc:"Ordered by name"`
	}
}

func (s *server) listSinks(ctx context.Context, _ *struct{}) (*sinksOutput, error) {
	sinks, err := s.operator.Sinks(ctx)
	if err != nil {
		return nil, err
	}
	out := &sinksOutput{}
	out.Body.Sinks = make([]Sink, len(sinks))
	for i, sink := range sinks {
		out.Body.Sinks[i] = sinkOf(sink)
	}
	return out, nil
}

// OfSink names a sink in a path.
type OfSink struct {
	Sink string `path:"sink" maxLength:"128" doc:"Name of the sink in relay.yaml"`
}

type sinkOutput struct{ Body Sink }

func (s *server) getSink(ctx context.Context, in *OfSink) (*sinkOutput, error) {
	sink, err := s.operator.Sink(ctx, in.Sink)
	if err != nil {
		return nil, err
	}
	return &sinkOutput{Body: sinkOf(sink)}, nil
}

type sinkActInput struct {
	OfSink
	ForAudit
}

func (s *server) pauseSink(ctx context.Context, in *sinkActInput) (*sinkOutput, error) {
	return s.actOnSink(ctx, in, (*operator.Operator).PauseSink)
}

func (s *server) resumeSink(ctx context.Context, in *sinkActInput) (*sinkOutput, error) {
	return s.actOnSink(ctx, in, (*operator.Operator).ResumeSink)
}

// actOnSink answers with the sink's state afterwards.
func (s *server) actOnSink(ctx context.Context, in *sinkActInput,
	do func(*operator.Operator, context.Context, string) error,
) (*sinkOutput, error) {
	if err := do(s.by(ctx).Because(in.Reason), ctx, in.Sink); err != nil {
		return nil, err
	}
	out, err := s.getSink(ctx, &in.OfSink)
	return out, afterAct(err)
}

type skipEventInput struct {
	OfSink
	Body SkippedEvent
}

// SkippedEvent is an event that a sink must not publish.
type SkippedEvent struct {
	Event  string `json:"event" format:"uuid" doc:"Id of an event that is waiting for the sink"`
	Reason string `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
}

func (s *server) skipEvent(ctx context.Context, in *skipEventInput) (*sinkOutput, error) {
	event, err := outbox.ParseID(in.Body.Event)
	if err != nil {
		return nil, invalidInput.because("", Fault{Pointer: "#/event", Detail: "is no event's id"})
	}
	if _, err := s.operator.Sink(ctx, in.Sink); err != nil {
		return nil, err
	}
	if err := s.by(ctx).Because(in.Body.Reason).SkipEvent(ctx, in.Sink, event); err != nil {
		return nil, err
	}
	out, err := s.getSink(ctx, &in.OfSink)
	return out, afterAct(err)
}

// HeldMessage is a message that a sink has refused, or a later one of the same key.
type HeldMessage struct {
	Event    string    `json:"event,omitempty" format:"uuid" doc:"Id of the event, by which consumers drop repeats; omitted if the job was changed by hand"`
	Topic    string    `json:"topic,omitempty"`
	Position int64     `json:"position" doc:"Position in the log"`
	At       time.Time `json:"at,omitzero" doc:"When the event was stored"`
	Job      Job       `json:"job" doc:"The job of the message. Once it is a dead letter, retry, edit or dismiss it like others; its key is the event's"`
}

type heldInput struct {
	OfSink
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Messages per page"`
	Cursor string `query:"cursor" maxLength:"64" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
}

type heldOutput struct {
	Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
	Body struct {
		Messages []HeldMessage `json:"messages" nullable:"false" doc:"In the order of the log"`
		Next     string        `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last"`
	}
}

func (s *server) listHeld(ctx context.Context, in *heldInput) (*heldOutput, error) {
	if _, err := s.operator.Sink(ctx, in.Sink); err != nil {
		return nil, err
	}
	after, err := fromCursor(in.Cursor, readHeldCursor)
	if err != nil {
		return nil, err
	}
	held, err := s.operator.Held(ctx, in.Sink, after, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &heldOutput{}
	out.Body.Messages = make([]HeldMessage, len(held))
	for i, m := range held {
		shown := HeldMessage{Topic: m.Topic, Position: m.Position, At: utc(m.At), Job: view(principal(ctx), m.Job)}
		if !m.Event.IsZero() {
			shown.Event = m.Event.String()
		}
		out.Body.Messages[i] = shown
	}
	if len(held) == in.Limit {
		out.Body.Next = makeHeldCursor(held[len(held)-1].Place())
		out.Link = nextLink(in.Limit, out.Body.Next, nil)
	}
	return out, nil
}
