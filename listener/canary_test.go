package listener_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/listener"
)

func TestHalfOpenConnectionIsNoticedAndReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := r.startHearing(t)
	r.proxy.freeze()
	r.notify(t) // vanishes

	r.awaitWake(t) // from the new connection
	if got := r.metric(t, "outbox_listener_canary_failures_total"); got != 1 {
		t.Errorf("%v canaries were lost until the connection was replaced, want 1", got)
	}
	await(t, "it hears again", r.Listening)
	r.notify(t)
	r.awaitWake(t)
	stop()

	r.wantReported(t, true, false, true, false)
	want := []string{"INFO listener connected", "WARN listener receives no notifications", "INFO listener connected", "INFO listener stopped"}
	if diff := cmp.Diff(want, r.log.news(t)); diff != "" {
		t.Errorf("news (-want +got):\n%s", diff)
	}
}

func TestUnlistenBehindOurBackIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := r.startHearing(t)
	r.proxy.inject("UNLISTEN *")
	r.awaitWake(t) // from the new connection
	await(t, "it hears again", r.Listening)
	stop()
	r.wantReported(t, true, false, true, false)
}

func TestPoolerThatSwallowsListenIsDeafFromTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.proxy.behave.Store(swallowListen)
	stop := r.start(t)
	await(t, "a canary got lost", func() bool { return r.metric(t, "outbox_listener_canary_failures_total") >= 1 })
	if r.Listening() || r.metric(t, "outbox_listener_connected") != 0 {
		t.Error("Listening through a pooler that swallows LISTEN")
	}
	r.proxy.behave.Store(forward)
	await(t, "it hears without the pooler", r.Listening)
	stop()
	want := []string{"WARN listener receives no notifications", "INFO listener connected", "INFO listener stopped"}
	if diff := cmp.Diff(want, r.log.news(t)); diff != "" {
		t.Errorf("news (-want +got):\n%s", diff)
	}
}

func TestCanarySentToAnotherDatabaseMeansDeaf(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *rig, cfg *listener.Config) {
		cfg.Canary = pgtest.NewEmpty(t)
		cfg.SetPatience(interval)
	})
	r.start(t)
	await(t, "a canary got lost", func() bool { return r.metric(t, "outbox_listener_canary_failures_total") >= 1 })
	await(t, "it does not hear", func() bool { return !r.Listening() })
}

func TestBrokenPoolDoesNotMeanDeaf(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		sender   listener.Sender
		failures bool
	}{
		"the pool fails": {broken, true},
		"there is none":  {nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(_ *rig, cfg *listener.Config) { cfg.Canary = tt.sender })
			stop := r.startHearing(t)
			await(t, "three canaries came back", func() bool { return r.metric(t, "outbox_listener_canary_seconds") >= 3 })
			stop()
			r.wantReported(t, true, false)
			if got := r.metric(t, "outbox_listener_canary_failures_total") > 0; got != tt.failures {
				t.Errorf("canary failures counted = %t, want %t", got, tt.failures)
			}
		})
	}
}

func TestNoWayToSendACanary(t *testing.T) {
	t.Parallel()
	arrange := func(t *testing.T) *rig {
		r := newRig(t, func(_ *rig, cfg *listener.Config) {
			cfg.Canary = broken
			cfg.SetPatience(2 * time.Second)
		})
		r.startHearing(t)
		r.proxy.behave.Store(refuse) // leaves the listener's connection alone
		return r
	}
	t.Run("and nothing heard means deaf", func(t *testing.T) {
		t.Parallel()
		r := arrange(t)
		await(t, "it is deaf", func() bool { return !r.Listening() })
		r.proxy.behave.Store(forward)
		await(t, "it hears again", r.Listening)
	})
	t.Run("but notifications heard mean hearing", func(t *testing.T) {
		t.Parallel()
		r := arrange(t)
		failed := r.metric(t, "outbox_listener_canary_failures_total")
		await(t, "two canaries could not be sent", func() bool {
			r.notify(t)
			return r.metric(t, "outbox_listener_canary_failures_total") >= failed+2
		})
		if !r.Listening() {
			t.Error("deaf although notifications arrive")
		}
		r.wantReported(t, true)
	})
}

// A question is no statement: the server answers, and what it last began is still
// the LISTEN by which the reaper knows us.
func TestQuestionsAreNoQueries(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *rig, cfg *listener.Config) { cfg.CanaryInterval = time.Hour })
	r.startHearing(t)
	look := func() (query string, began, answered time.Time) {
		err := r.pool.QueryRow(t.Context(), `SELECT query, query_start, state_change FROM pg_stat_activity
			WHERE application_name = $1 AND datname = current_database()`, app+"-listener").Scan(&query, &began, &answered)
		if err != nil {
			t.Fatal(err)
		}
		return query, began, answered
	}
	query, began, answered := look()
	var now, nowBegan time.Time
	await(t, "a question was answered", func() bool {
		_, nowBegan, now = look()
		return now.Sub(answered) > time.Second
	})
	if !strings.HasPrefix(query, `listen "`) || !nowBegan.Equal(began) {
		t.Errorf("the listener's last query is %q, begun at %s and before the question at %s, want the LISTEN", query, nowBegan, began)
	}
}
