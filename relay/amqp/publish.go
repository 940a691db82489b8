package amqp

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/relay"
)

// What is under way at most.
const (
	maxUnderWay = 1000
	maxBytes    = 4 << 20
)

// Publish is [relay.Sink]'s.
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &publication{sink: s, batch: batch, outcomes: make([]error, len(batch)), lines: map[string]*line{}, refusing: map[refusal]error{}}
	for i := range p.outcomes {
		p.outcomes[i] = relay.ErrNotTried
	}
	if len(batch) == 0 {
		return p.outcomes
	}
	c, err := s.connected(ctx)
	if err == nil {
		defer c.guard(ctx)()
		p.conn = c
		if p.channel, err = c.open(); err != nil {
			err = away(err)
		}
	}
	if err != nil {
		p.outcomes[0] = err
		return p.outcomes
	}
	p.run(ctx)
	return p.outcomes
}

// publication is one call of Publish. Messages are indexes in the batch.
type publication struct {
	sink     *Sink
	conn     *conn
	channel  *channel
	batch    []relay.Message
	outcomes []error // ErrNotTried until they are known

	next     int               // the first message that has not been looked at
	ready    []int             // whose turn has come since
	lines    map[string]*line  // by key
	head     *head             // what is sent next
	refusing map[refusal]error // what takes nothing now
	over     bool              // nothing more is sent
	rejected bool              // by a queue

	underWay []sent // in the order of their tags, of which the first is answered next
	bytes    int
	alone    bool // nothing is sent beside what is under way
}

// line is what there is of a key.
type line struct {
	busy    bool  // one is under way
	failed  bool  // one was not accepted
	waiting []int // for the one that is under way
}

// head is a message whose turn it is.
type head struct {
	of int
	encoded
}

// refusal is an exchange and a routing key, or all of the exchange's.
type refusal struct {
	exchange, key string
	all           bool
}

// sent is a message that is under way.
type sent struct {
	of            int
	tag           uint64
	size          int
	exchange, key string
	returned      error // why, if the server could not route it
}

// run sends what can be sent, and takes answers, until all is known that will be.
func (p *publication) run(ctx context.Context) {
	for {
		p.send()
		if len(p.underWay) == 0 {
			break
		}
		select {
		case confirmed, ok := <-p.channel.confirms:
			if ok {
				p.confirmed(confirmed)
			} else {
				p.closed(ctx)
			}
		case <-p.conn.blocks:
			if err := p.conn.blocked(); err != nil {
				p.conn.stale = true
				p.end(away(err))
			}
		}
	}
	if !p.over {
		p.sink.careful = false
	}
	if p.rejected {
		// The channel's end of a quorum queue keeps in mind that the queue is full, until it hears otherwise; if its
		// limit was taken away, it never does.
		p.conn.renew()
	}
}

// send sends messages for as long as there are any whose turn it is, and room for them.
func (p *publication) send() {
	for !p.over && !p.alone && len(p.underWay) < maxUnderWay && p.bytes < maxBytes {
		if p.head == nil && !p.take() {
			return
		}
		if len(p.channel.confirms) > len(p.underWay) {
			p.distrust(errors.New("the server has confirmed what was not sent"))
			return
		}
		h := p.head
		if p.sink.careful || !p.conn.sent[h.exchange] || len(h.Body) > p.conn.largest {
			if len(p.underWay) > 0 {
				return
			}
			p.alone = true
		}
		if err := p.channel.Publish(h.exchange, h.key, true, false, h.Publishing); err != nil {
			p.unsent(err)
			return
		}
		p.channel.published++
		p.underWay = append(p.underWay, sent{of: h.of, tag: p.channel.published, size: h.size(), exchange: h.exchange, key: h.key})
		p.bytes += h.size()
		p.head = nil
	}
}

// take makes the next message whose turn it is the head. It settles those that need not be sent.
func (p *publication) take() bool {
	for i, ok := p.turn(); ok; i, ok = p.turn() {
		m, err := encode(&p.batch[i], p.conn.amqp.Config.FrameSize)
		if err == nil {
			err = p.refusing[refusal{m.exchange, m.key, false}]
		}
		if err == nil {
			err = p.refusing[refusal{exchange: m.exchange, all: true}]
		}
		if err == nil {
			p.head = &head{i, m}
			return true
		}
		p.settle(i, err)
	}
	return false
}

// turn returns the next message of which no other of its key is under way.
func (p *publication) turn() (i int, ok bool) {
	if len(p.ready) > 0 {
		i, p.ready = p.ready[0], p.ready[1:]
		return i, true
	}
	for p.next < len(p.batch) {
		i := p.next
		p.next++
		key := p.batch[i].Key
		if key == "" {
			return i, true
		}
		l := p.lines[key]
		if l == nil {
			l = &line{}
			p.lines[key] = l
		}
		switch {
		case l.failed:
		case l.busy && !p.sink.config.Pipelined:
			l.waiting = append(l.waiting, i)
		default:
			l.busy = true
			return i, true
		}
	}
	return 0, false
}

