package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A replay publishes events again that the sink has passed. It is a row of outbox.replays with a position of its own,
// which the sink's owner works off alongside the cursor:
//
//   - The publishing goroutine takes its pages between those of the log, so a sink is never called twice at once. The
//     pages are small: a new event waits for at most one of them.
//   - It never passes the cursor, and leaves out events at the cursor's holes: the goroutine that moves the cursor
//     publishes those first, without regard to replays.
//   - Its position is stored after each page, fenced by the sink's owner and epoch. If an owner is killed between the
//     two, the next owner publishes that page once more.
//   - Replays take turns by page: see [replayer.run]. A page that fails delays its own replay and nothing else;
//     publishing new events detects whether the sink is unavailable. Messages that the sink refuses are counted and
//     skipped. So are messages without a destination, and a message that is unknown again and again when sent alone
//     although the sink answers: see [replayer.doubt].
//   - A replay that stops new events waits until the cursor has passed its last event: by then everything that it
//     covers is published, and nothing else is published until it has ended. Events of transactions that were open then
//     come after it.

// HeaderReplay is the header that marks a message of a replay; its value is the replay's id.
const HeaderReplay = "posthaste-replay"

const (
	replayPageEvents = 100
	replayPageBytes  = 1 << 20
	replayPositions  = 10_000 // how many positions one look searches for matching events
	beginPause       = 200 * time.Millisecond
)

// A Deduplicator is a sink whose broker drops messages that repeat an ID. Its methods are safe for concurrent use.
type Deduplicator interface {
	// Duplicates returns how many messages the broker has dropped so far, as far as it reports them.
	Duplicates() int64
	// Remembers returns how long the broker remembers IDs: the longest time of all destinations that were published to;
	// 0 means unknown.
	Remembers() time.Duration
}

// errStopped ends a replay that is not to go on.
var errStopped = errors.New("the replay was stopped")

// replay is a replay in progress.
type replay struct {
	id             outbox.ID
	position, last int64
	perSecond      float64
	again          bool
	stopLive       bool            // once it has begun, no new events are published
	begun          bool            // for a replay with stopLive
	done           []int64         // published events after position, of a page that failed
	counts         counts          // not yet stored
	most           int             // events in the next page
	unknown        int             // how often in a row a message alone was unknown although the sink answered
	failed         int             // how many pages in a row may have failed while the sink accepts others
	gone           map[string]bool // destinations that were answered so
	passed         bool            // a message was skipped for that, and none accepted since
	due            time.Time       // when the next page is due
	retry          backoff.Backoff
}

// counts counts messages; repeated are those that the broker has dropped.
type counts struct{ published, refused, repeated int64 }

// A replayer works off the replays of a sink while this process owns it.
type replayer struct {
	*publisher
	o         *ownership
	running   map[outbox.ID]*replay
	remembers time.Duration // as stored
}

func newReplayer(p *publisher, o *ownership) *replayer {
	return &replayer{publisher: p, o: o, running: map[outbox.ID]*replay{}}
}

// replayPage is a page of a replay that is being sent to the sink.
type replayPage struct {
	*publisher
	o      *ownership
	events []Event // those that are not done
	gone   map[string]bool
	counts counts
	ended  chan error
}

// run works off replays until ctx ends. They take turns by page: the next page belongs to the replay that has been due
// the longest, so that a replay with a low rate, or one that fails, delays no other.
func (p *replayer) run(ctx context.Context) {
	var looked time.Time
	var retry backoff.Backoff
	for ctx.Err() == nil {
		if !looked.IsZero() {
			p.stopLive()
		}
		interval := lookInterval
		if len(p.running) == 0 {
			interval = p.config.renewInterval * 12 / 5
			if p.o.outage() != nil { // nothing would be published: an outage takes less than a statement a second
				interval *= 3
			}
		}
		if time.Since(looked) >= interval {
			if err := p.look(ctx); err != nil {
				p.complain(ctx, "replays not looked for", err)
				_ = backoff.Sleep(ctx, retry.Next())
				continue
			}
			retry.Reset()
			looked = time.Now()
			continue
		}
		r, wait := nextReplay(p.running, time.Until(looked.Add(interval)))
		if r == nil {
			_ = backoff.Sleep(ctx, wait)
			continue
		}
		err := p.turn(ctx, r)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errStopped):
			delete(p.running, r.id)
		case err != nil:
			p.complain(ctx, "replay waits", err)
			r.due = latest(r.due, time.Now().Add(r.retry.Next()))
		case r.position >= r.last:
			p.log.LogAttrs(ctx, slog.LevelInfo, "replay finished", slog.String("replay", r.id.String()))
			delete(p.running, r.id)
		}
	}
}

