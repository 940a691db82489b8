package relay

import (
	"cmp"
	"encoding/json"
	"mime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// A Mapper makes messages as a relay does, from events that are not in its log.
type Mapper struct {
	route  route
	source string
}

// NewMapper returns the mapper of a route, ignoring the route's topics. Source is as in [Config].
func NewMapper(r Route, source string) (*Mapper, error) {
	r.Topics = []string{"*"}
	compiled, err := compile(r)
	return &Mapper{compiled, cmp.Or(source, defaultSource)}, err
}

// Message returns the message to publish for an event. Its error is a [*RefusedError].
func (m *Mapper) Message(e *Event) (Message, error) { return messageOf(e, &m.route, m.source) }

// messageOf returns the message that a route publishes for an event.
//
// CloudEvents attributes have the names of the HTTP binding, ce-id and so on; a sink writes names and values as the
// binding of its protocol requires.
func messageOf(e *Event, r *route, source string) (Message, error) {
	if e.fault != nil {
		return Message{}, &RefusedError{CodeRefused, e.fault}
	}
	destination, err := r.destination.fill(e)
	if err != nil {
		return Message{}, &RefusedError{CodeBadDestination, err}
	}
	if e, err = r.asPreset(e); err != nil {
		return Message{}, &RefusedError{CodeRefused, err}
	}
	m, err := e.envelope(r.CloudEvents, source)
	m.Destination = destination
	return m, err
}

// envelopes caches the messages made from an event, by content mode and without a destination.
type envelopes [3]atomic.Pointer[Message]

func (e *envelopes) of(mode CloudEvents) *atomic.Pointer[Message] {
	switch mode {
	case CloudEventsStructured:
		return &e[1]
	case CloudEventsOff:
		return &e[2]
	}
	return &e[0]
}

// envelope returns the event's message without a destination. Sinks that share the event share it.
func (e *Event) envelope(mode CloudEvents, source string) (Message, error) {
	if e.made == nil || e.replay != "" {
		return e.makeEnvelope(mode, source)
	}
	at := e.made.of(mode)
	if m := at.Load(); m != nil {
		return *m, nil
	}
	m, err := e.makeEnvelope(mode, source)
	if err == nil {
		at.Store(&m)
	}
	return m, err
}

func (e *Event) makeEnvelope(mode CloudEvents, source string) (m Message, err error) {
	m = Message{
		ID: e.messageID(), Key: e.Key, ContentType: e.ContentType, Body: e.Payload, At: e.At,
		Position: e.Position,
	}
	if mode == CloudEventsStructured {
		if m.Body, err = structured(e, m.ID, source); err != nil {
			return Message{}, &RefusedError{CodeRefused, err}
		}
		m.ContentType = "application/cloudevents+json"
	}
	m.Headers = make([]Header, 0, len(e.Headers)+8)
	if mode == CloudEventsBinary {
		m.Headers = appendAttributes(m.Headers, e, m.ID, source)
	}
	if e.replay != "" {
		m.Headers = append(m.Headers, Header{HeaderReplay, e.replay})
	}
	ours := len(m.Headers)
	for name, value := range e.Headers {
		same := func(h Header) bool { return strings.EqualFold(h.Name, name) }
		if !slices.ContainsFunc(m.Headers[:ours], same) {
			m.Headers = append(m.Headers, Header{name, value})
		}
	}
	slices.SortFunc(m.Headers[ours:], func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	m.Headers = slices.Clip(m.Headers)
	return m, nil
}

// messageID returns the event's ID, or in a replay under new ids that ID with the replay's.
func (e *Event) messageID() string {
	if e.again {
		return e.ID.String() + "/" + e.replay
	}
	return e.ID.String()
}

// appendAttributes appends the attributes of CloudEvents 1.0, with the extensions partitionkey and sequence. A sequence
// has leading zeros, so that it sorts as text as it does as a number.
func appendAttributes(headers []Header, e *Event, id, source string) []Header {
	headers = append(headers,
		Header{"ce-specversion", "1.0"},
		Header{"ce-id", id},
		Header{"ce-source", source},
		Header{"ce-type", e.Topic},
		Header{"ce-time", e.At.UTC().Format(time.RFC3339Nano)})
	if e.Position > 0 {
		headers = append(headers, Header{"ce-sequence", sequence(e.Position)})
	}
	if e.Key != "" {
		headers = append(headers, Header{"ce-subject", e.Key}, Header{"ce-partitionkey", e.Key})
	}
	return headers
}

func sequence(position int64) string {
	const zeros = "00000000000000000000"
	digits := strconv.FormatInt(position, 10)
	return zeros[len(digits):] + digits
}

// structured returns an event in the JSON format of CloudEvents.
func structured(e *Event, id, source string) ([]byte, error) {
	fields := map[string]any{"datacontenttype": e.ContentType}
	for _, name := range []string{"traceparent", "tracestate"} {
		if value, ok := e.Headers[name]; ok {
			fields[name] = value
		}
	}
	for _, a := range appendAttributes(nil, e, id, source) {
		fields[strings.TrimPrefix(a.Name, "ce-")] = a.Value
	}
	asJSON := isJSON(e.ContentType) && utf8.Valid(e.Payload) && json.Valid(e.Payload)
	if !asJSON {
		fields["data_base64"] = e.Payload
	}
	body, err := json.Marshal(fields)
	if err != nil || !asJSON {
		return body, err
	}
	// The encoder would remove spaces from the payload; appended like this, its bytes are unchanged.
	return slices.Concat(body[:len(body)-1], []byte(`,"data":`), e.Payload, []byte("}")), nil
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}
