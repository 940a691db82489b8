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

// A Source is a broker's supply of messages for a bridge. Its methods are not called concurrently.
type Source interface {
	// Fetch waits for messages until ctx ends, and returns up to most of them, those of a key in order, or none if
	// there were none. It connects if there is no connection. After an error the same messages come again.
	Fetch(ctx context.Context, most int) ([]Message, error)

	// Ack makes the broker never again send what Fetch returned since the last Ack or Release.
	Ack(ctx context.Context) error

	// Release gives messages back that were returned and not acknowledged, for another process or the next Fetch.
	Release()

	// Close releases connections.
	Close() error
}

// A Lagging source reports how many messages there were behind those that it has returned, by the broker's last report.
type Lagging interface{ Lag() int64 }

// Message is a message as a broker delivers it.
type Message struct {
	// ID is the same for each delivery of a message, and differs from those of all other messages of the source.
	ID       string
	Source   string // the stream or topic; with ID, the idempotency key of the job
	Subject  string // for display: the subject, or topic and partition
	Key      string // "" for none; any bytes
	Position int64  // for display: in the stream or partition, from 1
	// ContentType may be "": then valid JSON counts as application/json, and anything else as application/octet-stream.
	ContentType string
	Headers     []Header
	Body        []byte
}

// Header is a header of a message. Its value may be any bytes.
type Header struct{ Name, Value string }

// Config sets which messages become which jobs.
type Config struct {
	Bridges []BridgeConfig

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers the metrics nowhere
}

// BridgeConfig is one source and the jobs that are made from its messages.
type BridgeConfig struct {
	Name   string // in logs and metrics; under different names, two processes fetch concurrently
	Source Source

	Kind    string         // of the jobs
	Options outbox.Options // of each job; the key's name, IdempotencyKey and Headers come from the message

	// Ordered makes the jobs of a key run in the order of the messages, and makes a dead letter block its key. Without
	// it, a message with a key becomes a job with this key, and the jobs of a key run one at a time, or as many at
	// once as Options.Key.MaxActive. A message without a key becomes a job without one, to which none of the rules in
	// Options.Key apply.
	Ordered bool

	// MaxQueued limits the waiting jobs of the queue and tenant: beyond it the bridge fetches no more. 0 means no
	// limit. A batch that was fetched is stored all the same, so stay 500 below any hard limit.
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
			errs = append(errs, invalid.Field("Bridges", "has a name of %d bytes, want 1 to %d", len(b.Name),
				maxNameBytes))
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

// Validate returns the mistakes in the options of the jobs.
func (b BridgeConfig) Validate() error {
	var errs []error
	if b.MaxQueued < 0 || b.MaxQueued > maxMaxQueued {
		errs = append(errs, invalid.Field("MaxQueued", "is %d, want 0 to %d", b.MaxQueued, maxMaxQueued))
	}
	if b.Options.Key.Name != "" || b.Options.IdempotencyKey != "" || len(b.Options.Headers) > 0 {
		errs = append(errs, invalid.Field("Options", "has Key.Name, IdempotencyKey or Headers, which are the message's"))
	}
	if b.Options.Key.Ordered {
		errs = append(errs, invalid.Field("Options.Key.Ordered", "is set: set BridgeConfig.Ordered instead"))
	}
	if b.Options.Key.Sequence != 0 {
		errs = append(errs, invalid.Field("Options.Key.Sequence",
			"is set: the jobs of a key are ordered by their messages"))
	}
	b.Options.Check = nil // it knows the messages of this bridge, of which the trial is none
	_, err := b.job(&Message{ID: "1", Source: "s", Key: "k", Position: 1, Body: []byte("{}")})
	return errors.Join(append(errs, err)...)
}