// stopLive stops new events while a replay runs that has begun and demands it.
//
//	replayer     begun, stopLive              a page of the replay
//	publishPages                      page of new events: isLive?
//
// The publishing goroutine checks before each page, so it sends none behind the first page of the replay. The next
// owner of the sink knows from the start of such a replay, which stops new events and has begun: the cursor has passed
// its last event, which was stored before the replay began. The exception is a failover that has put the cursor back:
// then the replay waits again until the sink has come to where it was, and new events may be published along the way.
func (p *replayer) stopLive() {
	alone := ""
	for _, r := range p.running {
		if r.begun && (alone == "" || r.id.String() < alone) {
			alone = r.id.String()
		}
	}
	o := p.o
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.exclusiveReplay != alone {
		o.exclusiveReplay = alone
		o.notifyChange()
	}
}

// nextReplay returns the replay that has been due the longest. If none is due, it returns how long to wait, at most
// most.
func nextReplay(running map[outbox.ID]*replay, most time.Duration) (next *replay, wait time.Duration) {
	for _, r := range running {
		if next == nil || r.due.Before(next.due) {
			next = r
		}
	}
	if next == nil {
		return nil, most
	}
	if wait = time.Until(next.due); wait > 0 {
		return nil, min(wait, most)
	}
	return next, 0
}

// look adds newly requested replays, and drops those that no longer run.
func (p *replayer) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	q := sqlgen.New(p.pool)
	if d, ok := p.sink.(Deduplicator); ok && d.Remembers() != p.remembers {
		remembers := d.Remembers()
		if err := q.SinkRemembers(ctx, sqlgen.SinkRemembersParams{
			Sink: p.name, Owner: p.owner, Epoch: p.o.epoch,
			Remembers: pgvalue.Interval(remembers),
		}); err != nil {
			return fmt.Errorf("store for how long the broker remembers ids: %w", err)
		}
		p.remembers = remembers
	}
	rows, err := q.NextReplays(ctx, p.name)
	if err != nil {
		return fmt.Errorf("look for replays: %w", err)
	}
	open := map[outbox.ID]bool{}
	for _, row := range rows {
		id := outbox.ID(row.ID.Bytes)
		open[id] = true
		if p.running[id] != nil {
			continue
		}
		p.running[id] = &replay{
			id: id, position: row.Position, last: row.LastPosition, perSecond: row.PerSecond, again: row.Again,
			stopLive: row.StopLive,
			begun:    row.StopLive && p.o.hasKept(row.LastPosition),
			most:     replayPageEvents, gone: map[string]bool{}, due: time.Now(), retry: p.config.outage,
		}
		p.log.LogAttrs(ctx, slog.LevelInfo, "replay goes on", slog.String("replay", id.String()),
			slog.Int64("position", row.Position), slog.Int64("last", row.LastPosition))
	}
	maps.DeleteFunc(p.running, func(id outbox.ID, _ *replay) bool { return !open[id] })
	return nil
}

// turn publishes the next page of a replay, stores how far it has come, and sets when the following page is due. If a
// page fails, turn remembers which of its messages were published; when the page is read again, it leaves those out. A
// replay that stops new events lets them go on until its next attempt, while it fails again and again.
func (p *replayer) turn(ctx context.Context, r *replay) error {
	if r.stopLive && !r.begun {
		if !p.o.hasKept(r.last) { // the events that it waits for are new to the sink
			r.due = time.Now().Add(beginPause)
			return nil
		}
		r.begun = true
		return nil // run stops new events, and calls again
	}
	page, examined, err := p.read(ctx, r)
	switch {
	case err != nil:
		return err
	case examined <= r.position: // the cursor must come first
		r.due = time.Now().Add(time.Second)
		return nil
	}
	meant := positions(page.events)
	var failed error
	if len(meant) > 0 {
		if err := p.offer(ctx, r, page); err != nil {
			return err
		}
		failed = <-page.ended
	}
	wait := time.Duration(0)
	if r.perSecond > 0 {
		wait = time.Duration(float64(len(meant)-len(page.events)) / r.perSecond * float64(time.Second))
	}
	r.due = latest(r.due, time.Now()).Add(wait)
	if page.counts.published > 0 {
		r.passed = false
	}
	if f, ok := errors.AsType[*failure](failed); ok && f.unknown {
		failed = p.doubt(ctx, r, page, f)
	}
	r.add(page.counts)
	left := positions(page.events)
	for _, position := range meant {
		if !slices.Contains(left, position) {
			r.done = append(r.done, position)
		}
	}
	switch {
	case failed == nil:
		r.retry.Reset()
		r.unknown, r.failed, r.most = 0, 0, min(2*r.most, replayPageEvents)
		return p.store(ctx, r, examined, nil)
	case errors.Is(failed, ErrNotTried):
		return nil
	}
	r.doubtAlone(page, failed)
	if err := p.store(ctx, r, r.position, failed); err != nil {
		return err
	}
	return failed
}

