package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/rebuilt"
)

// published is a message that a sink has accepted.
type published struct {
	at       time.Time
	id, body string
	position int64 // 0 if the sink does not report it
}

// accepted returns the messages in a sink's ledgers, in the order of time.
func (r *Run) accepted(sink string) (all []published, err error) {
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return nil, err
		}
		if e.Event == ledger.Published && e.Do == sink {
			all = append(all, published{e.At, e.Detail, e.Key, e.Epoch})
		}
	}
	slices.SortStableFunc(all, func(a, b published) int { return a.at.Compare(b.at) })
	return all, nil
}

// stored returns the messages of a JetStream stream, in its order.
func stored(ctx context.Context, url, stream string) (all []published, err error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	want := s.CachedInfo().State.Msgs
	if want == 0 {
		return nil, nil
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for uint64(len(all)) < want {
		m, err := messages.Next(jetstream.NextMaxWait(10 * time.Second))
		if err != nil {
			return nil, fmt.Errorf("message %d of %d: %w", len(all)+1, want, err)
		}
		about, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		all = append(all, published{about.Timestamp, m.Headers().Get(nats.MsgIdHdr), string(m.Data()), 0})
	}
	return all, nil
}

// awaitPublished waits until a sink's cursor has passed every event and every gap.
func (r *Run) awaitPublished(ctx context.Context, sink string, patience time.Duration) error {
	return r.Await(ctx, patience, "sink "+sink+" to have everything", func(ctx context.Context) (all bool, err error) {
		err = r.DB.QueryRow(ctx, `SELECT top >= (SELECT coalesce(max(position), 0) FROM outbox.events) AND isempty(holes)
			FROM outbox.sinks WHERE sink = $1`, sink).Scan(&all)
		return all, err
	})
}

// checkPublished compares the messages of our publishers that a sink has accepted with the log, which has every
// committed event. Events for which lost reports true are missing from the log, because a failover has lost them. It
// returns how many messages were repeats.
func (r *Run) checkPublished(ctx context.Context, acked map[string]time.Time, got []published,
	lost func(body string) bool,
) (repeats int, err error) {
	committed, err := r.checkLog(ctx, acked, lost)
	if err != nil {
		return 0, err
	}
	seen, ids := map[string]bool{}, map[string]string{}
	last := map[string]int{}
	var unexpected, renamed, inverted, missing []string
	for _, m := range got {
		if id, again := ids[m.body]; again && id != m.id && !lost(m.body) {
			renamed = append(renamed, fmt.Sprintf("%s as %s and as %s", m.body, id, m.id))
		}
		ids[m.body] = m.id
		if seen[m.id] {
			repeats++
			continue
		}
		seen[m.id] = true
		if committed[m.id] != m.body && !lost(m.body) {
			unexpected = append(unexpected, fmt.Sprintf("%s %s", m.id, m.body))
		}
		key, number, _ := strings.Cut(m.body, "/")
		n, err := strconv.Atoi(number)
		if err != nil {
			return 0, fmt.Errorf("a message is %q", m.body)
		}
		if n <= last[key] && !lost(m.body) {
			inverted = append(inverted, fmt.Sprintf("%s after %d", m.body, last[key]))
		}
		last[key] = n
	}
	for id, body := range committed {
		if !seen[id] {
			missing = append(missing, body)
		}
	}
	slices.Sort(missing)
	r.Count("events committed", len(committed))
	r.Count("messages published", len(got))
	r.Count("messages repeated", repeats)
	r.None("missing messages: events committed, never published", missing)
	r.None("unexpected messages: published, never committed", unexpected)
	r.None("out of order: messages published after a newer one of their key", inverted)
	r.None("repeated messages with another id than the first time", renamed)
	r.None(noCrashes, r.fates())
	return repeats, nil
}

// checkRelayed compares the messages that the sink has accepted with the log, those of our publishers, and with the
// jobs that they rebuild, those of streamed jobs. It returns how many of the former were repeats.
func (r *Run) checkRelayed(ctx context.Context, acked map[string]time.Time) (repeats int, err error) {
	got, err := r.accepted("s")
	if err != nil {
		return 0, err
	}
	relayed := map[string]bool{}
	for _, m := range got {
		relayed[m.id] = true
	}
	ofJobs, err := r.Texts(ctx, `SELECT id::text FROM outbox.events WHERE topic <> 'order.paid'`)
	if err != nil {
		return 0, err
	}
	r.Expect("lifecycle events of jobs in outbox.events", float64(len(ofJobs)), ">=", 1)
	r.None("missing messages: lifecycle events of jobs, never published",
		slices.DeleteFunc(ofJobs, func(id string) bool { return relayed[id] }))
	// Bodies of our publishers are KEY/N.
	var bodies []string
	got = slices.DeleteFunc(got, func(m published) bool {
		ofJob := strings.HasPrefix(m.body, "{")
		if ofJob {
			bodies = append(bodies, m.body)
		}
		return ofJob
	})
	found, err := rebuilt.CompareMessages(ctx, r.DB, bodies)
	if err != nil {
		return 0, fmt.Errorf("rebuild the streamed jobs from their messages: %w", err)
	}
	r.None("streamed jobs that differ from what their published messages rebuild", found.Differences)
	return r.checkPublished(ctx, acked, got, nothing)
}

// checkLog checks that the log has every event that was acknowledged to a publisher, and returns the bodies in the log
// by their ids.
func (r *Run) checkLog(ctx context.Context, acked map[string]time.Time,
	lost func(body string) bool,
) (committed map[string]string, err error) {
	rows, err := r.Texts(
		ctx, `SELECT id || ' ' || convert_from(payload, 'UTF8') FROM outbox.events WHERE topic = 'order.paid'`)
	if err != nil {
		return nil, err
	}
	committed = map[string]string{}
	inLog := map[string]bool{} // bodies
	for _, row := range rows {
		id, body, _ := strings.Cut(row, " ")
		committed[id], inLog[body] = body, true
	}
	var gone []string
	for body := range acked {
		if !inLog[body] && !lost(body) {
			gone = append(gone, body)
		}
	}
	r.None("lost events: acknowledged to a publisher, not in outbox.events", gone)
	return committed, nil
}

func nothing(string) bool { return false }

// lag returns, for the commits within a period, the longest time from a commit's response until a sink first had the
// event, and the number of those commits.
func lag(acked map[string]time.Time, got []published, during span) (worst time.Duration, n int) {
	first := map[string]time.Time{}
	for _, m := range got {
		if _, again := first[m.body]; !again {
			first[m.body] = m.at
		}
	}
	for body, at := range acked {
		if had, ok := first[body]; ok && at.After(during.from) && at.Before(during.until) {
			worst, n = max(worst, had.Sub(at)), n+1
		}
	}
	return worst, n
}

// rateOf returns how many messages per second a sink accepted, without the first fifth of them: a relay that starts, or
// finds the broker again, begins slowly.
func rateOf(got []published) (float64, error) {
	if len(got) < 1000 {
		return 0, errors.New("there are too few messages for a rate")
	}
	got = slices.SortedFunc(slices.Values(got), func(a, b published) int {
		return cmp.Compare(a.at.UnixNano(), b.at.UnixNano())
	})
	rest := got[len(got)/5:]
	return float64(len(rest)-1) / rest[len(rest)-1].at.Sub(rest[0].at).Seconds(), nil
}
