package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// relayed publishes events of 200 bytes that the log already holds.
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
	switch {
	case r.Sinks > 1:
		return r.severalSinks(ctx, n)
	case r.HoldSnapshot:
		return r.besideATransaction(ctx, n)
	}
	forgetPeak()
	one, err := r.drain(ctx, n, "bench", r.sink())
	if err != nil {
		return nil, err
	}
	rss := peakMiB()
	var wal float64
	if err := r.pool.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - $1::pg_lsn)::float8`, before).Scan(
		&wal); err != nil {
		return nil, err
	}
	return []Figure{
		{"events_per_s", one.rate},
		{"client_cpu_us_per_event", one.cpu},
		{"wal_bytes_per_event", wal / float64(n)},
		{"rss_mib", rss},
	}, nil
}

// drained holds how fast, and at what cost, the log was published.
type drained struct {
	rate float64 // events per second, to each sink
	cpu  float64 // processor time of this process, microseconds per event
}

// drain publishes the n events of the log to new sinks of these names at once. All sinks but the first accept
// everything.
func (r *rig) drain(ctx context.Context, n int, name string, first relay.Sink, more ...string) (d drained, err error) {
	sinks := []*counting{{Sink: first, want: n, done: make(chan struct{})}}
	names := append([]string{name}, more...)
	for range more {
		sinks = append(sinks, &counting{Sink: null{}, want: n, done: make(chan struct{})})
	}
	cpu, started := cpuTime(), time.Now()
	stop, err := r.relay(ctx, sinks[0], func(c *relay.Config) {
		route := c.Sinks[0].Routes
		c.Sinks = nil
		for i, sink := range sinks {
			c.Sinks = append(c.Sinks, relay.SinkConfig{Name: names[i], Sink: sink, Routes: route})
		}
	})
	if err != nil {
		return d, err
	}
	for _, sink := range sinks {
		select {
		case <-sink.done:
		case <-ctx.Done():
			return d, errors.Join(ctx.Err(), stop())
		}
	}
	d = drained{rate: perSecond(int64(n), started), cpu: float64((cpuTime() - cpu).Microseconds()) / float64(n)}
	return d, stop()
}

// relayTurns is how often the compared cases are measured, alternately.
const relayTurns = 3

// severalSinks compares the processor time of this process and the server for several sinks with that for one.
func (r *rig) severalSinks(ctx context.Context, n int) ([]Figure, error) {
	var alone, together []float64
	for turn := range relayTurns {
		for _, several := range []bool{false, true} {
			names := []string{fmt.Sprint("alone", turn)}
			if several {
				names = nil
				for i := range r.Sinks {
					names = append(names, fmt.Sprintf("together%d-%d", turn, i))
				}
			}
			server, err := r.serverTime(ctx)
			if err != nil {
				return nil, err
			}
			d, err := r.drain(ctx, n, names[0], null{}, names[1:]...)
			if err != nil {
				return nil, err
			}
			after, err := r.serverTime(ctx)
			if err != nil {
				return nil, err
			}
			cost := d.cpu + float64((after-server).Microseconds())/float64(n)
			if several {
				together = append(together, cost)
			} else {
				alone = append(alone, cost)
			}
		}
	}
	one, all := median(alone), median(together)
	return []Figure{{"cpu_us_per_event", all}, {"cpu_us_per_event_one", one}, {"of_one", all / one}}, nil
}

// besideATransaction compares the rate beside an open transaction, which has published and holds a snapshot, with the
// rate without one.
func (r *rig) besideATransaction(ctx context.Context, n int) ([]Figure, error) {
	var clean, held []float64
	for turn := range relayTurns {
		d, err := r.drain(ctx, n, fmt.Sprint("clean", turn), null{})
		if err != nil {
			return nil, err
		}
		clean = append(clean, d.rate)
		forgotten, err := r.forget(ctx)
		if err != nil {
			return nil, err
		}
		if _, err = forgotten.Exec(
			ctx, `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload) VALUES (gen_random_uuid(), $1, 'late', 'text/plain', '')`, outbox.RootTenant); err == nil {
			err = r.publish(ctx, n+turn, 1, 1) // after it, so that its position is a gap
		}
		if err == nil {
			d, err = r.drain(ctx, n, fmt.Sprint("held", turn), null{})
		}
		if err = errors.Join(err, forgotten.Rollback(context.WithoutCancel(ctx))); err != nil {
			return nil, err
		}
		held = append(held, d.rate)
	}
	return []Figure{
		{"held_events_per_s", median(held)},
		{"clean_events_per_s", median(clean)},
		{"kept", median(held) / median(clean)},
	}, nil
}

// relayLatency publishes one event per transaction, and measures how long it takes until the sink has it, commit
// included. after_commit is measured from when the producer has the response to the commit.
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
	stop, err := r.relay(ctx, sink, func(c *relay.Config) { c.Wake, c.Listening = wake, heard.Listening })
	if err != nil {
		return nil, err
	}
	begun, commits := make([]time.Time, n+warmUp), make([]time.Duration, n+warmUp)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range begun {
		<-tick.C
		begun[i] = time.Now()
		if err := r.publish(ctx, i, 1, 1000); err != nil {
			return nil, errors.Join(err, stop())
		}
		commits[i] = time.Since(begun[i])
	}
	select {
	case <-sink.done:
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), stop())
	}
	if err := stop(); err != nil {
		return nil, err
	}
	var took, after []time.Duration
	for i, at := range sink.at[warmUp:] {
		took = append(took, at.Sub(begun[warmUp+i]))
		after = append(after, took[i]-commits[warmUp+i])
	}
	behind := percentiles(after)
	return append(percentiles(took), Figure{"commit_p50_ms", percentiles(commits[warmUp:])[0].Value},
		Figure{"after_commit_p50_ms", behind[0].Value}, Figure{"after_commit_p99_ms", behind[2].Value}), nil
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
		Sinks: []relay.SinkConfig{
			{Name: "bench", Sink: sink, Routes: []relay.Route{{Topics: []string{"*"}, Destination: r.Destination}}},
		},
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

// counting records when the sink has accepted each message, in order.
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

func (null) Probe(context.Context) error                                    { return nil }
func (null) Check(context.Context, []string) (f []relay.Finding, err error) { return nil, nil }
func (null) Close() error                                                   { return nil }
