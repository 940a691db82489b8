package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stream is a destination of messages, as far as the sink may query it.
type stream struct {
	name      string // "" if the sink may not query it
	config    jetstream.StreamConfig
	consumers int       // at the last query
	refusal   error     // nil, or the outcome of every message: there is no such stream
	seen      time.Time // when its settings were queried

	// These are how long an acknowledgement takes, and how long a bare round trip takes: each the shortest of its
	// samples, because noise only adds to them.
	acked, way time.Duration
	samples    int
	spent      time.Duration // time spent on sampling
}

// mode is how a run is sent to a stream.
type mode int

const (
	byWindow mode = iota
	byFastIngest
	byAtomicBatch
)

const (
	// slow is the acknowledgement time, beyond the round trip, from which atomic batches are worth their files. On the
	// machine where it was measured, an acknowledgement took 0.05 ms by default and 0.18 to 0.37 ms with sync_interval:
	// always.
	slow = 120 * time.Microsecond

	// This many samples, or this much time for them, distinguish a slow disk from a busy moment.
	enough     = 20
	longEnough = 50 * time.Millisecond
)

// mode returns how to send n messages.
func (s *stream) mode(n int) mode {
	switch {
	case n < 2:
		return byWindow
	case s.config.AllowAtomicPublish && !s.undecided() && (s.acked-s.way > slow || !ingestsFast(&s.config)):
		return byAtomicBatch
	case ingestsFast(&s.config):
		return byFastIngest
	}
	return byWindow
}

// ingestsFast reports whether a stream allows fast ingest, and may be trusted with it. A stream with replicas may not:
// while its leader changed, it has acknowledged messages that none of them kept (nats-server 2.15.2, 36 of 4 900
// messages, in one of fifteen runs of TestLeaderChanges).
func ingestsFast(c *jetstream.StreamConfig) bool { return c.AllowBatchPublish && c.Replicas < 2 }

// undecided reports whether acknowledgements of the stream are still to be measured.
func (s *stream) undecided() bool {
	return s.config.AllowAtomicPublish && s.samples < enough && s.spent < longEnough
}

// measured records a sample.
func (s *stream) measured(acked, way time.Duration) {
	if s.samples == 0 || acked < s.acked {
		s.acked = acked
	}
	if s.samples == 0 || way < s.way {
		s.way = way
	}
	s.samples++
	s.spent += acked + way
}

// takes reports whether a subject belongs to the stream.
func (s *stream) takes(subject string) bool {
	for _, filter := range s.config.Subjects {
		if matches(filter, subject) {
			return true
		}
	}
	return false
}

// matches reports whether a filter with wildcards matches a subject.
func matches(filter, subject string) bool {
	for {
		f, filterRest, more := strings.Cut(filter, ".")
		if f == ">" {
			return true
		}
		s, subjectRest, further := strings.Cut(subject, ".")
		if f != "*" && f != s || more != further {
			return false
		}
		if !more {
			return true
		}
		filter, subject = filterRest, subjectRest
	}
}

// streams caches the known streams, matched by the subjects that they take, so that subjects that contain a key cost no
// queries.
type streams []*stream

func (all streams) of(subject string) *stream {
	for _, s := range all {
		if s.takes(subject) {
			return s
		}
	}
	return nil
}

const (
	api       = "$JS.API."
	apiNames  = api + "STREAM.NAMES"
	apiStream = api + "STREAM.INFO."
	apiInfo   = api + "INFO"
)

// question queries JetStream's API and decodes its answer.
func (c *conn) question(ctx context.Context, subject string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	m, err := c.ask(ctx, subject, text)
	if err != nil {
		return err
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	if failed.Error != nil {
		return failed.Error
	}
	return json.Unmarshal(m.Data, answer)
}

// unledError reports that a stream exists whose leader does not tell its settings.
type unledError struct {
	name string
	err  error
}

func (e *unledError) Error() string { return fmt.Sprintf("look at stream %s: %v", e.name, e.err) }
func (e *unledError) Unwrap() error { return e.err }

// find returns the streams that take a subject, which may contain wildcards. It does not ask those in unled again.
func (c *conn) find(ctx context.Context, subject string, unled map[string]*unledError) (found []*stream, err error) {
	var names struct {
		Streams []string `json:"streams"`
	}
	if err := c.question(ctx, apiNames, map[string]string{"subject": subject}, &names); err != nil {
		return nil, fmt.Errorf("find the stream of %s: %w", subject, err)
	}
	for _, name := range names.Streams {
		if known := unled[name]; known != nil {
			return nil, known
		}
		var info jetstream.StreamInfo
		if err := c.question(ctx, apiStream+name, struct{}{}, &info); err != nil {
			return nil, &unledError{name, err}
		}
		found = append(found, &stream{name: name, config: info.Config, consumers: info.State.Consumers})
	}
	return found, nil
}

// lookUp returns the stream of a subject. It queries the settings again once they are a minute old, and keeps the old
// ones if nobody answers: a cluster without a leader for its settings can have one for the stream. An error means that
// the connection is lost, or that ctx has ended. lookUp adds to unled the stream that was found to have no leader: an
// outage of that stream, while others may accept messages.
func (s *Sink) lookUp(ctx context.Context, c *conn, subject string, unled map[string]*unledError) (*stream, error) {
	known := s.streams.of(subject)
	if known != nil && time.Since(known.seen) < time.Minute {
		return known, nil
	}
	found, err := c.find(ctx, subject, unled)
	one, isOne := errors.AsType[*unledError](err)
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		// Its settings remain unknown. The substitute takes every subject, one message of a key at a time.
		found = []*stream{{config: jetstream.StreamConfig{Subjects: []string{">"}}}}
	case err != nil && known != nil:
		known.seen = time.Now()
		if !c.alive() {
			return nil, unlessEnded(ctx, err)
		}
		return known, nil
	case err != nil && !c.alive():
		return nil, unlessEnded(ctx, err)
	case isOne:
		unled[one.name] = one
		return &stream{name: one.name, refusal: acceptsNothing(err)}, nil
	case err != nil:
		return &stream{refusal: away(err)}, nil
	case len(found) == 0:
		return &stream{refusal: classify(fmt.Errorf("no stream takes %s: %w", subject, errNoStream))}, nil
	case found[0].config.NoAck:
		return &stream{refusal: acceptsNothing(fmt.Errorf("stream %s acknowledges nothing: its no_ack is set",
			found[0].name))}, nil
	}
	s.forget(known)
	s.streams = append(s.streams, found[0].after(known))
	s.remembers.Store(max(s.remembers.Load(), int64(found[0].config.Duplicates)))
	return found[0], nil
}

// unlessEnded returns the outcome of a message that was not sent because of err, which may also result from the end of
// ctx.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return away(err)
}

// after returns the stream with what was measured of it before.
func (s *stream) after(before *stream) *stream {
	s.seen = time.Now()
	if before != nil && before.name == s.name {
		s.acked, s.way, s.samples, s.spent = before.acked, before.way, before.samples, before.spent
	}
	return s
}

// forget makes the next publication query a stream again: it may be another one by now.
func (s *Sink) forget(one *stream) {
	s.streams = slices.DeleteFunc(s.streams, func(known *stream) bool { return known == one })
}
