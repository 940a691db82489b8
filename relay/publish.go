package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	maxBatch       = 1000
	publishTimeout = 10 * time.Second       // time after which a batch without an answer is unknown
	numberInterval = 500 * time.Millisecond // between looks at holes that perhaps nobody will fill
	maxReason      = 4 << 10                // bytes stored of the reason for which a sink is stopped
	anotherTime    = 10 * time.Second       // how long readAnother searches for a message of another key
)

// errUnfinished reports that there was not enough time for a whole batch: the rest is read again and published next.
var errUnfinished = errors.New("the sink has accepted a part of the batch, and has not tried the rest")

// A publisher publishes to one sink whenever this process owns it.
type publisher struct {
	sinkClient
	routes     []route
	begin      Begin
	maxHeld    int
	owner      string
	config     *Config
	pool       *pgxpool.Pool
	callerPool *pgxpool.Pool // reset on failover, too
	shared     *shared       // nil if there is no other sink
	most       int           // events per page
	inTime     int           // events of a page that can be read in time, as far as is known
	log        *slog.Logger

	wake       chan struct{} // events were stored
	heldWake   chan struct{} // events became jobs
	released   chan struct{} // like wake, for awaiting the sink: an owner that leaves it notifies
	complaints outage.Complaints
	logged     bool // that the sink is stopped, since it last resumed
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	var retry backoff.Backoff
	for ctx.Err() == nil {
		o, err := p.own(ctx)
		if err == nil {
			p.log.LogAttrs(ctx, slog.LevelInfo, "sink owned", slog.Int64("epoch", o.epoch),
				slog.Int64("top", o.cursor.top))
			began := time.Now()
			err = p.publish(ctx, o)
			o.conn.Release()
			if time.Since(began) > 3*p.config.renewInterval {
				retry.Reset()
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.complain(ctx, "sink not owned", err)
		if pgsession.State(err) == "" && !errors.Is(err, errNotOurs) {
			p.pool.Reset() // the other connections are probably broken too, and would not answer for minutes
		}
		pgsession.LeaveReadOnly(err, p.pool, p.callerPool)
		_ = retry.Wait(ctx) // the end of ctx is handled above
	}
}

func (p *publisher) complain(ctx context.Context, message string, err error) {
	if missed, due := p.complaints.Due(message, time.Now()); due {
		p.log.LogAttrs(ctx, slog.LevelWarn, message, slog.Int("since_last_line", missed), slog.Any("err", err))
	}
}

// publish works while this process owns the sink, and returns why it no longer does. When ctx ends, it still publishes
// the batch in progress and stores its outcome.
func (p *publisher) publish(ctx context.Context, o *ownership) error {
	ours, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	reading, stop := context.WithCancel(ours)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	var replaying sync.WaitGroup
	replaying.Go(func() { newReplayer(p, o).run(reading) })
	replaying.Go(func() { o.watchWaits(reading) })
	kept := make(chan error, 1)
	go func() {
		err := o.maintain(ours)
		end(err)
		kept <- err
	}()
	p.metrics.owned.Set(1)
	defer p.metrics.forget()
	var retrying sync.WaitGroup
	retrying.Go(func() { (&heldRunner{p, o}).run(reading) })

	err := p.work(reading, ours, o)
	stop()
	retrying.Wait() // the lease is still extended
	end(err)
	replaying.Wait()
	if lost := <-kept; lost != nil {
		return lost
	}
	if ctx.Err() != nil {
		o.leave()
	}
	return err
}

// work publishes events as they come, until ctx ends or the database fails; it finishes what it has read while this
// process owns the sink.
//
// It does not send a batch again unchanged if no answer came in time, and does not read a page again unchanged if it
// was not read in time: either may be too large for the time. Pages are then half as large, also under the next
// ownership, and grow to twice the size after each one that is published.
//
// An outage that the previous owner met goes on until the sink accepts a message; the first attempt comes at once.
func (p *publisher) work(ctx, ours context.Context, o *ownership) error {
	if why := o.outage(); why != nil {
		was := &failure{code: why.code, err: errors.New(why.message)}
		if err := p.awaitRecovery(ctx, ours, o, was, why.since); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		if !o.isLive() {
			o.wait(false) // it waits for nothing: a pause, or a replay, is what the sink shows
		}
		if err := o.awaitPause(ctx, false); err != nil {
			return err
		}
		if !o.isLive() {
			p.replayAlone(ctx, ours, o)
			continue
		}
		if o.destinations.isOver() {
			o.destinations.endRound()
			o.showShut()
		}
		pages := 1
		if p.most == maxBatch {
			pages = 0
		}
		err := p.publishPages(ctx, ours, o, p.most, pages)
		var failure *failure
		switch {
		case errors.Is(err, errUnfinished):
		case errors.As(err, &failure) && isOfDestination(failure.code):
			if err := p.awaitRound(ctx, o, failure); err != nil {
				return err
			}
		case errors.As(err, &failure):
			if failure.unknown {
				p.most = max(1, failure.messages/2)
			}
			if err := p.awaitRecovery(ctx, ours, o, failure, time.Time{}); err != nil {
				return err
			}
		case errors.Is(err, errSlow):
			p.most = max(1, p.most/2)
			p.inTime = p.most
			return err
		case err != nil:
			return err
		default:
			p.most = min(2*p.most, maxBatch)
			p.inTime = max(p.inTime, p.most)
		}
	}
	return context.Cause(ctx)
}

// replayAlone publishes replays and no new events, until no replay stops new events any more or the sink is paused.
func (p *publisher) replayAlone(ctx, ours context.Context, o *ownership) {
	defer o.setOutage(nil)
	for said := ""; ; {
		o.mu.Lock()
		alone, paused, stateChanged := o.exclusiveReplay, o.paused, o.stateChanged
		o.mu.Unlock()
		switch {
		case alone == "" || paused:
			return
		case alone != said:
			said = alone
			o.setOutage(&away{time.Now(), CodeReplay, fmt.Sprintf("replay %s runs, which was asked to stop what is new",
				alone)})
		}
		select {
		case <-ctx.Done():
			return
		case <-stateChanged:
		case page := <-o.replays:
			page.ended <- page.sendIfOurs(ctx, ours)
		}
	}
}

// awaitRound waits until the round ends, because too many messages wait for destinations. What the sink shows began
// when the destination stopped accepting messages, as with relay_full: that it stands still now is the same outage.
func (p *publisher) awaitRound(ctx context.Context, o *ownership, failure *failure) error {
	p.logStopped(ctx, failure)
	since := time.Now()
	if was := o.outage(); was != nil {
		since = was.since
	}
	o.setOutage(newAway(since, failure))
	if err := p.rest(ctx, time.Until(o.destinations.ends), failure); err != nil {
		return err
	}
	o.destinations.endRound()
	return nil
}

// awaitRecovery waits until the sink accepts messages again. It tries with one message, then with ten. If it is ended
// before, the stored outage passes to the next owner. An outage of the previous owner has a time since when it lasts,
// and the first attempt comes at once.
func (p *publisher) awaitRecovery(ctx, ours context.Context, o *ownership, failure *failure, since time.Time) error {
	p.logStopped(ctx, failure)
	retry := p.config.outage
	began, wait := since, time.Duration(0)
	if since.IsZero() {
		began, wait = time.Now(), retry.Next()
	}
	for ; ; wait = retry.Next() {
		o.setOutage(newAway(began, failure))
		if err := p.rest(ctx, wait, failure); err != nil {
			return err
		}
		if err := o.awaitPause(ctx, false); err != nil {
			return err
		}
		err := p.probeWithMessages(ctx, ours, o)
		switch next := failure; {
		case err == nil:
			o.setOutage(nil)
			if p.logged {
				p.log.LogAttrs(ctx, slog.LevelInfo, "sink resumed", slog.Duration("stopped_for", time.Since(began)))
			}
			p.logged = false
			return nil
		case errors.As(err, &next):
			failure = next
		default:
			return err
		}
	}
}

// rest waits, and logs every ten seconds that the sink is stopped.
func (p *publisher) rest(ctx context.Context, wait time.Duration, failure *failure) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return nil
		case <-tick.C:
			p.logStopped(ctx, failure)
		}
	}
}

