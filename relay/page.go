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
	unansweredLimit    = 4         // how often a message alone may be unknown before another one is tried
	noDestinationLimit = time.Hour // before messages to a missing destination are refused
)

// delivery is a page of the log that is being sent to the sink.
type delivery struct {
	*publisher
	o      *ownership
	events []Event

	rest      []int  // events that are not done, in order
	done      []bool // accepted, not for this sink, dropped, or held
	held      []int  // events that become jobs, in order
	published int
	refused   int

	blocks  keys     // in addition to those in o: keys with a message among held
	failure *failure // why it does not go on
}

// send publishes a page and moves the cursor past the events that the sink has accepted, those that became jobs, and
// those that are not for the sink.
//
// A page is published in passes. For each key, a pass ends at the first message that is not accepted. If that one was
// refused, it and the later messages of its key become jobs; everything else that was not tried goes into the next
// pass. So no message that becomes a job is behind one of its key whose outcome is unknown.
func send(ctx context.Context, p *publisher, o *ownership, read page) error {
	d := &delivery{
		publisher: p, o: o, events: read.events, done: make([]bool, len(read.events)),
		rest: make([]int, len(read.events)),
	}
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
	if ctx.Err() != nil { // another process owns the sink: the messages in progress are unknown
		return context.Cause(ctx)
	}
	return d.failure
}

// store moves the cursor and makes the jobs.
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
		d.failure = &failure{
			code: CodeStuck,
			err: fmt.Errorf("no jobs can be made of messages that the sink refuses; there are %d, and the first is %w",
				len(d.held), named(&d.events[d.held[0]], err)),
		}
		d.metrics.failed(CodeStuck)
	}
	d.o.move(d.cursor(read), d.published)
	return nil
}

// cursor returns the cursor after the events that are done.
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

// keys is the set of keys of some events. Its zero value is empty.
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

// pass sends the sink the messages that can be sent to it.
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
		case failed.has(e): // repeats the outcome of the one before it, or was not tried
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

// judge handles a message that was not accepted.
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

// batch returns the messages that can be sent to the sink together. It turns events that must become jobs into jobs.
func (d *delivery) batch(ctx context.Context) []outgoing {
	batch := make([]outgoing, 0, len(d.rest))
	var waits keys // for an earlier message whose outcome is unknown
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

// refuse handles a message that the sink refuses. It reports whether later messages of its key need not wait until the
// refusal is dealt with.
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

// refuseUnanswered makes a message that is unknown again and again a refused one, after another one was accepted.
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

// hold turns an event into a job, if there is room for one more. cause is the reason, or nil if the reason is earlier
// events of its key.
func (d *delivery) hold(i int, cause *RefusedError) bool {
	e := &d.events[i]
	if len(d.held) < d.o.room() {
		d.held = append(d.held, i)
		d.done[i] = true
		d.blocks.add(e)
		return true
	}
	if d.failure == nil {
		err := fmt.Errorf("%d messages that it has refused, or that are behind them, are jobs, and more may not be",
			d.maxHeld)
		if cause != nil {
			err = fmt.Errorf("%w: %w", err, named(e, cause))
		}
		d.failure = &failure{code: CodeStuck, err: err}
		d.metrics.failed(CodeStuck)
	}
	return false
}

// suspicions records messages and destinations that fail on their own.
//
// A message that is unknown again and again when sent alone may break the sink. Or the sink accepts no message although
// Probe succeeds: a receiver may answer 500 to each, or hang behind a load balancer. So another message, of another
// key, is tried alone. If it is accepted, the first one is at fault, and is refused. If it is not, the sink is stopped,
// and nothing becomes a job; the next trial uses yet another message, because the previous one may break the sink, too.
// If a message breaks the sink and no message of another key follows it, the sink stays stopped until there is one;
// nobody else is waiting. How far ahead the search for another message reaches is limited by what can be read in
// anotherTime.
type suspicions struct {
	probed  bool   // the sink has just answered
	id      string // of the last message that was unknown although the sink had answered
	err     error  // why
	unknown int    // how many times in a row it was unknown
	apart   bool   // another message is tried, of another key
	others  int    // how many times another was tried

	now     func() time.Time
	since   map[string]time.Time // since when destinations have been missing
	changed bool                 // since it was last given to the ownership to store
}

// unanswered records that a message was alone in its batch and is unknown, if the sink has just answered.
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

// forget drops the message that was unknown.
func (s *suspicions) forget() { s.id, s.err, s.unknown, s.apart, s.others = "", nil, 0, false, 0 }

// missing records that a destination is missing, and returns for how long it has been. If the record is full, a new
// destination replaces one whose messages are refused by now, or is not recorded yet. It replaces no other: if a page
// had more missing destinations than the record holds, each would be dropped before its hour is over.
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

// load restores what the previous owner stored.
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

// missingNow returns what load restores: for how many seconds each destination has been missing. Names are quoted as in
// Go, so that every database can store them.
func (s *suspicions) missingNow() string {
	ages := make(map[string]float64, len(s.since))
	for destination, since := range s.since {
		quoted := strconv.QuoteToASCII(destination)
		ages[quoted[1:len(quoted)-1]] = s.now().Sub(since).Seconds()
	}
	object, _ := json.Marshal(ages) // cannot fail: strings and numbers
	return string(object)
}

// reached records that a message was accepted.
func (s *suspicions) reached(m *outgoing) {
	if _, was := s.since[m.Destination]; was {
		delete(s.since, m.Destination)
		s.changed = true
	}
	if s.id == m.ID {
		s.forget()
	}
}
