package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	clients   = 6
	jobs      = 5                      // of each history
	killOneIn = 100                    // operations
	killAfter = 300 * time.Microsecond // at most: before, during or after the statement
	bound     = 20 * time.Second       // for every statement
)

// crowd is the clients of all histories.
type crowd struct{ clients []*client }

// client is a worker, a reaper and an operator in one. It may be killed at any moment, and is replaced then.
type client struct {
	crowd   *crowd
	number  int
	rand    *rand.Rand
	connect func(context.Context) (*pgx.Conn, error)
	wrap    func(*pgx.Conn) Statements
	conn    *pgx.Conn
	db      Statements
}

func gather(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), config Config) (*crowd, error) {
	c := &crowd{}
	for i := range clients {
		one := &client{
			crowd: c, number: i, rand: rand.New(rand.NewPCG(config.Seed, uint64(i))), connect: connect,
			wrap: config.Statements,
		}
		if err := one.reconnect(ctx); err != nil {
			c.disperse(ctx)
			return nil, err
		}
		c.clients = append(c.clients, one)
	}
	return c, nil
}

func (c *crowd) disperse(ctx context.Context) {
	for _, one := range c.clients {
		_ = one.conn.Close(ctx)
	}
}

func (c *client) reconnect(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect client %d: %w", c.number, err)
	}
	// As the dispatcher does: statements then lock rows in the order in which they are named, so that two that settle
	// the same leases cannot deadlock.
	if _, err := conn.Exec(
		ctx, `SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan`); err != nil {
		return fmt.Errorf("prepare client %d: %w", c.number, err)
	}
	c.conn, c.db = conn, c.wrap(conn)
	return nil
}

type task struct{}

func (task) Kind() string { return "task" }

// play makes one history on jobs of its own.
func (c *crowd) play(ctx context.Context, number, operations int) (*history, error) {
	h := &history{}
	// Otherwise the jobs of the last history would be claimed and reaped, too.
	if _, err := c.clients[0].conn.Exec(ctx, `DELETE FROM outbox.jobs`); err != nil {
		return nil, err
	}
	for range jobs {
		id, err := outbox.Enqueue(ctx, c.clients[0].conn, task{}, outbox.Options{MaxAttempts: maxAttempts})
		if err != nil {
			return nil, err
		}
		h.jobs = append(h.jobs, id)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, one := range c.clients {
		group.Go(func() error {
			for a := h.begin(one.number, operations); a != nil; a = h.begin(one.number, operations) {
				if err := one.act(ctx, h, a); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return h, group.Wait()
}

// act does one operation. The client may be killed meanwhile: its connection is cut, as when a process dies.
func (c *client) act(ctx context.Context, h *history, a *ask) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	ask := c.choose(h, a)
	var killed *time.Timer
	if c.rand.IntN(killOneIn) == 0 {
		socket := c.conn.PgConn().Conn()
		killed = time.AfterFunc(rand.N(killAfter), func() { _ = socket.Close() })
	}
	failure := ask(ctx)
	_, answered := errors.AsType[*pgconn.PgError](failure)
	switch {
	case failure == nil:
		h.end(a)
	case answered || killed == nil: // the server must refuse no operation
		return fmt.Errorf("client %d: %w", c.number, failure)
	}
	if killed == nil {
		return nil
	}
	killed.Stop()
	if err := c.replace(ctx); err != nil {
		return err
	}
	if failure != nil {
		h.endUnheard(a)
	}
	return nil
}

// replace connects anew, and waits until the backend of the killed client is gone, and with it the statement that it
// may have run.
func (c *client) replace(ctx context.Context) error {
	pid := c.conn.PgConn().PID()
	_ = c.conn.PgConn().Conn().Close()
	_ = c.conn.Close(ctx)
	if err := c.reconnect(ctx); err != nil {
		return err
	}
	for there := true; there; {
		if err := c.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(
			&there); err != nil {
			return fmt.Errorf("wait for the backend of a killed client: %w", err)
		}
	}
	return nil
}

// choose decides what to do. The function that it returns fills in a.about: first what may happen to each job, then, if
// there was a response, what did.
func (c *client) choose(h *history, a *ask) func(context.Context) error {
	id := pgtype.UUID{Bytes: h.jobs[c.rand.IntN(len(h.jobs))], Valid: true}
	switch n := c.rand.IntN(100); {
	case n < 25:
		return func(ctx context.Context) error { return c.claim(ctx, h, a) }
	case n < 28:
		return func(ctx context.Context) error { return c.succeed(ctx, h, a) }
	case n < 43:
		return func(ctx context.Context) error { return c.unfinished(ctx, h, a) }
	case n < 57:
		return func(ctx context.Context) error { return c.extend(ctx, h, a) }
	case n < 65:
		return func(ctx context.Context) error { return c.expire(ctx, h, a) }
	case n < 75:
		return func(ctx context.Context) error { return c.elapse(ctx, a, id) }
	case n < 83:
		return func(ctx context.Context) error { return c.retry(ctx, a, id) }
	case n < 85:
		return func(ctx context.Context) error { return c.dismiss(ctx, a, id) }
	default:
		return func(ctx context.Context) error { return c.read(ctx, a, id) }
	}
}

// someLeases picks one or two leases of different jobs: mostly recent ones, so that some of them are still valid.
func (c *client) someLeases(h *history) []held {
	h.mu.Lock()
	defer h.mu.Unlock()
	var some []held
	for range 1 + c.rand.IntN(2) {
		from := h.leases
		if c.rand.IntN(4) > 0 {
			from = from[max(0, len(from)-jobs):]
		}
		if len(from) == 0 {
			break
		}
		l := from[c.rand.IntN(len(from))]
		if len(some) == 0 || some[0].id != l.id {
			some = append(some, l)
		}
	}
	// The engine sends a lease's outcome in one batch only. Here two clients may send the same two leases at once, and
	// must not wait for each other.
	slices.SortFunc(some, func(a, b held) int { return bytes.Compare(a.id[:], b.id[:]) })
	return some
}