// doubtAlone lets new events go on, for now, if several pages in a row were not accepted that are no outage of the
// sink, which stops new events, too.
func (r *replay) doubtAlone(page *replayPage, failed error) {
	f, ok := errors.AsType[*failure](failed)
	if ok && page.counts.published == 0 && (f.unknown || isOfDestination(f.code)) {
		r.failed++
	}
	if r.failed >= unansweredLimit {
		r.begun = false
	}
}

// offer waits until the publishing goroutine takes a page. In an outage that may take hours, and an operator may stop
// the replay meanwhile.
func (p *replayer) offer(ctx context.Context, r *replay, page *replayPage) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case p.o.replays <- page:
			return nil
		case <-tick.C:
		}
		if err := p.look(ctx); err != nil {
			return err
		}
		if p.running[r.id] != r {
			return errStopped
		}
	}
}

func (r *replay) add(c counts) {
	r.counts.published += c.published
	r.counts.refused += c.refused
	r.counts.repeated += c.repeated
}

// doubt handles a page with a message whose outcome is unknown, and returns why the replay waits, if it does. The next
// page is half as large as the one that was sent, which may have been too much for the time, or may contain a message
// that breaks the receiver. A message that is sent alone is skipped once it was unknown again and again while the sink
// answered: otherwise a replay that stops new events would wait for it forever, and everybody else for the replay. The
// next such message is not skipped until the sink has accepted another: a receiver that fails at all of them is
// unavailable, whatever it answers.
//
// A message is also skipped if its destination is missing each time; it may be missing for a moment while the leader of
// a stream is elected. Other messages to that destination are then skipped at once.
func (p *replayer) doubt(ctx context.Context, r *replay, page *replayPage, f *failure) error {
	r.most = max(1, f.messages/2)
	missing := f.code == CodeNoDestination
	if f.messages > 1 || errors.Is(f, ErrMaybeAway) || r.passed && !missing || p.probe(ctx) != nil {
		return f
	}
	if r.unknown++; r.unknown < unansweredLimit {
		return f
	}
	p.complain(ctx, "replay skips a message", f)
	if missing {
		r.gone[page.messages()[0].Destination] = true
	} else {
		r.passed = true
	}
	page.counts.refused++
	page.events = nil
	return nil
}

