package amqp

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/relay"
)

// These limit the unanswered messages.
const (
	maxUnderWay = 1000
	maxBytes    = 4 << 20
)

// Publish implements [relay.Sink].
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &publication{
		sink: s, batch: batch, outcomes: make([]error, len(batch)), lines: map[string]*line{},
		refusing: map[refusal]error{},
	}
	for i := range p.outcomes {
		p.outcomes[i] = relay.ErrNotTried
	}
	if len(batch) == 0 || ctx.Err() != nil {
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

	next     int               // the first message not yet examined
	ready    []int             // messages whose turn has come since
	lines    map[string]*line  // by key
	head     *head             // the next message to send
	refusing map[refusal]error // destinations that accept nothing now
	over     bool              // nothing more is to be sent
	rejected bool              // a queue has rejected a message

	underWay []sent // in the order of their tags; the first is answered next
	bytes    int
	alone    bool // nothing is sent until the messages in flight are answered
}

// line is the state of a key.
type line struct {
	busy    bool  // one is unanswered
	failed  bool  // one was not accepted
	waiting []int // for the unanswered one
}

// head is the message whose turn it is.
type head struct {
	of int
	encoded
}

// refusal is an exchange and a routing key, or the whole exchange.
type refusal struct {
	exchange, key string
	all           bool
}

// sent is an unanswered message.
type sent struct {
	of            int
	tag           uint64
	size          int
	exchange, key string
	returned      error // why, if the server could not route it
}

// run sends messages and handles answers until every outcome is known that will be.
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
		// The channel's end of a quorum queue remembers that the queue is full until it is notified otherwise; if the
		// limit was removed, that never happens.
		p.conn.renew()
	}
}

// send sends messages while there are any whose turn it is and there is room for them.
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
		p.underWay = append(p.underWay, sent{
			of: h.of, tag: p.channel.published, size: h.size(), exchange: h.exchange,
			key: h.key,
		})
		p.bytes += h.size()
		p.head = nil
	}
}

// take makes the next message whose turn it is the head. It settles messages that need not be sent.
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

// turn returns the next message whose key has no unanswered message.
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

// settle stores the outcome of a message; then it is the turn of its key's next one.
func (p *publication) settle(i int, err error) {
	l := p.lines[p.batch[i].Key]
	if l == nil { // it has no key
		p.outcomes[i] = err
		return
	}
	if l.failed {
		return // pipelined, behind one that was not accepted: it is sent again whatever its outcome
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

// confirmed handles an answer. The client sorts answers by their tags.
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

// takeReturns records the messages that the server has returned. The server returns a message before it confirms it.
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

// distrust settles all unanswered messages as unknown and abandons the connection, on which answers can no longer be
// attributed.
func (p *publication) distrust(err error) {
	p.conn.stale = true
	p.over = true
	for _, m := range p.underWay {
		p.settle(m.of, err)
	}
	p.underWay = nil
}

// closed handles the end of the channel, or of the connection. The server gives the reason, but not the message. If one
// was unanswered, that is the one, and publishing goes on without it; otherwise each is sent alone next time.
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
	} else if ok && reason.Code == amqp.AccessRefused { // some users may write with some routing keys only
		p.refusing[refusal{only.exchange, only.key, false}] = outcome
	}
	p.settle(only.of, outcome)
	if p.channel, err = p.conn.open(); err != nil {
		p.over = true
	}
}

// unsent handles a failure to send the head.
func (p *publication) unsent(err error) {
	closed := errors.Is(err, amqp.ErrClosed) // none of it was written
	if closed && len(p.underWay) > 0 {
		p.alone = true // until the reason and the message are known
		return
	}
	if closed {
		err = away(err)
	}
	p.settle(p.head.of, err)
	p.head, p.over = nil, true
}

// end settles the unanswered messages and stops sending.
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
