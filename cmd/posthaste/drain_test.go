package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// Processes of the API are replaced one after the other, while 200 requests a second go to all that the proxy takes for
// ready: with a drain delay that is longer than the proxy takes to notice, none fails, and each stored its job.
func TestNoRequestFailsWhileProcessesAreReplaced(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	url := pool.Config().ConnString()
	token := newToken(t, env{"DATABASE_URL": url})
	begin := func() (cmd *exec.Cmd, api, admin string) {
		cmd, logs := servingWith(t, []string{"OUTBOX_DRAIN_DELAY=1s"}, "--database-url", url, "--role", "api", "--api-addr", "127.0.0.1:0")
		api, admin = apiURL(t, logs), adminAddr(t, logs)
		awaitReadiness(t, admin, http.StatusOK)
		return cmd, api, admin
	}
	proxy := new(lateProxy)
	cmd, api, admin := begin()
	proxy.add(api)
	stop := make(chan struct{})
	var sent, failed atomic.Int64
	var requests sync.WaitGroup
	underWay := make(chan struct{}, 20) // of one caller: more are refused on a machine that is too slow for them
	requests.Go(func() {
		each := time.NewTicker(5 * time.Millisecond)
		defer each.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-each.C:
			}
			underWay <- struct{}{}
			requests.Go(func() {
				defer func() { <-underWay }()
				sent.Add(1)
				if err := enqueueAt(t, proxy.target(n), token); err != nil {
					if failed.Add(1) == 1 {
						t.Logf("request %d: %v", n, err)
					}
				}
			})
		}
	})
	finish := sync.OnceFunc(func() {
		close(stop)
		requests.Wait()
	})
	defer finish()
	for range 2 {
		next, nextAPI, nextAdmin := begin()
		proxy.add(nextAPI)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		awaitReadiness(t, admin, http.StatusServiceUnavailable)
		time.Sleep(400 * time.Millisecond) // until the proxy has noticed
		proxy.leave(api)
		if err := cmd.Wait(); err != nil {
			t.Errorf("serve ended with %v, want exit status 0", err)
		}
		cmd, api, admin = next, nextAPI, nextAdmin
	}
	finish()
	var stored int64
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if failed.Load() > 0 || sent.Load() < 200 || stored != sent.Load() {
		t.Errorf("%d of %d requests failed, and %d jobs are stored, want none of 200 or more, and as many", failed.Load(), sent.Load(), stored)
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
