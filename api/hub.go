package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	lookEvery   = 500 * time.Millisecond // for changes, while somebody listens
	lookBudget  = 10                     // of the time between two looks, one part is looking: a large table is looked at less often
	quietBudget = 100                    // the same while no change of a job is known, of what a look takes more than
	cheapLook   = 10 * time.Millisecond  // which one may at any time
	quietMost   = time.Minute            // after which it is looked in any case
	maxChanges  = 20_000                 // of one look; more are not told one by one
	lookTimeout = 12 * time.Second
	welcomeTime = 250 * time.Millisecond // for telling readers what they missed, at a time
	deafAfter   = 30 * time.Second       // of looks that fail, readers are ended
	maxBatches  = 64                     // that wait for a reader
	maxWaiting  = 4 << 20                // bytes of them, unless it is one
)

// hub looks for changes of jobs on behalf of everybody who listens in this process,
// one tenant after the other, and not at all while nobody does. It looks through
// transactions that are tied to the tenant, so a reader cannot be told of others.
//
// Between two looks a job may change several times: its last state is told. A look
// misses nothing, whatever commits late; see operator.Changes. It reads all open jobs,
// so before each round there is a glance, one for all feeds, which reads no table:
// what cannot have changed is not looked at, what has hardly changed less often.
type hub struct {
	pool outbox.Beginner

	every      time.Duration
	deafAfter  time.Duration
	rest       func(took time.Duration) time.Duration // after a look, while no change of a job is known
	maxChanges int
	maxWaiting int64

	complain func(context.Context, error)

	mu      sync.Mutex
	feeds   map[outbox.ID]*feed
	running bool
	nudged  chan struct{} // one slot: somebody came or went
}

// reader is one stream. Its batches are shared with the other readers of its feed,
// unless it wants only some of the events.
type reader struct {
	from    operator.Position // zero: from now on
	wants   wants
	begun   chan error   // of one: nil once it has its first batch
	batches chan *batch  // closed, and emptied, when the hub has ended it
	waiting atomic.Int64 // bytes in batches
	ended   chan struct{}
}

func newHub(s *server) *hub {
	return &hub{
		pool: s.config.Pool, every: s.config.lookEvery, deafAfter: s.config.deafAfter, rest: s.config.restAfter, maxChanges: s.config.maxChanges, maxWaiting: int64(s.config.maxWaiting),
		complain: func(ctx context.Context, err error) { _ = s.explain(ctx, err) },
		feeds:    map[outbox.ID]*feed{}, nudged: make(chan struct{}, 1),
	}
}

// join begins to read. The first batch says where the reader is. Who brings no position
// reads from where the feed is, at once if it has begun: nothing has to be looked for.
func (h *hub) join(tenant outbox.ID, w wants, from operator.Position) *reader {
	r := &reader{from: from, wants: w, begun: make(chan error, 1), batches: make(chan *batch, maxBatches), ended: make(chan struct{})}
	h.mu.Lock()
	f := h.feeds[tenant]
	if f == nil {
		f = &feed{tenant: tenant, readers: map[*reader]bool{}}
		h.feeds[tenant] = f
	}
	if from.IsZero() && !f.at.IsZero() {
		f.admit(r, &batch{after: f.at})
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

// admit has a reader begin with a batch. The hub's lock is held.
func (f *feed) admit(r *reader, first *batch) {
	first = first.of(r.wants)
	f.readers[r] = true
	r.batches <- first // there is room
	r.waiting.Add(int64(len(first.text)))
	r.begun <- nil
}

// leave ends reading.
func (h *hub) leave(tenant outbox.ID, r *reader) {
	h.mu.Lock()
	if f := h.feeds[tenant]; f != nil {
		delete(f.readers, r)
		f.joining = slices.DeleteFunc(f.joining, func(other *reader) bool { return other == r })
		if len(f.readers)+len(f.joining) == 0 {
			delete(h.feeds, tenant)
		}
	}
	h.mu.Unlock()
	h.nudge()
}

func (h *hub) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// run looks until nobody listens. It decides that, and that it ends, under one lock:
// who comes later starts another.
func (h *hub) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var look, welcome time.Time // when there is to be a round, and when somebody may be told what he has missed
	for {
		feeds := h.listening()
		if feeds == nil {
			return
		}
		begun := time.Now()
		if begun.Before(look) {
			h.round(slices.DeleteFunc(slices.Clone(feeds), func(f *feed) bool { return !f.position.IsZero() })) // those that have just begun
		} else {
			h.round(feeds)
			look = time.Now().Add(max(h.every, lookBudget*time.Since(begun)))
		}
		if begun = time.Now(); !begun.Before(welcome) {
			h.welcome(feeds, begun.Add(welcomeTime))
			welcome = time.Now().Add(time.Since(begun))
		}
		h.pause(timer, look, welcome)
	}
}

// listening returns the feeds, in an order of chance; nil if there are none.
func (h *hub) listening() []*feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.feeds) == 0 {
		h.running = false
		return nil
	}
	return slices.Collect(maps.Values(h.feeds))
}

