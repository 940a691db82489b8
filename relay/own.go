package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	errNotOurs  = errors.New("the sink has another owner, or positions come from another timeline")
	errTimeline = errors.New("positions come from another timeline, as after a failover or a restore")
	errLapsed   = errors.New("the lease has lapsed: the database did not answer in time")
)

const (
	statementTimeout = 5 * time.Second
	releasePause     = 2 * time.Second        // between two checks whether the owner has left the sink
	leastStorePause  = 10 * time.Millisecond  // shortest time between two stores of the cursor
	storePausePer    = 20 * time.Microsecond  // added per hole
	resumePause      = 500 * time.Millisecond // between two checks, prompted by NOTIFY, whether a sink was resumed
	lookInterval     = time.Second            // between looks at the held messages, at the least
	waitsInterval    = 10 * time.Second       // between looks for the oldest unpublished event
)

// ownership is a sink that this process owns: how far it has come, which maintain stores, and until when this process
// has the lease. Its methods are safe for concurrent use.
type ownership struct {
	publisher *publisher
	conn      connection // the connection on which the sink was taken and its cursor is stored
	epoch     int64
	timeline  string        // the origin of positions
	changed   chan struct{} // receives when there is more to store
	replays   chan *replayPage

	unanswered   unansweredMessage
	destinations destinations

	storing sync.Mutex // serializes stores, so that none overwrites what another stored with older knowledge

	mu              sync.Mutex
	cursor          cursor
	kept            int64     // top of the cursor stored last
	published       int64     // since the last store
	away            *away     // nil while the broker accepts messages
	waits           *away     // nil while open transactions leave fewer than maxHoles
	missing         *string   // ages of destinations; nil once stored
	until           time.Time // end of the lease, by our clock
	paused          bool
	exclusiveReplay string // the running replay that stops new events; "" if none
	held            held
	lookedAtHeld    time.Time
	stateChanged    chan struct{} // closed when paused, exclusiveReplay or held changes
}

// away describes why a sink, or a destination of it, accepts nothing, and since when.
type away struct {
	since         time.Time
	code, message string
}

// mayLast reports whether an outage of the previous owner stops the next one, which finds out for itself about others.
func mayLast(code string) bool {
	return code != "" && code != CodeHoles && code != CodeReplay && !isOfDestination(code)
}

func newAway(since time.Time, why *failure) *away {
	return &away{since, why.code, pgvalue.Text(why.err.Error(), maxReason)}
}

// connection is the part of a pool's connection that an ownership uses.
type connection interface {
	sqlgen.DBTX
	Begin(context.Context) (pgx.Tx, error)
	Release()
}

// declare stores the sink's row if there is none.
func (p *publisher) declare(ctx context.Context, q *sqlgen.Queries) error {
	created, err := q.DeclareSink(ctx, p.name, p.begin == BeginNow)
	for _, top := range created {
		p.log.LogAttrs(ctx, slog.LevelInfo, "sink created", slog.String("begin", string(p.begin)), slog.Int64("top", top))
	}
	return err
}

// own waits until this process owns the sink.
func (p *publisher) own(ctx context.Context) (*ownership, error) {
	for {
		if err := p.awaitLapse(ctx, sqlgen.New(p.pool)); err != nil {
			return nil, err
		}
		o, err := p.take(ctx)
		switch {
		case err == nil:
			return o, nil
		case !errors.Is(err, errNotOurs): // another process was faster
			return nil, err
		}
	}
}

