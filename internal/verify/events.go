package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/natsproc"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// events returns family E: what is committed is published, the events of each key in the order in which transactions
// locked the key.
func events() []Row {
	return []Row{
		{
			Name: "E1", Timed: true, Title: "Relay killed before it stores its cursor",
			Fault: "the relay that publishes to a NATS server is killed with kill -9 between the server's acknowledgement and the store of the cursor (10 times, S: 500)", Tiers: both, run: killsAtAck, direct: true,
			Workload: "8,000 events (S: 100,000) of 100 keys from 8 publishers, one transaction in ten rolled back; two relays with leases of 1 s",
			Pass: eventsSafe +
				"; the broker stores no message twice; a sink that stores repeats gets at most 1000 messages twice for a kill; the next owner's first message ≤ 2 s after a kill",
		},
		{
			Name: "E2", Timed: true, Title: "Broker down",
			Fault: "the NATS server is killed with kill -9 and down for 20 s (S: 10 min); then it is stopped (SIGSTOP) for 2 s (S: 60 s) while it has messages that it has not acknowledged", Tiers: both, run: brokerAway, direct: true,
			Workload: "one publisher, 100 transactions per second throughout; 100,000 events (S: 500,000) that wait before the outage, and as many when it ends",
			Pass: eventsSafe +
				"; the broker stores no message twice; no jobs created from events; during the outage at most one statement per second and one log line in ten seconds, and p99 of publishing transactions ≤ 1.5 × that before (or 20 ms); the backlog is published at ≥ 0.5 (S: 0.9) of the rate before",
		},
		{
			Name: "E3", Title: "First message of a key refused",
			Fault: "a NATS server refuses the first message of every tenth key until its limit is raised; relays are killed with kill -9 after an acknowledgement (3 times, S: 30)", Tiers: both, run: refusedFirst, direct: true,
			Workload: "20,000 events (S: 60,000) of 1,000 keys, and 4 publishers; two relays with leases of 1 s",
			Pass: eventsSafe +
				"; until then, all messages of a tenth of the keys are held as jobs; afterwards dead letters are replayed",
		},
		{
			Name: "E4", Timed: true, Title: "Transactions that commit out of order",
			Fault: "transactions commit in another order than they took their positions in: they stay open for 0 to 20 ms (S: up to 100 ms) after that, one in ten is rolled back, and one stays open for 20 s (S: 10 min); before it ends, its relay is killed with kill -9", Tiers: both, run: commitOrder, direct: true,
			Workload: "at least 20,000 events (S: 300,000) of 1,000 keys from 64 publishers; two relays with leases of 1 s",
			Pass: eventsSafe +
				"; commit to message ≤ 1 s while the transaction is open; its own event is published after the kill",
		},
		{
			Name: "E5", Title: "Broker loses acknowledged messages",
			Fault: "the store of a NATS server is rolled back after it has acknowledged another 5,000 messages (S: 50,000) and those that a publisher has added meanwhile", Tiers: both, run: lostTail, direct: true,
			Workload: "as many events before; a replay of everything afterwards",
			Pass:     eventsSafe + "; the broker stores no message twice",
		},
		{
			Name: "E7", Title: "Failover loses commits that were relayed",
			Fault: "kill -9 of a server that has 500 commits, already relayed, that its standby lacks; the standby is promoted (once, S: 5 times)", Tiers: both, run: lostCommits, direct: true,
			Workload: "events of 100 keys from 8 publishers, before and after; a relay, whose cursor the failover sets back too",
			Pass: eventsSafe +
				", except for the commits that were lost; ≥ 100 positions that two events had in turn; repeated messages ≤ a batch",
		},
	}
}

const (
	eventStream = "EVENTS"
	relayBatch  = 1000 // messages that the relay publishes before it stores its cursor, at most
)

// broker starts a NATS server with a stream for all events.
func (r *Run) broker(ctx context.Context) (*natsproc.Server, error) {
	return r.brokerWith(ctx, natsproc.Options{})
}