// settle stores the outcome of a message, after which it is the turn of its key's next.
func (p *publication) settle(i int, err error) {
	l := p.lines[p.batch[i].Key]
	if l == nil { // it has no key
		p.outcomes[i] = err
		return
	}
	if l.failed {
		return // pipelined, behind one that was not accepted: whatever became of it, it is sent again
	}
	p.outcomes[i] = err
	l.busy = false
	if err != nil {
		l.failed = true
		return
	}
	if len(l.waiting) > 0 {
		p.ready = append(p.ready, l.waiting[0])
		l.waiting = l.waiting[1:]
		l.busy = true
	}
}

// confirmed takes an answer: the client sorts them by their tags.
func (p *publication) confirmed(c amqp.Confirmation) {
	p.takeReturns()
	if len(p.underWay) == 0 {
		return
	}
	first := p.underWay[0]
	if c.DeliveryTag != first.tag {
		p.distrust(fmt.Errorf("the server has confirmed number %d, and %d is due", c.DeliveryTag, first.tag))
		return
	}
	p.underWay = p.underWay[1:]
	p.bytes -= first.size
	p.alone = false
	m := &p.batch[first.of]
	if !c.Ack {
		first.returned = full(m.Destination)
		p.rejected = true
	}
	p.conn.sent[first.exchange] = true
	if first.returned != nil {
		p.refusing[refusal{first.exchange, first.key, false}] = first.returned
	} else {
		p.conn.largest = max(p.conn.largest, len(m.Body))
	}
	p.settle(first.of, first.returned)
}

// takeReturns finds the messages that the server has returned. It returns a message before it confirms it.
func (p *publication) takeReturns() {
	for {
		select {
		case r, ok := <-p.channel.returns:
			if !ok {
				return
			}
			p.returned(r)
		default:
			return
		}
	}
}

func (p *publication) returned(r amqp.Return) {
	for n := range p.underWay {
		m := &p.underWay[n]
		if m.returned == nil && p.batch[m.of].ID == r.MessageId && m.exchange == r.Exchange && m.key == r.RoutingKey {
			m.returned = unroutable(r)
			return
		}
	}
	p.distrust(fmt.Errorf("the server has returned a message with the ID %q, of which none is under way", r.MessageId))
}

// distrust settles what is under way as unknown, and leaves the connection: answers on it cannot be told apart.
func (p *publication) distrust(err error) {
	p.conn.stale = true
	p.over = true
	for _, m := range p.underWay {
		p.settle(m.of, err)
	}
	p.underWay = nil
}

// closed takes the end of the channel, or of the connection. The server says why, and not for which message. If one was
// under way, it is that one, and publishing goes on without it; otherwise each is sent alone next time.
func (p *publication) closed(ctx context.Context) {
	err := p.channel.fate()
	switch {
	case ctx.Err() != nil:
		p.end(fmt.Errorf("%w: %w", context.Cause(ctx), err))
		return
	case p.conn.amqp.IsClosed():
		p.end(err)
		return
	case len(p.underWay) > 1:
		p.sink.careful = true
		p.end(fmt.Errorf("the server has closed the channel, because of this message or another: %w", err))
		return
	}
	only := p.underWay[0]
	p.underWay, p.bytes, p.alone = nil, 0, false
	outcome := exception(err)
	if reason, ok := errors.AsType[*amqp.Error](err); ok && reason.Code == amqp.NotFound {
		delete(p.conn.sent, only.exchange)
		p.refusing[refusal{exchange: only.exchange, all: true}] = outcome
	} else if ok && reason.Code == amqp.AccessRefused { // some users may write by some routing keys only
		p.refusing[refusal{only.exchange, only.key, false}] = outcome
	}
	p.settle(only.of, outcome)
	if p.channel, err = p.conn.open(); err != nil {
		p.over = true
	}
}

// unsent takes that the head could not be sent.
func (p *publication) unsent(err error) {
	closed := errors.Is(err, amqp.ErrClosed) // and nothing of it was written
	if closed && len(p.underWay) > 0 {
		p.alone = true // until we learn why, and for which message
		return
	}
	if closed {
		err = away(err)
	}
	p.settle(p.head.of, err)
	p.head, p.over = nil, true
}

// end settles what is under way, and sends nothing more.
func (p *publication) end(err error) {
	p.takeReturns()
	p.over = true
	for _, m := range p.underWay {
		if m.returned != nil {
			p.settle(m.of, m.returned)
		} else {
			p.settle(m.of, err)
		}
	}
	p.underWay = nil
}
