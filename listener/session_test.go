package listener

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// echo is a Sender whose canaries come back after a delay, each its own, and
// those after the last at once.
type echo struct {
	session *session
	delays  []time.Duration
	sent    int
}

func (e *echo) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	delay := time.Duration(0)
	if e.sent < len(e.delays) {
		delay = e.delays[e.sent]
	}
	e.sent++
	time.AfterFunc(delay, e.session.returned)
	return pgconn.CommandTag{}, nil
}

func watched(t *testing.T, delays ...time.Duration) (*session, *echo) {
	t.Helper()
	l, err := New("host=nowhere", "jobs", NewSignal(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(l, new(line))
	s.setup.Stop()
	e := &echo{session: s, delays: delays}
	l.senders = []Sender{e}
	return s, e
}

func TestIdleListenerAsksAtMostTwiceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := watched(t)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour-time.Second)
		defer stop()
		s.watch(ctx)
		if got := e.sent; got < 110 || got > 120 {
			t.Errorf("canaries in an hour = %d, want up to 120", got)
		}
		if !s.Hearing() || s.deaf {
			t.Errorf("hearing = %t and deaf = %t, want true and false", s.Hearing(), s.deaf)
		}
	})
}

func TestCanaryThatTakesMoreThanFiveSecondsIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := watched(t, 4*time.Second, 4*time.Second, 6*time.Second)
		start := time.Now()
		s.watch(t.Context())
		if !s.deaf || s.Hearing() {
			t.Errorf("deaf = %t and hearing = %t, want true and false", s.deaf, s.Hearing())
		}
		// Sent at 0, 34 and 68 seconds; the last is lost after five more.
		if got, want := time.Since(start), 73*time.Second; got != want {
			t.Errorf("deaf after %s, want %s", got, want)
		}
		synctest.Wait()
	})
}
