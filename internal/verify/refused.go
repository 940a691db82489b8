package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/natsproc"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

const (
	smallPayloads = "max_payload: 65536"
	largePayloads = "max_payload: 1048576"
)

// refusedFirst runs row E3: the broker refuses the first message of a key for a while, and relays die.
func refusedFirst(ctx context.Context, r *Run) (err error) {
	const keys = 1_000
	numbers, kills := r.Size(20, 60), r.Size(3, 30)
	broker, err := r.brokerWith(ctx, natsproc.Options{Config: smallPayloads})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Kill9()) }()
	p := &publishing{clients: 4, keys: 100, rest: 10 * time.Millisecond} // so that there are always acknowledgements
	if err := r.publish(ctx, p); err != nil {
		return err
	}
	if err := r.storeRefused(ctx, keys, numbers); err != nil {
		return errors.Join(err, p.stop())
	}
	stopReaper, err := r.reap(ctx)
	if err != nil {
		return errors.Join(err, p.stop())
	}
	defer func() { err = errors.Join(err, stopReaper()) }()
	hired := 0
	hire := func(die int) (*child.Process, error) {
		hired++
		p, err := r.relay(fmt.Sprint("relay", hired), "VERIFY_SINKS=s=nats", "VERIFY_BROKER="+broker.URL,
			"OUTBOX_LEASE_TTL=1s", fmt.Sprint("VERIFY_DIE=", die))
		if err == nil && die > 0 {
			p.MayEnd()
		}
		return p, err
	}
	holds := func() bool {
		n, err := r.heldMessages(ctx)
		return err == nil && n >= keys/10
	}
	_, err = r.killRelays(ctx, kills, func() bool { return !holds() }, hire)
	if err := errors.Join(err, p.stop()); err != nil {
		return err
	}
	last, err := hire(0)
	if err != nil {
		return err
	}
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	if err := r.publishHeld(ctx, broker, keys/10*numbers); err != nil {
		return err
	}
	if err := r.stop(ctx, last); err != nil {
		return err
	}
	got, err := stored(ctx, broker.URL, eventStream)
	if err != nil {
		return err
	}
	_, err = r.checkPublished(ctx, p.acked, got, nothing)
	return err
}

// publishHeld checks that the given number of messages is held back, and makes the broker accept them.
func (r *Run) publishHeld(ctx context.Context, broker *natsproc.Server, want int) error {
	held, err := r.heldMessages(ctx)
	if err != nil {
		return err
	}
	r.Expect("messages held back: the refused ones and those behind them", float64(held), "=", float64(want))
	return r.mendRefused(ctx, broker)
}

// reap runs a reaper, which takes back what dead relays have claimed, until stop is called.
func (r *Run) reap(ctx context.Context) (stop func() error, err error) {
	reaper, err := reaper.New(r.DB, reaper.Config{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- reaper.Run(ctx) }()
	return func() error { cancel(); return <-ended }, nil
}

// storeRefused stores events of the given number of keys, key after key for each number. The first event of every tenth
// key is larger than the broker accepts.
func (r *Run) storeRefused(ctx context.Context, keys, numbers int) error {
	_, err := r.DB.Exec(ctx, `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 'order.paid', 'first' || key, 'text/plain',
			convert_to('first' || key || '/' || CASE WHEN number = 1 AND key % 10 = 0 THEN lpad('1', 70000, '0') ELSE number::text END, 'UTF8')
		FROM generate_series(1, $3::integer) AS number, generate_series(1, $2::integer) AS key`, outbox.RootTenant, keys, numbers)
	if err != nil {
		return fmt.Errorf("store events that are refused: %w", err)
	}
	return nil
}

// heldMessages returns how many messages of the sink are held back as open jobs.
func (r *Run) heldMessages(ctx context.Context) (int, error) {
	sink, err := operator.New(r.DB).Sink(ctx, "s")
	return int(sink.HeldMessages), err
}

// mendRefused makes the broker accept large messages, replays dead letters, and waits until no job is left. It restarts
// the broker: one that only reloads its settings does not tell connected clients, which keep the old limit.
func (r *Run) mendRefused(ctx context.Context, broker *natsproc.Server) error {
	if err := errors.Join(broker.Kill9(), broker.Configure(largePayloads), broker.Restart()); err != nil {
		return err
	}
	return r.Await(ctx, 2*time.Minute, "the refused messages to be published", func(ctx context.Context) (bool, error) {
		for _, err := range operator.New(r.DB).ReplayDeadLetters(ctx, operator.DeadLetterFilter{Kind: "relay:s"}, 0) {
			if err != nil {
				return false, err
			}
		}
		left, err := r.heldMessages(ctx)
		return left == 0, err
	})
}
