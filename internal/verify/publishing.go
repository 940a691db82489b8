package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/outbox"
)

// publishing runs clients that lock the row of a key, publish its next number as "KEY/N", and commit, again and again.
// One transaction in ten is rolled back.
type publishing struct {
	clients, keys int
	open          time.Duration // the longest that a transaction stays open after it has published
	rest          time.Duration // the longest pause of a client between two transactions
	insists       bool          // goes on when a transaction fails, because the server may be away

	run    *Run
	pool   *pgxpool.Pool
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu    sync.Mutex
	acked map[string]time.Time // by body: when the commit's response came
	took  []commitTook
	err   error
}

// commitTook holds when a transaction was committed, and how long its statements and its COMMIT took.
type commitTook struct {
	at   time.Time
	took time.Duration
}

const publishingSchema = `CREATE TABLE IF NOT EXISTS keys (key text PRIMARY KEY, n integer NOT NULL)`

// publish starts the clients, which run until stop is called.
func (r *Run) publish(ctx context.Context, p *publishing) error {
	p.run, p.acked = r, map[string]time.Time{}
	config := r.DB.Config().Copy()
	config.MaxConns = int32(p.clients) + 1
	var err error
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if err := r.prepareEvents(ctx, p.keys); err != nil {
		return err
	}
	ctx, p.cancel = context.WithCancel(ctx)
	for i := range p.clients {
		dice := fault.Random(r.Seed, fmt.Sprint("publish ", i))
		p.ended.Go(func() {
			for ctx.Err() == nil {
				err := p.once(context.WithoutCancel(ctx), dice)
				if err != nil && p.insists {
					_ = backoff.Sleep(ctx, 100*time.Millisecond)
					continue
				}
				if err != nil {
					p.mu.Lock()
					p.err = err
					p.mu.Unlock()
					return
				}
				_ = backoff.Sleep(ctx, time.Duration(dice.Float64()*float64(p.rest)))
			}
		})
	}
	return nil
}

// prepareEvents creates what publishers need in a database.
func (r *Run) prepareEvents(ctx context.Context, keys int) error {
	if _, err := r.DB.Exec(ctx, `SELECT outbox.ensure_days(1)`); err != nil {
		return err
	}
	if _, err := r.DB.Exec(ctx, publishingSchema); err != nil {
		return err
	}
	_, err := r.DB.Exec(ctx,
		`INSERT INTO keys SELECT 'k' || i, 0 FROM generate_series(1, $1::integer) AS i ON CONFLICT DO NOTHING`, keys)
	return err
}

// once runs one transaction.
func (p *publishing) once(ctx context.Context, dice *rand.Rand) error {
	began := time.Now()
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	body, err := publishNext(ctx, tx, fmt.Sprintf("k%d", 1+dice.IntN(p.keys)))
	if err != nil {
		return err
	}
	open := time.Duration(dice.Float64() * float64(p.open))
	_ = backoff.Sleep(ctx, open)
	if dice.IntN(10) == 0 {
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked[body], p.took = now, append(p.took, commitTook{now, now.Sub(began) - open})
	return nil
}

// publishNext locks a key and publishes its next number.
func publishNext(ctx context.Context, tx pgx.Tx, key string) (body string, err error) {
	var n int
	if err := tx.QueryRow(ctx, `UPDATE keys SET n = n + 1 WHERE key = $1 RETURNING n`, key).Scan(&n); err != nil {
		return "", err
	}
	body = fmt.Sprintf("%s/%d", key, n)
	_, err = outbox.Publish(ctx, tx, outbox.Raw{
		KindName: "order.paid", Payload: []byte(body),
		ContentType: "text/plain",
	}, outbox.EventOptions{Key: key})
	return body, err
}

// stop waits until each client has ended its current transaction, and returns an error that stopped one.
func (p *publishing) stop() error {
	p.cancel()
	p.ended.Wait()
	p.pool.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// sofar returns how many transactions were acknowledged.
func (p *publishing) sofar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.acked)
}

// p99 returns the 99th percentile of the durations of transactions that ended within a period, and how many ended in a
// second. If none ended, it returns an hour.
func (p *publishing) p99(s span) (took99 time.Duration, perSecond float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var took []time.Duration
	for _, c := range p.took {
		if c.at.After(s.from) && c.at.Before(s.until) {
			took = append(took, c.took)
		}
	}
	if len(took) == 0 {
		return time.Hour, 0
	}
	slices.Sort(took)
	return took[len(took)*99/100], float64(len(took)) / s.until.Sub(s.from).Seconds()
}

// store stores n events in one transaction, without acknowledging them to a publisher: their commit is known from the
// table.
func (r *Run) store(ctx context.Context, n int, key string) error {
	_, err := r.DB.Exec(ctx, `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
			SELECT gen_random_uuid(), $1, 'order.paid', $2 || i % 100, 'text/plain', convert_to($2 || i % 100 || '/' || (i / 100 + 1), 'UTF8')
			FROM generate_series(0, $3::integer - 1) AS i)
		SELECT pg_notify('outbox_events', '')`, outbox.RootTenant, key, n)
	if err != nil {
		return fmt.Errorf("store %d events: %w", n, err)
	}
	return nil
}
