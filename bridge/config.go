package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Source is where a broker has messages for a bridge. Its methods are not called concurrently.
type Source interface {
	// Fetch waits for messages until ctx ends, and returns up to so many of them, those of a key in their order; none
	// if there were none. It connects if there is no connection. After an error the same messages come again.
	Fetch(ctx context.Context, most int) ([]Message, error)

	// Ack has the broker never send again what was returned by Fetch since the last Ack or Release.
	Ack(ctx context.Context) error

	// Release gives back what was returned and not acknowledged, for another process or the next Fetch.
	Release()

	// Close releases connections.
	Close() error
}

// A Lagging source knows how many messages there were behind those that it has returned, when its broker said so last.
type Lagging interface{ Lag() int64 }

// Message is a message as a broker delivers it.
type Message struct {
	// ID is the same for each delivery of a message, and unlike those of all other messages of the source.
	ID       string
	Source   string // the stream or topic; with ID the idempotency key of the job
	Subject  string // for people: the subject, or topic and partition
	Key      string // "" for none; any bytes
	Position int64  // for people: in the stream or partition, from 1
	// ContentType is "" if nobody says it: application/json for what is valid JSON, and otherwise
	// application/octet-stream.
	ContentType string
	Headers     []Header
	Body        []byte
}

// Header is a header of a message. Its value may be any bytes.
type Header struct{ Name, Value string }

// Config is which messages become which jobs.
type Config struct {
	Bridges []BridgeConfig

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

// BridgeConfig is one source and the jobs that are made of its messages.
type BridgeConfig struct {
	Name   string // in logs and metrics; under another name two processes fetch beside each other
	Source Source

	Kind    string         // of the jobs
	Options outbox.Options // of each of them, but for Key, IdempotencyKey and Headers, which are the message's

	// A message with a key is a job with this key, of which one runs at a time. With Ordered they also run in the order
	// of the messages, and a dead letter holds up its key.
	Ordered bool

	// MaxQueued is how many jobs of the queue and tenant may wait: the bridge then fetches no more. 0 is any number.
	// A batch that was fetched is stored, so keep a distance of 500 from what must not be.
	MaxQueued int
}

const (
	maxNameBytes = 128
	maxMaxQueued = 1_000_000
)

func (c Config) validate() error {
	var errs []error
	if len(c.Bridges) == 0 {
		errs = append(errs, invalid.Field("Bridges", "is empty: there is nothing to fetch"))
	}
	names := map[string]bool{}
	for _, b := range c.Bridges {
		switch {
		case b.Name == "" || len(b.Name) > maxNameBytes:
			errs = append(errs, invalid.Field("Bridges", "has a name of %d bytes, want 1 to %d", len(b.Name), maxNameBytes))
		case names[b.Name]:
			errs = append(errs, invalid.Field("Bridges", "has two that are called %q", b.Name))
		case b.Source == nil:
			errs = append(errs, invalid.Field("Bridges", "bridge %q has no Source", b.Name))
		}
		names[b.Name] = true
		if err := b.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("bridge %q: %w", b.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Validate reports what is wrong with the jobs that are to be made.
func (b BridgeConfig) Validate() error {
	var errs []error
	if b.MaxQueued < 0 || b.MaxQueued > maxMaxQueued {
		errs = append(errs, invalid.Field("MaxQueued", "is %d, want 0 to %d", b.MaxQueued, maxMaxQueued))
	}
	if b.Options.Key.Name != "" || b.Options.IdempotencyKey != "" || len(b.Options.Headers) > 0 {
		errs = append(errs, invalid.Field("Options", "has Key, IdempotencyKey or Headers, which are the message's"))
	}
	_, err := b.job(&Message{ID: "1", Source: "s", Key: "k", Position: 1, Body: []byte("{}")})
	return errors.Join(append(errs, err)...)
}
