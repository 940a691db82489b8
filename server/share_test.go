package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// One caller whose acts all wait for a locked row leaves the others tokens that are looked up, jobs that are stored and
// found, and lists. The acts are given up with an answer that says that nothing was done.
func TestACallerWhoseActsWaitLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, nil, alone(pool), Config{})
	r.awaitReady()
	tokens := access.NewTokens(pool, access.TokensConfig{})
	tenant, other := outbox.NewID(), outbox.NewID()
	token := func(name string, tenant outbox.ID) string {
		secret, _, err := tokens.Create(t.Context(), access.Grant{
			Name: name, Tenant: tenant, CreatedBy: "the test",
			Capabilities: []access.Capability{access.JobsEnqueue, access.JobsRead, access.JobsCancel},
		})
		if err != nil {
			t.Fatal(err)
		}
		return secret.Reveal()
	}
	ask := func(ctx context.Context, bearer, method, path, body string) (status int, text string) {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+r.addr+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = res.Body.Close() }()
		read, _ := io.ReadAll(res.Body)
		return res.StatusCode, res.Header.Get("Retry-After") + string(read)
	}

	ids, err := outbox.EnqueueMany(t.Context(), pool, []outbox.Request{
		{Args: outbox.Raw{KindName: "mail", Payload: []byte("{}")}, Options: outbox.Options{Tenant: tenant}},
		{Args: outbox.Raw{KindName: "mail", Payload: []byte("{}")}, Options: outbox.Options{Tenant: other}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	greedy := token("greedy", tenant)
	answers := make(chan string, apiConnections)
	for range apiConnections {
		go func() {
			status, text := ask(context.WithoutCancel(t.Context()), greedy, "POST", "/jobs/"+ids[0].String()+"/cancel", "")
			answers <- fmt.Sprint(status, " ", text)
		}()
	}
	for waiting := 0; waiting < 3*apiConnections/4; time.Sleep(10 * time.Millisecond) {
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	for name, of := range map[string]outbox.ID{"root's": outbox.RootTenant, "another tenant's": other} {
		ctx, cancel := context.WithTimeout(t.Context(), LockWait*3/5)
		bearer := token(name, of)
		for _, c := range []struct {
			method, path, body string
			status             int
		}{
			{"POST", "/jobs", `{"kind":"mail"}`, 202},
			{"POST", "/jobs", `{"kind":"mail","idempotencyKey":"x"}`, 202},
			{"GET", "/jobs", "", 200},
		} {
			if status, text := ask(ctx, bearer, c.method, c.path, c.body); status != c.status {
				t.Errorf("%s %s %s: %d %s, want %d", name, c.method, c.path, status, text, c.status)
			}
		}
		cancel()
	}
	if status, text := ask(t.Context(), token("reader", other), "GET", "/jobs/"+ids[1].String(), ""); status != 200 {
		t.Errorf("a job of the other tenant: %d %s", status, text)
	}
	first := <-answers
	if !strings.HasPrefix(first, "409 1{") || !strings.Contains(first, `"row_locked"`) ||
		!strings.Contains(first, `"outcome":"none"`) {
		t.Errorf("an act on a locked job: %s", first)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range apiConnections - 1 {
		if next := <-answers; !strings.HasPrefix(next, "409 ") && !strings.HasPrefix(next, "200 ") {
			t.Errorf("an act on a job that was locked: %s", next)
		}
	}
}