// logStopped logs every ten seconds that the sink is stopped. A sink that accepts a few messages again and again, such
// as a queue that is nearly full, stops many times in that time.
func (p *publisher) logStopped(ctx context.Context, failure *failure) {
	if _, due := p.complaints.Due("sink stopped", time.Now()); due {
		p.logged = true
		p.log.LogAttrs(ctx, slog.LevelWarn, "sink stopped", slog.String("code", failure.code),
			slog.Any("err", failure.err))
	}
}

// probeWithMessages probes whether the sink can be published to, and publishes a little. It does not fail because too
// many messages wait for destinations.
func (p *publisher) probeWithMessages(ctx, ours context.Context, o *ownership) error {
	if err := p.probe(ctx); err != nil {
		return failureOf(err)
	}
	o.unanswered.probed = true
	defer func() { o.unanswered.probed = false }()
	if o.unanswered.times >= unansweredLimit {
		err := p.tryAnother(ctx, ours, o)
		if failure, ok := errors.AsType[*failure](err); ok && failure.code == CodeWaiting {
			return nil // the round has to end
		}
		if err != nil && !errors.Is(err, errUnfinished) {
			return err
		}
	}
	for _, most := range []int{1, 10} {
		err := p.publishPages(ctx, ours, o, most, 1)
		if failure, ok := errors.AsType[*failure](err); ok && isOfDestination(failure.code) {
			return nil
		}
		if err != nil && !errors.Is(err, errUnfinished) {
			return err
		}
	}
	return nil
}

