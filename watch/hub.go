package watch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	lookEvery   = 500 * time.Millisecond // between two looks for changes, while there are readers
	lookBudget  = 10                     // looks take at most one part in so many of the time
	quietBudget = 100                    // the same while no change is known, for the part of a look beyond cheapLook
	cheapLook   = 10 * time.Millisecond
	quietMost   = time.Minute // between two looks, however long they take
	burstBudget = 100         // the same after a look that found more than its readers are sent
	burstMost   = 5 * time.Second
	burstLook   = 30 * time.Second // between two looks, while the server's statistics say that the burst goes on
	burstWrites = 3                // of rows for each job: one is inserted, claimed and closed
	maxChanges  = 20_000           // of one look; more become a resync
	lookTimeout = 12 * time.Second
	catchUpTime = 250 * time.Millisecond // per turn, for sending joining readers what they missed
	deafAfter   = 30 * time.Second       // readers are dropped once polls have failed for so long
	maxBatches  = 64                     // that wait for a reader
	maxWaiting  = 4 << 20                // bytes in them, unless there is only one batch
)

// Changes polls for changes of jobs for all readers of this process, one tenant after the other, and not at all while
// it has none. It polls in transactions that are bound to the tenant, so a reader cannot get another tenant's changes.
//
// If a job changes several times between two polls, its last state is sent. A poll misses nothing, however late it
// commits; see changefeed.List. It reads all open jobs, so each round begins with one snapshot for all feeds, which
// reads no table: a feed that cannot have changed is skipped, and one that has hardly changed is read less often.
type Changes struct {
	pool outbox.Beginner

	every      time.Duration
	deafAfter  time.Duration
	rest       func(took time.Duration) time.Duration // pause after a look, while no change of a job is known
	restBurst  func(took time.Duration) time.Duration // pause after one that found more than its readers are sent
	burstLook  time.Duration
	maxChanges int
	maxWaiting int64

	complain func(context.Context, error)

	mu      sync.Mutex
	feeds   map[outbox.ID]*feed
	running bool
	nudged  chan struct{} // one slot: a reader joined or left
}

// A Reader is one stream. It shares its batches with the other readers of its feed, unless it has a filter.
type Reader struct {
	of      *Changes
	tenant  outbox.ID
	from    Position // zero means from now on
	filter  Filter
	begun   chan error   // one slot: nil once it has its first batch
	batches chan *Batch  // closed, and emptied, when the hub has ended it
	waiting atomic.Int64 // bytes in batches
	ended   chan struct{}
}

// ChangesConfig sets how to poll for changes. Its zero value is a sane production setup.
type ChangesConfig struct {
	LookEvery time.Duration // between two polls, while there are readers; 0 means 500 ms
	DeafAfter time.Duration // readers are ended once polls have failed for so long; 0 means 30 s
	// Rest returns the pause after a poll that took the given time, while no change is known; nil means up to a minute.
	Rest       func(took time.Duration) time.Duration
	MaxChanges int                          // per poll, more become a resync; 0 means 20 000
	MaxWaiting int                          // bytes that wait for a reader; 0 means 4 MiB
	Complain   func(context.Context, error) // receives the errors of polls; nil drops them
}

// NewChanges returns Changes that look in the database of pool once somebody reads them. Each look is bound to the
// reader's tenant: see [access.InTx].
func NewChanges(pool outbox.Beginner, c ChangesConfig) *Changes {
	h := &Changes{
		pool: pool, every: cmp.Or(c.LookEvery, lookEvery), deafAfter: cmp.Or(c.DeafAfter, deafAfter), rest: c.Rest,
		complain:   c.Complain,
		maxChanges: cmp.Or(c.MaxChanges, maxChanges), maxWaiting: int64(cmp.Or(c.MaxWaiting, maxWaiting)),
		restBurst: restAfterBurst, burstLook: burstLook, feeds: map[outbox.ID]*feed{}, nudged: make(chan struct{}, 1),
	}
	if h.rest == nil {
		h.rest = restAfter
	}
	if h.complain == nil {
		h.complain = func(context.Context, error) {}
	}
	return h
}

