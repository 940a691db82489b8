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
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
)

const (
	maxBatch       = 1000
	publishTimeout = 10 * time.Second       // after which a batch without an answer is unknown
	numberInterval = 500 * time.Millisecond // between looks at holes that nobody has to fill
	maxReason      = 4 << 10                // bytes that are stored of why a sink stands still
	anotherTime    = 10 * time.Second       // for which a trial looks for a message of another key
)

// errUnfinished is that the time of a batch did not suffice for all of it: the rest is read again, and published next.
var errUnfinished = errors.New("the sink has accepted a part of the batch, and has not tried the rest")

// publisher publishes to one sink whenever this process owns it.
type publisher struct {
	caller
	routes  []route
	maxHeld int
	owner   string
	config  *Config
	pool    *pgxpool.Pool
	user    *pgxpool.Pool // reset on failover, too
	shared  *shared       // nil if there is no other sink
	most    int           // events of a page
	inTime  int           // events of a page that comes in time, as far as is known
	log     *slog.Logger

	wake       chan struct{} // events were stored
	heldWake   chan struct{} // jobs were made of some
	released   chan struct{} // the same, for those who wait for the sink: an owner that leaves it notifies
	complaints outage.Complaints
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	var retry backoff.Backoff
	for ctx.Err() == nil {
		o, err := p.own(ctx)
		if err == nil {
			p.log.LogAttrs(ctx, slog.LevelInfo, "sink owned", slog.Int64("epoch", o.epoch), slog.Int64("top", o.cursor.top))
			began := time.Now()
			err = p.publish(ctx, o)
			o.conn.Release()
			if time.Since(began) > 3*p.config.beat {
				retry.Reset()
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.complain(ctx, "sink not owned", err)
		if pgsession.State(err) == "" && !errors.Is(err, errNotOurs) {
			p.pool.Reset() // the other connections are as good as broken: no answer would come for minutes
		}
		pgsession.LeaveReadOnly(err, p.pool, p.user)
		_ = retry.Wait(ctx) // that ctx has ended is seen above
	}
}

func (p *publisher) complain(ctx context.Context, message string, err error) {
	if missed, due := p.complaints.Due(message, time.Now()); due {
		p.log.LogAttrs(ctx, slog.LevelWarn, message, slog.Int("since_last_line", missed), slog.Any("err", err))
	}
}

// publish works for as long as the sink is ours, and returns why it is not any more. When ctx
// ends, what is under way is still published, and its outcome stored.
func (p *publisher) publish(ctx context.Context, o *ownership) error {
	ours, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	reading, stop := context.WithCancel(ours)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	var replaying sync.WaitGroup
	replaying.Go(func() { newReplayer(p, o).run(reading) })
	kept := make(chan error, 1)
	go func() {
		err := o.keep(ours)
		end(err)
		kept <- err
	}()
	p.metrics.owned.Set(1)
	defer p.metrics.forget()
	var carrying sync.WaitGroup
	carrying.Go(func() { (&carrier{p, o}).run(reading) })

	err := p.work(reading, ours, o)
	stop()
	carrying.Wait() // while the lease is extended
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

// work publishes whatever comes, until ctx ends or the database fails; what it has read goes
// on for as long as the sink is ours.
//
// A batch that has no answer in time is not tried again as it was, and a page that was not read in time is not read
// again: it may be too much for the time. Pages are half as large then, also of the next ownership, and twice as large
// after each that was published.
//
// An outage that the owner before has met goes on until a trial ends it, and the first one is made at once.
func (p *publisher) work(ctx, ours context.Context, o *ownership) error {
	if why := o.outage(); why != nil {
		if err := p.outlast(ctx, ours, o, &failure{code: why.code, err: errors.New(why.message)}); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		if err := o.awaitPause(ctx, false); err != nil {
			return err
		}
		if !o.isLive() {
			p.replayAlone(ctx, ours, o)
			continue
		}
		pages := 1
		if p.most == maxBatch {
			pages = 0
		}
		err := p.stretch(ctx, ours, o, p.most, pages)
		var failure *failure
		switch {
		case errors.Is(err, errUnfinished):
		case errors.As(err, &failure):
			if failure.unknown {
				p.most = max(1, failure.messages/2)
			}
			if err := p.outlast(ctx, ours, o, failure); err != nil {
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

// replayAlone publishes replays, and nothing new, until none wants that any more or the sink is paused.
func (p *publisher) replayAlone(ctx, ours context.Context, o *ownership) {
	defer o.stand(nil)
	for said := ""; ; {
		o.mu.Lock()
		alone, paused, turned := o.alone, o.paused, o.turned
		o.mu.Unlock()
		switch {
		case alone == "" || paused:
			return
		case alone != said:
			said = alone
			o.stand(&away{time.Now(), CodeReplay, fmt.Sprintf("replay %s runs, which was asked to stop what is new", alone)})
		}
		select {
		case <-ctx.Done():
			return
		case <-turned:
		case page := <-o.replays:
			page.ended <- page.sendIfOurs(ctx, ours)
		}
	}
}

// outlast waits until the sink takes messages again. It tries with one message, then with
// ten. If it ends before, what is stored of the outage is left to the next owner.
func (p *publisher) outlast(ctx, ours context.Context, o *ownership, failure *failure) error {
	began := time.Now()
	p.log.LogAttrs(ctx, slog.LevelWarn, "sink stands still", slog.String("code", failure.code), slog.Any("err", failure.err))
	_, _ = p.complaints.Due("sink stands still", began)
	retry := p.config.outage
	wait := retry.Next()
	if why := o.outage(); why != nil { // of the owner before
		began, wait = why.since, 0
	}
	for ; ; wait = retry.Next() {
		o.stand(&away{since: began, code: failure.code, message: pgvalue.Text(failure.err.Error(), maxReason)})
		if err := p.rest(ctx, wait, failure); err != nil {
			return err
		}
		if err := o.awaitPause(ctx, false); err != nil {
			return err
		}
		err := p.trial(ctx, ours, o)
		switch next := failure; {
		case err == nil:
			o.stand(nil)
			p.log.LogAttrs(ctx, slog.LevelInfo, "sink goes on", slog.Duration("stood", time.Since(began)))
			return nil
		case errors.As(err, &next):
			failure = next
		default:
			return err
		}
	}
}

// rest waits, and says every ten seconds that the sink stands still.
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
			if _, due := p.complaints.Due("sink stands still", time.Now()); due {
				p.log.LogAttrs(ctx, slog.LevelWarn, "sink stands still", slog.String("code", failure.code), slog.Any("err", failure.err))
			}
		}
	}
}

// trial asks whether the sink can be published to, and publishes a little.
func (p *publisher) trial(ctx, ours context.Context, o *ownership) error {
	if err := p.probe(ctx); err != nil {
		return failureOf(err)
	}
	o.suspicions.probed = true
	defer func() { o.suspicions.probed = false }()
	if o.suspicions.unknown >= unansweredLimit {
		if err := p.tryAnother(ctx, ours, o); err != nil && !errors.Is(err, errUnfinished) {
			return err
		}
	}
	for _, most := range []int{1, 10} {
		if err := p.stretch(ctx, ours, o, most, 1); err != nil && !errors.Is(err, errUnfinished) {
			return err
		}
	}
	return nil
}

// tryAnother publishes a message apart from the one that is unknown again and again and from those of its key. If the
// page with one does not come in time, the next trial reads smaller ones.
func (p *publisher) tryAnother(ctx, ours context.Context, o *ownership) error {
	s := &o.suspicions
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
	s.apart = true
	err = send(ours, p, o, found)
	s.apart = false
	s.others++
	return err
}

// readAnother reads a page from where the sink is. If that has nothing apart from the message that is unknown and those
// of its key, it reads on, for anotherTime, up to a page that has: then it returns that message and what is apart.
// Whatever lies between is a hole, and is read again.
func (p *publisher) readAnother(ctx context.Context, o *ownership) (page, error) {
	events := log{p.pool, o.timeline, nil} // nobody else reads so far ahead
	began := time.Now()
	first, err := events.read(ctx, o.current(), p.inTime)
	if err != nil {
		return page{}, err
	}
	n := slices.IndexFunc(first.events, func(e Event) bool { return e.ID.String() == o.suspicions.id })
	if n < 0 {
		return first, nil
	}
	unknown := first.events[n]
	isOf := func(e Event) bool { return e.ID == unknown.ID || e.Key != "" && keyOf(&e) == keyOf(&unknown) }
	isApart := func(e Event) bool { return !isOf(e) }
	if slices.ContainsFunc(first.events, isApart) {
		return first, nil
	}
	// What shares a position comes along or stays behind together, as the cursor passes it.
	beside := slices.DeleteFunc(slices.Clone(first.events), func(e Event) bool { return e.Position != unknown.Position })
	for read := first; read.full && time.Since(began) < anotherTime; {
		if read, err = events.read(ctx, read.after, p.inTime); err != nil {
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

// stretch publishes pages of the log, one after the other, while the next one is read: so
// many pages if there are any, and with 0 until ctx ends or the sink is paused. Then the page
// that is under way is published to its end.
func (p *publisher) stretch(ctx, ours context.Context, o *ownership, most, pages int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	found := make(chan page, 1)
	ended := make(chan error, 1)
	go func() {
		defer close(found)
		ended <- p.follow(ctx, o, most, pages, found)
	}()
	if pages == 0 {
		go func() {
			if o.awaitPause(ctx, true) == nil {
				stop()
			}
		}()
	}
	var replays chan *replayPage
	if pages == 0 {
		replays = o.replays
	}
	var err error
	for replayed := false; ; {
		page, again, more := nextPage(found, replays, replayed)
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
			err = send(ours, p, o, page)
		}
		// What is read already is read again, this page too if it was not sent: were the sink live again by now, the
		// next one would have the cursor pass this one.
		if err != nil || !live || !o.isLive() {
			stop()
		}
	}
	if readErr := <-ended; err == nil && ctx.Err() == nil {
		err = readErr
	}
	return err
}

// follow reads the log from where the sink is.
func (p *publisher) follow(ctx context.Context, o *ownership, most, pages int, found chan<- page) error {
	c := o.current()
	events := log{p.pool, o.timeline, p.shared}
	var numbered time.Time
	waited := false // for transactions that are open
	defer func() {
		if waited {
			o.wait(false)
		}
	}()
	for n := 0; pages == 0 || n < pages; n++ {
		read, err := events.read(ctx, c, most)
		if err != nil {
			return err
		}
		if len(read.events) > 0 || len(read.after.holes) != len(c.holes) {
			select {
			case found <- read:
			case <-ctx.Done():
				return nil
			}
		}
		c = read.after
		if waits := len(c.holes) >= maxHoles && pages == 0; waits != waited {
			waited = waits
			o.wait(waits)
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

// awaitEvents waits until events may have been stored, and, if there are holes, until it is
// time to look whether they can be closed. It returns false once ctx has ended.
func (p *publisher) awaitEvents(ctx context.Context, holes bool) bool {
	wait := p.config.PollInterval
	if !p.config.Hearing() {
		wait = min(wait, deafPollInterval)
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

// wakeIf returns the channel of wake-ups, or one that never has any.
func (p *publisher) wakeIf(yes bool) <-chan struct{} {
	if yes {
		return p.wake
	}
	return nil
}

// named says which event an outcome is about, for those that are about one.
func named(e *Event, err error) error {
	if _, ok := errors.AsType[*UnavailableError](err); ok {
		return err
	}
	return fmt.Errorf("event %s, topic %s, position %d: %w", e.ID, e.Topic, e.Position, err)
}

// failure is why a sink stands still.
type failure struct {
	code     string
	err      error
	unknown  bool // the sink did not say what became of a message
	messages int  // if unknown, how many there were in the batch
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
