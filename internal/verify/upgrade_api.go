package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// upgradeServers are a posthaste serve of each build, with the roles api and reap, and the requests to them.
type upgradeServers struct {
	run       *Run
	processes []*child.Process
	end       context.CancelFunc
	ended     chan struct{}

	// The rest is valid once ended is closed.
	answered map[string]int // by build
	failed   []string
}

// upgradeRequests are what each server is asked in turn: reads of most tables, and acts. The acts concern a queue and a
// schedule of their own, so that they change nothing for the workers.
var upgradeRequests = []string{
	"GET /jobs?limit=5", "GET /stats", "GET /queues", "GET /workers", "GET /problems", "GET /overview", "GET /doctor",
	"GET /dead-letters", "GET /keys", "GET /schedules", "GET /sinks", "GET /audit", "GET /operations", "GET /me",
	"POST /queues/unused/pause", "POST /queues/unused/resume",
}

// serversOfBoth starts the two servers and sends them requests until stop.
func (r *Run) serversOfBoth(ctx context.Context) (*upgradeServers, error) {
	out, err := r.posthaste(ctx, r.Previous, "tokens", "create", "upgrade", "--all-tenants",
		"-c", "jobs.read,admin.read,admin.mutate").Output()
	if err != nil {
		return nil, fmt.Errorf("create a token: %w", err)
	}
	token := strings.TrimSpace(string(out))
	u := &upgradeServers{run: r, ended: make(chan struct{}), answered: map[string]int{}}
	addresses := map[string]string{}
	for name, folder := range map[string]string{"server1": r.Previous, "server2": filepath.Dir(r.Program)} {
		p, err := r.serve(name, folder, "OUTBOX_ROLE=api,reap", "OUTBOX_WORKER="+name)
		if err != nil {
			return nil, err
		}
		u.processes = append(u.processes, p)
		if err := r.awaitStatus(ctx, "ready", p); err != nil {
			return nil, err
		}
		listens, err := logged(p, saying("API listens"))
		if err != nil || len(listens) == 0 {
			return nil, fmt.Errorf("%s has not logged the address of its API: %w", name, err)
		}
		addresses[name] = listens[0].Addr
	}
	requesting, end := context.WithCancel(ctx)
	u.end = end
	go u.request(requesting, token, addresses)
	return u, nil
}

// request sends each server the requests, one every 20 ms, until ctx ends.
func (u *upgradeServers) request(ctx context.Context, token string, addresses map[string]string) {
	defer close(u.ended)
	for i := 0; ctx.Err() == nil; i++ {
		method, path, _ := strings.Cut(upgradeRequests[i%len(upgradeRequests)], " ")
		for name, address := range addresses {
			status, err := ask(context.WithoutCancel(ctx), method, "http://"+address+path, token)
			if err != nil {
				u.failed = append(u.failed, fmt.Sprintf("%s: %s %s: %v", name, method, path, err))
			} else if status >= http.StatusBadRequest {
				u.failed = append(u.failed, fmt.Sprintf("%s: %s %s: status %d", name, method, path, status))
			} else {
				u.answered[name]++
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ask sends a request without a body, and returns the status of the response.
func ask(ctx context.Context, method, url, token string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, errors.Join(err, response.Body.Close())
}

// stop ends the requests and the servers, and checks that each server answered all of its own.
func (u *upgradeServers) stop(ctx context.Context) error {
	u.end()
	<-u.ended
	u.run.None("requests to the API of either build that failed", u.failed)
	for _, p := range u.processes {
		u.run.Expect("requests that the API of "+p.Name+" answered", float64(u.answered[p.Name]), ">=",
			float64(len(upgradeRequests)))
	}
	return u.run.stop(ctx, u.processes...)
}