// tryAnother publishes a message other than the one that is unknown again and again and those of its key. If the page
// with such a message is not read in time, the next call reads smaller ones.
func (p *publisher) tryAnother(ctx, ours context.Context, o *ownership) error {
	unanswered := &o.unanswered
	found, err := p.readAnother(ctx, o)
	switch {
	case errors.Is(err, errSlow):
		p.inTime = max(1, p.inTime/2)
		return nil
	case err != nil:
		return err
	case len(found.events) == 0 || !o.isLive():
		return nil
	}
	unanswered.isolating = true
	err = send(ours, ctx, p, o, found)
	unanswered.isolating = false
	unanswered.others++
	return err
}

// readAnother reads a page from the sink's position. If it contains nothing but the unknown message and messages of its
// key, readAnother reads on, for up to anotherTime, until a page contains others: then it returns the unknown message
// with those others. Everything in between becomes a hole, and is read again.
func (p *publisher) readAnother(ctx context.Context, o *ownership) (page, error) {
	events := logReader{p.pool, o.timeline, nil} // nobody else reads so far ahead
	began := time.Now()
	first, err := events.read(ctx, o.unread(), p.inTime, false)
	if err != nil {
		return page{}, err
	}
	n := slices.IndexFunc(first.events, func(e Event) bool { return e.ID.String() == o.unanswered.id })
	if n < 0 {
		return first, nil
	}
	unknown := first.events[n]
	isOf := func(e Event) bool { return e.ID == unknown.ID || e.Key != "" && keyOf(&e) == keyOf(&unknown) }
	isApart := func(e Event) bool { return !isOf(e) }
	if slices.ContainsFunc(first.events, isApart) {
		return first, nil
	}
	// Events that share a position are taken or left together, because the cursor passes positions.
	beside := slices.DeleteFunc(slices.Clone(first.events), func(e Event) bool {
		return e.Position != unknown.Position
	})
	for read := first; read.full && time.Since(began) < anotherTime; {
		if read, err = events.read(ctx, read.after, p.inTime, false); err != nil {
			return page{}, err
		}
		of := positions(slices.DeleteFunc(slices.Clone(read.events), isApart))
		apart := slices.DeleteFunc(read.events, func(e Event) bool { return slices.Contains(of, e.Position) })
		if len(apart) > 0 {
			found := page{before: first.before, events: append(apart, beside...)}
			slices.SortFunc(found.events, func(a, b Event) int { return cmp.Compare(a.Position, b.Position) })
			found.after = found.before.past(found.events)
			return found, nil
		}
	}
	return first, nil
}