// take makes this process the owner of a sink that has none.
func (p *publisher) take(ctx context.Context) (_ *ownership, err error) {
	sent := time.Now()
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, err := p.pool.Acquire(bound)
	if err != nil {
		return nil, fmt.Errorf("own sink: %w", err)
	}
	defer func() {
		if err != nil {
			conn.Release()
		}
	}()
	rows, err := sqlgen.New(conn).OwnSink(bound, sqlgen.OwnSinkParams{
		Sink: p.name, Owner: p.owner,
		LeaseTtl: pgvalue.Interval(p.config.LeaseTTL),
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("own sink: %w", err)
	case len(rows) == 0:
		return nil, errNotOurs
	}
	row := rows[0]
	if row.Top < row.Was {
		p.metrics.rewinds.Inc()
		p.log.LogAttrs(ctx, slog.LevelWarn,
			"sink rewound: positions come from another timeline, as after a failover or a restore",
			slog.Int64("from", row.Was), slog.Int64("to", row.Top))
	}
	if row.Behind > 0 {
		return nil, fmt.Errorf(
			"the log has position %d, and the next one to be given out is lower, as after a copy of tables without their sequences. "+
				"Run: SELECT setval('outbox.events_position_seq', %[1]d). Then events that were stored since are published, and those of the day of the copy once more",
			row.Behind)
	}
	o := &ownership{
		publisher: p, conn: conn, epoch: row.Epoch, timeline: row.Timeline, changed: make(chan struct{}, 1),
		replays: make(chan *replayPage), stateChanged: make(chan struct{}),
		cursor: cursorOf(row.Top, row.Lows, row.Highs), kept: row.Top, until: sent.Add(p.config.LeaseTTL),
		paused: row.Paused, exclusiveReplay: row.Alone,
		destinations: destinations{now: p.config.now, retry: p.config.outage},
		held:         held{jobs: map[[16]byte]heldJob{}, keys: map[tenantKey]int{}},
	}
	if mayLast(row.AwayCode) {
		since := time.Now().Add(-time.Duration(row.AwayFor * float64(time.Second)))
		o.away = &away{since, row.AwayCode, row.AwayMessage}
	}
	if err := o.destinations.load(row.Missing); err != nil {
		return nil, err
	}
	if p.shared != nil {
		p.shared.forget()
	}
	return o, o.lookAtHeld(ctx)
}

// awaitLapse waits while another process owns the sink.
func (p *publisher) awaitLapse(ctx context.Context, q *sqlgen.Queries) error {
	for {
		seconds, err := p.lapsesIn(ctx, q)
		switch {
		case err != nil:
			return err
		case seconds == 0:
			return nil
		}
		if err := p.awaitRelease(ctx, time.Duration(seconds*float64(time.Second))); err != nil {
			return err
		}
	}
}

// lapsesIn returns in how many seconds the sink becomes free. It declares a sink again whose row is gone.
func (p *publisher) lapsesIn(ctx context.Context, q *sqlgen.Queries) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	seconds, err := q.SinkLapsesIn(ctx, p.owner, p.name)
	if errors.Is(err, pgx.ErrNoRows) {
		err = p.declare(ctx, q)
	}
	if err != nil {
		return 0, fmt.Errorf("look at the lease: %w", err)
	}
	return seconds, nil
}

// awaitRelease waits for up to most, and less after a NOTIFY: a process that leaves a sink notifies. Publishers of
// events do so too, hence the pause.
func (p *publisher) awaitRelease(ctx context.Context, most time.Duration) error {
	pause := time.NewTimer(min(most, releasePause))
	defer pause.Stop()
	lapse := time.NewTimer(most)
	defer lapse.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pause.C:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-lapse.C:
	case <-p.released:
	}
	return nil
}

// current returns how far the sink has come.
func (o *ownership) current() cursor {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cursor
}

// hasKept reports whether the sink has come to a position, and the next owner would know it.
func (o *ownership) hasKept(position int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept >= position
}

// move makes maintain store that the sink has come to c with the given number of messages.
func (o *ownership) move(c cursor, published int) {
	o.mu.Lock()
	o.cursor, o.published = c, o.published+int64(published)
	o.mu.Unlock()
	o.poke()
}

// count makes maintain store that one more message was published.
func (o *ownership) count() {
	o.mu.Lock()
	o.published++
	o.mu.Unlock()
	o.poke()
}

// setOutage makes maintain store why the sink is stopped; nil means that it is not.
func (o *ownership) setOutage(why *away) {
	o.mu.Lock()
	o.away = why
	o.mu.Unlock()
	o.poke()
}

// keepMissing makes maintain store for how long destinations have accepted nothing, so that the next owner does not
// wait for another hour.
func (o *ownership) keepMissing(missing string) {
	o.mu.Lock()
	o.missing = &missing
	o.mu.Unlock()
	o.poke()
}

// showShut makes maintain store whether destinations accept nothing, while the sink goes on with others. A sink that
// stands still does not go on before the next round has come to newer events.
func (o *ownership) showShut() {
	why, known := o.destinations.outage()
	was := o.outage()
	before := was != nil && isOfDestination(was.code)
	switch {
	case before && was.code == CodeWaiting && !o.destinations.newer:
	case why == nil && known && before:
		o.setOutage(nil)
	case why != nil && before:
		if now := newAway(was.since, why); *now != *was {
			o.setOutage(now)
		}
	case why != nil:
		o.setOutage(newAway(time.Now(), why))
	}
}