// Open begins to read the changes of a tenant's jobs, or of all, that pass the filter: from a position on, or if that
// is zero, from now on. The first batch has the reader's position. Close the reader when you are done.
func (h *Changes) Open(ctx context.Context, tenant outbox.ID, w Filter, from Position) (*Reader, error) {
	r := h.join(tenant, w, from)
	select {
	case err := <-r.begun:
		if err != nil {
			r.Close()
			return nil, err
		}
		return r, nil
	case <-ctx.Done():
		r.Close()
		return nil, ctx.Err()
	}
}

// Batches returns a channel of what to send to the reader; it is closed when the reader is closed or dropped. Call Took
// for each batch that you receive.
func (r *Reader) Batches() <-chan *Batch { return r.batches }

// Ended returns a channel that is closed when the reader is dropped: it was too slow, or polls have failed for too
// long.
func (r *Reader) Ended() <-chan struct{} { return r.ended }

// Close ends the reading. It may be called more than once.
func (r *Reader) Close() { r.of.leave(r.tenant, r) }

// join adds a reader. Its first batch has its position. A reader without a position begins where the feed is, at once
// if the feed has begun, because that needs no look.
func (h *Changes) join(tenant outbox.ID, w Filter, from Position) *Reader {
	r := &Reader{
		of: h, tenant: tenant, from: from, filter: w, begun: make(chan error, 1),
		batches: make(chan *Batch, maxBatches), ended: make(chan struct{}),
	}
	h.mu.Lock()
	f := h.feeds[tenant]
	if f == nil {
		f = &feed{tenant: tenant, readers: map[*Reader]bool{}}
		h.feeds[tenant] = f
	}
	if from.IsZero() && !f.at.IsZero() {
		f.admit(r, &Batch{After: f.at})
	} else {
		f.joining = append(f.joining, r)
	}
	start := !h.running
	h.running = true
	h.mu.Unlock()
	if start {
		go h.run()
	}
	h.nudge()
	return r
}

// admit gives a reader its first batch. The caller holds the hub's lock.
func (f *feed) admit(r *Reader, first *Batch) {
	first = first.matching(r.filter)
	f.readers[r] = true
	r.batches <- first // never blocks
	r.waiting.Add(int64(len(first.Text)))
	r.begun <- nil
}

// leave removes a reader.
func (h *Changes) leave(tenant outbox.ID, r *Reader) {
	h.mu.Lock()
	if f := h.feeds[tenant]; f != nil {
		delete(f.readers, r)
		f.joining = slices.DeleteFunc(f.joining, func(other *Reader) bool { return other == r })
		if len(f.readers)+len(f.joining) == 0 {
			delete(h.feeds, tenant)
		}
	}
	h.mu.Unlock()
	h.nudge()
}

func (h *Changes) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// run looks for changes until there are no readers. It decides under one lock that there are none and that it ends: a
// reader that joins later starts another run.
func (h *Changes) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var nextLook, nextCatchUp time.Time
	for {
		feeds := h.listening()
		if feeds == nil {
			return
		}
		begun := time.Now()
		if begun.Before(nextLook) {
			// Look only for new feeds.
			_ = h.round(slices.DeleteFunc(slices.Clone(feeds), func(f *feed) bool { return !f.position.IsZero() }))
		} else {
			rest := h.every
			if h.round(feeds) == nil { // a failed look took long because nobody answered
				rest = max(rest, min(lookBudget*time.Since(begun), quietMost))
			}
			nextLook = time.Now().Add(rest)
		}
		if begun = time.Now(); !begun.Before(nextCatchUp) {
			h.catchUp(feeds, begun.Add(catchUpTime))
			nextCatchUp = time.Now().Add(time.Since(begun))
		}
		h.pause(timer, nextLook, nextCatchUp)
	}
}

// listening returns the feeds in random order; nil if there are none.
func (h *Changes) listening() []*feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.feeds) == 0 {
		h.running = false
		return nil
	}
	return slices.Collect(maps.Values(h.feeds))
}

