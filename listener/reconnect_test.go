package listener_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTerminatedBackendIsReplacedAndTheGapAnnounced(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := r.startHearing(t)
	for i := range 3 {
		r.exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", app+"-listener")
		r.awaitWake(t) // although nobody notified
		await(t, "it hears again", r.Listening)
		if got, want := r.metric(t, "outbox_listener_reconnects_total"), float64(i+1); got != want {
			t.Errorf("reconnects = %v, want %v", got, want)
		}
	}
	r.notify(t)
	r.awaitWake(t)
	stop()
	r.wantReported(t, true, false, true, false, true, false, true, false)
}

func TestServerThatIsDownAtStartIsTriedWithPatience(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.proxy.behave.Store(refuse)
	began := time.Now()
	stop := r.start(t)
	await(t, "it tries a fourth time", func() bool { return r.proxy.accepted.Load() >= 4 })
	// The waits are 100, 200, 400 and then 667 ms, each ± 50 %.
	attempted, took := r.proxy.accepted.Load(), time.Since(began)
	if most := 4 + int32(took/(300*time.Millisecond)); attempted > most {
		t.Errorf("%d attempts in %s, want %d at most", attempted, took, most)
	}
	if r.Listening() {
		t.Error("Listening without a server")
	}
	r.proxy.behave.Store(forward)
	r.awaitWake(t)
	await(t, "it hears", r.Listening)

	stop()
	// One connection per attempt: pgx would make another, to cancel nothing.
	attempts := bytes.Count(r.log.bytes(), []byte("listener could not connect"))
	if got := int(r.proxy.refused.Load()); got != attempts {
		t.Errorf("connections refused = %d, want one for each of %d attempts", got, attempts)
	}
	r.wantReported(t, true, false)
	want := []string{"WARN listener could not connect", "INFO listener connected", "INFO listener stopped"}
	if diff := cmp.Diff(want, r.log.news(t)); diff != "" {
		t.Errorf("news (-want +got):\n%s", diff)
	}
}

func TestOutageIsTwoWarnings(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := r.startHearing(t)
	r.proxy.down()
	await(t, "the outage shows", func() bool { return !r.Listening() })
	await(t, "it cannot connect", func() bool { return len(r.log.news(t)) >= 3 })
	r.proxy.up()
	r.awaitWake(t)
	await(t, "it hears again", r.Listening)

	stop()
	want := []string{
		"INFO listener connected",
		"WARN listener lost its connection",
		"WARN listener could not connect",
		"INFO listener connected",
		"INFO listener stopped",
	}
	if diff := cmp.Diff(want, r.log.news(t)); diff != "" {
		t.Errorf("news (-want +got):\n%s", diff)
	}
}

// The same answer as a standby gives.
func TestReadOnlyServerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	name := r.pool.Config().ConnConfig.Database
	r.exec(t, "ALTER DATABASE "+name+" SET default_transaction_read_only = on")
	r.start(t)
	await(t, "two attempts were refused", func() bool { return r.proxy.accepted.Load() >= 2 })
	if r.Listening() {
		t.Error("Listening on a read-only server")
	}
	r.exec(t, "ALTER DATABASE "+name+" RESET default_transaction_read_only")
	r.awaitWake(t)
	await(t, "it hears", r.Listening)
}

// pgxlisten sends LISTEN without a deadline.
func TestListenThatIsNeverAnsweredIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.proxy.behave.Store(muteListen)
	r.start(t)
	await(t, "it has sent LISTEN in vain", func() bool {
		pairs := r.proxy.current()
		return len(pairs) == 1 && pairs[0].frozen.Load()
	})
	r.proxy.behave.Store(forward)
	await(t, "it hears over another connection", r.Listening)
}

func TestRunRefusesToRunTwiceAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := r.startHearing(t)
	if err := r.Run(t.Context()); err == nil {
		t.Error("second Run = nil, want an error")
	}
	if !r.Listening() {
		t.Error("the second Run stopped the first")
	}
	stop()
	r.startHearing(t) // one after the other is fine
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T, *rig){
		"while it connects to a server that does not answer": func(t *testing.T, r *rig) {
			r.proxy.behave.Store(ignore)
			r.start(t)
			await(t, "it has dialled", func() bool { return r.proxy.accepted.Load() == 1 })
		},
		"while it waits for the next attempt": func(t *testing.T, r *rig) {
			r.proxy.behave.Store(refuse)
			r.start(t)
			await(t, "it was refused", func() bool { return r.proxy.accepted.Load() >= 4 })
		},
		"while it listens": func(t *testing.T, r *rig) {
			r.startHearing(t)
		},
		"while its connection is half-open": func(t *testing.T, r *rig) {
			r.startHearing(t)
			r.proxy.freeze()
		},
	}
	for name, arrange := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrange(t, newRig(t, nil)) // start's own cleanup stops and checks
		})
	}
}
