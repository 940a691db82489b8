package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	unansweredLimit    = 4         // times that a message alone is unknown until another one is tried
	noDestinationLimit = time.Hour // until messages to a destination that there is not are refused
)

// delivery is a page of the log on its way to the sink.
type delivery struct {
	*publisher
	o      *ownership
	events []Event

	rest      []int  // events that are not done, in order
	done      []bool // accepted, not for this sink, dropped, or held
	held      []int  // that become jobs, in order
	published int
	refused   int

	blocks  keys     // besides what o says: a message of it is among held
	failure *failure // why it does not go on
}

// send publishes a page and moves the cursor past what the sink has accepted, what became a job,
// and what is not for the sink.
//
// A page is published in passes. Each ends, of a key, at the first message that is not accepted.
// If that was refused, it becomes a job together with those behind it, and whatever else was not
// tried is in the next pass. So of the messages of a key that become jobs none is behind one
// that nobody knows to be stored.
func send(ctx context.Context, p *publisher, o *ownership, read page) error {
	d := &delivery{publisher: p, o: o, events: read.events, done: make([]bool, len(read.events)), rest: make([]int, len(read.events))}
	for i := range d.rest {
		d.rest[i] = i
	}
	for again := true; again && d.failure == nil; {
		if !o.isOurs() {
			return errLapsed
		}
		left, refused := len(d.rest), d.refused
		d.pass(ctx)
		if d.published > 0 {
			d.refuseUnanswered(ctx)
		}
		d.rest = slices.DeleteFunc(d.rest, func(i int) bool { return d.done[i] })
		again = len(d.rest) > 0 && d.refused > refused
		if len(d.rest) == left && left > 0 && d.failure == nil && !o.suspicions.apart {
			d.failure = failureOf(errors.New("the sink has not tried a message and does not say why"))
		}
	}
	p.metrics.accepted(d.published)
	if s := &o.suspicions; s.changed {
		s.changed = false
		o.keepMissing(s.missingNow())
	}
	if err := d.store(ctx, read); err != nil {
		return err
	}
	if d.failure == nil && len(d.rest) > 0 {
		return errUnfinished
	}
	if d.failure == nil {
		return nil
	}
	if ctx.Err() != nil { // the sink is another process's: nothing is known of what was under way
		return context.Cause(ctx)
	}
	return d.failure
}

// store moves the cursor, and makes jobs.
func (d *delivery) store(ctx context.Context, read page) error {
	if len(d.held) > 0 {
		events := make([]heldEvent, len(d.held))
		for n, i := range d.held {
			events[n] = heldEvent{&d.events[i], routeOf(d.routes, d.events[i].Topic)}
		}
		err := d.o.hold(ctx, d.cursor(read), d.published, events)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errNotOurs) || pgsession.State(err) == "":
			return err
		}
		for _, i := range d.held {
			d.done[i] = false
		}
		d.failure = &failure{code: CodeStuck, err: fmt.Errorf("no jobs can be made of messages that the sink refuses: %w", err)}
		d.metrics.failed(CodeStuck)
	}
	d.o.move(d.cursor(read), d.published)
	return nil
}

// cursor is the one behind what is done.
func (d *delivery) cursor(read page) cursor {
	if !slices.Contains(d.done, false) {
		return read.after
	}
	left := map[int64]bool{} // several events may share a position
	for i, e := range d.events {
		if !d.done[i] {
			left[e.Position] = true
		}
	}
	return read.before.past(slices.DeleteFunc(slices.Clone(d.events), func(e Event) bool { return left[e.Position] }))
}

// keys are those of some events that have one. Its zero value is none.
type keys map[tenantKey]bool

func (k *keys) add(e *Event) {
	if e.Key == "" {
		return
	}
	if *k == nil {
		*k = keys{}
	}
	(*k)[keyOf(e)] = true
}

func (k keys) has(e *Event) bool { return len(k) > 0 && e.Key != "" && k[keyOf(e)] }

func keyOf(e *Event) tenantKey { return tenantKey{e.Tenant, e.Key} }

