package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
)

// logbook is a log that can be read.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// logged returns the lines with a message.
func (l *logbook) logged(t *testing.T, message string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []map[string]any
	for line := range bytes.Lines(l.text.Bytes()) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m["msg"] == message {
			found = append(found, m)
		}
	}
	return found
}

// An operator learns why a bearer was refused, and neither he nor the caller learns it
// of the bearer itself.
func TestARefusedBearerIsLoggedWithItsReason(t *testing.T) {
	t.Parallel()
	var log logbook
	r := newRig(t)
	tokens := access.NewTokens(r.db, access.TokensConfig{})
	grant := access.Grant{Name: "shop", Tenant: tenantA, Capabilities: []access.Capability{access.JobsRead}, CreatedBy: "ada"}
	token, info, err := tokens.Create(t.Context(), grant)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Revoke(t.Context(), info.ID, "ada"); err != nil {
		t.Fatal(err)
	}
	r = newRig(t, func(c *api.Config) {
		c.Pool, c.Logger, c.Authenticator = r.pool, slog.New(slog.NewJSONHandler(&log, nil)), access.Combine(access.NewTokens(r.pool, access.TokensConfig{}), nil)
	})
	refuse := func(bearer, from string) {
		t.Helper()
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs", nil)
		req.Header.Set("Authorization", "Bearer "+bearer)
		req.Header.Set("X-Request-Id", "request-1")
		req.RemoteAddr = from + ":1234"
		if text := r.send(req).want(401, nil).Body.String(); strings.Contains(text, "revoked") {
			t.Errorf("the caller is told: %s", text)
		}
	}
	for range 3 { // logged once
		refuse(token.Reveal(), "192.0.2.1")
	}
	refuse("whatever-this-is", "192.0.2.2")
	lines := log.logged(t, "bearer refused")
	if len(lines) != 2 {
		t.Fatalf("told %d times, want one line for each reason: %v", len(lines), lines)
	}
	for i, want := range []map[string]any{
		{"level": "WARN", "request_id": "request-1", "remote": "192.0.2.1", "token": info.ID, "reason": "token " + info.ID + " is revoked"},
		{"level": "WARN", "request_id": "request-1", "remote": "192.0.2.2", "token": "", "reason": "the bearer is neither a token nor a JWT"},
	} {
		for key, value := range want {
			if lines[i][key] != value {
				t.Errorf("%s = %v, want %v", key, lines[i][key], value)
			}
		}
	}
	for n := range 100 { // made up, from everywhere
		refuse("ph_"+strings.Repeat("a", 14)+string(rune('a'+n/26))+string(rune('a'+n%26))+"_"+strings.Repeat("b", 52), fmt.Sprintf("192.0.2.%d", n))
	}
	if lines := log.logged(t, "bearer refused"); len(lines) != 20 {
		t.Errorf("told %d times within a moment, want 20", len(lines))
	}
	for _, secret := range []string{token.Reveal()[20:], strings.Repeat("b", 52), "whatever-this-is"} {
		if strings.Contains(log.text.String(), secret) {
			t.Errorf("the log has %s", secret)
		}
	}
}
