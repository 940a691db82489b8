package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/posthaste-dev/posthaste/relay"
)

// sendInWindow sends a run as single messages: of each key one at a time, of different keys together. So whatever the
// server says about a message, none of its key is behind it. Nothing is left.
func sendInWindow(ctx context.Context, p *publication, s *stream, run []int) (left []int, then step) {
	w := &window{
		publication: p, stream: s, exchange: p.c.exchange(), run: run, next: make([]int, len(run)), waiting: make([]bool, len(run)),
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

// window is a run that is under way. Its messages are numbers from 0 on.
type window struct {
	*publication
	stream   *stream
	exchange exchange
	run      []int

	heads      []int    // the first message of each key
	next       []int    // the next message of its key; 0 if there is none
	waiting    []bool   // for its answer
	left       int      // how many are
	violations []string // subjects to which messages were not let, of which we do not yet know which ones
	stopped    bool     // the stream takes nothing more
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

// send sends a message, and after one that the client does not send the next of its key is not tried.
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

// answered takes the answer to a message. One that we do not wait for is none of ours, or repeats.
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

// forbid refuses messages that the server did not let through. It says to which subject, once for each of them, but not
// which, and acknowledgements of those before may come later, if the permission has just been revoked. So it is those
// which are left when there are no more of that subject.
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

// unanswered are the messages that wait for an answer, to a subject or "" for any.
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
