package redis

import (
	"context"
	"errors"

	"github.com/posthaste-dev/posthaste/relay"
)

// These limit a run.
const (
	maxRun      = 1000
	maxRunBytes = 4 << 20
)

// Publish implements [relay.Sink].
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &publication{
		sink: s, batch: batch, outcomes: make([]error, len(batch)), failed: map[string]bool{},
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
	defer c.guard(ctx)()
	p.conn = c
	rest := make([]int, len(batch))
	for i := range rest {
		rest[i] = i
	}
	for len(rest) > 0 && !p.over {
		var r *run
		r, rest = p.take(rest)
		for len(r.of) > 0 && !p.over {
			r = p.send(ctx, r)
		}
	}
	return p.outcomes
}

// publication is one call of Publish. Messages are indexes in the batch.
type publication struct {
	sink     *Sink
	conn     *conn
	batch    []relay.Message
	outcomes []error // ErrNotTried until they are known

	failed   map[string]bool  // keys with a message that was not accepted
	refusing map[string]error // streams that accept nothing now
	over     bool             // nothing more is to be sent
}

// run is one transaction. It has each key in one stream.
type run struct {
	of       []int
	commands [][]any
}

func (r *run) add(i int, command []any) {
	r.of = append(r.of, i)
	r.commands = append(r.commands, command)
}

// settle stores the outcome of a message.
func (p *publication) settle(i int, err error) {
	key := p.batch[i].Key
	if p.failed[key] {
		return
	}
	p.outcomes[i] = err
	if err != nil && key != "" {
		p.failed[key] = true
	}
}

// take returns the next run and the messages after it. It settles messages that need not be sent.
func (p *publication) take(from []int) (r *run, rest []int) {
	r = &run{}
	bytes := 0
	streams := map[string]string{} // by key
	for n, i := range from {
		m := &p.batch[i]
		if p.failed[m.Key] {
			continue
		}
		command, size, refusal := encode(m, p.sink.config.CreateStreams, p.conn.largest)
		if refusal == nil {
			refusal = p.refusing[m.Destination]
		}
		stream, underWay := streams[m.Key]
		full := len(r.of) == maxRun || bytes+size > maxRunBytes
		if underWay && (stream != m.Destination || refusal != nil) || len(r.of) > 0 && full {
			return r, from[n:]
		}
		if refusal != nil {
			p.settle(i, refusal)
			continue
		}
		if m.Key != "" {
			streams[m.Key] = m.Destination
		}
		r.add(i, command)
		bytes += size
	}
	return r, nil
}

// send sends a run as a transaction. If the server accepted none of it because of a refused message, send returns the
// others, to be sent again.
func (p *publication) send(ctx context.Context, r *run) (again *run) {
	answers, failure := p.conn.transaction(r.commands)
	again = &run{}
	for n, i := range r.of {
		if failure != nil {
			p.over = true
			if word(failure) != "" {
				p.settle(i, away(failure))
			} else {
				p.settle(i, unanswered(ctx, failure))
			}
			continue
		}
		switch answer := answers[n].(type) {
		case nil:
			p.refuse(i, missing(&p.batch[i]))
		case error:
			if errors.Is(answer, errAborted) {
				again.add(i, r.commands[n])
			} else {
				p.refuse(i, classify(answer))
			}
		default: // the id of the entry
			p.settle(i, nil)
		}
	}
	if p.over {
		p.sink.drop()
		return again
	}
	kept := &run{}
	for n, i := range again.of {
		if !p.failed[p.batch[i].Key] && p.refusing[p.batch[i].Destination] == nil {
			kept.add(i, again.commands[n])
		}
	}
	return kept
}

// refuse settles a message that was not stored.
func (p *publication) refuse(i int, outcome error) {
	p.settle(i, outcome)
	unavailable, away := errors.AsType[*relay.UnavailableError](outcome)
	_, refused := errors.AsType[*relay.RefusedError](outcome)
	if away && unavailable.Code != relay.CodeNoDestination || !away && !refused {
		p.over = true
	} else {
		p.refusing[p.batch[i].Destination] = outcome // refused because of the stream: there is no other reason
	}
}
