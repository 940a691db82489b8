package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/relay"
)

const maxRun = 10_000 // messages

// Publish implements [relay.Sink].
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &publication{
		sink: s, batch: batch, outcomes: make([]error, len(batch)), failed: map[string]error{},
		refusing: map[string]error{},
	}
	for i := range p.outcomes {
		p.outcomes[i] = relay.ErrNotTried
	}
	if len(batch) == 0 || ctx.Err() != nil {
		return p.outcomes
	}
	c, err := s.connected(ctx)
	if err != nil {
		p.outcomes[0] = err
		return p.outcomes
	}
	p.client = c
	rest := make([]int, len(batch))
	for i := range rest {
		rest[i] = i
	}
	for len(rest) > 0 && !p.over {
		var r *run
		r, rest = p.take(rest)
		if s.config.TransactionalID != "" {
			p.transact(ctx, r)
		} else {
			p.send(ctx, r)
		}
	}
	return p.outcomes
}

// publication is one call of Publish. Messages are indexes in the batch.
type publication struct {
	sink     *Sink
	client   *client
	batch    []relay.Message
	outcomes []error // ErrNotTried until they are known

	failed   map[string]error // for each key, the outcome of its first message that was not accepted
	refusing map[string]error // topics, or partitions of them, that accept nothing now
	over     bool             // nothing more is to be sent
}

// run is what is sent together: one batch to each partition, which is stored or not, and each key to one topic.
type run struct {
	of      []int
	records []*kgo.Record
	bytes   int
}

func (r *run) add(i int, record *kgo.Record, bytes int) {
	r.of = append(r.of, i)
	r.records = append(r.records, record)
	r.bytes += bytes
}

// settle stores the outcome of a message.
func (p *publication) settle(i int, err error) {
	p.outcomes[i] = err
	if key := p.batch[i].Key; err != nil && key != "" {
		p.failed[key] = err
	}
}

// take returns the next run and the messages after it. It settles messages that need not be sent.
func (p *publication) take(from []int) (r *run, rest []int) {
	r = &run{bytes: perBatch}
	topics := map[string]string{} // by key
	for n, i := range from {
		m := &p.batch[i]
		if p.failed[m.Key] != nil {
			continue
		}
		topic, underWay := topics[m.Key]
		record, bytes := encode(m)
		refused := refusal(m, bytes, p.sink.config.MaxBytes)
		if refused == nil {
			refused = cmp.Or(p.refusing[m.Destination], p.refusing[p.place(m)])
		}
		full := r.bytes+bytes > p.sink.config.MaxBytes || len(r.of) == maxRun
		if underWay && (topic != m.Destination || refused != nil) || len(r.of) > 0 && full {
			return r, from[n:]
		}
		if refused != nil {
			p.settle(i, refused)
			continue
		}
		if m.Key != "" {
			topics[m.Key] = m.Destination
		}
		r.add(i, record, bytes)
	}
	return r, nil
}

// send publishes a run. If the broker refuses it because of a message that it does not name, send sends each of its
// messages alone.
func (p *publication) send(ctx context.Context, r *run) {
	if len(r.of) == 0 {
		return
	}
	ends := p.exchange(ctx, r)
	again := &run{}
	for n, i := range r.of {
		err := ends[n]
		if isOfBatch(err) && len(r.of) > 1 {
			again.add(i, r.records[n], 0)
			continue
		}
		p.end(i, err)
	}
	for n, i := range again.of {
		if !p.over && p.failed[p.batch[i].Key] == nil {
			one := &run{of: []int{i}, records: []*kgo.Record{fresh(again.records[n])}}
			p.end(i, p.exchange(ctx, one)[0])
		}
	}
}

// fresh returns a record without what the client has stored in it.
func fresh(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
}

// end settles a message by the outcome of its record. One that was sent behind another of its key that has failed, and
// has failed with it, has the same outcome, whatever became of its own record.
func (p *publication) end(i int, err error) {
	if err == nil {
		p.settle(i, nil)
		return
	}
	if first := p.failed[p.batch[i].Key]; first != nil {
		p.outcomes[i] = first
		return
	}
	outcome, known := classify(err)
	unavailable, isUnavailable := errors.AsType[*relay.UnavailableError](outcome)
	refused, isRefused := errors.AsType[*relay.RefusedError](outcome)
	switch {
	case !known || isUnavailable && unavailable.Code == relay.CodeForbidden:
		// A client that was refused a producer ID never asks again.
		p.over = true
		p.sink.drop()
	case isUnavailable && unavailable.Code == relay.CodeNoLeader:
		p.refusing[p.place(&p.batch[i])] = outcome
	case isUnavailable || isRefused && refused.Code == relay.CodeForbidden:
		p.refusing[p.batch[i].Destination] = outcome
	}
	p.settle(i, outcome)
}

// place returns the topic and the partition of a message, or the topic if the partition is unknown. Messages without a
// key have a place of their own: a partition that the client chose for them says nothing of those of keys.
func (p *publication) place(m *relay.Message) string {
	if m.Key == "" {
		return m.Destination + "/"
	}
	if part := p.sink.Part(*m); part != "" {
		return m.Destination + "/" + part
	}
	return m.Destination
}

// exchange sends a run and returns the outcome of each record. If any is unknown, it drops the client.
func (p *publication) exchange(ctx context.Context, r *run) []error {
	e := &ends{of: make([]error, len(r.records)), left: len(r.records), done: make(chan struct{})}
	for n, record := range r.records {
		e.of[n] = errPending
		// The context never ends, because the client would then remove the message from its sequence.
		p.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { e.end(n, err) })
	}
	flush, stop := context.WithCancel(context.Background())
	defer stop()
	go func(c *client) { _ = c.Flush(flush) }(p.client)
	err := p.wait(ctx, e.done)
	known := e.known(err)
	if err != nil {
		p.over = true
		p.sink.drop()
	}
	return known
}

var errPending = errors.New("under way")

// ends collects the outcomes of a run's records.
type ends struct {
	mu   sync.Mutex
	of   []error
	left int           // how many have no answer
	done chan struct{} // closed when left reaches 0
}

func (e *ends) end(n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of[n] = err
	if e.left--; e.left == 0 {
		close(e.done)
	}
}

// known returns the known outcomes, and err for the others. A record without an answer never counts as stored, even if
// there were as many answers as records: one of them may have ended twice.
func (e *ends) known(err error) []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err = cmp.Or(err, errPending)
	all := slices.Clone(e.of)
	for n := range all {
		if errors.Is(all[n], errPending) {
			all[n] = err
		}
	}
	return all
}

// wait waits until all records have ended, and returns why it stopped waiting earlier, if it did.
func (p *publication) wait(ctx context.Context, done <-chan struct{}) error {
	tick := time.NewTicker(retryWait)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ended(ctx)
		case <-tick.C:
			if err := p.client.connection.lost(); err != nil {
				return away(err)
			}
		}
	}
}

var _ relay.Divider = (*Sink)(nil)

// Part implements [relay.Divider]: partitions have leaders and replicas of their own. The part of a message without a
// key is unknown, because the client chooses a partition that has a leader, and so is that of the first one to a topic.
func (s *Sink) Part(m relay.Message) string {
	n, known := s.partitions.of.Load(m.Destination)
	if m.Key == "" || !known {
		return ""
	}
	return strconv.Itoa(byKey.Partition(&kgo.Record{Key: []byte(m.Key)}, n.(int)))
}
