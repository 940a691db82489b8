package verify

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/natsproc"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// brokerAway runs row E2.
func brokerAway(ctx context.Context, r *Run) (err error) {
	backlog := r.Size(100_000, 500_000)
	broker, err := r.broker(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Kill9()) }()
	p := &publishing{clients: 1, keys: 100, rest: 20 * time.Millisecond}
	if err := r.prepareEvents(ctx, p.keys); err != nil {
		return err
	}
	if err := r.store(ctx, backlog, "before"); err != nil {
		return err
	}
	relay, err := r.relay("relay", "VERIFY_SINKS=s=nats", "VERIFY_BROKER="+broker.URL, tracing)
	if err != nil {
		return err
	}
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	if err := r.publish(ctx, p); err != nil {
		return err
	}
	if err := r.outage(ctx, p, broker, relay, backlog); err != nil {
		return errors.Join(err, p.stop())
	}
	if err := p.stop(); err != nil {
		return err
	}
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	if err := r.stop(ctx, relay); err != nil {
		return err
	}
	return r.checkOutage(ctx, p, broker)
}

const (
	serverAway    = "kill -9 of the NATS server"
	serverStopped = "SIGSTOP of the NATS server"
)

// outage kills the broker, starts it again after a long time, and then stops it for a while with SIGSTOP.
func (r *Run) outage(ctx context.Context, p *publishing, broker *natsproc.Server, relay *child.Process,
	backlog int,
) error {
	before := span{from: time.Now()}
	if err := backoff.Sleep(ctx, time.Duration(r.Size(5, 60))*time.Second); err != nil {
		return err
	}
	before.until = time.Now()
	healed := r.Faults.Begin(serverAway, "")
	if err := broker.Kill9(); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, 2*time.Second); err != nil { // it has noticed
		return err
	}
	during := span{from: time.Now()}
	if err := backoff.Sleep(ctx, time.Duration(r.Size(20, 600))*time.Second); err != nil {
		return err
	}
	during.until = time.Now()
	if err := r.expectNextToNothing(ctx, relay, during); err != nil {
		return err
	}
	alone, usual := p.p99(before)
	beside, still := p.p99(during)
	r.Figure("publishers_p99_before_ms", alone.Seconds()*1000)
	r.Figure("publishers_p99_during_ms", beside.Seconds()*1000)
	r.Expect("publishing transactions during the outage, p99 in ms", beside.Seconds()*1000, "<=",
		max(alone.Seconds()*1500, 20))
	r.Expect("publishing transactions during the outage, a second", still, ">=", usual/2)
	if err := r.store(ctx, backlog, "after"); err != nil {
		return err
	}
	if err := broker.Restart(); err != nil {
		return err
	}
	healed()
	if err := r.awaitPublished(ctx, "s", 2*time.Minute); err != nil {
		return err
	}

	healed = r.Faults.Begin(serverStopped, "")
	if err := broker.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, time.Duration(r.Size(2, 60))*time.Second); err != nil {
		return err
	}
	healed()
	if err := broker.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	return backoff.Sleep(ctx, time.Second)
}

// expectNextToNothing checks that the relay sent hardly any statements and logged hardly any lines during the outage.
func (r *Run) expectNextToNothing(ctx context.Context, relay *child.Process, during span) error {
	within := func(at time.Time) bool { return at.After(during.from) && at.Before(during.until) }
	entries, err := ledger.NewTail(r.ledgerOf(relay.Name)).Entries()
	if err != nil {
		return err
	}
	statements := 0
	for _, e := range entries {
		if e.Event == ledger.Called && within(e.At) {
			statements++
		}
	}
	log, err := os.Open(relay.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	lines := 0
	for in := bufio.NewScanner(log); in.Scan(); {
		stamp, _, _ := strings.Cut(strings.TrimPrefix(in.Text(), "time="), " ")
		if at, err := time.Parse(time.RFC3339, stamp); err != nil || within(at) {
			lines++
		}
	}
	seconds := during.until.Sub(during.from).Seconds()
	r.Figure("statements_per_s", float64(statements)/seconds)
	r.Figure("log_lines", float64(lines))
	r.Expect("relay statements per second during the outage", float64(statements)/seconds, "<=", 1)
	r.Expect("relay statements during the outage", float64(statements), ">=", 1) // it is there
	r.Expect("relay log lines during the outage", float64(lines), "<=", seconds/10+1)
	shown, err := r.Number(
		ctx, `SELECT count(*) FROM outbox.sinks WHERE away_since < clock_timestamp() - interval '10 s'`)
	r.Expect("sinks that outbox.sinks shows as away", float64(shown), "=", 1)
	return err
}

// checkOutage compares the broker's stream with the log of events.
func (r *Run) checkOutage(ctx context.Context, p *publishing, broker *natsproc.Server) error {
	got, err := stored(ctx, broker.URL, eventStream)
	if err != nil {
		return err
	}
	repeats, err := r.checkPublished(ctx, p.acked, got, nothing)
	if err != nil {
		return err
	}
	r.Expect("messages that the broker stored twice", float64(repeats), "=", 0)
	jobs, err := r.Number(
		ctx, `SELECT count(*) FROM (SELECT FROM outbox.jobs UNION ALL SELECT FROM outbox.history) AS job`)
	if err != nil {
		return err
	}
	r.Expect("jobs created from events", float64(jobs), "=", 0)
	rates := map[string]float64{}
	for _, key := range []string{"before", "after"} {
		var part []published
		for _, m := range got {
			if strings.HasPrefix(m.body, key) {
				part = append(part, m)
			}
		}
		if rates[key], err = rateOf(part); err != nil {
			return err
		}
	}
	r.Figure("rate_before", rates["before"])
	r.Figure("rate_after", rates["after"])
	least := 0.9
	if r.Tier == TierP { // a second or two
		least = 0.5
	}
	r.Expect("publish rate of the backlog after the outage, divided by the rate before", rates["after"]/rates["before"],
		">=", least)
	r.atLeast(1, serverAway)
	r.atLeast(1, serverStopped)
	return nil
}
