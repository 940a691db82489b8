package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/posthaste-dev/posthaste/relay"
)

// sendInWindow sends a run as single messages: one of each key at a time, and those of different keys together. So
// whatever the server answers about a message, none of its key has been sent after it. Nothing is left over.
func sendInWindow(ctx context.Context, p *publication, s *stream, run []int) (left []int, then step) {
	w := &window{
		publication: p, stream: s, exchange: p.c.exchange(), run: run, next: make([]int, len(run)),
		waiting: make([]bool, len(run)),
	}
	w.chain()
	for _, n := range w.heads {
		w.send(n)
	}
	for w.left > 0 {
		e, err := w.exchange.next(ctx, answerTimeout)
		switch {
		case err != nil:
			var unknown []int
			for _, n := range w.unanswered("") {
				unknown = append(unknown, run[n])
			}
			return p.broken(unknown, err)
		case e.answer != nil:
			w.answered(e)
		default:
			w.violations = append(w.violations, e.violated)
		}
		w.forbid()
	}
	if w.stopped {
		return nil, stop
	}
	return nil, further
}

// window is a run in progress. Its messages are numbered from 0 on.
type window struct {
	*publication
	stream   *stream
	exchange exchange
	run      []int

	heads      []int    // the first message of each key
	next       []int    // the next message of its key; 0 if there is none
	waiting    []bool   // which messages have no answer yet
	left       int      // how many of them there are
	violations []string // forbidden subjects whose messages are not yet identified
	stopped    bool     // the stream accepts nothing more
}

// chain links the messages of each key.
func (w *window) chain() {
	last := make(map[string]int, len(w.run))
	for n, i := range w.run {
		key := w.batch[i].Key
		if before, ok := last[key]; ok && key != "" {
			w.next[before] = n
		} else {
			w.heads = append(w.heads, n)
		}
		last[key] = n
	}
}

// send sends a message. If the client fails to send it, the next ones of its key are not tried.
func (w *window) send(n int) {
	if w.stopped {
		return
	}
	i := w.run[n]
	m := w.messages[i]
	m.Reply = w.exchange.prefix + strconv.Itoa(n)
	err := w.c.nc.PublishMsg(m)
	if err == nil {
		w.waiting[n] = true
		w.left++
		return
	}
	err = classify(err)
	if _, refused := errors.AsType[*relay.RefusedError](err); !refused {
		w.stopped = true
	}
	w.settle(i, err)
}

// answered handles the answer to a message. It ignores an answer that is not expected or repeats.
func (w *window) answered(e event) {
	n, err := strconv.Atoi(e.to)
	if err != nil || n < 0 || n >= len(w.run) || !w.waiting[n] {
		return
	}
	w.done(n)
	a, err := parse(e.answer)
	if a.Type != "" {
		err = fmt.Errorf("an answer of type %q to a single message", a.Type)
	}
	w.settle(w.run[n], err)
	if err == nil {
		if a.Duplicate {
			w.sink.duplicates.Add(1)
		}
		if next := w.next[n]; next > 0 {
			w.send(next)
		}
		return
	}
	if _, unavailable := errors.AsType[*relay.UnavailableError](err); unavailable {
		w.stopped = true
		w.sink.forget(w.stream)
	}
}

// forbid refuses messages that the server did not let through. The server names the subject once for each such message,
// but not the message, and acknowledgements of earlier messages may come later, if the permission has just been
// revoked. So forbid waits until as many messages to the subject are unanswered as the server has refused, and refuses
// those.
func (w *window) forbid() {
	for len(w.violations) > 0 {
		subject := w.violations[0]
		others := slices.DeleteFunc(slices.Clone(w.violations), func(v string) bool { return v == subject })
		left := w.unanswered(subject)
		if len(left) > len(w.violations)-len(others) {
			return
		}
		err := forbiddenTo(subject)
		w.forbidden[subject] = err
		for _, n := range left {
			w.done(n)
			w.settle(w.run[n], err)
		}
		w.violations = others
	}
}

// unanswered returns the messages without an answer, to a subject or with "" to any.
func (w *window) unanswered(subject string) (all []int) {
	for n, waiting := range w.waiting {
		if waiting && (subject == "" || w.batch[w.run[n]].Destination == subject) {
			all = append(all, n)
		}
	}
	return all
}

func (w *window) done(n int) {
	w.waiting[n] = false
	w.left--
}