// unread returns the cursor from which the log is read on: it has no holes where messages wait for destinations.
func (o *ownership) unread() cursor {
	return o.current().after(slices.Sorted(slices.Values(o.destinations.waiting)))
}

// outage returns why and since when the sink is stopped, or nil if it is not.
func (o *ownership) outage() *away {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.away
}

// wait makes maintain store whether the sink waits for open transactions. That is no outage: a destination, or the
// broker, may accept nothing meanwhile.
func (o *ownership) wait(waits bool) {
	var why *away
	if waits {
		err := fmt.Errorf("transactions that are open leave %d holes in the log, and more are not remembered", maxHoles)
		o.publisher.complain(context.Background(), "sink waits", err)
		why = &away{time.Now(), CodeHoles, err.Error()}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if waits != (o.waits != nil) {
		o.waits = why
		o.poke()
	}
}

// shown returns what is stored of why the sink is stopped: an outage of the broker or too many messages that wait for
// destinations, or else that the sink waits for open transactions, or else that it goes on without a destination. The
// caller holds the lock.
func (o *ownership) shown() *away {
	if o.waits != nil && (o.away == nil || isOfDestination(o.away.code) && o.away.code != CodeWaiting) {
		return o.waits
	}
	return o.away
}

func (o *ownership) poke() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// isOurs reports whether this process still has the lease, by the monotonic clock: a wall clock that jumps must not
// cost the sink (integration's TestARelaysClockJumps). That clock does not count a suspension of the machine:
// afterwards this process publishes until its next store, which the epoch refuses. Events are published at least once,
// and the broker knows their ids.
func (o *ownership) isOurs() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Now().Before(o.until)
}

// maintain stores what move and setOutage set, extends the lease and looks at the held messages, until ctx ends or this
// process loses the sink.
func (o *ownership) maintain(ctx context.Context) error {
	interval := o.publisher.config.renewInterval
	renewal := time.NewTimer(interval)
	defer renewal.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.changed:
		case <-renewal.C:
		}
		if err := o.store(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if err := o.lookIfDue(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		renewal.Reset(interval)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.storePause()):
		}
	}
}

// storePause returns the time between two stores of the cursor. While an old snapshot is held, each version of the row
// makes the next one slower, and each version contains all holes. With these pauses the server spends at most a fifth
// of a core on them, and after a crash at most the messages of one interval are published again.
func (o *ownership) storePause() time.Duration {
	holes := time.Duration(len(o.current().holes))
	return min(leastStorePause+holes*storePausePer, o.publisher.config.renewInterval)
}

