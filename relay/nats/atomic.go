package nats

import (
	"context"
	"strconv"

	"github.com/nats-io/nats.go"
)

// These are the headers of an atomic batch (ADR-50 of NATS). The server stores them with the messages.
const (
	headerBatch  = "Nats-Batch-Id"
	headerNumber = "Nats-Batch-Sequence"
	headerCommit = "Nats-Batch-Commit"
)

// sendAtomic sends a run as an atomic batch, of which the server stores all messages or none. Messages that it does not
// store go singly: the server does not say which message was at fault, and rejects a batch if it already has one of its
// messages.
func sendAtomic(ctx context.Context, p *publication, s *stream, run []int) (left []int, then step) {
	x := p.c.exchange()
	if !x.sendBatch(p.messages, run) {
		return run, singly
	}
	last := p.batch[run[len(run)-1]].Destination
	for {
		e, err := x.next(ctx, answerTimeout)
		switch {
		case err != nil:
			return p.broken(run, err)
		case e.answer != nil:
			a, err := parse(e.answer)
			if err != nil || a.Type != "" || a.Count != len(run) {
				s.config.AllowAtomicPublish = s.config.AllowAtomicPublish && !isCode(err, atomicDisabled)
				return run, singly
			}
			for _, i := range run {
				p.settle(i, nil)
			}
			return nil, further
		default:
			p.forbidden[e.violated] = forbiddenTo(e.violated)
			if e.violated == last {
				return run, singly // the server did not let it through, so there is no answer
			}
		}
	}
}

// sendBatch sends a batch, in which only the last message gets an answer. It reports whether the client has sent all of
// it, and removes the headers again, for messages that must go singly.
func (x exchange) sendBatch(messages []*nats.Msg, run []int) (sent bool) {
	for n, i := range run {
		m := messages[i]
		m.Header.Set(headerBatch, x.id)
		m.Header.Set(headerNumber, strconv.Itoa(n+1))
		m.Reply = ""
		if n == len(run)-1 {
			m.Header.Set(headerCommit, "1")
			m.Reply = x.prefix + "0"
		}
		err := x.c.nc.PublishMsg(m)
		m.Header.Del(headerBatch)
		m.Header.Del(headerNumber)
		m.Header.Del(headerCommit)
		if err != nil {
			return false
		}
	}
	return true
}
