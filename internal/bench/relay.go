package bench

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// relayed publishes events of 200 bytes that are in the log already.
func relayed(ctx context.Context, r *rig) ([]Figure, error) {
	n, keys := cmp.Or(r.Jobs, 200_000), cmp.Or(r.Keys, 1000)
	var before string
	if err := r.pool.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&before); err != nil {
		return nil, err
	}
	for stored := 0; stored < n; stored += 10_000 {
		if err := r.publish(ctx, stored, min(10_000, n-stored), keys); err != nil {
			return nil, err
		}
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	sink := &counting{Sink: r.sink(), want: n, done: make(chan struct{})}
	forgetPeak()
	cpu, started := cpuTime(), time.Now()
	stop, err := r.relay(ctx, sink, nil)
	if err != nil {
		return nil, err
	}
	select {
	case <-sink.done:
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), stop())
	}
	rate := perSecond(int64(n), started)
	cpu, rss := cpuTime()-cpu, peakMiB()
	if err := stop(); err != nil {
		return nil, err
	}
	var wal float64
	if err := r.pool.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - $1::pg_lsn)::float8`, before).Scan(&wal); err != nil {
		return nil, err
	}
	return []Figure{
		{"events_per_s", rate},
		{"client_cpu_us_per_event", float64(cpu.Microseconds()) / float64(n)},
		{"wal_bytes_per_event", wal / float64(n)},
		{"rss_mib", rss},
	}, nil
}

// relayLatency publishes one event a transaction, and waits until the sink has it.
func relayLatency(ctx context.Context, r *rig) ([]Figure, error) {
	const warmUp = 50
	n, every := cmp.Or(r.Jobs, 1000), cmp.Or(r.Every, 10*time.Millisecond)
	sink := &counting{Sink: r.sink(), want: n + warmUp, done: make(chan struct{})}
	wake := listener.NewSignal()
	heard, err := listener.New(r.url, relay.Channel, wake, listener.Config{Canary: r.pool})
	if err != nil {
		return nil, err
	}
	listening, deafen := context.WithCancel(ctx)
	var ears sync.WaitGroup
	ears.Go(func() { _ = heard.Run(listening) })
	defer ears.Wait()
	defer deafen()
	stop, err := r.relay(ctx, sink, func(c *relay.Config) { c.Wake, c.Hearing = wake, heard.Hearing })
	if err != nil {
		return nil, err
	}
	begun := make([]time.Time, n+warmUp)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range begun {
		<-tick.C
		begun[i] = time.Now()
		if err := r.publish(ctx, i, 1, 1000); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	select {
	case <-sink.done:
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), stop())
	}
	if err := stop(); err != nil {
		return nil, err
	}
	var took []time.Duration
	for i, at := range sink.at[warmUp:] {
		took = append(took, at.Sub(begun[warmUp+i]))
	}
	return percentiles(took), nil
}

func (r *rig) sink() relay.Sink {
	if r.Sink != nil {
		return r.Sink
	}
	return null{}
}

// publish stores events first to first+n-1 in one transaction.
func (r *rig) publish(ctx context.Context, first, n, keys int) error {
	_, err := r.pool.Exec(ctx, `
		WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
			SELECT gen_random_uuid(), $1, 'order.paid', 'order-' || i % $4::integer, 'application/json', $5,
				'{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
			FROM generate_series($2::integer, $2 + $3 - 1) AS i)
		SELECT pg_notify('outbox_events', '')`, outbox.RootTenant, first, n, keys, payload)
	return err
}

var payload = slices.Repeat([]byte("x"), 200)

// relay publishes to the sink until stop is called.
func (r *rig) relay(ctx context.Context, sink relay.Sink, change func(*relay.Config)) (stop func() error, err error) {
	config := relay.Config{
		Sinks:  []relay.SinkConfig{{Name: "bench", Sink: sink, Routes: []relay.Route{{Topics: []string{"*"}, Destination: r.Destination}}}},
		Logger: r.Logger,
	}
	if change != nil {
		change(&config)
	}
	made, err := relay.New(r.pool, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- made.Run(ctx) }()
	return func() error { cancel(); return <-ended }, nil
}

// counting notes when the sink has accepted each message, in their order.
type counting struct {
	relay.Sink
	want int
	done chan struct{}
	at   []time.Time
}

func (c *counting) Publish(ctx context.Context, batch []relay.Message) []error {
	outcomes := c.Sink.Publish(ctx, batch)
	now := time.Now()
	before := len(c.at)
	for _, err := range outcomes {
		if err == nil {
			c.at = append(c.at, now)
		}
	}
	if before < c.want && len(c.at) >= c.want {
		close(c.done)
	}
	return outcomes
}

// null is a sink that accepts everything.
type null struct{}

func (null) Publish(_ context.Context, batch []relay.Message) []error {
	return make([]error, len(batch))
}

func (null) Limits() relay.Limits                                           { return relay.Limits{} }
func (null) Probe(context.Context) error                                    { return nil }
func (null) Check(context.Context, []string) (f []relay.Finding, err error) { return nil, nil }
func (null) Close() error                                                   { return nil }
