package access

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// wantEnded fails unless the session has ended.
func wantEnded(t *testing.T, sessions *EndedSessions, where, id string) {
	t.Helper()
	if ended, err := sessions.Has(t.Context(), id); err != nil || !ended {
		t.Errorf("%s, session %s is accepted, %v", where, id, err)
	}
}

func wantGoingOn(t *testing.T, sessions *EndedSessions, where, id string) {
	t.Helper()
	if ended, err := sessions.Has(t.Context(), id); err != nil || ended {
		t.Errorf("%s, session %s is refused, %v", where, id, err)
	}
}

func TestASessionEndsInEveryProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Login(t, pgtest.New(t), "outbox_api")
	here, elsewhere := NewEndedSessions(pool), NewEndedSessions(pool)
	wantGoingOn(t, here, "before", "a")
	wantGoingOn(t, elsewhere, "before", "a")
	for range 2 {
		if err := here.End(t.Context(), "a", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	wantEnded(t, here, "where it was ended", "a")
	// Elsewhere the look is remembered, but not for longer than five seconds.
	if _, ok := elsewhere.cache.recall("a", time.Now().Add(cacheFor)); ok {
		t.Error("it is still remembered when the five seconds are over")
	}
	elsewhere.cache.forget("a") // the seconds have passed
	wantEnded(t, elsewhere, "elsewhere", "a")
	wantEnded(t, NewEndedSessions(pool), "after a restart", "a")
	wantGoingOn(t, here, "where another was ended", "b")
	wantGoingOn(t, elsewhere, "elsewhere", "b")
}

func TestSessionsThatHaveExpiredAreRemoved(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	sessions := NewEndedSessions(pgtest.Login(t, db, "outbox_api"))
	for id, left := range map[string]time.Duration{"x": -time.Minute, "y": -time.Hour, "z": -time.Second} {
		if err := sessions.End(t.Context(), id, left); err != nil {
			t.Fatal(err)
		}
	}
	if err := sessions.End(t.Context(), "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256([]byte("a"))
	if !ask[bool](t, db, `SELECT array_agg(session) = ARRAY[$1::bytea] FROM outbox.ended_sessions`, hash[:]) {
		t.Error("there are other rows than the hash of the session that has not expired")
	}
}

// A session that cannot be ended elsewhere has ended here, also for a look that began before.
func TestASessionEndsHereWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Login(t, pgtest.New(t), "outbox_api")
	sessions := NewEndedSessions(pool)
	began := time.Now()
	wantGoingOn(t, sessions, "before", "a")
	pool.Close()
	if err := sessions.End(t.Context(), "a", time.Second); err == nil {
		t.Error("it was ended in other processes, without a database")
	}
	wantEnded(t, sessions, "here", "a")
	sessions.cache.remember("a", look[struct{}]{until: began.Add(cacheFor)}, time.Now())
	wantEnded(t, sessions, "after an older look", "a")
	if _, err := sessions.Has(t.Context(), "b"); err == nil {
		t.Error("without a database it is known whether a session was ended")
	}
}