// read returns the next page, and the position up to which there is no other event of the replay.
func (p *replayer) read(ctx context.Context, r *replay) (page *replayPage, examined int64, err error) {
	c := p.o.current()
	examined = min(r.position+replayPositions, r.last, c.top)
	if examined <= r.position {
		return nil, examined, nil
	}
	most := r.most
	if r.perSecond > 0 { // ten pages a second
		most = max(1, min(most, int(r.perSecond/10)))
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := p.pool.Query(ctx, sqlgen.EventsToReplay, pgvalue.UUID(r.id), r.position, examined, most,
		replayPageBytes)
	if err != nil {
		return nil, 0, fmt.Errorf("read the events of a replay: %w", err)
	}
	defer rows.Close()
	found, err := events(rows)
	if err != nil {
		return nil, 0, fmt.Errorf("read the events of a replay: %w", err)
	}
	if len(found) >= most || bytesOf(found) >= replayPageBytes {
		examined = found[len(found)-1].Position
	}
	page = &replayPage{publisher: p.publisher, o: p.o, gone: r.gone, ended: make(chan error, 1)}
	for _, e := range found {
		if !c.isHole(e.Position) && !slices.Contains(r.done, e.Position) {
			e.replay, e.again = r.id.String(), r.again
			page.events = append(page.events, e)
		}
	}
	return page, examined, nil
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// store stores how far a replay has come, and what it waits for, if anything.
func (p *replayer) store(ctx context.Context, r *replay, position int64, failure error) error {
	params := sqlgen.AdvanceReplayParams{
		ID: pgvalue.UUID(r.id), Owner: p.owner, Epoch: p.o.epoch, Position: position,
		Published: r.counts.published, Refused: r.counts.refused, Repeated: r.counts.repeated,
	}
	if failure != nil {
		params.Failure = new(pgvalue.ASCII(pgvalue.Text(failure.Error(), maxReason), maxReason)) // fits any encoding
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout) // store what was published
	defer cancel()
	rows, err := sqlgen.New(p.pool).AdvanceReplay(ctx, params)
	switch {
	case err != nil:
		return fmt.Errorf("store how far a replay has come: %w", err)
	case len(rows) == 0:
		return errStopped
	}
	r.counts = counts{}
	r.position = position
	// Keep those beyond position: the next page may be shorter than the one that failed.
	r.done = slices.DeleteFunc(r.done, func(done int64) bool { return done <= position })

	return nil
}

// sendIfOurs publishes a page, unless ctx has ended.
func (page *replayPage) sendIfOurs(ctx, ours context.Context) error {
	if ctx.Err() != nil {
		return ErrNotTried
	}
	return page.send(ours)
}

// send publishes a page. If events without an outcome remain, it returns why.
//
// Each pass settles at least one message, or is the last: a key's messages behind a refused one go into the next pass.
func (page *replayPage) send(ctx context.Context) error {
	if err := page.passHeld(ctx); err != nil {
		return err
	}
	for len(page.events) > 0 {
		if !page.o.isOurs() {
			return errLapsed
		}
		messages := page.messages()
		before := page.dropped()
		var left []Event
		var failed *failure
		var behind keys // with a message that was not accepted: later ones repeat its outcome, or were not tried
		for i, err := range page.deliver(ctx, messages, page.config.patience) {
			e := &page.events[messages[i].index]
			if err == nil {
				page.counts.published++
				page.metrics.replayed.Inc()
				continue
			}
			away, isAway := errors.AsType[*UnavailableError](err)
			isMissing := isAway && away.Code == CodeNoDestination
			_, refused := errors.AsType[*RefusedError](err)
			switch isBehind := behind.has(e); {
			case refused && !isBehind, isMissing && page.gone[messages[i].Destination]:
				page.counts.refused++
				page.complain(ctx, "replay skips a message", named(e, err))
			default:
				left = append(left, *e)
				if failed == nil && !isBehind && !errors.Is(err, ErrNotTried) {
					failed = failureOf(named(e, err))
					failed.unknown, failed.messages = !isAway || isMissing, len(messages)
				}
			}
			behind.add(e)
		}
		page.counts.repeated += page.dropped() - before
		progress := len(left) < len(page.events)
		page.events = left
		if failed == nil && !progress {
			failed = failureOf(errors.New("the sink has not tried a message and does not say why"))
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// passHeld leaves out messages that are jobs. They were refused, or wait for a refused one of their key, and are
// published in order once that is settled. Only the owner makes such jobs, between two pages, so none can be made
// before this page is sent.
func (page *replayPage) passHeld(ctx context.Context) error {
	if len(page.events) == 0 || !page.o.isAnyHeld() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := sqlgen.New(page.pool).HeldAmong(ctx, page.name, positions(page.events))
	if err != nil {
		return fmt.Errorf("look at held messages: %w", err)
	}
	n := len(page.events)
	page.events = slices.DeleteFunc(page.events, func(e Event) bool { return slices.Contains(rows, e.Position) })
	page.counts.refused += int64(n - len(page.events))
	return nil
}

// messages returns the messages of a page. Events that are not for the sink, or from which no message can be made, are
// done.
func (page *replayPage) messages() (messages []outgoing) {
	for i := range page.events {
		e := &page.events[i]
		r := routeOf(page.routes, e.Topic)
		if r == nil {
			continue
		}
		m, err := messageOf(e, r, page.config.Source)
		if err != nil {
			page.counts.refused++
			continue
		}
		messages = append(messages, outgoing{Message: m, index: i})
	}
	return messages
}
