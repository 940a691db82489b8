package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// Bridges makes jobs from messages. Make one with [New].
type Bridges struct {
	user    *pgxpool.Pool
	bridges []*bridge
	started atomic.Bool
}

// bridge is a single bridge. Only one goroutine uses it.
type bridge struct {
	BridgeConfig
	pool, user *pgxpool.Pool
	metrics    bridgeMetrics
	log        *slog.Logger
	complaints outage.Complaints
	answered   atomic.Bool // the database has answered
	until      time.Time   // end of the lease, by our clock
	room       room
	most       int    // limit of messages in the next transaction
	away       *away  // nil unless something keeps it from storing messages
	lag        *int64 // nil if the broker does not report it
}

// away records since when a bridge stores nothing, and why.
type away struct {
	since   time.Time
	message string
}

// New validates config and registers the metrics. It opens its own connections, one per bridge, to the database of
// pool, which it uses only for its settings.
func New(pool *pgxpool.Pool, config Config) (*Bridges, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	all := newMetrics(config.Registerer)
	r := &Bridges{user: pool}
	for _, c := range config.Bridges {
		r.bridges = append(r.bridges, &bridge{
			BridgeConfig: c, user: pool, metrics: all.of(c.Name), most: maxBatch,
			log: config.Logger.With(slog.String("component", "bridge"), slog.String("bridge", c.Name)),
		})
	}
	return r, nil
}

// Ready returns nil once the database has answered all bridges, and an error before that and before Run. An unavailable
// broker, or another process that fetches, does not make it unready. Ready is safe for concurrent use.
func (r *Bridges) Ready() error {
	for _, b := range r.bridges {
		if !b.answered.Load() {
			return errors.New("the database has not answered yet")
		}
	}
	return nil
}

// Run makes jobs from messages until ctx ends and then returns nil. It stores and acknowledges a batch that is being
// stored by then, and gives messages that were only fetched back. It may be called once.
func (r *Bridges) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return fmt.Errorf("bridge: %w", backoff.ErrRanBefore)
	}
	pool, err := pgsession.Open(ctx, r.user, pgsession.Config{
		Conns: len(r.bridges), Needs: "store jobs", Timeout: 2 * statementTimeout, ByIndex: true,
	})
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	defer pool.Close()
	var working sync.WaitGroup
	for _, b := range r.bridges {
		b.pool = pool
		working.Go(func() { b.run(ctx) })
	}
	working.Wait()
	return nil
}

// run fetches whenever no other process does.
func (b *bridge) run(ctx context.Context) {
	defer func() {
		if err := b.Source.Close(); err != nil {
			b.log.LogAttrs(ctx, slog.LevelWarn, "source not closed", slog.Any("err", err))
		}
	}()
	var retry backoff.Backoff
	for ctx.Err() == nil {
		epoch, err := b.own(ctx)
		if err == nil {
			retry.Reset()
			b.log.LogAttrs(ctx, slog.LevelInfo, "bridge fetches", slog.Int64("epoch", epoch))
			b.metrics.owned.Set(1)
			err = b.move(ctx, epoch)
			b.metrics.forget()
			b.Source.Release()
			b.leave(ctx, epoch)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		b.complain(ctx, "bridge not owned", err)
		pgsession.LeaveReadOnly(err, b.pool, b.user)
		_ = retry.Wait(ctx) // the end of ctx is handled above
	}
}

// stand records what keeps the bridge from storing messages, for keep to store.
func (b *bridge) stand(message string, err error) {
	since := time.Now()
	if b.away != nil {
		since = b.away.since
	}
	b.away = &away{since, message + ": " + err.Error()}
	b.metrics.stalled.Set(time.Since(since).Seconds())
}

// complain does the same and logs it, once in ten seconds.
func (b *bridge) complain(ctx context.Context, message string, err error) {
	b.stand(message, err)
	if missed, due := b.complaints.Due(message, time.Now()); due {
		b.log.LogAttrs(ctx, slog.LevelWarn, message, slog.Int("since_last_line", missed), slog.Any("err", err))
	}
}

// goesOn records that messages were stored, or that there were none.
func (b *bridge) goesOn() {
	b.away = nil
	b.metrics.stalled.Set(0)
}