// pause waits for the next look, or until readers that have joined can catch up.
func (h *Changes) pause(timer *time.Timer, nextLook, nextCatchUp time.Time) {
	for {
		next := nextLook
		h.mu.Lock()
		due := len(h.feeds) == 0 // the last reader has left
		for _, f := range h.feeds {
			if len(f.joining) > 0 && nextCatchUp.Before(next) {
				next = nextCatchUp
			}
			due = due || len(f.joining) > 0 && f.at.IsZero() && f.failed == nil // otherwise catchUp answers
		}
		h.mu.Unlock()
		wait := time.Until(next)
		if due || wait <= 0 {
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-h.nudged:
		}
	}
}

// round looks once for each of the feeds, and returns the last error of these looks.
func (h *Changes) round(feeds []*feed) error {
	if len(feeds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	now, err := h.snapshot(ctx)
	if err != nil {
		h.complain(ctx, err)
	}
	var failed error
	for _, f := range feeds {
		h.serve(f, now, err)
		failed = cmp.Or(f.failed, failed)
	}
	return failed
}

func (h *Changes) snapshot(ctx context.Context) (now changefeed.Snapshot, err error) {
	defer recovered(&err)
	err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) (err error) {
		now, err = changefeed.TakeSnapshot(ctx, tx)
		return err
	})
	return now, err
}

// serve looks once for a feed, unless the snapshot failed.
func (h *Changes) serve(f *feed, now changefeed.Snapshot, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var found *Batch
	if err == nil {
		if found, err = h.unlessSame(ctx, f, now); err != nil {
			h.complain(ctx, err)
		}
	}
	f.failed = err
	if err == nil {
		f.heard = time.Now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// A reader must not mistake an unresponsive database for one in which nothing changes.
	f.deaf = err != nil && time.Since(f.heard) > h.deafAfter
	for r := range f.readers {
		if f.deaf || found != nil && !r.give(found.matching(r.filter), h.maxWaiting) {
			f.drop(r)
		}
	}
	f.at = f.position
	if f.deaf {
		f.at = Position{} // readers that join get the error
	}
}

// drop ends a reader that reads too slowly, or whose feed has failed for too long. It releases the reader's batches
// now, however long its connection takes to notice. The caller holds the hub's lock.
func (f *feed) drop(r *Reader) {
	delete(f.readers, r)
	close(r.ended)
	close(r.batches)
	for range r.batches {
	}
}

// catchUp sends readers that join with a position the changes since that position, until a given time; the remaining
// readers come first after a pause of the same length. So a reader that has joined waits for at most one reading of
// what others missed, and looks do not become rarer.
//
// The reading is newer than the feed, so the feed's next batch may repeat a change, but never sends an older state
// after it.
func (h *Changes) catchUp(feeds []*feed, until time.Time) {
	for _, f := range feeds {
		var found *missed
		joiners := h.joiners(f)
		for i, r := range joiners {
			if !h.stillJoins(f, r) {
				continue
			}
			first, err := &Batch{After: f.position}, error(nil)
			switch {
			case f.position.IsZero(), f.deaf:
				err = f.failed
			case !r.from.IsZero():
				// One reading of all open jobs serves all readers that come back, after a restart by the hundred, so
				// some are sent a state twice. If it finds too much, readers with a later position get a reading of
				// their own.
				if found == nil || !found.lost(r.from) && !found.has(r.from) {
					if time.Now().After(until) {
						return
					}
					found, err = h.readMissed(f, joiners[i:])
				}
				if err == nil && found.has(r.from) {
					first = found.batch
				} else {
					first = resync(f.position)
				}
			}
			h.mu.Lock()
			if i := slices.Index(f.joining, r); i >= 0 { // it has not left
				f.joining = slices.Delete(f.joining, i, i+1)
				if err == nil {
					f.admit(r, first)
				} else {
					r.begun <- err
				}
			}
			h.mu.Unlock()
		}
	}
}

func (h *Changes) stillJoins(f *feed, r *Reader) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(f.joining, r)
}

