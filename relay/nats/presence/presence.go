// Package presence publishes heartbeats of a process's workers on NATS, for programs that want to know which workers
// exist without querying the database. Nothing depends on them: jobs run the same without NATS.
package presence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/relay"
	relaynats "github.com/posthaste-dev/posthaste/relay/nats"
)

// DefaultSubjectPrefix begins the subjects: posthaste.jobs.workers.<queue>.<kind>.<worker>.heartbeat.
const DefaultSubjectPrefix = "posthaste.jobs"

// Interval is the time between two heartbeats, give or take a tenth.
const Interval = 10 * time.Second

// Config sets where heartbeats are published.
type Config struct {
	NATS          relaynats.Config
	SubjectPrefix string       // "" means DefaultSubjectPrefix
	Logger        *slog.Logger // nil logs nothing

	interval time.Duration // for tests
}

// Heartbeat announces that a worker runs jobs of a kind in a queue.
type Heartbeat struct {
	Service     string    `json:"service"` // the queue
	JobType     string    `json:"jobType"` // the kind
	InstanceID  string    `json:"instanceId"`
	Concurrency int       `json:"concurrency"` // of the queue, shared by all its kinds
	Version     string    `json:"version,omitempty"`
	Timestamp   time.Time `json:"timestamp"`
}

// A Reporter publishes the heartbeats of one process. Make one with [New].
type Reporter struct {
	config Config
	worker dispatcher.Presence
}

// New returns a reporter. It does not connect yet. Its errors are mistakes in the configuration.
func New(config Config) (*Reporter, error) {
	config.SubjectPrefix = cmp.Or(config.SubjectPrefix, DefaultSubjectPrefix)
	config.interval = cmp.Or(config.interval, Interval)
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if err := config.NATS.Validate(); err != nil {
		return nil, fmt.Errorf("configure heartbeats: %w", err)
	}
	if err := relaynats.CheckPrefix(config.SubjectPrefix); err != nil {
		return nil, fmt.Errorf("configure heartbeats: %w", err)
	}
	return &Reporter{config: config}, nil
}

// Report sets the worker to announce: see [dispatcher.Dispatcher.Presence]. Call it before Run.
func (r *Reporter) Report(worker dispatcher.Presence) { r.worker = worker }

// Run publishes until ctx ends. It waits for an unavailable NATS server, and does not make up for heartbeats missed
// meanwhile. Without a worker to announce it does nothing.
func (r *Reporter) Run(ctx context.Context) error {
	if len(r.worker.Queues) == 0 {
		<-ctx.Done()
		return nil
	}
	relaynats.KeepConnected(ctx, r.config.NATS, r.config.Logger, r.beat)
	return nil
}

// beat publishes on one connection.
func (r *Reporter) beat(ctx context.Context, nc *nats.Conn) error {
	for {
		if err := r.publish(nc, time.Now().UTC()); err != nil {
			return err
		}
		tenth := r.config.interval / 10
		next := time.NewTimer(r.config.interval - tenth + rand.N(2*tenth))
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return nil
		}
	}
}

// publish publishes a heartbeat for each queue and kind.
func (r *Reporter) publish(nc *nats.Conn, now time.Time) error {
	for _, queue := range slices.Sorted(maps.Keys(r.worker.Queues)) {
		for _, kind := range r.worker.Kinds {
			data, err := json.Marshal(Heartbeat{
				queue, kind, r.worker.Worker, r.worker.Queues[queue], r.worker.Version,
				now,
			})
			if err != nil {
				return err
			}
			subject := strings.Join([]string{
				r.config.SubjectPrefix, "workers", relay.Token(queue), relay.Token(kind),
				relay.Token(r.worker.Worker), "heartbeat",
			}, ".")
			if err := nc.Publish(subject, data); err != nil {
				return err
			}
		}
	}
	return nil
}
