package await

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Channel is the NOTIFY channel on which dispatchers announce that watched jobs have ended. Notifications carry no
// data: any role may read and forge them.
const Channel = engine.SettledChannel

// ErrStopped is returned by Wait once the waiter's Run has ended.
var ErrStopped = errors.New("the waiter has stopped")

// Config configures a waiter. Its zero value is a sane production setup.
type Config struct {
	ListenURL string       // URL for the listener; "" connects as the pool does. Set it when that leads to a pooler
	Logger    *slog.Logger // nil logs nothing

	// Protect opens sealed results, as dispatcher.Protect seals those of jobs whose payloads are sealed; other results
	// pass unchanged. If it is nil, results stay sealed, and waiting callers get a [*protect.SealedError].
	Protect outbox.Protector
}

// A Waiter waits for jobs on behalf of a whole process. Its methods are safe for concurrent use.
type Waiter struct {
	user     *pgxpool.Pool
	protect  outbox.Protector // nil for none
	log      *slog.Logger
	wake     listener.Signal // a job may have ended
	listener *listener.Listener
	joined   chan struct{} // one slot: there is a new wait
	poll     time.Duration // between two polls of all jobs while the listener hears
	missing  time.Duration // how long a job may be missing

	complaints outage.Complaints
	started    atomic.Bool

	mu      sync.Mutex
	waits   map[outbox.ID]*watch
	fresh   map[outbox.ID]struct{} // not yet queried: a wait has begun for them
	stopped bool
}

// A watch is a job with all waits for it.
type watch struct {
	waits []*wait
	seen  bool // a query saw it open
}

// A wait is one call of Wait.
type wait struct {
	since time.Time
	done  chan result // one slot
}

type result struct {
	end end
	err error
}

// New returns a waiter. When it runs, it opens its own connections with the settings of pool; pool itself serves Status
// and Result.
func New(pool *pgxpool.Pool, config Config) (*Waiter, error) {
	log := config.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	w := &Waiter{
		user: pool, protect: config.Protect, log: log.With(slog.String("component", "waiter")),
		wake: listener.NewSignal(), joined: make(chan struct{}, 1),
		poll: hearingPoll, missing: missing,
		waits: map[outbox.ID]*watch{}, fresh: map[outbox.ID]struct{}{},
	}
	l, err := listener.New(config.ListenURL, Channel, w.wake, listener.Config{
		AppName: "posthaste-waiter", Pool: pool, Canary: pool, Logger: w.log, OnListening: func(bool) { w.wake.Set() },
	})
	if err != nil {
		return nil, fmt.Errorf("waiter: %w", err)
	}
	w.listener = l
	return w, nil
}

// Run listens and answers waits until ctx ends. Then the remaining waits return [ErrStopped], and Run returns nil. It
// may be called once. Waits that begin before Run wait for it.
func (w *Waiter) Run(ctx context.Context) error {
	if w.started.Swap(true) {
		return fmt.Errorf("waiter: %w", backoff.ErrRanBefore)
	}
	defer w.stop()
	pool, err := openPool(ctx, w.user)
	if err != nil {
		return fmt.Errorf("waiter: %w", err)
	}
	defer pool.Close()
	var listening sync.WaitGroup
	defer listening.Wait()
	listening.Go(func() { _ = w.listener.Run(ctx) }) // nil, or that it runs already, which is excluded above
	w.answer(ctx, pool)
	return nil
}

// wait waits for the job to end and returns how it ended.
func (w *Waiter) wait(ctx context.Context, id outbox.ID) (end, error) {
	me := &wait{since: time.Now(), done: make(chan result, 1)}
	if !w.join(id, me) {
		return end{}, ErrStopped
	}
	select {
	case r := <-me.done:
		return r.end, r.err
	case <-ctx.Done():
		w.leave(id, me)
	}
	select {
	case r := <-me.done: // the answer came at the same moment
		return r.end, r.err
	default:
		return end{}, context.Cause(ctx)
	}
}

func (w *Waiter) join(id outbox.ID, me *wait) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	job := w.waits[id]
	if job == nil {
		job = new(watch)
		w.waits[id] = job
	}
	// Query the job even if somebody already waits for it: it may have ended since the last query.
	job.waits = append(job.waits, me)
	w.fresh[id] = struct{}{}
	select {
	case w.joined <- struct{}{}:
	default:
	}
	return true
}

func (w *Waiter) leave(id outbox.ID, me *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if job := w.waits[id]; job != nil {
		job.remove(me)
		if len(job.waits) == 0 {
			delete(w.waits, id)
			delete(w.fresh, id)
		}
	}
}

func (j *watch) remove(me *wait) {
	for i, other := range j.waits {
		if other == me {
			j.waits[i] = j.waits[len(j.waits)-1]
			j.waits = j.waits[:len(j.waits)-1]
			return
		}
	}
}

// stop ends every wait.
func (w *Waiter) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for id, job := range w.waits {
		job.finish(result{err: ErrStopped})
		delete(w.waits, id)
	}
}

func (j *watch) finish(r result) {
	for _, one := range j.waits {
		one.done <- r // never blocks: each wait is finished once
	}
	j.waits = nil
}

// giveUp ends the waits that have lasted long enough.
func (j *watch) giveUp(after time.Duration, err error) {
	now := time.Now()
	j.waits = slices.DeleteFunc(j.waits, func(one *wait) bool {
		given := now.Sub(one.since) >= after
		if given {
			one.done <- result{err: err}
		}
		return given
	})
}