func (r *Run) brokerWith(ctx context.Context, o natsproc.Options) (*natsproc.Server, error) {
	dir := filepath.Join(r.Dir, "nats")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := natsproc.Start(dir, o)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(s.URL)
	if err != nil {
		return nil, errors.Join(err, s.Kill9())
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err == nil {
		err = r.Await(ctx, patience, "JetStream", func(ctx context.Context) (bool, error) {
			_, err := js.CreateOrUpdateStream(
				ctx, jetstream.StreamConfig{
					Name: eventStream, Subjects: []string{"events.>"}, AllowBatchPublish: true,
					AllowAtomicPublish: true, Duplicates: time.Hour,
				})
			return err == nil, err
		})
	}
	if err != nil {
		return nil, errors.Join(err, s.Kill9())
	}
	return s, nil
}

// relay starts a relay. Package probe lists what env can set.
func (r *Run) relay(name string, env ...string) (*child.Process, error) {
	return r.start(name, "verify-relay", env, nil)
}

// killsAtAck runs row E1.
func killsAtAck(ctx context.Context, r *Run) (err error) {
	broker, err := r.broker(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Kill9()) }()
	hired := 0
	hire := func(die int) (*child.Process, error) {
		hired++
		p, err := r.relay(fmt.Sprint("relay", hired), "VERIFY_SINKS=s=nats,unfiltered=ledger", "VERIFY_BROKER="+broker.URL,
			"OUTBOX_LEASE_TTL=1s", fmt.Sprint("VERIFY_DIE=", die))
		if err == nil && die > 0 {
			p.MayEnd()
		}
		return p, err
	}
	p := &publishing{clients: 8, keys: 100, open: 4 * time.Millisecond, rest: 10 * time.Millisecond}
	if err := r.publish(ctx, p); err != nil {
		return err
	}
	kills, events := r.Size(10, 500), r.Size(8_000, 100_000)
	deaths, err := r.killRelays(ctx, kills, func() bool { return p.sofar() < events }, hire)
	if err := errors.Join(err, p.stop()); err != nil {
		return err
	}
	last, err := hire(0)
	if err != nil {
		return err
	}
	for _, sink := range []string{"s", "unfiltered"} {
		if err := r.awaitPublished(ctx, sink, patience); err != nil {
			return err
		}
	}
	if err := r.stop(ctx, last); err != nil {
		return err
	}
	if err := r.checkUnfiltered(ctx, p.acked, len(deaths)); err != nil {
		return err
	}
	got, err := stored(ctx, broker.URL, eventStream)
	if err != nil {
		return err
	}
	repeats, err := r.checkPublished(ctx, p.acked, got, nothing)
	if err != nil {
		return err
	}
	r.Expect("messages that the broker stored twice", float64(repeats), "=", 0)
	worst := gapAfter(deaths[:kills], got).Seconds()
	r.Figure("takeover_max_s", worst)
	r.Expect("seconds from a kill to the next owner's first message, worst", worst, "<=", 2)
	r.Expect("events acknowledged to publishers", float64(len(p.acked)), ">=", float64(events))
	return nil
}

// checkUnfiltered checks the sink that stores every message as often as it comes. The broker stores a message once
// even if the relay publishes everything again after each kill; this sink shows that a kill repeats a batch.
func (r *Run) checkUnfiltered(ctx context.Context, acked map[string]time.Time, deaths int) error {
	got, err := r.accepted("unfiltered")
	if err != nil {
		return err
	}
	repeats, err := r.checkPublished(ctx, acked, got, nothing)
	if err != nil {
		return err
	}
	r.Expect("messages that a sink without deduplication got twice", float64(repeats), "<=", float64(deaths*relayBatch))
	return nil
}

// killRelays keeps two relays running, each of which kills itself at one of its next acknowledgements, until that has
// happened often enough and more reports false. It returns when they died.
func (r *Run) killRelays(ctx context.Context, kills int, more func() bool,
	hire func(die int) (*child.Process, error),
) (deaths []time.Time, err error) {
	const killed = "kill -9 relay between an acknowledgement and its cursor"
	dice := fault.Random(r.Seed, "die")
	relays := make([]*child.Process, 2)
	for r.Faults.Count(killed) < kills || more() {
		r.Progress("faults", r.Faults.Count(killed), kills)
		for i, dead := range relays {
			if dead != nil && dead.Alive() {
				continue
			}
			if dead != nil {
				if !dead.Killed() {
					return deaths, fmt.Errorf("%s ended, but not by its kill: %s", dead.Name, dead.Fate())
				}
				r.Faults.Begin(killed, dead.Name)()
				deaths = append(deaths, dead.EndedAt())
			}
			if relays[i], err = hire(1 + dice.IntN(20)); err != nil {
				return deaths, err
			}
		}
		if err := backoff.Sleep(ctx, 5*time.Millisecond); err != nil {
			return deaths, err
		}
	}
	for _, relay := range relays {
		err = errors.Join(err, relay.Kill9())
	}
	r.atLeast(kills, killed)
	return deaths, err
}

