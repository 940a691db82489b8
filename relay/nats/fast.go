package nats

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/relay"
)

// These are the operations of fast ingest (ADR-50 of NATS). The subject for a message's answer contains, after the
// run's ID: how often the server is to answer, what it does about a gap, the message's number, its operation, and a
// mark.
const (
	ingestStart  = "0"
	ingestAppend = "1"
	ingestCommit = "2" // the last message
	ingestEnd    = "3" // no message; ends the run
	ingestFail   = "500.fail."
	ingestMark   = ".$FI"
)

// sendFast sends a whole run by fast ingest, without waiting for answers in between. The server stores messages up to
// the first that it refuses or does not receive, drops those that it already has, and reports how far it came.
func sendFast(ctx context.Context, p *publication, s *stream, run []int) (left []int, then step) {
	f := &ingest{publication: p, stream: s, exchange: p.c.exchange(), run: run, refusals: map[int]error{}}
	f.send()
	for !f.ended {
		e, err := f.exchange.next(ctx, answerTimeout)
		switch {
		case err != nil:
			f.settleStored()
			return p.broken(run[f.stored:f.sent], err)
		case e.answer != nil:
			f.answered(e)
		default:
			p.forbidden[e.violated] = forbiddenTo(e.violated)
			f.violations++
			f.finish()
		}
	}
	return f.conclude()
}

// ingest is a run in progress. Its messages are numbered from 1 on.
type ingest struct {
	*publication
	stream   *stream
	exchange exchange
	run      []int

	sent       int
	ending     string        // the subject of the notice that no more messages follow; "" if there is none
	notices    int           // how many of these were sent
	violations int           // how many messages and notices the server has not let through
	stored     int           // messages up to this one are stored, as far as is known
	refusals   map[int]error // answers about single messages
	repeated   bool          // the first message was already stored, and ended the run
	ended      bool          // no further answer counts
}

func (f *ingest) send() {
	for n, i := range f.run {
		operation := ingestAppend
		switch n + 1 {
		case len(f.run):
			operation = ingestCommit
		case 1:
			operation = ingestStart
		}
		m := f.messages[i]
		m.Reply = f.reply(n+1, operation)
		if err := f.c.nc.PublishMsg(m); err != nil {
			f.refusals[n+1] = classify(err)
			f.finish()
			return
		}
		f.sent = n + 1
	}
}

func (f *ingest) reply(n int, operation string) string {
	return f.exchange.prefix + ingestFail + strconv.Itoa(n) + "." + operation + ingestMark
}

// finish ends a run whose last message has not reached the server, which would wait for it: it sends a notice to one of
// the run's subjects, which must not be forbidden. If all are, the run ends when the server has refused all of it.
func (f *ingest) finish() {
	if f.ending != "" && f.forbidden[f.ending] == nil {
		return
	}
	for _, i := range f.run[:f.sent] {
		if to := f.batch[i].Destination; f.forbidden[to] == nil {
			f.ending = to
			f.notices++
			f.ended = f.c.nc.PublishMsg(&nats.Msg{Subject: to, Reply: f.reply(f.sent+1, ingestEnd)}) != nil
			return
		}
	}
	f.ended = f.violations >= f.sent+f.notices
}

// answered handles an answer: about a single message, a report of how far the server is, or the last one.
func (f *ingest) answered(e event) {
	about, ok := number(e.to)
	a, err := parse(e.answer)
	switch {
	case !ok:
	case a.Type == "ack":
		f.reached(a.Sequence)
	case a.Type == "err" && a.Error != nil:
		f.refusals[a.Sequence] = classify(a.Error)
	case a.Type != "": // a gap; the last answer locates it
	case err == nil && a.Duplicate && about == 1:
		f.repeated, f.ended = true, true
		f.reached(1)
		f.sink.duplicates.Add(1)
	case err == nil:
		f.reached(a.Count)
		f.ended = true
	case about == 1 || about > f.sent || noResponders(e.answer):
		// The server does not know such a run, or is gone.
		f.refusals[about] = err
		f.ended = true
	default:
		f.refusals[about] = err
		f.finish() // it was rejected before the server saw it as part of the run, and may have been the last
	}
}

func (f *ingest) reached(n int) {
	if n <= f.sent {
		f.stored = max(f.stored, n)
	}
}

// number returns the number of the message that an answer is about.
func number(to string) (n int, ok bool) {
	text, isFail := strings.CutPrefix(to, ingestFail)
	text, _, isMessage := strings.Cut(text, ".")
	n, err := strconv.Atoi(text)
	return n, isFail && isMessage && err == nil
}

// settleStored settles the messages that the server has, none of which is behind one that it has refused.
func (f *ingest) settleStored() {
	for n := range f.refusals {
		if n >= 1 && n <= f.stored {
			f.stored = n - 1
		}
	}
	for _, i := range f.run[:f.stored] {
		f.settle(i, nil)
	}
}

// conclude settles the stored messages and the one after them, and returns the rest.
func (f *ingest) conclude() ([]int, step) {
	f.settleStored()
	if f.stored == len(f.run) {
		return nil, further
	}
	i := f.run[f.stored]
	err := f.refusals[f.stored+1]
	if err == nil {
		err = f.forbidden[f.batch[i].Destination]
	}
	if isCode(err, ingestDisabled) {
		f.stream.config.AllowBatchPublish = false
	}
	if refused, ok := errors.AsType[*relay.RefusedError](err); ok && refused.Code != relay.CodeRefused {
		f.settle(i, err)
		return f.run[f.stored+1:], further
	}
	if _, ok := errors.AsType[*relay.UnavailableError](err); ok && !f.repeated {
		f.settle(i, err)
		f.sink.forget(f.stream)
		return nil, stop
	}
	return f.run[f.stored:], singly
}
