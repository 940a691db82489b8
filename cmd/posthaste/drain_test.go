package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// lateProxy knows the APIs that requests go to, in turns. One that has become unready stays among them for a while,
// as in a cluster.
type lateProxy struct {
	mu      sync.Mutex
	targets []string
}

func (p *lateProxy) add(api string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = append(p.targets, api)
}

func (p *lateProxy) leave(api string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = slices.DeleteFunc(p.targets, func(t string) bool { return t == api })
}

func (p *lateProxy) target(n int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.targets[n%len(p.targets)]
}

// replacement says how TestNoRequestFailsWhileProcessesAreReplaced replaces processes.
type replacement struct {
	times  int
	delay  string        // OUTBOX_DRAIN_DELAY
	notice time.Duration // after which the proxy knows that a process is unready
	rate   float64       // requests a second, at least
}

// replacements returns that of make drain if POSTHASTE_DRAIN is long, with the drain delay of the chart and a proxy
// that notices as late as one in a cluster, and otherwise a short one.
func replacements() replacement {
	if os.Getenv("POSTHASTE_DRAIN") == "long" {
		return replacement{times: 10, delay: "5s", notice: 3 * time.Second, rate: 190}
	}
	return replacement{times: 2, delay: "1s", notice: 400 * time.Millisecond}
}

// requests go to what a proxy takes for ready, 200 a second.
type requests struct {
	proxy        *lateProxy
	token        string
	stop         chan struct{}
	sent, failed atomic.Int64
	all          sync.WaitGroup
}

// send sends them until it is told to stop.
func (r *requests) send(t *testing.T) {
	each := time.NewTicker(5 * time.Millisecond)
	defer each.Stop()
	underWay := make(chan struct{}, 20) // of one caller: more are refused on a machine that is too slow for them
	for n := 0; ; n++ {
		select {
		case <-r.stop:
			return
		case <-each.C:
		}
		underWay <- struct{}{}
		r.all.Go(func() {
			defer func() { <-underWay }()
			r.sent.Add(1)
			if err := enqueueAt(t, r.proxy.target(n), r.token); err != nil {
				if r.failed.Add(1) == 1 {
					t.Logf("request %d: %v", n, err)
				}
			}
		})
	}
}

// Processes of the API are replaced one after the other, while 200 requests a second go to all that the proxy takes for
// ready: with a drain delay that is longer than the proxy takes to notice, none fails, and each stored its job.
func TestNoRequestFailsWhileProcessesAreReplaced(t *testing.T) {
	t.Parallel()
	how := replacements()
	pool := pgtest.New(t)
	url := pool.Config().ConnString()
	r := &requests{proxy: new(lateProxy), token: newToken(t, env{"DATABASE_URL": url}), stop: make(chan struct{})}
	start := func() (cmd *exec.Cmd, api, admin string) {
		cmd, logs := servingWith(t, []string{"OUTBOX_DRAIN_DELAY=" + how.delay},
			"--database-url", url, "--role", "api", "--api-addr", "127.0.0.1:0")
		api, admin = apiURL(t, logs), adminAddr(t, logs)
		awaitReadiness(t, admin, http.StatusOK)
		r.proxy.add(api)
		return cmd, api, admin
	}
	cmd, api, admin := start()
	began := time.Now()
	r.all.Go(func() { r.send(t) })
	finish := sync.OnceFunc(func() {
		close(r.stop)
		r.all.Wait()
	})
	defer finish()
	for range how.times {
		next, nextAPI, nextAdmin := start()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		awaitReadiness(t, admin, http.StatusServiceUnavailable)
		time.Sleep(how.notice)
		r.proxy.leave(api)
		if err := cmd.Wait(); err != nil {
			t.Errorf("serve ended with %v, want exit status 0", err)
		}
		cmd, api, admin = next, nextAPI, nextAdmin
	}
	finish()
	rate := float64(r.sent.Load()) / time.Since(began).Seconds()
	var stored int64
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d replaced, %d requests, %.0f a second, %d failed, %d jobs",
		how.times, r.sent.Load(), rate, r.failed.Load(), stored)
	if r.failed.Load() > 0 || r.sent.Load() < 200 || stored != r.sent.Load() || rate < how.rate {
		t.Errorf("want no request of 200 or more to have failed, as many jobs, and %.0f requests a second", how.rate)
	}
}

func enqueueAt(t *testing.T, api, token string) error {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api+"/jobs", strings.NewReader(`{"kind": "greet"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusAccepted {
		return fmt.Errorf("%s: %w", res.Status, cmp.Or(err, errors.New("want 202")))
	}
	return nil
}

func awaitReadiness(t *testing.T, admin string, want int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		res, err := http.Get("http://" + admin + "/readyz")
		code := http.StatusServiceUnavailable // of a process that is gone
		if err == nil {
			code = res.StatusCode
			_ = res.Body.Close()
		}
		if code == want {
			return
		}
	}
	t.Fatalf("/readyz is never %d", want)
}
