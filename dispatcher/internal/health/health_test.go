package health

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// A settlement that was tried again and again while the database was unreachable waits for long. It continues as soon
// as any statement has succeeded; but one that fails for a reason of its own is not tried more often because others
// succeed.
func TestASettlementGoesOnWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	away := errors.New("connection refused")
	for name, c := range map[string]struct {
		err  error
		back time.Duration // when a statement succeeds
		want time.Duration
	}{
		"back after a while":   {away, time.Minute, time.Minute},
		"back at once":         {away, 0, backoff.DefaultMin},
		"back before it waits": {away, -1, backoff.DefaultMin},
		"stays away":           {away, 2 * time.Hour, time.Hour},
		"shutting down":        {&pgconn.PgError{Code: "57P01"}, time.Minute, time.Minute},
		"its disk is full":     {&pgconn.PgError{Code: "53100"}, time.Minute, time.Hour},
		"its own fault":        {&pgconn.PgError{Code: "42501"}, time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := New(slog.New(slog.DiscardHandler))
				h.Failed(c.err)
				if c.back < 0 {
					h.OK()
				} else {
					time.AfterFunc(c.back, h.OK)
				}
				began := time.Now()
				for range 2 { // two settlers
					go h.Rest(t.Context(), time.Hour, c.err)
				}
				h.Rest(t.Context(), time.Hour, c.err)
				if waited := time.Since(began); waited != c.want {
					t.Errorf("waited for %s, want %s", waited, c.want)
				}
				time.Sleep(3 * time.Hour)
			})
		})
	}
}

// What goes wrong again and again is logged at once, and then every ten seconds with how often it was not; the latest
// statement decides whether the database answers, and each failure may leave the server.
func TestFailuresAreLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h, left, away := New(slog.New(slog.NewTextHandler(&log, nil))), 0, errors.New("connection refused")
		h.Leave = func(error) { left++ }
		for range 25 {
			h.Failed(away)
			h.Complain(t.Context(), "claim failed", away, slog.String("queue", "q"))
			time.Sleep(time.Second)
		}
		if lines := strings.Count(log.String(), "claim failed"); lines != 3 || strings.Count(log.String(), "since_last_line=9") != 2 {
			t.Errorf("want three lines, two of which stand for nine others:\n%s", log.String())
		}
		if !errors.Is(h.Err(), away) || left != 25 {
			t.Errorf("the latest statement: %v; the server was left %d times", h.Err(), left)
		}
		if h.OK(); h.Err() != nil {
			t.Errorf("after a success: %v", h.Err())
		}
	})
}
