package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// delivery is a page of the log that is being sent to the sink.
type delivery struct {
	*publisher
	o      *ownership
	events []Event

	rest      []int  // events that are not done, in order
	done      []bool // accepted, not for this sink, dropped, held, or waiting for a destination
	held      []int  // events that become jobs, in order
	published int
	again     bool // there is more to send than was known before

	blocks  keys     // in addition to those in o: keys with a message among held
	failure *failure // why it does not go on
}

// send publishes a page and moves the cursor past the events that the sink has accepted, those that became jobs, and
// those that are not for the sink.
//
// A page is published in passes. For each key, a pass ends at the first message that is not accepted. If that one was
// refused, it and the later messages of its key become jobs; if its destination accepts nothing, they wait; everything
// else that was not tried goes into the next pass. So no message that becomes a job, or waits, is behind one of its key
// whose outcome is unknown.
//
// ctx ends with the ownership. Once reading has ended, or the sink is paused, no other pass begins: the rest of the
// page is read again.
func send(ctx, reading context.Context, p *publisher, o *ownership, read page) error {
	d := &delivery{
		publisher: p, o: o, events: read.events, done: make([]bool, len(read.events)),
		rest: make([]int, len(read.events)),
	}
	for i := range d.rest {
		d.rest[i] = i
	}
	o.destinations.limit(!read.late && !o.unanswered.isolating)
	for again := true; again && d.failure == nil; {
		if !o.isOurs() {
			return errLapsed
		}
		left := len(d.rest)
		d.again = false
		d.pass(ctx)
		d.rest = slices.DeleteFunc(d.rest, func(i int) bool { return d.done[i] })
		again = len(d.rest) > 0 && d.again && reading.Err() == nil && o.isLive()
		if len(d.rest) == left && left > 0 && d.failure == nil && !o.unanswered.isolating {
			d.failure = failureOf(errors.New("the sink has not tried a message and does not say why"))
		}
	}
	p.metrics.accepted(d.published)
	p.metrics.waiting.Set(float64(o.destinations.waits()))
	if destinations := &o.destinations; destinations.changed {
		destinations.changed = false
		o.keepMissing(destinations.ages())
	}
	if d.failure == nil {
		o.showShut()
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
	defer d.waitBeside()
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

// waitBeside makes later messages of a key wait behind an event that is left at a position at which another one waits
// for its destination: the log is read on after that position (see unread), and the event in the next round.
func (d *delivery) waitBeside() {
	waiting := d.o.destinations.waiting
	for i := range d.events {
		if e := &d.events[i]; !d.done[i] && slices.Contains(waiting, e.Position) {
			d.o.destinations.keys.add(e)
		}
	}
}

// cursor returns the cursor after the events that are done, with holes where messages wait.
func (d *delivery) cursor(read page) cursor {
	return d.passed(read).withHoles(d.o.destinations.waiting)
}

// passed returns the cursor after the events that are done.
func (d *delivery) passed(read page) cursor {
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
	isTrial := len(batch) == 1 && d.o.destinations.isTrial(batch[0].place, batch[0].ID)
	outcomes := d.deliver(ctx, batch, d.config.patience)
	took := time.Since(began)
	d.metrics.batch(len(batch), took)
	var failed keys
	counted := false
	for n, err := range outcomes {
		m := &batch[n]
		e := &d.events[m.index]
		switch {
		case err == nil:
			d.done[m.index] = true
			d.published++
			d.o.unanswered.reached(m.ID)
			if d.o.destinations.reached(m.place, m.ID) {
				d.again = true
				d.noteReopened(ctx, m.place)
			}
			if d.o.unanswered.isolating {
				d.silence(ctx, m.place)
			}
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
	if isTrial {
		d.o.destinations.extend(took)
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
	case isAway && isOfDestination(away.Code):
		if d.o.destinations.failed(m.place, away.Code) > noDestinationLimit {
			refused = &RefusedError{CodeNoDestination, away.Err}
			break
		}
		err = fmt.Errorf("destination %s accepts nothing: %w", shown(m.place), named(&d.events[m.index], err))
		d.shut(ctx, m, failureOf(err))
		return
	case !isAway && alone && ctx.Err() == nil && d.o.destinations.isTrial(m.place, m.ID):
		d.silentAgain(ctx, m, err)
		return
	default:
		if !isAway && alone && ctx.Err() == nil {
			d.o.unanswered.note(m, err)
		}
		if d.failure == nil {
			d.failure = failureOf(named(&d.events[m.index], err))
			d.failure.unknown = !isAway
		}
		return
	}
	d.o.destinations.refused(m.place, m.ID)
	d.refuse(ctx, m.index, refused)
}

// shut handles a message whose destination accepts nothing.
func (d *delivery) shut(ctx context.Context, m *outgoing, why *failure) {
	if d.o.unanswered.isolating { // it does not show that the sink accepts another message
		d.failure = cmp.Or(d.failure, why)
		return
	}
	d.complain(ctx, "destination accepts nothing", why)
	d.o.destinations.shuts(m.place, why)
	d.putOff(m.index)
}

// silence handles the unknown message, after another message was accepted alone. If that one had the same destination,
// the unknown message is sent once more, and refused if it is unknown again. If not, its destination is silent.
func (d *delivery) silence(ctx context.Context, accepted string) {
	unknown := d.o.unanswered
	same := accepted == unknown.destination
	d.o.unanswered.forget()
	d.again = true
	d.o.destinations.silences(unknown.destination, unknown.id, same)
	if !same {
		d.shutSilent(ctx, unknown.destination, unknown.err)
	}
}

// silentAgain handles a message to a silent destination that was sent alone, and is unknown.
func (d *delivery) silentAgain(ctx context.Context, m *outgoing, err error) {
	if d.o.destinations.isAtFault(m.place, m.ID) {
		d.refuse(ctx, m.index, &RefusedError{CodeUnanswered, err})
		return
	}
	d.shutSilent(ctx, m.place, named(&d.events[m.index], err))
	d.putOff(m.index)
}

func (d *delivery) shutSilent(ctx context.Context, destination string, err error) {
	err = fmt.Errorf("no answer from %s, while others accept messages: %w", shown(destination), err)
	why := &failure{code: CodeSilent, err: err}
	d.o.destinations.silent[destination].why = why
	d.complain(ctx, "destination accepts nothing", why)
	d.o.destinations.shuts(destination, why)
}

// noteReopened logs that a destination accepts messages again. One that is nearly full stops and does so again and
// again.
func (d *delivery) noteReopened(ctx context.Context, destination string) {
	if _, due := d.complaints.Due("destination accepts messages again", time.Now()); due {
		d.log.LogAttrs(ctx, slog.LevelInfo, "destination accepts messages again",
			slog.String("destination", shown(destination)))
	}
}

// putOff makes an event wait for its destination, or for one of its key that waits, if not too many do. It reports
// whether it has.
func (d *delivery) putOff(i int) bool {
	if !d.o.destinations.wait(&d.events[i]) {
		if d.failure == nil {
			d.failure = d.o.destinations.tooMany()
		}
		return false
	}
	d.done[i], d.again = true, true
	return true
}

// batch returns the messages that can be sent to the sink together. It turns events that must become jobs into jobs. If
// an event must wait and no more may, the batch ends before it: what would be published behind it would become holes
// around it, more than may wait.
func (d *delivery) batch(ctx context.Context) []outgoing {
	batch := make([]outgoing, 0, len(d.rest))
	var waits keys // for an earlier message whose outcome is unknown
	var trials map[string]bool
	var alone []outgoing // messages to silent destinations, one of which can be sent when there are no others
	blocked := d.o.isAnyBlocked()
	unanswered := &d.o.unanswered
	destinations := &d.o.destinations
events:
	for _, i := range d.rest {
		e := &d.events[i]
		r := routeOf(d.routes, e.Topic)
		switch {
		case r == nil:
			d.done[i] = true
			continue
		case unanswered.isolating && e.ID.String() == unanswered.id:
			waits.add(e)
			continue
		case waits.has(e):
			continue
		case destinations.isBehind(e):
			if !d.putOff(i) {
				break events
			}
			continue
		case d.blocks.has(e) || blocked && e.Key != "" && d.o.isBlocked(keyOf(e)):
			if !d.hold(i, nil) {
				waits.add(e)
			}
			continue
		}
		message, err := messageOf(e, r, d.config.Source)
		m := outgoing{message, i, d.placeOf(message)}
		underWay := func(m outgoing) bool { return e.Key != "" && keyOf(&d.events[m.index]) == keyOf(e) }
		switch {
		case err == nil && (destinations.isShut(m.place) || destinations.shutUntried(m.place)):
			if !d.putOff(i) {
				break events
			}
		case err == nil && destinations.isTrial(m.place, m.ID):
			alone = append(alone, m)
			waits.add(e)
		case err == nil && trials[m.place]:
			waits.add(e)
		case err == nil:
			if destinations.isTried(m.place) {
				trials = with(trials, m.place)
			}
			batch = append(batch, m)
			if unanswered.isolating {
				waits.add(e)
			}
		case slices.ContainsFunc(batch, underWay) || !d.refuse(ctx, i, asRefused(err)):
			waits.add(e)
		}
	}
	return d.choose(batch, alone)
}

// choose returns what can be sent now of a batch and of messages that must be sent alone.
func (d *delivery) choose(batch, alone []outgoing) []outgoing {
	switch unanswered := &d.o.unanswered; {
	case unanswered.isolating && len(batch) > 1:
		n := unanswered.others % len(batch)
		return batch[n : n+1]
	case unanswered.isolating || len(alone) == 0:
		return batch
	}
	d.again = true
	if len(batch) == 0 {
		return d.o.destinations.trial(alone)
	}
	return batch
}

// with returns a set with one more name; nil is the empty set.
func with(set map[string]bool, name string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[name] = true
	return set
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
	d.again = true
	if routeOf(d.routes, e.Topic).OnRefused == RefusedDrop {
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
		err := fmt.Errorf("%d messages that it has refused, or that are behind them, are jobs, and more may not be%s",
			d.maxHeld, d.o.busiestKey())
		if cause != nil {
			err = fmt.Errorf("%w: %w", err, named(e, cause))
		}
		d.failure = &failure{code: CodeStuck, err: err}
		d.metrics.failed(CodeStuck)
	}
	return false
}