// gapAfter returns the longest time from one of the moments to the next message.
func gapAfter(moments []time.Time, got []published) (worst time.Duration) {
	i := 0
	for _, at := range moments {
		for i < len(got) && got[i].at.Before(at) {
			i++
		}
		if i < len(got) {
			worst = max(worst, got[i].at.Sub(at))
		}
	}
	return worst
}

// commitOrder runs row E4.
func commitOrder(ctx context.Context, r *Run) error {
	// At the end of ten minutes each store of the cursor has the gaps of a thousand rollbacks a minute and more. The
	// default lease has time for that on a busy machine; the shortest has not.
	env := []string{"VERIFY_SINKS=s=ledger", fmt.Sprintf("OUTBOX_LEASE_TTL=%ds", r.Size(1, 5))}
	owner, err := r.relay("first", env...)
	if err != nil {
		return err
	}
	p := &publishing{
		clients: 64, keys: 1000, open: time.Duration(r.Size(20, 100)) * time.Millisecond,
		rest: time.Duration(r.Size(60, 100)) * time.Millisecond,
	}
	if err := r.publish(ctx, p); err != nil {
		return err
	}
	if err := r.awaitAccepted(ctx, 100); err != nil {
		return errors.Join(err, p.stop())
	}
	if err := r.duringALongTransaction(ctx, p, owner, env); err != nil {
		return errors.Join(err, p.stop())
	}
	if err := p.stop(); err != nil {
		return err
	}
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	got, err := r.accepted("s")
	if err != nil {
		return err
	}
	if _, err := r.checkPublished(ctx, p.acked, got, nothing); err != nil {
		return err
	}
	for _, f := range r.Faults.All() {
		if f.Kind != longTransaction {
			continue
		}
		worst, n := lag(p.acked, got, span{f.From, f.Until.Add(-time.Second)})
		r.Figure("lag_max_s", worst.Seconds())
		r.Expect("seconds from a commit to its message while the transaction is open, worst", worst.Seconds(), "<=", 1)
		r.Expect("events committed while the transaction is open", float64(n), ">=", float64(r.Size(20_000, 300_000)))
	}
	return nil
}

const longTransaction = "transaction left open after it published"

// duringALongTransaction opens a transaction that publishes an event, waits, kills the owner, and commits the
// transaction.
func (r *Run) duringALongTransaction(ctx context.Context, p *publishing, owner *child.Process, env []string) error {
	long, err := r.DB.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = long.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := long.Exec(ctx, `INSERT INTO keys VALUES ('late', 0)`); err != nil {
		return err
	}
	healed := r.Faults.Begin(longTransaction, "")
	body, err := publishNext(ctx, long, "late")
	if err != nil {
		return err
	}
	began, events := time.Now(), p.sofar()+r.Size(22_000, 310_000) // some are committed too late to count
	for time.Since(began) < time.Duration(r.Size(20, 600))*time.Second || p.sofar() < events {
		if err := backoff.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	holes, err := r.Number(ctx, `SELECT count(*) FROM outbox.sinks, unnest(holes)`)
	if err != nil {
		return err
	}
	r.Expect("holes in the log that wait for the open transaction", float64(holes), ">=", 1)
	healed()
	if err := backoff.Sleep(ctx, time.Second); err != nil { // until what was committed last is published, too
		return err
	}
	r.Faults.Begin("kill -9 relay", owner.Name)()
	if err := owner.Kill9(); err != nil {
		return err
	}
	if _, err := r.relay("second", env...); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, time.Duration(r.Size(3, 8))*time.Second); err != nil {
		return err
	}
	if err := long.Commit(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked[body] = time.Now()
	return nil
}

// awaitAccepted waits until sink s has accepted n messages.
func (r *Run) awaitAccepted(ctx context.Context, n int) error {
	return r.Await(ctx, patience, fmt.Sprintf("%d messages", n), func(context.Context) (bool, error) {
		got, err := r.accepted("s")
		return len(got) >= n, err
	})
}
