package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// sinkPatience is how long events may wait for a sink: longer than a takeover by another process takes after its owner
// has died.
const sinkPatience = time.Minute

// These equal relay.CodeStuck and relay.CodeWaiting.
const (
	codeStuck   = "relay_stuck"
	codeWaiting = "relay_waiting"
)

// sinks checks whether events are published.
func (e *examination) sinks(ctx context.Context) error {
	sinks, err := operator.New(e.target.Pool).Sinks(ctx)
	if err != nil {
		return err
	}
	for _, s := range sinks {
		before := len(e.findings)
		waits := e.since(s.Oldest)
		switch late := !s.Oldest.IsZero() && waits > sinkPatience; {
		case !s.PausedAt.IsZero():
			e.find(Warning, fmt.Sprintf("sink %s is paused since %s; %s behind", s.Name,
				s.PausedAt.UTC().Format(time.RFC3339), Count(s.Lag, "position")),
				"posthaste relay resume "+s.Name)
		case late && s.LacksDestination():
			e.find(Problem, fmt.Sprintf("sink %s publishes nothing to a destination since %s (%s): %s", s.Name,
				s.AwaySince.UTC().Format(time.RFC3339), s.AwayCode, s.AwayReason),
				"mend the destination or the route: messages to others go on while at most 50 000 wait, or 256 MiB of them")
		case late && s.AwayCode == codeWaiting:
			e.find(Problem, fmt.Sprintf("sink %s stands still since %s, because too many messages wait for a destination "+
				"(%s): %s", s.Name, s.AwaySince.UTC().Format(time.RFC3339), s.AwayCode, s.AwayReason),
				"mend the destination, or give its topics a sink of their own: docs/operate/runbooks.md#posthasterelaylate")
		case late && s.AwayCode == codeStuck:
			e.find(Problem, fmt.Sprintf("sink %s stands still since %s (%s): %s", s.Name,
				s.AwaySince.UTC().Format(time.RFC3339), s.AwayCode, s.AwayReason),
				"replay or dismiss what it has refused, first of the key, if it names one: posthaste dlq list --kind relay:"+
					s.Name+" --key KEY; posthaste dlq replay JOB-ID; or, if no job can be made of an event: posthaste relay skip "+
					s.Name+" EVENT-ID")
		case late && !s.AwaySince.IsZero():
			e.find(Problem, fmt.Sprintf("sink %s stands still since %s (%s): %s", s.Name,
				s.AwaySince.UTC().Format(time.RFC3339), s.AwayCode, s.AwayReason),
				"mend the broker or the route; if it waits for holes in the log, end the transactions that are open: "+
					"pg_stat_activity")
		case late && s.Owner == "":
			e.find(Problem, fmt.Sprintf("nobody publishes to sink %s, and the oldest event waits for %s", s.Name,
				span(waits)),
				"start posthaste serve with the relay-config that has it and OUTBOX_RELAY=on; or, if the sink is not "+
					"wanted any more: posthaste relay remove "+s.Name)
		case late:
			e.find(Warning, fmt.Sprintf("sink %s is %s behind: the oldest event waits for %s", s.Name,
				Count(s.Lag, "position"), span(waits)),
				"see whether it catches up: outbox_relay_lag_seconds")
		default:
			e.find(OK, fmt.Sprintf("sink %s: %s published, %s behind", s.Name, Count(s.Published, "message"),
				Count(s.Lag, "position")), "")
		}
		if s.HeldMessages > 0 {
			e.find(Warning, fmt.Sprintf("sink %s has refused messages: %s of %s with those behind them", s.Name,
				Count(s.HeldMessages, "job"), Count(s.HeldKeys, "key")),
				"see why: posthaste dlq list --kind relay:"+s.Name+
					"; then replay them, as they are or edited, or dismiss them")
		}
		for i := range e.findings[before:] {
			e.findings[before+i].Sink = s.Name
		}
	}
	return nil
}

// bridgePatience is how long a bridge may store nothing before that is a finding, and bridgeMemory how long a bridge
// that nobody fetches remains one: its row stays when it is removed from the relay-config.
const (
	bridgePatience = time.Minute
	bridgeMemory   = 7 * 24 * time.Hour
)

// queueFull is package bridge's message when as many jobs as MaxQueued wait.
const queueFull = "bridge waits for its queue"

// bridges checks whether messages become jobs.
func (e *examination) bridges(ctx context.Context) error {
	bridges, err := operator.New(e.target.Pool).Bridges(ctx)
	if err != nil {
		return err
	}
	for _, b := range bridges {
		switch late := b.Fetching && !b.AwaySince.IsZero() && e.since(b.AwaySince) > bridgePatience; {
		case late && strings.HasPrefix(b.AwayReason, queueFull):
			e.find(Warning, fmt.Sprintf("bridge %s has stored nothing since %s: %s", b.Name,
				b.AwaySince.UTC().Format(time.RFC3339), b.AwayReason),
				"add dispatchers, or see why the jobs of its queue wait: posthaste queues list")
		case late:
			e.find(Problem, fmt.Sprintf("bridge %s has stored nothing since %s: %s", b.Name,
				b.AwaySince.UTC().Format(time.RFC3339), b.AwayReason),
				"mend the broker or the database")
		case b.Fetching:
			e.find(OK, fmt.Sprintf("bridge %s: %s stored", b.Name, Count(b.Stored, "message")), "")
		case e.since(b.SeenAt) < bridgeMemory:
			stored := "has never stored any"
			if !b.MovedAt.IsZero() {
				stored = "stored some at " + b.MovedAt.UTC().Format(time.RFC3339)
			}
			e.find(Warning, fmt.Sprintf("nobody fetches the messages of bridge %s, which %s", b.Name, stored),
				"start posthaste serve with the relay-config that has it and OUTBOX_RELAY=on, unless it is not "+
					"wanted any more")
		}
	}
	return nil
}