// pass gives the sink what can be given to it.
func (d *delivery) pass(ctx context.Context) {
	batch := d.batch(ctx)
	began := time.Now()
	outcomes := d.deliver(ctx, batch, d.config.patience)
	d.metrics.batch(len(batch), time.Since(began))
	var failed keys
	counted := false
	for n, err := range outcomes {
		m := &batch[n]
		e := &d.events[m.index]
		switch {
		case err == nil:
			d.done[m.index] = true
			d.published++
			d.o.suspicions.reached(m)
		case failed.has(e): // it repeats the outcome of the one before it, or was not tried
		default:
			failed.add(e)
			if errors.Is(err, ErrNotTried) {
				continue
			}
			if !counted {
				counted = true
				d.metrics.failed(failureOf(err).code)
			}
			d.judge(ctx, m, err, len(batch) == 1)
		}
	}
	if d.failure != nil && d.failure.unknown {
		d.failure.messages = len(batch)
	}
}

// judge deals with a message that was not accepted.
func (d *delivery) judge(ctx context.Context, m *outgoing, err error, alone bool) {
	away, isAway := errors.AsType[*UnavailableError](err)
	refused, isRefused := errors.AsType[*RefusedError](err)
	switch {
	case isRefused:
	case isAway && away.Code == CodeNoDestination && d.o.suspicions.missing(m.Destination) > noDestinationLimit:
		refused = &RefusedError{CodeNoDestination, away.Err}
	default:
		if !isAway && alone && ctx.Err() == nil {
			d.o.suspicions.unanswered(m.ID, err)
		}
		if d.failure == nil {
			d.failure = failureOf(named(&d.events[m.index], err))
			d.failure.unknown = !isAway
		}
		return
	}
	d.refuse(ctx, m.index, refused)
}

// batch is the messages that can be given to the sink together. What has to become a job does.
func (d *delivery) batch(ctx context.Context) []outgoing {
	batch := make([]outgoing, 0, len(d.rest))
	var waits keys // for one before it, of which the outcome is not known
	blocked := d.o.isAnyBlocked()
	s := &d.o.suspicions
	for _, i := range d.rest {
		e := &d.events[i]
		r := routeOf(d.routes, e.Topic)
		switch {
		case r == nil:
			d.done[i] = true
			continue
		case s.apart && e.ID.String() == s.id:
			waits.add(e)
			continue
		case waits.has(e):
			continue
		case d.blocks.has(e) || blocked && e.Key != "" && d.o.isBlocked(keyOf(e)):
			if !d.hold(i, nil) {
				waits.add(e)
			}
			continue
		}
		m, err := messageOf(e, r, d.config.Source)
		underWay := func(m outgoing) bool { return e.Key != "" && keyOf(&d.events[m.index]) == keyOf(e) }
		switch {
		case err == nil:
			batch = append(batch, outgoing{m, i})
			if s.apart {
				waits.add(e)
			}
		case slices.ContainsFunc(batch, underWay) || !d.refuse(ctx, i, asRefused(err)):
			waits.add(e)
		}
	}
	if s.apart && len(batch) > 1 {
		n := s.others % len(batch)
		return batch[n : n+1]
	}
	return batch
}

func asRefused(err error) *RefusedError {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused
	}
	return &RefusedError{CodeRefused, err}
}

// refuse deals with a message that the sink refuses. It reports whether later ones of its key
// need not wait for it to be dealt with.
func (d *delivery) refuse(ctx context.Context, i int, refused *RefusedError) bool {
	e := &d.events[i]
	d.metrics.refuse(refused.Code)
	d.refused++
	if routeOf(d.routes, e.Topic).OnRefused == Drop {
		d.complain(ctx, "message refused and dropped", named(e, refused))
		d.metrics.dropped.Inc()
		d.done[i] = true
		return true
	}
	if !d.hold(i, refused) {
		return false
	}
	d.complain(ctx, "message refused: it becomes a job", named(e, refused))
	return true
}

// refuseUnanswered has the message that is unknown again and again be refused, after another one was accepted.
func (d *delivery) refuseUnanswered(ctx context.Context) {
	s := &d.o.suspicions
	if !s.apart {
		return
	}
	for _, i := range d.rest {
		if d.events[i].ID.String() == s.id {
			d.refuse(ctx, i, &RefusedError{CodeUnanswered, s.err})
		}
	}
	s.forget()
}