// store stores the cursor, and retries while the lease lasts, but not after an error of the connection: the server may
// have crashed and lost what was committed without waiting for the disk. Then the cursor in memory is ahead of the log,
// and the one in the database is not. Other sinks of this process may have met that error, and the server may answer
// again, so an ownership stores on the connection with which it began, and ends with it:
//
//	another sink                     meets the error, connects anew
//	server           crashes, loses 7, is back                       gives 7 out again
//	this sink                                                                          stores that it has come to 7?
func (o *ownership) store(ctx context.Context) error {
	for {
		err := o.storeOnce(ctx)
		switch {
		case err == nil || errors.Is(err, errNotOurs):
			return err
		case !o.isOurs():
			return fmt.Errorf("%w: %w", errLapsed, err)
		case pgsession.State(err) == "":
			return err
		case pgsession.State(err) == pgsession.NotInEncoding && o.spellInASCII():
			continue
		}
		o.publisher.complain(ctx, "cursor not stored", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// spellInASCII makes the reason for which the sink is stopped storable in every database encoding. It returns false if
// it already is.
func (o *ownership) spellInASCII() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away == nil {
		return false
	}
	spelled := *o.away
	spelled.message = pgvalue.ASCII(o.away.message, maxReason)
	changed := spelled.message != o.away.message
	o.away = &spelled
	return changed
}

// storeOnce continues after ctx has ended, but not beyond the lease. An abandoned statement may still reach the server,
// and late:
//
//	maintain stores 0, is given up                                  the server stores 0
//	leave                            stores 2: the last batch                            leaves the sink
//
// and the next owner would publish the last batch again.
func (o *ownership) storeOnce(ctx context.Context) error {
	o.storing.Lock()
	defer o.storing.Unlock()
	s, until := o.step()
	if most := time.Now().Add(statementTimeout); most.Before(until) {
		until = most
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	if err := s.advance(ctx, sqlgen.New(o.conn)); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stored(s)
	return nil
}

// step is one move of the cursor in the database.
type step struct {
	cursor    cursor
	published int64 // of the ownership
	away      *away
	params    sqlgen.AdvanceSinkParams
	sent      time.Time
	row       sqlgen.AdvanceSinkRow // the answer
}

// step returns the step to the sink's current position; once stored, the lease lasts until until.
func (o *ownership) step() (_ *step, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.publisher
	s := &step{
		published: o.published, away: o.shown(),
		params: sqlgen.AdvanceSinkParams{
			Sink: p.name, Owner: p.owner, Epoch: o.epoch, LeaseTtl: pgvalue.Interval(p.config.LeaseTTL),
			Rewind: pgvalue.Interval(p.config.FailoverRewind), Published: o.published, Lazily: true, Missing: o.missing,
		},
	}
	s.to(o.cursor)
	if why := s.away; why != nil {
		s.params.AwayFor = pgvalue.Interval(time.Since(why.since))
		s.params.AwayCode, s.params.AwayMessage = &why.code, &why.message
	}
	return s, o.until
}

func (s *step) to(c cursor) {
	s.cursor, s.params.Top = c, c.top
	s.params.TopID = pgtype.UUID{Bytes: c.topID, Valid: c.topID != outbox.ID{}}
	s.params.Lows, s.params.Highs = c.grouped(maxStored).bounds()
}

func (s *step) advance(ctx context.Context, q *sqlgen.Queries) error {
	s.sent = time.Now()
	rows, err := q.AdvanceSink(ctx, s.params)
	switch {
	case err != nil:
		return fmt.Errorf("advance sink: %w", err)
	case len(rows) == 0:
		return errNotOurs
	}
	s.row = rows[0]
	return nil
}

// stored records that a step was stored. The caller holds the lock.
func (o *ownership) stored(s *step) {
	o.kept = s.params.Top
	o.published -= s.published
	if o.missing == s.params.Missing {
		o.missing = nil
	}
	o.until = s.sent.Add(o.publisher.config.LeaseTTL)
	if o.paused != s.row.Paused {
		o.paused = s.row.Paused
		o.notifyChange()
	}
	o.publisher.metrics.stored(s)
	o.publisher.metrics.held(&o.held)
}

// watchWaits reports for how long the oldest unpublished event has waited, until ctx ends. It looks beside the stores,
// and on another connection: where that takes long, the lease is extended all the same.
func (o *ownership) watchWaits(ctx context.Context) {
	p := o.publisher
	for {
		bound, cancel := context.WithTimeout(ctx, statementTimeout)
		waits, err := sqlgen.New(p.pool).SinkWaits(bound, p.name)
		cancel()
		if err == nil {
			p.metrics.waits(waits)
		} else if ctx.Err() == nil {
			p.complain(ctx, "oldest event that waits not found", err)
		}
		if backoff.Sleep(ctx, waitsInterval) != nil {
			return
		}
	}
}

// notifyChange wakes goroutines that wait for paused, exclusiveReplay or held to change. The caller holds the lock.
func (o *ownership) notifyChange() {
	close(o.stateChanged)
	o.stateChanged = make(chan struct{})
}

// isStopped reports whether new events must not be published. The caller holds the lock.
func (o *ownership) isStopped() bool { return o.paused || o.exclusiveReplay != "" }

// isLive reports whether new events are to be published.
func (o *ownership) isLive() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.isStopped()
}

// awaitPause returns nil once no new events are to be published, because an operator has paused the sink or a replay
// stops them, or, if paused is false, once the sink is not paused.
func (o *ownership) awaitPause(ctx context.Context, paused bool) error {
	for {
		o.mu.Lock()
		is, stateChanged := o.paused || paused && o.exclusiveReplay != "", o.stateChanged
		o.mu.Unlock()
		if is == paused {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stateChanged:
		case <-o.publisher.wakeIf(!paused): // a resume notifies, and so do publishers
			o.poke()
			select {
			case <-ctx.Done():
			case <-stateChanged:
			case <-time.After(resumePause):
			}
		}
	}
}

// leave stores the cursor and releases the sink to other processes at once.
func (o *ownership) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	p := o.publisher
	err := o.storeOnce(ctx)
	if err == nil {
		err = sqlgen.New(o.conn).LeaveSink(ctx, sqlgen.LeaveSinkParams{Sink: p.name, Owner: p.owner, Epoch: o.epoch})
	}
	if err != nil && !errors.Is(err, errNotOurs) {
		p.log.LogAttrs(ctx, slog.LevelWarn, "sink not left: another process has it when the lease has lapsed",
			slog.Any("err", err))
	}
}
