package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A proxy that sends http to https makes a GET of a POST, whose 200 would say that a
// job is stored.
func TestOnlyTheSameRequestIsSentElsewhere(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		var got []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = append(got, r.Method+" "+r.URL.Path)
			if !strings.HasPrefix(r.URL.Path, "/there/") {
				http.Redirect(w, r, "/there"+r.URL.Path, status)
				return
			}
			_, _ = w.Write([]byte(`{"id": "x", "jobs": []}`))
		}))
		for _, own := range []*http.Client{nil, server.Client()} {
			c, err := New(server.URL, Config{HTTP: own, Attempts: 1})
			if err != nil {
				t.Fatal(err)
			}
			got = nil
			stored, err := c.Enqueue(t.Context(), NewJob{Kind: "mail"})
			if same := status >= 307; same {
				if err != nil || stored.ID != "x" || strings.Join(got, ",") != "POST /jobs,POST /there/jobs" {
					t.Errorf("%d: %v, %v after %v; want the same POST there", status, stored, err, got)
				}
			} else if p, ok := errors.AsType[*Problem](err); !ok || p.Status != status || !strings.Contains(p.Error(), "/there/jobs") || len(got) != 1 {
				t.Errorf("%d: %v, %v after %v; want a problem that says where to", status, stored, err, got)
			}
			got = nil
			if _, err := c.JobPage(t.Context(), JobFilter{}, PageRequest{}); err != nil || strings.Join(got, ",") != "GET /jobs,GET /there/jobs" {
				t.Errorf("%d: %v after %v; want the GET there", status, err, got)
			}
		}
		server.Close()
	}
}

// A token that was sent over TLS is not sent without it, on the way to the same host.
func TestATokenStaysOnTLS(t *testing.T) {
	t.Parallel()
	plain := 0
	there := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { plain++ }))
	defer there.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, there.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	c, err := New(server.URL, Config{HTTP: server.Client(), Token: "ph_secret", Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.JobPage(t.Context(), JobFilter{}, PageRequest{})
	if p, ok := errors.AsType[*Problem](err); !ok || p.Status != http.StatusTemporaryRedirect || plain > 0 {
		t.Errorf("%v, and %d requests without TLS", err, plain)
	}
}

// Something in between that answers everything with 200 stores nothing.
func TestAnAnswerWithoutAJobIsNone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) }))
	defer server.Close()
	c, err := New(server.URL, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Enqueue(t.Context(), NewJob{Kind: "mail"}); err == nil {
		t.Error("a job is said to be stored")
	}
	if _, err := c.EnqueueBatch(t.Context(), []NewJob{{Kind: "mail"}}); err == nil {
		t.Error("a batch is said to be stored")
	}
}
