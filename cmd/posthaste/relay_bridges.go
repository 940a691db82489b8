package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/kafka"
	"github.com/posthaste-dev/posthaste/relay/nats"
)

// bridgeSpec is a stream or topic whose messages become jobs. It has nats or kafka, and the fields of that.
type bridgeSpec struct {
	NATS     *natsSpec `yaml:"nats"`     // with the fields of a sink
	Stream   text      `yaml:"stream"`   // of NATS
	Consumer text      `yaml:"consumer"` // of NATS: durable, created if it does not exist; no other service may have it
	Subjects []text    `yaml:"subjects"` // of NATS (default: all subjects of the stream)

	Kafka *kafkaSpec `yaml:"kafka"` // with the fields of a sink
	Topic text       `yaml:"topic"` // of Kafka
	// consumer group of Kafka, which no other service may have; a new one begins with the oldest messages
	Group text `yaml:"group"`

	Kind    string `yaml:"kind"`    // of the jobs
	Queue   string `yaml:"queue"`   // of the jobs (default: default)
	Tenant  string `yaml:"tenant"`  // id of the jobs' tenant (default: the root tenant)
	Ordered bool   `yaml:"ordered"` // a key's jobs run in the order of its messages (default: false)
	// how many jobs of the queue and tenant may wait before the bridge fetches no more (default: no limit)
	MaxQueued int `yaml:"maxQueued"`
}

// probed is a source that can check whether it would fetch.
type probed interface {
	bridge.Source
	Probe(context.Context) error
}

// open makes the source. It does not connect yet.
func (b bridgeSpec) open() (probed, error) {
	switch {
	case (b.NATS == nil) == (b.Kafka == nil):
		return nil, errors.New("has no source: want nats or kafka")
	case b.NATS != nil && b.Topic+b.Group != "":
		return nil, errors.New("topic and group are fields of kafka; nats has stream, consumer and subjects")
	case b.Kafka != nil && (b.Stream+b.Consumer != "" || len(b.Subjects) > 0):
		return nil, errors.New("stream, consumer and subjects are fields of nats; kafka has topic and group")
	case b.NATS != nil:
		return nats.OpenSource(b.NATS.config(), nats.SourceConfig{
			Stream: string(b.Stream), Consumer: string(b.Consumer), Subjects: plain(b.Subjects),
			Ordered: b.Ordered,
		})
	}
	return kafka.OpenSource(b.Kafka.config(), kafka.SourceConfig{Topic: string(b.Topic), Group: string(b.Group)})
}

// config returns the bridge without its source.
func (b bridgeSpec) config(name string) (bridge.BridgeConfig, error) {
	c := bridge.BridgeConfig{
		Name: name, Kind: b.Kind, Options: outbox.Options{Queue: b.Queue}, Ordered: b.Ordered,
		MaxQueued: b.MaxQueued,
	}
	if b.Tenant != "" {
		tenant, err := outbox.ParseID(b.Tenant)
		if err != nil {
			return c, invalid.Field("Tenant", "is %q, want 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab", b.Tenant)
		}
		c.Options.Tenant = tenant
	}
	return c, errors.Join(c.Validate(), b.checkName(name))
}

// checkName returns an error if the bridge has no name of its own at the broker: a default could be that of a bridge of
// another service, and each of the two would get a part of the messages.
func (b bridgeSpec) checkName(name string) error {
	switch {
	case b.NATS != nil && b.Consumer == "":
		return invalid.Field("Consumer", "is missing: want a name that no other service has, such as SERVICE-%s", name)
	case b.Kafka != nil && b.Group == "":
		return invalid.Field("Group", "is missing: want a name that no other service has, such as SERVICE-%s", name)
	}
	return nil
}

// bridges opens the sources, by name.
func (c *relayConfig) bridges() (all []bridge.BridgeConfig, err error) {
	for _, name := range slices.Sorted(maps.Keys(c.Bridges)) {
		b, err := c.Bridges[name].config(name)
		if err == nil {
			b.Source, err = c.Bridges[name].open()
		}
		if err != nil {
			return nil, fmt.Errorf("bridge %s: %w", name, err)
		}
		all = append(all, b)
	}
	return all, nil
}

// withBridges returns the process with the bridges of relay.yaml as one more component, if it has any.
func withBridges(s settings) (app.Config, error) {
	bridges, err := s.relayConfig.bridges()
	if err != nil || len(bridges) == 0 {
		return s.app, err
	}
	pool, err := app.OpenPool(s.app, 2, 0)
	if err != nil {
		return s.app, err
	}
	r, err := bridge.New(pool, bridge.Config{Bridges: bridges, Logger: s.app.Logger, Registerer: s.app.Registry})
	if err != nil {
		return s.app, err
	}
	s.app.Components = append(s.app.Components, app.Component{
		Name: "bridge", Ready: r.Ready, Pool: pool,
		NeedsSchema: true, Run: r.Run,
	})
	return s.app, nil
}

// checkBridge returns the findings about a bridge, or one that there are none.
func checkBridge(ctx context.Context, b bridge.BridgeConfig) []relay.Finding {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	source := b.Source.(probed)
	if err := errors.Join(source.Probe(ctx), source.Close()); err != nil {
		return []relay.Finding{
			{
				Severity: relay.SeverityProblem, What: err.Error(),
				Remedy: "check address, credentials, network, and the names in relay.yaml",
			},
		}
	}
	return []relay.Finding{{Severity: relay.SeverityNote, What: "it can fetch"}}
}
