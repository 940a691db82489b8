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

// server answers questions until it is told to hang; 0 is never.
type server struct {
	line  *line
	asked int
	hang  int // after so many answers
}

func (s *server) Write(b []byte) (int, error) {
	if s.asked++; s.hang == 0 || s.asked <= s.hang {
		time.AfterFunc(time.Second, func() { s.line.heard.Store(new(time.Now())) })
	}
	return len(b), nil
}

func watched(t *testing.T, delays ...time.Duration) (*session, *echo) {
	t.Helper()
	l, err := New("host=nowhere", "jobs", NewSignal(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	ln := new(line)
	ln.heard.Store(new(time.Now()))
	ln.out = &server{line: ln}
	s := newSession(l, ln)
	s.setup.Stop()
	e := &echo{session: s, delays: delays}
	l.senders = []Sender{e}
	return s, e
}

func TestIdleListenerSingsAtMostTwiceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := watched(t)
		ctx, stop := context.WithTimeout(t.Context(), time.Hour-time.Second)
		defer stop()
		s.watch(ctx)
		if got := e.sent; got < 110 || got > 120 {
			t.Errorf("canaries in an hour = %d, want up to 120", got)
		}
		if !s.Listening() || s.deaf {
			t.Errorf("hearing = %t and deaf = %t, want true and false", s.Listening(), s.deaf)
		}
	})
}

func TestCanaryThatTakesMoreThanFiveSecondsIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := watched(t, 4*time.Second, 4*time.Second, 6*time.Second)
		start := time.Now()
		s.watch(t.Context())
		if !s.deaf || s.Listening() {
			t.Errorf("deaf = %t and hearing = %t, want true and false", s.deaf, s.Listening())
		}
		// Sent at 0, 34 and 68 seconds; the last is lost after five more.
		if got, want := time.Since(start), 73*time.Second; got != want {
			t.Errorf("deaf after %s, want %s", got, want)
		}
		synctest.Wait()
	})
}

func TestServerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, e := watched(t)
		s.line.out.(*server).hang = 3
		ctx, stop := context.WithTimeout(t.Context(), 25*time.Second)
		defer stop()
		start := time.Now()
		s.watch(ctx)
		if !s.deaf || s.Listening() || e.sent != 1 {
			t.Errorf("deaf = %t, hearing = %t, canaries = %d, want true, false and 1", s.deaf, s.Listening(), e.sent)
		}
		// Asked at 0, 2.5 and 5 seconds, and in vain at 7.5.
		if got, want := time.Since(start), 10*time.Second; got != want {
			t.Errorf("deaf after %s, want %s", got, want)
		}
		synctest.Wait()
	})
}