// pause waits until there is something to do.
func (h *hub) pause(timer *time.Timer, look, welcome time.Time) {
	for {
		next := look
		h.mu.Lock()
		due := len(h.feeds) == 0 // the last one has gone
		for _, f := range h.feeds {
			if len(f.joining) > 0 && welcome.Before(next) {
				next = welcome
			}
			due = due || len(f.joining) > 0 && f.at.IsZero()
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

// round looks once for each of the feeds.
func (h *hub) round(feeds []*feed) {
	if len(feeds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var now operator.Glance
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) (err error) {
		now, err = operator.TakeGlance(ctx, tx)
		return err
	})
	if err != nil {
		h.complain(ctx, err)
	}
	for _, f := range feeds {
		h.serve(f, now, err)
	}
}

// serve looks once for a feed, unless the glance failed.
func (h *hub) serve(f *feed, now operator.Glance, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var found *batch
	if err == nil {
		if found, err = h.unlessSame(ctx, f, now); err != nil {
			h.complain(ctx, err)
		}
	}
	if f.failed = err; err == nil {
		f.heard = time.Now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// Who is told of nothing for long is not to believe that nothing happens.
	f.deaf = err != nil && time.Since(f.heard) > h.deafAfter
	for r := range f.readers {
		if f.deaf || found != nil && !r.give(found.of(r.wants), h.maxWaiting) {
			f.dismiss(r)
		}
	}
	if f.at = f.position; f.deaf {
		f.at = operator.Position{} // whoever comes is told the failure
	}
}

// dismiss ends a reader who does not keep up, or who would believe that nothing changes.
// What waits for him is let go now, however long his connection takes to notice. The
// hub's lock is held.
func (f *feed) dismiss(r *reader) {
	delete(f.readers, r)
	close(r.ended)
	close(r.batches)
	for range r.batches {
	}
}

// welcome tells those who join with a position what has changed since, until the time
// is over: who is left is next, after as long without. So nobody who reads already
// waits for more than one of them, and looks are not made rarer by them.
//
// What is read for them is newer than where the feed is, so its next batch may tell of
// something again, but never of what was before.
func (h *hub) welcome(feeds []*feed, until time.Time) {
	for _, f := range feeds {
		var caughtUp *missed
		joiners := h.joiners(f)
		for i, r := range joiners {
			if !h.stillJoins(f, r) {
				continue
			}
			first, err := &batch{after: f.position}, error(nil)
			switch {
			case f.position.IsZero(), f.deaf:
				err = f.failed
			case !r.from.IsZero():
				// All open jobs are read once for all readers that come back, after a restart by
				// the hundred, so some are told a state twice. Where that finds too much, readers
				// with a later position get a reading of their own.
				if caughtUp == nil || !caughtUp.lost(r.from) && !caughtUp.has(r.from) {
					if time.Now().After(until) {
						return
					}
					caughtUp, err = h.catchUp(f, joiners[i:])
				}
				if err == nil && caughtUp.has(r.from) {
					first = caughtUp.batch
				} else {
					first = resync(f.position)
				}
			}
			h.mu.Lock()
			if i := slices.Index(f.joining, r); i >= 0 { // he has not gone
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

func (h *hub) stillJoins(f *feed, r *reader) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(f.joining, r)
}

// joiners are those who join now, the ones who missed most first.
func (h *hub) joiners(f *feed) []*reader {
	h.mu.Lock()
	joining := slices.Clone(f.joining)
	h.mu.Unlock()
	slices.SortFunc(joining, func(a, b *reader) int {
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

// unlessSame looks, if there may be anything that the latest look did not see. nil is
// that nobody has looked.
//
// A glance that reads as the one before the latest look did: whatever is visible now
// was visible to that look, and the feed may move on as if there had been another. One
// that only knows of no change proves nothing: what committed a moment ago may not have
// been added up yet. So the feed stays where it is, and a look that comes late finds it.
func (h *hub) unlessSame(ctx context.Context, f *feed, now operator.Glance) (*batch, error) {
	if !f.position.IsZero() && now.SameAs(f.glance) {
		if after, err := f.position.At(now); err == nil { // a position that is too old has to be told of
			f.position = after
			return &batch{after: after}, nil
		}
	}
	begun := time.Now()
	if !f.position.IsZero() && now.LikelySameAs(f.glance) && begun.Sub(f.looked) < h.rest(f.took) {
		return nil, nil
	}
	found, err := h.look(ctx, f)
	if err == nil {
		f.glance, f.looked, f.took = now, begun, time.Since(begun)
	}
	return found, err
}

// restAfter is how long looks are left out, after one that took so long.
func restAfter(took time.Duration) time.Duration {
	return min(quietBudget*(took-cheapLook), quietMost)
}

// give hands a batch over, unless the reader has too much of them to read.
func (r *reader) give(b *batch, most int64) bool {
	if len(b.text) == 0 && len(r.batches) > 0 {
		return true // where it is, a later one says
	}
	size, waiting := int64(len(b.text)), r.waiting.Load()
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

// isEnded reports whether the hub tells it nothing more.
func (r *reader) isEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// took notes that a batch was taken from the reader's.
func (r *reader) took(b *batch) { r.waiting.Add(-int64(len(b.text))) }