// hold has an event become a job, if there may be one more; cause is why, if it is not those
// before it.
func (d *delivery) hold(i int, cause *RefusedError) bool {
	e := &d.events[i]
	if len(d.held) < d.o.room() {
		d.held = append(d.held, i)
		d.done[i] = true
		d.blocks.add(e)
		return true
	}
	if d.failure == nil {
		err := fmt.Errorf("%d messages that it has refused, or that are behind them, are jobs, and more may not be", d.maxHeld)
		if cause != nil {
			err = fmt.Errorf("%w: %w", err, named(e, cause))
		}
		d.failure = &failure{code: CodeStuck, err: err}
		d.metrics.failed(CodeStuck)
	}
	return false
}

// suspicions are what an owner remembers of messages and destinations that fail by themselves.
//
// A message that is alone and unknown again and again may break the sink; or the sink takes no message, although Probe
// succeeds, as a receiver that answers 500 to each, or hangs behind a load balancer. So another one is tried alone, of
// another key. If it is accepted, the first one is to blame, and is refused. If it is not, the sink stands still, and
// nothing becomes a job; the next trial is with yet another one, because the one before may break the sink, too. A
// message that breaks the sink and has none of another key behind it stops it until there is one: nobody else waits.
// How far behind it another one may be is what can be read in anotherTime.
type suspicions struct {
	probed  bool   // the sink has answered just now
	id      string // of the message that was unknown last, when the sink had answered
	err     error  // why
	unknown int    // how many times in a row it was
	apart   bool   // another one is tried, and neither it nor those of its key
	others  int    // how many times that was done

	now     func() time.Time
	since   map[string]time.Time // that destinations are not there
	changed bool                 // since it was given to the ownership, which has it stored
}

// unanswered notes that a message was alone in its batch and is unknown, if the sink has answered just now.
func (s *suspicions) unanswered(id string, err error) {
	if !s.probed || s.apart {
		return
	}
	if s.id != id {
		s.forget()
		s.id = id
	}
	s.err = err
	s.unknown++
}

// forget forgets the message that was unknown.
func (s *suspicions) forget() { s.id, s.err, s.unknown, s.apart, s.others = "", nil, 0, false, 0 }

// missing notes that a destination is not there, and returns for how long it was not. If there are as many as are
// remembered, a new one takes the place of one whose messages are refused by now, or is not remembered yet. It takes no
// other's place: if a page had more of them than are remembered, each would be forgotten before its hour is over.
func (s *suspicions) missing(destination string) time.Duration {
	since, known := s.since[destination]
	if known {
		return s.now().Sub(since)
	}
	maps.DeleteFunc(s.since, func(_ string, since time.Time) bool {
		return len(s.since) >= maxBatch && s.now().Sub(since) > noDestinationLimit
	})
	if len(s.since) < maxBatch {
		s.since[destination] = s.now()
		s.changed = true
	}
	return 0
}

// load takes what the owner before had stored.
func (s *suspicions) load(missing string) error {
	var ages map[string]float64
	if err := json.Unmarshal([]byte(missing), &ages); err != nil {
		return fmt.Errorf("read which destinations are missing: %w", err)
	}
	s.since = make(map[string]time.Time, len(ages))
	for quoted, age := range ages {
		if destination, err := strconv.Unquote(`"` + quoted + `"`); err == nil {
			s.since[destination] = s.now().Add(-time.Duration(age * float64(time.Second)))
		}
	}
	return nil
}

// missingNow is what load takes: for how many seconds destinations are missing. Names are quoted as in Go, so that
// every database can store them.
func (s *suspicions) missingNow() string {
	ages := make(map[string]float64, len(s.since))
	for destination, since := range s.since {
		quoted := strconv.QuoteToASCII(destination)
		ages[quoted[1:len(quoted)-1]] = s.now().Sub(since).Seconds()
	}
	object, _ := json.Marshal(ages) // texts and numbers
	return string(object)
}

// reached notes that a message was accepted.
func (s *suspicions) reached(m *outgoing) {
	if _, was := s.since[m.Destination]; was {
		delete(s.since, m.Destination)
		s.changed = true
	}
	if s.id == m.ID {
		s.forget()
	}
}