// publishPages publishes pages of the log one after the other, reading the next one meanwhile. It publishes up to pages
// pages, or with 0 goes on until ctx ends, the sink is paused, or the round of destinations ends. It then finishes the
// page in progress.
func (p *publisher) publishPages(ctx, ours context.Context, o *ownership, most, pages int) error {
	reading := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	found := make(chan page, 1)
	ended := make(chan error, 1)
	from := o.unread()
	go func() {
		defer close(found)
		ended <- p.follow(ctx, o, from, most, pages, found)
	}()
	var replays chan *replayPage
	round := time.AfterFunc(endlessRound, stop)
	defer round.Stop()
	if pages == 0 {
		go func() {
			if o.awaitPause(ctx, true) == nil {
				stop()
			}
		}()
		replays = o.replays
		round.Reset(o.destinations.untilEnd())
	}
	var err error
	for replayed := false; ; {
		next, again, more := nextPage(found, replays, replayed)
		if replayed = again != nil; replayed {
			again.ended <- again.sendIfOurs(ctx, ours)
			continue
		}
		if !more {
			break
		}
		if err != nil || ctx.Err() != nil {
			continue
		}
		live := o.isLive()
		if live {
			err = send(ours, reading, p, o, next)
		}
		if pages == 0 {
			round.Reset(o.destinations.untilEnd())
		}
		// Pages that were already read are read again, including this one if it was not sent: if the sink became live
		// again by now, the next page would make the cursor pass this one.
		if err != nil || !live || !o.isLive() {
			stop()
		}
	}
	if readErr := <-ended; err == nil && ctx.Err() == nil {
		err = readErr
	}
	return err
}

// nextPage waits for the next page to publish, from the log or from a replay, and alternates if there are both. more is
// false once the log has no more.
func nextPage(found <-chan page, replays <-chan *replayPage, replayed bool) (read page, again *replayPage, more bool) {
	if replayed {
		select {
		case read, more = <-found:
			return read, nil, more
		default:
		}
	} else {
		select {
		case again = <-replays:
			return page{}, again, true
		default:
		}
	}
	select {
	case read, more = <-found:
		return read, nil, more
	case again = <-replays:
		return page{}, again, true
	}
}

// follow reads the log from c on.
func (p *publisher) follow(ctx context.Context, o *ownership, c cursor, most, pages int, found chan<- page) error {
	events := logReader{p.pool, o.timeline, p.shared}
	var numbered time.Time
	// The holes come first, so that newer events follow once all messages that wait for destinations have been read.
	// They would count as holes of open transactions otherwise.
	late := pages == 0 && len(c.holes) > 0
	came := false // to newer events, or to the end of the log: the round must know
	for n := 0; pages == 0 || n < pages; {
		read, err := events.read(ctx, c, most, late)
		if err != nil {
			return err
		}
		if len(read.events) > 0 || !read.late {
			n++
		}
		late = read.more
		if len(read.events) > 0 || len(read.after.holes) != len(c.holes) || !came && !read.late {
			came = came || !read.late
			select {
			case found <- read:
			case <-ctx.Done():
				return nil
			}
		}
		c = read.after
		if pages == 0 && !read.late {
			o.wait(len(c.holes) >= maxHoles)
		}
		if !c.isNumbered() && time.Since(numbered) >= numberInterval {
			numbered = time.Now()
			if c, err = events.number(ctx, c); err != nil {
				return err
			}
		}
		if !read.full && pages == 0 && !p.awaitEvents(ctx, len(c.holes) > 0) {
			return nil
		}
	}
	return nil
}

// awaitEvents waits until events may have been stored, or, if there are holes, until it is time to check whether they
// can be closed. It returns false once ctx has ended.
func (p *publisher) awaitEvents(ctx context.Context, holes bool) bool {
	wait := p.config.PollInterval
	if !p.config.Listening() {
		wait = min(wait, fallbackPollInterval)
	}
	if holes {
		wait = min(wait, numberInterval)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
	case <-timer.C:
	}
	return true
}

// wakeIf returns the channel of wake-ups, or a channel that never receives.
func (p *publisher) wakeIf(yes bool) <-chan struct{} {
	if yes {
		return p.wake
	}
	return nil
}

// named adds the event's identity to an outcome that concerns a single event.
func named(e *Event, err error) error {
	if _, ok := errors.AsType[*UnavailableError](err); ok {
		return err
	}
	return fmt.Errorf("event %s, topic %s, position %d: %w", e.ID, e.Topic, e.Position, err)
}

// failure is the reason for which a sink is stopped.
type failure struct {
	code     string
	err      error
	unknown  bool // the outcome of a message is unknown
	messages int  // if unknown, how many messages the batch had
}

func (f *failure) Error() string { return f.code + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failureOf(err error) *failure {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return &failure{code: refused.Code, err: err}
	}
	if unavailable, ok := errors.AsType[*UnavailableError](err); ok {
		return &failure{code: unavailable.Code, err: err}
	}
	return &failure{code: CodeUnanswered, err: err}
}
