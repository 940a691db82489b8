package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Channel is the NOTIFY channel on which publishers announce events.
const Channel = engine.EventsChannel

// connsPerSink is one connection each for reading the log, storing the cursor, making jobs from refused messages, and
// working off a replay, and one more: a connection that has gone silent is closed late, and until then the sink's next
// owner needs one. A look at what waits (see watchWaits) finds one of them idle.
const connsPerSink = 5

// A Relay publishes events to sinks. Make one with [New].
type Relay struct {
	config     Config
	callerPool *pgxpool.Pool
	publishers []*publisher
	shared     *shared
	started    atomic.Bool
	ready      atomic.Bool // the rows of all sinks are stored
}

// New validates config and registers the metrics. The relay opens its own connections, up to five per sink, to the
// database of pool. While messages that a sink has refused are retried, a dispatcher opens more with the settings of
// pool, up to eight per sink. If the server turns read-only, as after a failover, the relay resets pool, too.
func New(pool *pgxpool.Pool, config Config) (*Relay, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := &Relay{config: config, callerPool: pool}
	if len(config.Sinks) > 1 {
		r.shared = &shared{}
	}
	host, _ := os.Hostname()
	owner := fmt.Sprintf("%.40s-%d-%08x", cmp.Or(host, "host"), os.Getpid(), rand.Uint32())
	all := newMetrics(config.Registerer)
	for _, s := range config.Sinks {
		routes, _ := compileAll(s.Routes) // validate has checked them
		for _, f := range CheckRoutes(s.Routes) {
			config.Logger.Warn(f.What, slog.String("component", "relay"), slog.String("sink", s.Name))
		}
		r.publishers = append(r.publishers, &publisher{
			sinkClient: newSinkClient(s.Name, s.Sink, all.of(s.Name), config.now),
			routes:     routes, begin: cmp.Or(s.Begin, BeginOldest), maxHeld: cmp.Or(s.MaxHeld, config.MaxHeld),
			most: maxBatch, inTime: maxBatch, owner: owner,
			config: &r.config, shared: r.shared,
			log:  config.Logger.With(slog.String("component", "relay"), slog.String("sink", s.Name)),
			wake: make(chan struct{}, 1), heldWake: make(chan struct{}, 1), released: make(chan struct{}, 1),
		})
	}
	return r, nil
}

// Ready returns nil once Run has stored the rows of its sinks. Later outages of the database or of a sink do not make
// it unready: the relay recovers on its own, and "posthaste relay list" and the metrics show the outage. Ready is safe
// for concurrent use.
func (r *Relay) Ready() error {
	if !r.ready.Load() {
		return errors.New("the database has not answered yet")
	}
	return nil
}

// Run publishes until ctx ends and then returns nil; it releases its sinks to other processes and closes them. It
// returns an error only if it is called twice or cannot open its pool.
func (r *Relay) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return fmt.Errorf("relay: %w", backoff.ErrRanBefore)
	}
	pool, err := pgsession.Open(ctx, r.callerPool, pgsession.Config{
		Conns: connsPerSink * len(r.publishers), Needs: "relay", Timeout: 2 * statementTimeout, ByIndex: true,
		Settings: map[string]string{"plan_cache_mode": "force_generic_plan"},
	})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	defer pool.Close()
	defer r.closeSinks()
	if !r.declare(ctx, pool) {
		return nil
	}
	r.ready.Store(true)
	var working sync.WaitGroup
	for _, p := range r.publishers {
		p.pool, p.callerPool = pool, r.callerPool
		working.Go(func() { p.run(ctx) })
	}
	working.Go(func() { r.fanOut(ctx) })
	working.Wait()
	return nil
}

// declare stores the sinks' rows. It returns false once ctx has ended.
func (r *Relay) declare(ctx context.Context, pool *pgxpool.Pool) bool {
	var retry backoff.Backoff
	for _, p := range r.publishers {
		for {
			bound, cancel := context.WithTimeout(ctx, statementTimeout)
			err := p.declare(bound, sqlgen.New(pool))
			cancel()
			if err == nil {
				break
			}
			p.complain(ctx, "sink not declared", err)
			if retry.Wait(ctx) != nil {
				return false
			}
		}
	}
	return true
}

// fanOut wakes all publishers when events were stored.
func (r *Relay) fanOut(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.config.Wake:
		}
		if r.shared != nil {
			r.shared.wakes.Add(1)
		}
		for _, p := range r.publishers {
			for _, to := range []chan struct{}{p.wake, p.released} {
				select {
				case to <- struct{}{}:
				default:
				}
			}
		}
	}
}

func (r *Relay) closeSinks() {
	for _, p := range r.publishers {
		if err := p.close(); err != nil {
			p.log.LogAttrs(context.Background(), slog.LevelWarn, "sink not closed", slog.Any("err", err))
		}
	}
}