// joiners returns the readers that are joining, those that missed most first.
func (h *Changes) joiners(f *feed) []*Reader {
	h.mu.Lock()
	joining := slices.Clone(f.joining)
	h.mu.Unlock()
	slices.SortFunc(joining, func(a, b *Reader) int {
		switch {
		case a.from.Before(b.from):
			return -1
		case b.from.Before(a.from):
			return 1
		}
		return 0
	})
	return joining
}

// unlessSame looks if there may be anything that the latest look did not see. It returns nil if it did not look.
//
// If the snapshot equals the one before the latest look, everything that is visible now was visible to that look, and
// the feed advances as if it had looked again. Statistics that count no change prove nothing: they may not have counted
// what committed a moment ago. So the feed does not advance then, and a later look finds it.
func (h *Changes) unlessSame(ctx context.Context, f *feed, now changefeed.Snapshot) (found *Batch, err error) {
	defer recovered(&err)
	if !f.position.IsZero() && now.SameAs(f.snapshot) {
		if after, err := f.position.At(now); err == nil { // a look reports a position that is too old
			f.position = after
			return &Batch{After: after}, nil
		}
	}
	begun, limit := time.Now(), h.limit(f)
	burst := f.burst && limit < h.maxChanges
	rests := burst && begun.Sub(f.moved) < h.restBurst(f.took)
	if !f.position.IsZero() && (rests || now.LikelySameAs(f.snapshot) && begun.Sub(f.moved) < h.rest(f.took)) {
		return nil, nil
	}
	// The statistics count the changes of all tenants: for the feed of one, a look has to have found its burst.
	counted := (burst || f.tenant.IsZero() && limit < h.maxChanges) && now.WrittenSince(f.snapshot) > burstWrites*int64(
		limit)
	if counted && begun.Sub(f.looked) < h.burstLook {
		if after, err := f.position.At(now); err == nil {
			f.moved, f.snapshot, f.burst = begun, now, true
			return f.pass(after, limit), nil
		}
	}
	found, err = h.look(ctx, f, limit)
	if err == nil {
		f.moved, f.looked, f.snapshot, f.took = begun, begun, now, time.Since(begun)
		f.burst = found != nil && found.AtLeast > 0
	}
	return found, err
}

// limit returns how many changes a look for the feed returns: as many as the most demanding reader is sent.
func (h *Changes) limit(f *feed) (most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range f.readers {
		most = max(most, r.filter.most(h.maxChanges))
	}
	for _, r := range f.joining {
		most = max(most, r.filter.most(h.maxChanges))
	}
	return cmp.Or(most, h.maxChanges)
}

// restAfter returns how long the hub pauses after a look that took the given time.
func restAfter(took time.Duration) time.Duration {
	return min(quietBudget*(took-cheapLook), quietMost)
}

// restAfterBurst returns how long the hub pauses after a look that took the given time and found more than its readers
// are sent: they know that much has changed, and would learn no more from an earlier look. So while jobs are dispatched
// at full speed, looks leave the server to the dispatchers. With many open jobs that is not enough: a look of 200 ms
// every 5 s takes 4 % of a core. While the statistics count as many changes again, the feed therefore passes them over,
// and looks every burstLook for the rows that pages show of them.
func restAfterBurst(took time.Duration) time.Duration {
	return min(burstBudget*took, burstMost)
}

// give hands a batch to the reader, unless too much already waits for it.
func (r *Reader) give(b *Batch, most int64) bool {
	if len(b.Text) == 0 && len(r.batches) > 0 {
		return true // a later batch has a later position
	}
	size, waiting := int64(len(b.Text)), r.waiting.Load()
	if waiting > 0 && waiting+size > most {
		return false
	}
	select {
	case r.batches <- b:
		r.waiting.Add(size)
		return true
	default:
		return false
	}
}

// IsEnded reports whether the hub has dropped the reader.
func (r *Reader) IsEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// Took counts a batch that was received from the channel.
func (r *Reader) Took(b *Batch) { r.waiting.Add(-int64(len(b.Text))) }
