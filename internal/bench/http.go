package bench

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// overHTTP measures the API over TCP with clients that send the next request as soon as they have the response, on
// connections that stay open. The clients are part of this process, and take processor time from the API.
func overHTTP(ctx context.Context, r *rig) ([]Figure, error) {
	if r.Overload {
		return beside(ctx, r)
	}
	clients, duration := cmp.Or(r.Clients, 32), cmp.Or(r.Duration, 10*time.Second)
	addr, bearer, stop, err := r.serve(ctx, r.API)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	var ids []string
	var mu sync.Mutex
	post := posting(bearer, `{"kind":"bench.noop","payload":{"n":7}}`)
	posted, err := load(ctx, addr, clients, duration, post, http.StatusAccepted, func(answer []byte) error {
		var a struct{ ID string }
		if err := json.Unmarshal(answer, &a); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, a.ID)
		return nil
	})
	if err != nil {
		return nil, err
	}
	figures := append([]Figure{{"post_per_s", posted.rate}}, named("post_", posted.took)...)
	got, err := load(ctx, addr, clients, duration, func(i int) string {
		return "GET /jobs/" + ids[i*7919%len(ids)] + " HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer " + bearer +
			"\r\n\r\n"
	}, http.StatusOK, func([]byte) error { return nil })
	if err != nil {
		return nil, err
	}
	figures = append(figures, Figure{"get_per_s", got.rate})
	figures = append(figures, named("get_", got.took)...)
	over, err := load(ctx, addr, clients*overload, duration, post, http.StatusAccepted, func([]byte) error {
		return nil
	})
	if err != nil {
		return nil, err
	}
	figures = append(figures, Figure{"overloaded_post_per_s", over.rate},
		Figure{"overloaded_refused_per_s", over.refused})
	return append(figures, named("overloaded_post_", over.took)...), nil
}

func named(prefix string, took []time.Duration) []Figure {
	figures := percentiles(took)
	for i := range figures {
		figures[i].Name = prefix + figures[i].Name
	}
	return figures
}

// overload is how many times more clients there are in the last part. They repeat a refused request at once, as badly
// written clients do.
const overload = 20

// posting returns a function that returns a request to store a job.
func posting(bearer, job string) func(int) string {
	request := fmt.Sprintf(
		"POST /jobs HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		bearer, len(job), job)
	return func(int) string { return request }
}

// serve serves the API or the console as package server does: with as many connections, and as a login of its own that
// row security confines to the tenant of the token, which is looked up.
func (r *rig) serve(ctx context.Context, of Handler) (addr, bearer string, stop func(), err error) {
	pool, drop, err := r.loginAPI(ctx)
	if err != nil {
		return "", "", nil, err
	}
	defer func() {
		if err != nil {
			drop()
		}
	}()
	handler, bearer, err := of(ctx, r.pool, pool)
	if err != nil {
		return "", "", nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", nil, err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: 30 * time.Second,
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(ln) // until Close
	}()
	return ln.Addr().String(), bearer, func() {
		_ = server.Close()
		<-ended
		drop()
	}, nil
}

// loginAPI creates a login with only the privileges that the API needs, and connects as it; drop removes both.
func (r *rig) loginAPI(ctx context.Context) (pool *pgxpool.Pool, drop func(), err error) {
	config := r.pool.Config()
	name := config.ConnConfig.Database + "_api" // unique, because the database's name is
	password := rand.Text()
	if _, err := r.pool.Exec(ctx, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE outbox_api`, name,
		password)); err != nil {
		return nil, nil, fmt.Errorf("make a login for the API: %w", err)
	}
	config.MaxConns = 8
	config.ConnConfig.User, config.ConnConfig.Password = name, password
	pool, err = pgxpool.NewWithConfig(context.Background(), config)
	drop = func() {
		if pool != nil {
			pool.Close()
		}
		_, _ = r.pool.Exec(context.WithoutCancel(ctx), `DROP ROLE `+name)
	}
	if err != nil {
		drop()
	}
	return pool, drop, err
}

type loaded struct {
	rate    float64 // accepted requests per second
	refused float64 // requests refused with a 429 per second
	took    []time.Duration
}

// load makes every client send requests, one after the other, for the duration.
func load(ctx context.Context, addr string, clients int, duration time.Duration, request func(i int) string, want int,
	answered func([]byte) error,
) (loaded, error) {
	var mu sync.Mutex
	var all loaded
	var refused atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	started := time.Now()
	for c := range clients {
		group.Go(func() error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			in := bufio.NewReader(conn)
			var took []time.Duration
			for i := c; time.Since(started) < duration && ctx.Err() == nil; i += clients {
				begun := time.Now()
				if _, err := io.WriteString(conn, request(i)); err != nil {
					return err
				}
				status, body, err := readAnswer(in)
				switch {
				case err != nil:
					return err
				case status == http.StatusTooManyRequests:
					refused.Add(1)
					continue
				case status != want:
					return fmt.Errorf("got %d, want %d: %s", status, want, body)
				}
				took = append(took, time.Since(begun))
				if err := answered(body); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all.took = append(all.took, took...)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return all, err
	}
	if len(all.took) == 0 {
		return all, errors.New("no request was answered")
	}
	all.rate, all.refused = perSecond(int64(len(all.took)), started), perSecond(refused.Load(), started)
	return all, nil
}

func readAnswer(in *bufio.Reader) (status int, body []byte, err error) {
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}
